// Package printable makes text that strangers wrote fit for the places where people read it:
// terminals, tables, YAML, log lines. Registries, pushers and signers choose platforms, labels,
// tags and names; some of what they may choose moves the cursor, turns the line around, or cannot
// be written as YAML at all, which would break `kubectl get images -o yaml` for everybody.
package printable

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line is s as one line of at most limit bytes; 0 means no limit. White space becomes a space.
// Other characters that are not printable (control and format characters, such as BEL, U+009B and
// U+202E, and bytes that are not UTF-8) become U+FFFD. A text that is too long ends with "…", after
// a whole word if there is one near.
func Line(s string, limit int) string {
	return cut(clean(s, func(rune) bool { return false }), limit)
}

// Text is Line without a limit, and with the line breaks and tabs of s.
func Text(s string) string {
	return clean(s, func(r rune) bool { return r == '\n' || r == '\t' })
}

func clean(s string, keep func(rune) bool) string {
	fine := func(r rune) bool { return r != utf8.RuneError && isPrint(r) || keep(r) }
	if IsPlain(s) || strings.IndexFunc(s, func(r rune) bool { return !fine(r) }) < 0 {
		return s
	}
	return strings.Map(func(r rune) rune {
		switch {
		case fine(r):
			return r
		case unicode.IsSpace(r):
			return ' '
		}
		return utf8.RuneError
	}, s)
}

// isPrint is unicode.IsPrint with the two joiners that writing Persian, Hindi and emoji takes.
func isPrint(r rune) bool { return unicode.IsPrint(r) || r == '\u200c' || r == '\u200d' }

// IsPlain reports whether s is printable ASCII, as nearly all text is.
func IsPlain[T string | []byte](s T) bool {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	for ; len(s) >= 8; s = s[8:] {
		// eight bytes at a time, as configs of many kB are read on each write
		x := uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 | uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
		if (x|(x-' '*ones)|(x+ones))&tops != 0 { // a byte above 0x7f, below ' ', or 0x7f
			return false
		}
	}
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// maxWord is how far back a cut goes to end after a whole word, in bytes.
const maxWord = 32

func cut(s string, limit int) string {
	const more = "…"
	if limit == 0 || len(s) <= limit {
		return s
	}
	end := max(0, limit-len(more))
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	if space := strings.LastIndexByte(s[:end], ' '); space > 0 && end-space <= maxWord {
		end = space
	}
	return s[:end] + more
}

// IsYAML reports whether YAML can hold s (YAML 1.2, production 1, which parsers enforce): it is
// UTF-8 without control characters but for tab, line feed, carriage return and U+0085, and without
// U+FFFE and U+FFFF. JSON can hold more; but kubectl makes its YAML of JSON.
func IsYAML(s string) bool {
	if IsPlain(s) {
		return true
	}
	for i, r := range s {
		switch {
		case ' ' <= r && r <= '~', r == '\t', r == '\n', r == '\r', r == 0x85:
		case r < ' ', r > '~' && r < 0xA0, r == 0xFFFE, r == 0xFFFF:
			return false
		case r == utf8.RuneError:
			if _, n := utf8.DecodeRuneInString(s[i:]); n == 1 {
				return false
			}
		}
	}
	return true
}
