package registryplan

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/imageapi/prune"
)

func digest(n int) string { return fmt.Sprintf("sha256:%064x", n) }

// Commands delete an index before the images that it lists. They delete nothing that is kept or
// that a kept image needs.
func TestCommands(t *testing.T) {
	p := prune.NewPlan("r.example.com", time.Unix(1700000000, 0))
	p.Warnings = append(p.Warnings, "cluster prod is away")
	add := func(kind prune.Kind, image prune.Image) {
		t.Helper()
		if err := p.Add("r.example.com/proj/team/app", kind, image); err != nil {
			t.Fatal(err)
		}
	}
	add(prune.PlanDelete, prune.Image{Digest: digest(1)})
	add(prune.PlanDelete, prune.Image{Digest: digest(2), Lists: []string{digest(1), digest(3), digest(7)}, Attached: []string{digest(5), digest(6)}})
	add(prune.PlanDelete, prune.Image{Digest: digest(3)})
	add(prune.PlanKeep, prune.Image{Digest: digest(4), Lists: []string{digest(3)}, Attached: []string{digest(6)}})
	p.Finish()
	for format, want := range map[string][]string{
		"crane":  {"crane delete r.example.com/proj/team/app@" + digest(2), "crane delete r.example.com/proj/team/app@" + digest(1), "crane delete r.example.com/proj/team/app@" + digest(5)},
		"regctl": {"regctl manifest delete r.example.com/proj/team/app@" + digest(2), "regctl manifest delete r.example.com/proj/team/app@" + digest(1), "regctl manifest delete r.example.com/proj/team/app@" + digest(5)},
		"harbor": {"curl --fail --silent --show-error --netrc --request DELETE https://r.example.com/api/v2.0/projects/proj/repositories/team%252Fapp/artifacts/" + digest(2),
			"curl --fail --silent --show-error --netrc --request DELETE https://r.example.com/api/v2.0/projects/proj/repositories/team%252Fapp/artifacts/" + digest(1)},
	} {
		var out strings.Builder
		if err := Commands(p, &out, format); err != nil {
			t.Fatal(err)
		}
		var got []string
		for line := range strings.Lines(out.String()) {
			if strings.Contains(line, digest(0)[:20]) {
				got = append(got, strings.TrimSpace(line))
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", format, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if !strings.Contains(out.String(), "# Warning: cluster prod is away\n") {
			t.Errorf("%s does not say what is not known", format)
		}
	}
}

// The commands for crane pass over what is gone already, and end at any other failure: what an
// index lists must not go before it.
func TestCommandsRunTwice(t *testing.T) {
	t.Parallel()
	p := prune.NewPlan("r.example.com", time.Unix(1700000000, 0))
	for n := range 3 {
		if err := p.Add("r.example.com/app", prune.PlanDelete, prune.Image{Digest: digest(n)}); err != nil {
			t.Fatal(err)
		}
	}
	p.Finish()
	var script strings.Builder
	if err := Commands(p, &script, "crane"); err != nil {
		t.Fatal(err)
	}
	for failure, want := range map[string]int{"MANIFEST_UNKNOWN: manifest unknown": 3, "UNAUTHORIZED: authentication required": 1} {
		dir := t.TempDir()
		crane := "#!/bin/sh\necho \"$2\" >>" + filepath.Join(dir, "deleted") + "\necho '" + failure + "' >&2\nexit 1\n"
		if err := os.WriteFile(filepath.Join(dir, "crane"), []byte(crane), 0o700); err != nil {
			t.Fatal(err)
		}
		shell := exec.Command("sh")
		shell.Stdin, shell.Env = strings.NewReader(script.String()), append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := shell.CombinedOutput()
		deleted, readErr := os.ReadFile(filepath.Join(dir, "deleted"))
		if readErr != nil || strings.Count(string(deleted), "\n") != want || (err == nil) != (want == 3) || !strings.Contains(string(out), failure) {
			t.Errorf("%s: it deleted %s, %v, %v: %s", failure, deleted, readErr, err, out)
		}
	}
}
