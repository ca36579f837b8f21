package table

import (
	"strconv"
	"strings"
)

// None is the cell for nothing in kubectl's tables.
const None = "<none>"

// Unknown is the cell for what is not known.
const Unknown = "Unknown"

// Count is a number as people read it: with a plus while there may be more, and [Unknown] while
// there may be some.
func Count(n int, complete bool) string {
	switch {
	case complete:
		return strconv.Itoa(n)
	case n == 0:
		return Unknown
	}
	return strconv.Itoa(n) + "+"
}

// Need is the place of an image in the order of need: what runs and fails its policy is first, then
// what drifted, so that pods name a tag which leads elsewhere now, then what fails, what has an
// unknown verdict, what runs, and all else.
func Need(fails, unknown, runs, drifted bool) int {
	for place, is := range []bool{fails && runs, drifted, fails, unknown, runs} {
		if is {
			return place
		}
	}
	return 5
}

// Integer is a number of things.
type Integer interface {
	~int | ~int32 | ~int64
}

// Quantity is a number of things in words, such as "1 image" and "2 repositories"; one is the noun
// for one of them.
func Quantity[N Integer](n N, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.FormatInt(int64(n), 10) + " " + several(one)
}

// Clause is a number of things and what they do, such as "1 pod runs" and "2 pods run".
func Clause[N Integer](n N, one, verb string) string {
	if n == 1 {
		switch verb {
		case "are":
			verb = "is"
		case "were":
			verb = "was"
		case "have":
			verb = "has"
		case "do":
			verb = "does"
		default:
			verb += "s"
		}
	}
	return Quantity(n, one) + " " + verb
}

// several is the plural of a noun, by the rules that the nouns here follow.
func several(one string) string {
	stem, isY := strings.CutSuffix(one, "y")
	switch {
	case isY && !strings.ContainsAny(stem[max(len(stem)-1, 0):], "aeou"):
		return stem + "ies"
	case strings.HasSuffix(one, "s"), strings.HasSuffix(one, "x"), strings.HasSuffix(one, "ch"), strings.HasSuffix(one, "sh"):
		return one + "es"
	}
	return one + "s"
}
