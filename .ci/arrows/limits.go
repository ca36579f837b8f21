package main

import "fmt"

// limits are those of all packages, 0 for none.
type limits struct{ files, upward int }

// check returns what is wrong with a figure, "" if nothing is.
func check(path, kind string, have, limit int, advice string) string {
	if limit == 0 || have <= limit {
		return ""
	}
	return fmt.Sprintf("%s: %s %d, more than %d: %s", path, kind, have, limit, advice)
}
