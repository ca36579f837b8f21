package imageruns

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Each cause is in the document.
func TestCausesDocument(t *testing.T) {
	t.Parallel()
	var files [2]string
	for i, name := range []string{"cause.go", "../../docs/reference/records.md"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files[i] = strings.Join(strings.Fields(string(text)), " ")
	}
	causes := regexp.MustCompile(`(?:return|By\w+ By =) "([^"]+)"`).FindAllStringSubmatch(files[0], -1)
	if len(causes) < 20 {
		t.Fatalf("cause.go has %d causes", len(causes))
	}
	for _, cause := range causes {
		if strings.HasPrefix(cause[1], "it began to run") {
			continue // no cause of a change
		}
		if !strings.Contains(files[1], "`"+cause[1]+"`") {
			t.Errorf("the document lacks the cause %q", cause[1])
		}
	}
}

// The cause of a change is what the two verdicts show. If a policy has another version, it is named
// first. If they show nothing, it is what had the verdict read.
func TestCause(t *testing.T) {
	judged := func(verified string, more ...func(*RunVerdict)) RunVerdict {
		v := RunVerdict{Verified: verified, Policies: []string{"a", "b"}, PolicyVersions: []string{"1", "2"}, Signers: []string{"key"}}
		for _, set := range more {
			set(&v)
		}
		return v
	}
	versions := func(all ...string) func(*RunVerdict) { return func(v *RunVerdict) { v.PolicyVersions = all } }
	policies := func(all ...string) func(*RunVerdict) { return func(v *RunVerdict) { v.Policies = all } }
	signers := func(all ...string) func(*RunVerdict) { return func(v *RunVerdict) { v.Signers = all } }
	reason := func(text string) func(*RunVerdict) { return func(v *RunVerdict) { v.Reason = text } }
	excepted := func(v *RunVerdict) { v.ExceptionUntil = "2026-12-01T00:00:00Z" }
	nobody := []func(*RunVerdict){policies(), versions(), signers()}
	for _, c := range []struct {
		what          string
		before, after RunVerdict
		want          string
	}{
		{"an edit that the verdicts do not show", judged("False"), judged("True", versions("1", "3")), "the policy b changed"},
		{"edits of two", judged("False"), judged("True", versions("0", "3")), "the policies a, b changed"},
		{"an edit by which a signature counts", judged("False", signers()), judged("True", versions("0", "2")), "the policy a changed: a signature counts that did not"},
		{"an edit that begins an exception", judged("False"), judged("Excepted", versions("0", "2"), excepted), "the policy a changed: an exception began"},
		{"an exception that ends by itself", judged("Excepted", excepted), judged("False"), "an exception ended"},
		{"another order is no edit", judged("False"), judged("True", policies("b", "a"), versions("2", "1")), string(BySweep)},
		{"a record without versions shows no edit", judged("False", versions()), judged("True"), string(BySweep)},
		{"neither does one that lacks some", judged("False"), judged("True", versions("9")), string(BySweep)},
		{"a policy more", judged("False", policies("a"), versions("1")), judged("True"), "other policies cover it"},
		{"a policy more, and an edit", judged("False", policies("a"), versions("0")), judged("True"), "the policy a changed: other policies cover it"},
		{"an answer that cannot be read", judged("True"), judged("Unknown", nobody...), "it is no longer known"},
		{"and can be again", judged("Unknown", nobody...), judged("True"), "it became known"},
		{"a signature that does not count", judged("Unsigned", signers()), judged("False", signers()), "a signature came that does not count"},
		{"one that is gone", judged("False", signers()), judged("Unsigned", signers()), "its signatures are gone"},
		{"an index", judged("Unsigned", signers()), judged("ByIndex"), "an index that lists it is verified"},
		{"an index no longer", judged("ByIndex"), judged("Unsigned", signers()), "no index that lists it is verified any longer"},
		{"a tag that moved", judged("True"), judged("False", reason(ReasonTagMoved)), "its tag moved, and must not"},
		{"a rule that a tag must not move", judged("True"), judged("False", versions("0", "2"), reason(ReasonTagMoved)), "the policy a changed: its tag moved, and must not"},
		{"another reason alone", judged("False", reason("x")), judged("False", reason("y")), string(BySweep)},
	} {
		if got := Cause(&c.before, c.after, BySweep); got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
	if got := Cause(nil, judged("True"), BySweep); got != "it began to run" {
		t.Errorf("the first: %q", got)
	}
}
