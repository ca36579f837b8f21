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
	createCost  measure = "processor time of a create, µs"
	gets        measure = "gets/s"
	getCost     measure = "processor time of a get, µs"
	lists       measure = "whole lists/s"
	gzipLists   measure = "whole lists with gzip/s"
	watchEvents measure = "watch events/s"
	watchLists  measure = "watch-list, events/s"
	processor   measure = "processor time, s"
	memory      measure = "memory, MiB"
)

var measures = []measure{creates, createCost, gets, getCost, lists, gzipLists, watchEvents, watchLists, processor, memory}

// figures are the results of one server in one round.
type figures map[measure]float64

// table has the medians of the rounds, and the ratio of the server that is measured to each of the
// others: median, least and largest. It is the second one.
func table(names []string, rounds [][]figures) string {
	const base, now = 0, 1
	var b strings.Builder
	row := func(first, base, now, ratio string, peers func(i int) (value, ratio string)) {
		fmt.Fprintf(&b, "|%s| %s | %s | %s |", first, base, now, ratio)
		for i := 2; i < len(names); i++ {
			value, ratio := peers(i)
			fmt.Fprintf(&b, " %s | %s |", value, ratio)
		}
		b.WriteByte('\n')
	}
	row(" ", names[base], names[now], "ratio", func(i int) (string, string) { return names[i], "ratio" })
	b.WriteString(strings.Repeat("|---", 2*len(names)) + "|\n")
	for _, m := range measures {
		row(" "+string(m)+" ", value(rounds, m, base), value(rounds, m, now), ratio(rounds, m, base), func(i int) (string, string) {
			return value(rounds, m, i), ratio(rounds, m, i)
		})
	}
	return b.String()
}

// value is a median with three digits.
func value(rounds [][]figures, m measure, server int) string {
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

func ratio(rounds [][]figures, m measure, to int) string {
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
