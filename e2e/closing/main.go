// Command closing reads what `go test -json` says, prints it as `go test` does
// without -v, and ends with one line that counts the tests:
//
//	test: 1234 passed, 0 failed, 2 skipped, in 61 packages
//
// What was skipped is named before, so that nothing is left out without a word. It
// fails when a test or a package did.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

// event is a line of `go test -json` (go doc test2json).
type event struct {
	Action, Package, ImportPath, Test, Output string
}

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
	if len(packages) == 0 {
		failed = true // nothing ran
	}
	_, err = fmt.Fprintf(out, "%s: %d passed, %d failed, %d skipped, in %d packages\n", name, counts["pass"], counts["fail"], counts["skip"], len(packages))
	return failed, err
}
