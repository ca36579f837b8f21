package printable_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"github.com/tidewaiter/tidewaiter/internal/printable"
)

func TestLine(t *testing.T) {
	for in, want := range map[string]string{
		"linux/amd64":            "linux/amd64",
		"Zoë 船 👩\u200d🚀":         "Zoë 船 👩\u200d🚀",
		"a\nb\tc\r\u0085d\u2028": "a b c  d ",
		"ring\a":                 "ring�",
		"\x1b[31mred\u009b0m":    "�[31mred�0m",
		"abc\u202edef\u200b":     "abc�def�",
		"\xff\xed\xa0\x80":       "����",
		"\ufffe\uffff\ufeff":     "���",
		"\x7f":                   "�",
	} {
		if got := printable.Line(in, 0); got != want {
			t.Errorf("Line(%q) is %q, want %q", in, got, want)
		}
	}
	if got := printable.Text("a\n\tb\a\u202e"); got != "a\n\tb��" {
		t.Errorf("Text is %q", got)
	}
}

func TestLineIsCut(t *testing.T) {
	for _, tt := range []struct {
		in    string
		limit int
		want  string
	}{
		{"four", 4, "four"},
		{"fives", 4, "f…"},
		{"one two three", 12, "one two…"},
		{strings.Repeat("x", 100), 50, strings.Repeat("x", 47) + "…"},
		{"a " + strings.Repeat("x", 100), 50, "a " + strings.Repeat("x", 45) + "…"},
		{"ää", 3, "…"},
		{"äää", 5, "ä…"},
	} {
		if got := printable.Line(tt.in, tt.limit); got != tt.want {
			t.Errorf("Line(%q, %d) is %q, want %q", tt.in, tt.limit, got, tt.want)
		}
	}
}

// What is let through can be written as YAML by the library that kubectl uses, and only that.
func FuzzPrintable(f *testing.F) {
	for _, s := range []string{"", "plain", "\u009b", "\a", "\u202e", "\xff", "\ufffe", "\u0085", "\u2028", "\ufeff", "a b", "sixteen letters~", "seven  \x7f", "       \x1f ", "~~~~~~~~ ~~~~~~~\x80", "\ud7ff", "💥"} {
		f.Add(s, 10)
	}
	f.Fuzz(func(t *testing.T, s string, limit int) {
		limit = min(max(limit, 0), 1000)
		line := printable.Line(s, limit)
		if !utf8.ValidString(line) || strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) && r != 0x200c && r != 0x200d }) {
			t.Errorf("Line(%q) is %q", s, line)
		}
		if limit > 3 && len(line) > limit {
			t.Errorf("Line(%q, %d) has %d bytes", s, limit, len(line))
		}
		if again := printable.Line(line, limit); again != line {
			t.Errorf("Line(%q) is %q, and of that it is %q", s, line, again)
		}
		for _, text := range []string{line, printable.Text(s)} {
			if !printable.IsYAML(text) {
				t.Errorf("%q of %q is not for YAML", text, s)
			}
		}
		plain := !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
		if printable.IsPlain(s) != plain || printable.IsPlain([]byte(s)) != plain {
			t.Errorf("%q is plain: %v, want %v", s, printable.IsPlain(s), plain)
		}
		_, err := yaml.Marshal(map[string]string{"s": s})
		if printable.IsYAML(s) && err != nil {
			t.Errorf("%q is said to be for YAML: %v", s, err)
		}
		if utf8.ValidString(s) && !printable.IsYAML(s) && err == nil && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' }) {
			// JSON escapes those
			t.Errorf("%q is said not to be for YAML", s)
		}
	})
}
