package table

import "strconv"

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
