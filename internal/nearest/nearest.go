// Package nearest finds the known name that a misspelt one most likely means.
package nearest

import "strings"

// Distance is how many insertions, deletions and replacements turn one text into another
// (Levenshtein). It is for short texts: it takes time by the product of their lengths.
func Distance(from, to string) int {
	row := make([]int, len(to)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(from) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(to) {
			cost := diagonal
			if from[i] != to[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(to)]
}

// Likely returns the name among known that a misspelt one most likely means: at most two changes
// away, and fewer than half of its letters; "" if there is none.
func Likely(name string, known []string) string {
	if near, n := Of(name, known); len(known) > 0 && n <= 2 && 2*n < len(name) {
		return near
	}
	return ""
}

// Of returns the name among known that is nearest to another, without regard to case, and how far
// that is.
func Of(name string, known []string) (nearest string, distance int) {
	for i, k := range known {
		if n := Distance(strings.ToLower(name), strings.ToLower(k)); i == 0 || n < distance {
			nearest, distance = k, n
		}
	}
	return nearest, distance
}
