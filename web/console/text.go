package console

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// maxText bounds a text on a page, in bytes.
const maxText = 4 << 10

// text is text of unknown origin. It is made printable when it is read, and templates escape it.
type text string

// UnmarshalText implements encoding.TextUnmarshaler, which package json uses for strings and keys.
func (t *text) UnmarshalText(b []byte) error {
	*t = text(printable.Line(string(b), maxText))
	return nil
}

// textOf is the text of a cell.
func textOf(cell any) text {
	if cell == nil {
		return ""
	}
	return text(printable.Line(fmt.Sprint(cell), maxText))
}

// short returns the first 12 digits of a digest.
func short(digest text) string {
	algorithm, digits, ok := strings.Cut(string(digest), ":")
	if !ok {
		digits = algorithm
	}
	return digits[:min(len(digits), 12)]
}

// wholeDigests are digests within a message.
var wholeDigests = regexp.MustCompile(`\b(sha256:[0-9a-f]{12})[0-9a-f]{52}\b`)

// brief shortens the digests in a message.
func brief(message text) text {
	return text(wholeDigests.ReplaceAllString(string(message), "$1…"))
}

// moment is a time on a page: relative, and absolute when pointed at.
type moment struct {
	Ago, At, Machine string
}

// when formats a time relative to now.
func when(t, now time.Time) moment {
	if t.IsZero() {
		return moment{Ago: "unknown"}
	}
	ago := duration.HumanDuration(now.Sub(t)) + " ago"
	if t.After(now) {
		ago = "in " + duration.HumanDuration(t.Sub(now))
	}
	return moment{ago, t.UTC().Format("2 January 2006, 15:04:05 UTC"), t.UTC().Format(time.RFC3339)}
}

// size prints bytes as registries do.
func size(n int64) string {
	switch {
	case n <= 0:
		return "unknown"
	case n < 1000:
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n), 0
	for value >= 999.5 && unit < 4 {
		value /= 1000
		unit++
	}
	return fmt.Sprintf("%.3g %s", value, [...]string{"B", "kB", "MB", "GB", "TB"}[unit])
}

// spaced puts a space between the number and the unit of a size in a table of the API.
func spaced(cell text) string {
	digits := strings.TrimRight(string(cell), "BkMGTPE")
	if digits == "" || digits == string(cell) {
		return string(cell)
	}
	return digits + " " + strings.TrimPrefix(string(cell), digits)
}

// quoted quotes a word for a shell, if it needs quotes.
func quoted(word string) string {
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool {
		return !strings.ContainsRune("@%+=:,./-_", r) && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
