package verdicts

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// maxCell bounds the cell of a verdict in a table, in bytes.
const maxCell = 19

// Verdict is the verdict on an image in one place: a repository, or a tag that is the scope of a
// policy.
type Verdict struct {
	Verified, Reason string
	// Covered is true if a policy covers the place.
	Covered bool
	// Until is when the exception ends, in RFC 3339, if the verdict is Excepted.
	Until string
}

// Worse is the worse of two verdicts; "" is none. A second one that is not a verdict counts as
// False.
func Worse(a, b string) string {
	if b != "" && !slices.Contains(All, b) {
		b = VerifiedFalse
	}
	if a == "" || b != "" && slices.Index(All, b) < slices.Index(All, a) {
		return b
	}
	return a
}

// worstOf returns the worst verdict of the places that a policy covers; if no place is covered, the
// worst of all. Among places with the same verdict, it returns the first.
func worstOf(all []Verdict) (worst Verdict) {
	for i, one := range all {
		if i == 0 || one.Covered && !worst.Covered || one.Covered == worst.Covered && Worse(worst.Verified, one.Verified) != worst.Verified {
			worst = one
		}
	}
	return worst
}

// Cell returns the text of a table's cell for an image in several places: the worst verdict and, if
// other places differ, the number of places that have it, as in "True (2 of 3)". It is "" if the
// image is in no place.
func Cell(all []Verdict) string {
	if len(all) == 0 {
		return ""
	}
	worst, n := worstOf(all), 0
	for _, one := range all {
		if one.Verified == worst.Verified {
			n++
		}
	}
	if n == len(all) {
		return worst.Word()
	}
	if cell := fmt.Sprintf("%s (%d of %d)", worst.Verified, n, len(all)); len(cell) <= maxCell {
		return cell
	}
	return fmt.Sprintf("%s (%d/%d)", worst.Verified, n, len(all))
}

// Word returns the verdict for a cell. Unknown comes with its reason, and Excepted with the day of
// its end.
func (v Verdict) Word() string {
	if day, _, ok := strings.Cut(v.Until, "T"); ok && v.Verified == Excepted {
		return v.Verified + ":" + day
	}
	if v.Verified != VerifiedUnknown {
		return v.Verified
	}
	return printable.Line(v.Verified+":"+cmp.Or(shortReasons[v.Reason], v.Reason, "NotJudged"), maxCell)
}

// Policies returns the names of a verdict's policies, separated by commas. Spared policies, to
// which the image meets an alternative, come last: "keyless (not key)".
func Policies(all, spared []string) string {
	if len(spared) == 0 {
		return strings.Join(all, ",")
	}
	met := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return slices.Contains(spared, name) })
	return fmt.Sprintf("%s (not %s)", strings.Join(met, ","), strings.Join(spared, ","))
}

// shortReasons are reasons of package signatures in words that fit a cell.
var shortReasons = map[string]string{
	"SignaturesLeftOut":  "LeftOut",
	"SearchIncomplete":   "Unread",
	"SignaturesUnusable": "Unusable",
	"IndexUnreadable":    "Index",
	"UnsupportedFormat":  "Format",
}
