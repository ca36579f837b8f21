// Command closing reads what `go test -json` says, prints it as `go test` does
// without -v, and ends with one line that counts the tests:
//
//	test: 1234 passed, 0 failed, 2 skipped, in 61 packages
//
// Before that it names what was skipped, so that nothing is left out without a word, and
// the tests that took longest. It fails when a test or a package did.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// event is a line of `go test -json` (go doc test2json).
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64 // seconds, of a test that has ended
}

// Of the tests that took a second or more, the slowest are named.
const (
	slow      = 1 // seconds
	namedSlow = 10
)

func main() {
	name := "tests"
	if len(os.Args) > 1 {
		name = os.Args[1]
	}
	failed, err := closing(name, os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "closing:", err)
	}
	if failed || err != nil {
		os.Exit(1)
	}
}

func closing(name string, in io.Reader, out io.Writer) (failed bool, err error) {
	counts := map[string]int{}      // of tests, by how they ended
	packages := map[string]string{} // how they ended
	text := map[string]*strings.Builder{}
	var skipped []string
	var ended []event // tests, without those within others
	lines := bufio.NewReader(in)
	for {
		line, readErr := lines.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil {
				fmt.Fprint(out, line) // of make, say
				e = event{}
			}
			key := e.Package + " " + e.Test
			switch e.Action {
			case "output":
				if e.Test == "" && (strings.HasPrefix(e.Output, "ok  ") || strings.HasPrefix(e.Output, "FAIL\t")) {
					fmt.Fprint(out, e.Output)
					break
				}
				if text[key] == nil {
					text[key] = &strings.Builder{}
				}
				text[key].WriteString(e.Output)
			case "build-output":
				fmt.Fprint(out, e.Output)
			case "build-fail":
				failed = true
			case "pass", "fail", "skip":
				if e.Test == "" {
					packages[e.Package] = e.Action
				} else {
					counts[e.Action]++
					if !strings.Contains(e.Test, "/") && e.Elapsed >= slow {
						ended = append(ended, e)
					}
				}
				if e.Action == "skip" && e.Test != "" {
					skipped = append(skipped, e.Package+" "+e.Test)
				}
				if e.Action == "fail" {
					failed = true
					if text[key] != nil {
						fmt.Fprint(out, text[key])
					}
				}
				delete(text, key)
			}
		}
		if readErr == io.EOF {
			break
		}
		if readErr != nil {
			return failed, readErr
		}
	}
	for _, s := range skipped {
		fmt.Fprintf(out, "skipped: %s\n", s)
	}
	slices.SortStableFunc(ended, func(a, b event) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
	for _, e := range ended[:min(len(ended), namedSlow)] {
		fmt.Fprintf(out, "slow: %.1f s %s %s\n", e.Elapsed, e.Package, e.Test)
	}
	if len(packages) == 0 {
		failed = true // nothing ran
	}
	_, err = fmt.Fprintf(out, "%s: %d passed, %d failed, %d skipped, in %d packages\n", name, counts["pass"], counts["fail"], counts["skip"], len(packages))
	return failed, err
}
