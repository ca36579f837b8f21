package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// figure is one of the two figures of a package that have a limit.
type figure struct{ path, kind string }

// limits are those of all packages, 0 for none, and the ceilings of packages that are beyond one.
type limits struct {
	files, upward int
	ceilings      map[figure]int
}

// readCeilings reads lines of a package's path, "files" or "upward", and a number. A line that begins
// with # is a comment.
func readCeilings(file string) (map[figure]int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	ceilings := map[figure]int{}
	for n, line := range strings.Split(string(text), "\n") {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if len(words) != 3 || words[1] != "files" && words[1] != "upward" {
			return nil, fmt.Errorf("%s:%d: want a package, files or upward, and a number: %q", file, n+1, line)
		}
		most, err := strconv.Atoi(words[2])
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, n+1, err)
		}
		ceilings[figure{words[0], words[1]}] = most
	}
	return ceilings, nil
}

// check returns what is wrong with a figure, "" if nothing is.
func (l limits) check(path, kind string, have, limit int, advice string) string {
	ceiling, listed := l.ceilings[figure{path, kind}]
	switch {
	case limit == 0:
		return ""
	case have > max(limit, ceiling):
		return fmt.Sprintf("%s: %s %d, more than %d: %s", path, kind, have, max(limit, ceiling), advice)
	case listed && have <= limit:
		return fmt.Sprintf("%s: %s %d is within the limit of %d: remove its ceiling", path, kind, have, limit)
	case listed && have < ceiling:
		return fmt.Sprintf("%s: %s %d: lower its ceiling, which is %d", path, kind, have, ceiling)
	}
	return ""
}

// unknown returns the ceilings of packages that are not there, in order.
func (l limits) unknown(rooms []*room) (out []string) {
	for f := range l.ceilings {
		if !slices.ContainsFunc(rooms, func(r *room) bool { return r.path == f.path }) {
			out = append(out, fmt.Sprintf("%s: there is no such package: remove its ceiling", f.path))
		}
	}
	slices.Sort(out)
	return out
}
