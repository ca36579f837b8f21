package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// .ci/vuln says loudly that it looked at nothing where the database of vulnerabilities cannot be
// reached, and takes no other failure for that. It is not parallel: a file that it runs, and
// another test's child inherits while it is written, would be busy.
func TestVulnSaysWhatItLookedAt(t *testing.T) {
	script, err := os.ReadFile("../../.ci/vuln")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what, prints string
		code         int
		wantCode     int
		want         []string
	}{
		{"nothing is found", "No vulnerabilities found.", 0, 0, []string{"vuln: 2 passed, 0 failed"}},
		{"one is called", "Vulnerability #1: GO-2026-0001", 3, 1, []string{"GO-2026-0001", "vuln: 1 passed, 1 failed"}},
		{"no network", `govulncheck: fetching vulnerabilities: Get "https://vuln.go.dev/index/modules.json.gz": dial tcp: lookup vuln.go.dev: no such host`, 1, 0,
			[]string{"*** govulncheck looked at NOTHING", "no such host", "1 SKIPPED: govulncheck looked at nothing"}},
		{"it does not compile", "govulncheck: loading packages: there are errors", 1, 1, []string{"there are errors", "govulncheck did not work"}},
	} {
		dir := t.TempDir()
		for name, text := range map[string]string{
			".ci/vuln":                        string(script),
			"bin/go":                          "#!/bin/sh\n",
			"e2e/.tools/bin/govulncheck":      fmt.Sprintf("#!/bin/sh\ncat \"$0.text\" >&2\nexit %d\n", c.code),
			"e2e/.tools/bin/govulncheck.text": c.prints + "\n",
		} {
			path := filepath.Join(dir, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.CommandContext(t.Context(), "bash", filepath.Join(dir, ".ci/vuln"))
		cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != c.wantCode {
			t.Errorf("%s: %v, want code %d: %s", c.what, err, c.wantCode, out)
		}
		for _, want := range c.want {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s: %q is missing in %s", c.what, want, out)
			}
		}
		if looked := !strings.Contains(string(out), "NOTHING"); looked == (c.what == "no network") {
			t.Errorf("%s: %s", c.what, out)
		}
	}
}
