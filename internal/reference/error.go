package reference

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
	"unicode"
)

// Error says why a string is not an image reference, or not a registry's host.
type Error struct {
	// Input is the string as given, cut if very long.
	Input string
	// Problem is the rule it breaks.
	Problem string
	// Suggestion is a valid reference that was probably meant, or empty.
	Suggestion string

	kind string // what Input should have been; empty for an image reference
}

func (e *Error) Error() string {
	kind := cmp.Or(e.kind, "an image reference")
	s := fmt.Sprintf("%q is not %s: %s", e.Input, kind, e.Problem)
	if e.Suggestion != "" {
		s += fmt.Sprintf("; did you mean %q?", e.Suggestion)
	}
	return s
}

// explain adds a suggestion to a problem, if there is one that is valid.
func explain(s, problem string, valid func(string) bool) *Error {
	e := &Error{Input: cut(s), Problem: problem}
	if len(s) > maxLength {
		return e
	}
	if better := repair(s); better != s && valid(better) {
		e.Suggestion = better
	}
	return e
}

// cut makes a string fit for a message.
func cut(s string) string {
	if len(s) > maxLength {
		return strings.ToValidUTF8(s[:64], "") + "…"
	}
	return s
}

var scheme = regexp.MustCompile(`^[a-zA-Z][a-zA-Z+.-]*://`)

func isUnprintable(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }

// isBareHex reports whether s is 64 hex digits. The grammar allows that as a name, but it
// is always a digest or an ID whose beginning was lost.
func isBareHex(s string) bool { return len(s) == 64 && strings.Trim(s, "0123456789abcdefABCDEF") == "" }

func isBareDigest(s string) bool {
	digits, ok := strings.CutPrefix(s, "sha256:")
	return ok && isBareHex(digits) || IsDigest(s)
}

// explainDigest says what is wrong with what follows an @.
func explainDigest(s string) string {
	algorithm, digits, ok := strings.Cut(s, ":")
	switch {
	case !ok:
		return "what follows @ is a digest, as in @sha256:…; a tag follows a colon"
	case algorithm == "sha256" && len(digits) != 64:
		return fmt.Sprintf("a sha256 digest has 64 hex digits, this one has %d characters", len(digits))
	case algorithm == "sha512" && len(digits) != 128:
		return fmt.Sprintf("a sha512 digest has 128 hex digits, this one has %d characters", len(digits))
	case algorithm == "sha256" || algorithm == "sha512":
		return "a digest has the digits 0 to 9 and a to f, in lower case"
	}
	return fmt.Sprintf("digests are sha256 or sha512, not %q", cut(algorithm))
}

// repair undoes the common mistakes. It returns s if it knows none.
func repair(s string) string {
	s = strings.Join(strings.FieldsFunc(s, isUnprintable), "")
	s = scheme.ReplaceAllString(s, "")
	for strings.Contains(s, "//") {
		s = strings.ReplaceAll(s, "//", "/")
	}
	s = strings.Trim(s, "/:@")
	if at := strings.LastIndex(s, "@"); at >= 0 && !strings.Contains(s[at:], ":") && !strings.Contains(s[:at], "@") {
		s = s[:at] + ":" + s[at+1:]
	}
	// Only the name is case-insensitive in people's minds; a tag is not.
	name, rest := s, ""
	if at := strings.IndexByte(s, '@'); at >= 0 {
		name, rest = s[:at], s[at:]
	}
	if name, tag, ok := cutTag(name); ok {
		return strings.ToLower(name) + ":" + tag + rest
	}
	return strings.ToLower(name) + rest
}
