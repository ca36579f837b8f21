package main

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
)

// TestLinkedVersions compares the modules that the program links with .ci/versions. It needs no
// network, so it also finds what govulncheck would, where its database cannot be reached.
func TestLinkedVersions(t *testing.T) {
	t.Parallel()
	list, err := os.ReadFile("../../.ci/versions")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}} {{.Version}}{{end}}", ".").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	linked := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, v, _ := strings.Cut(strings.TrimSpace(line), " ")
		linked[path] = v
	}
	if len(linked) < 50 {
		t.Fatalf("go list names %d modules: something is wrong with it", len(linked))
	}
	for _, problem := range tooOld(t, string(list), linked) {
		t.Error(problem)
	}
}

// tooOld returns a sentence for each module that list, in the form of .ci/versions, forbids.
func tooOld(t *testing.T, list string, linked map[string]string) (problems []string) {
	t.Helper()
	for line := range strings.Lines(list) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) < 3 {
			t.Fatalf(".ci/versions: %q is not a module, a version and a reason", line)
		}
		path, from, why := fields[0], fields[1], strings.Join(fields[2:], " ")
		have, found := linked[path]
		if !found {
			continue
		}
		if from == "never" {
			problems = append(problems, fmt.Sprintf("%s %s is linked, and must not be (%s)", path, have, why))
			continue
		}
		least, err := version.ParseSemantic(from)
		if err != nil {
			t.Fatalf(".ci/versions: %s: %v", path, err)
		}
		if is, err := version.ParseSemantic(cmp.Or(have, "none")); err != nil || is.LessThan(least) {
			problems = append(problems, fmt.Sprintf("%s %s is linked, and must be %s or later (%s): go get %s@%s", path, have, from, why, path, from))
		}
	}
	return problems
}

func TestTooOldVersionsAreNamed(t *testing.T) {
	t.Parallel()
	const list = "# a comment\n\nexample.com/a v1.2.3 CVE-1\nexample.com/b never CVE-2\nexample.com/c v1.0.0 CVE-3\n"
	for _, c := range []struct {
		linked map[string]string
		want   int
	}{
		{map[string]string{"example.com/a": "v1.2.3"}, 0},
		{map[string]string{"example.com/a": "v1.10.0"}, 0},
		{map[string]string{"example.com/a": "v1.2.2"}, 1},
		{map[string]string{"example.com/a": "v1.2.3-rc.1"}, 1},
		{map[string]string{"example.com/a": "v0.0.0-20260101000000-abcdefabcdef"}, 1},
		{map[string]string{"example.com/a": ""}, 1}, // replaced by a folder: what is in it is unknown
		{map[string]string{"example.com/b": "v9.0.0", "example.com/c": "v0.9.0+incompatible"}, 2},
	} {
		if got := tooOld(t, list, c.linked); len(got) != c.want {
			t.Errorf("%v: %q, want %d sentences", c.linked, got, c.want)
		}
	}
}
