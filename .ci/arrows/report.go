package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// fewArrows is how many arrows a package must have to be held to the limit: one upward arrow of
// three says little.
const fewArrows = 10

// report prints a line for each package, and fails if one is beyond a limit that is not 0.
func report(out io.Writer, rooms []*room, bounds limits, verbose bool) error {
	var beyond []string
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "files\tlines\tarrows\tupward\tin circles\t package\n")
	for _, r := range slices.SortedFunc(slices.Values(rooms), func(a, b *room) int { return cmp.Compare(a.path, b.path) }) {
		order := r.order()
		all, up := r.count(order)
		share := percent(up, all)
		fmt.Fprintf(table, "%d\t%d\t%d\t%d %%\t%d %%\t %s\n", len(r.files), r.lines, all, share, percent(r.circling(), all), r.path)
		if all < fewArrows {
			share = 0
		}
		for _, wrong := range []string{
			check(r.path, "files", len(r.files), bounds.files, "which of them are a room of their own?"),
			check(r.path, "upward", share, bounds.upward, "go run ./.ci/arrows -v "+r.path),
		} {
			if wrong != "" {
				beyond = append(beyond, wrong)
			}
		}
		if verbose {
			if err := table.Flush(); err != nil {
				return err
			}
			r.describe(out, order)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(beyond) > 0 {
		return fmt.Errorf("%d beyond a limit\n%s", len(beyond), strings.Join(beyond, "\n"))
	}
	return nil
}

// percent rounds up: 15.1 is not within a limit of 15.
func percent(part, all int) int {
	if all == 0 {
		return 0
	}
	return (100*part + all - 1) / all
}

// describe prints the files from the top down, each with those above it that it names.
func (r *room) describe(out io.Writer, order []int) {
	for i, file := range order {
		var above []string
		for _, to := range order[:i] {
			if r.arrow[file][to] {
				above = append(above, r.files[to])
			}
		}
		fmt.Fprintf(out, "    %s", r.files[file])
		if len(above) > 0 {
			fmt.Fprintf(out, "  names, above it: %s", strings.Join(above, ", "))
		}
		fmt.Fprintln(out)
	}
}
