package trusted

import (
	"strings"
	"testing"
)

func TestPollCut(t *testing.T) {
	const two = "a: 1\n---\nb: 2\n"
	for _, c := range []struct{ before, now, says string }{
		{two, two, ""},
		{two, "a: 1\n---\nb: 2", ""},
		{two, two + "---\nc: 3\n", ""},
		{two, "b: 2\n", ""},
		{two, "a: 1\n# complete\n", ""},
		{two, "# empty on purpose\n", ""},
		{two, "{}\n", ""},
		{"", "", ""},
		{"\n", "", ""},
		{two, "a: 1\n---\n", "it ends early"},
		{two, "a: 1\n", "it ends early"},
		{two, "a", "it ends early"},
		{two, "", "it is empty"},
		{two, "a: 1\n---\nb", `line 3 of what is in force, "b: 2"`},
		{"a: 1\n# complete\n", "a: 1\n", ""},
		{"- a\n- a\n", "- a\n", `line 2 of what is in force, "- a"`},
		{"a: 1\n# complete\n", "a: 1\n# comp", ""},
		{"a: 1\n---\n", "a: 1", ""},
		{"a: 1\n...\n# complete", "a: 1", ""},
		{"# 1\n\n", "", ""},
		{"a: 1\n# 2\nb: 3\n", "a: 1\n", `line 3 of what is in force, "b: 3"`},
		{"a: \x1b[31m1\n", " ", "it is empty"},
		{"a: 1\n\x1b[31mb: 1\n", "a: 1", "line 2 of what is in force, \"\ufffd[31mb: 1\""},
		{two, " \n\n", "it is empty"},
	} {
		p := Poll{InForce: Contents{"f": []byte(c.before), "gone": []byte("x")}}
		err := p.Cut(Contents{"f": []byte(c.now), "new": nil})
		if (err != nil) != (c.says != "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q after %q: %v, want %q", c.now, c.before, err, c.says)
		}
	}
}

func TestPollSettled(t *testing.T) {
	var p Poll
	for i, c := range []struct {
		now     Contents
		outcome string
		want    bool
	}{
		{nil, "away", false}, {nil, "away", true},
		{Contents{"f": []byte("1")}, "", false}, {Contents{"f": []byte("12")}, "", false},
		{Contents{"f": []byte("12")}, "", true}, {Contents{"f": []byte("12")}, "another key", false},
	} {
		if got := p.Settled(c.now, c.outcome); got != c.want {
			t.Errorf("look %d: %t", i, got)
		}
	}
}
