package compare

import (
	"fmt"
	"slices"
	"strings"
)

// A measure is one row of the table.
type measure string

// The rows, in their order.
const (
	creates     measure = "creates/s"
	gets        measure = "gets/s"
	lists       measure = "whole lists/s"
	gzipLists   measure = "whole lists with gzip/s"
	watchEvents measure = "watch events/s"
	watchLists  measure = "watch-list, events/s"
	processor   measure = "processor time, s"
	memory      measure = "memory, MiB"
)

var measures = []measure{creates, gets, lists, gzipLists, watchEvents, watchLists, processor, memory}

// figures are the results of one server in one round.
type figures map[measure]float64

// table has the medians of the rounds, and the last of three servers' ratio to each of the others:
// median, least and largest.
func table(names [3]string, rounds [][3]figures) string {
	const base, now, peer = 0, 1, 2
	var b strings.Builder
	fmt.Fprintf(&b, "| | %s | %s | ratio | %s | ratio |\n|---|---|---|---|---|---|\n", names[base], names[now], names[peer])
	for _, m := range measures {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", m, value(rounds, m, base), value(rounds, m, now), ratio(rounds, m, base), value(rounds, m, peer), ratio(rounds, m, peer))
	}
	return b.String()
}

// value is a median with three digits.
func value(rounds [][3]figures, m measure, server int) string {
	of := make([]float64, len(rounds))
	for i, r := range rounds {
		of[i] = r[server][m]
	}
	v := median(of)
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

func ratio(rounds [][3]figures, m measure, to int) string {
	of := make([]float64, len(rounds))
	for i, r := range rounds {
		of[i] = r[1][m] / r[to][m]
	}
	return fmt.Sprintf("**%.2f** (%.2f to %.2f)", median(of), slices.Min(of), slices.Max(of))
}

func median(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}
