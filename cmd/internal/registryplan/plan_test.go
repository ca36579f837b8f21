package registryplan

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func digest(n int) string { return fmt.Sprintf("sha256:%064x", n) }

// Commands delete an index before what it lists, and nothing that is kept, or that something that
// is kept needs.
func TestCommands(t *testing.T) {
	p := New("r.example.com", time.Unix(1700000000, 0))
	p.Warnings = append(p.Warnings, "cluster prod is away")
	add := func(kind Kind, image Image) {
		t.Helper()
		if err := p.Add("r.example.com/proj/team/app", kind, image); err != nil {
			t.Fatal(err)
		}
	}
	add(Delete, Image{Digest: digest(1)})
	add(Delete, Image{Digest: digest(2), Lists: []string{digest(1), digest(3), digest(7)}, Attached: []string{digest(5), digest(6)}})
	add(Delete, Image{Digest: digest(3)})
	add(Keep, Image{Digest: digest(4), Lists: []string{digest(3)}, Attached: []string{digest(6)}})
	p.Finish()
	for format, want := range map[string][]string{
		"crane":  {"crane delete r.example.com/proj/team/app@" + digest(2), "crane delete r.example.com/proj/team/app@" + digest(1), "crane delete r.example.com/proj/team/app@" + digest(5)},
		"regctl": {"regctl manifest delete r.example.com/proj/team/app@" + digest(2), "regctl manifest delete r.example.com/proj/team/app@" + digest(1), "regctl manifest delete r.example.com/proj/team/app@" + digest(5)},
		"harbor": {"curl --fail --silent --show-error --netrc --request DELETE https://r.example.com/api/v2.0/projects/proj/repositories/team%252Fapp/artifacts/" + digest(2),
			"curl --fail --silent --show-error --netrc --request DELETE https://r.example.com/api/v2.0/projects/proj/repositories/team%252Fapp/artifacts/" + digest(1)},
	} {
		var out strings.Builder
		if err := p.Commands(&out, format); err != nil {
			t.Fatal(err)
		}
		var got []string
		for line := range strings.Lines(out.String()) {
			if line = strings.TrimSpace(line); !strings.HasPrefix(line, "#") && line != "set -eu" {
				got = append(got, line)
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

// A list in which nothing is has no other form for programs than one that has something.
func TestEmptyListsAreLists(t *testing.T) {
	p := New("r.example.com", time.Unix(1700000000, 0))
	if err := p.Add("r.example.com/app", Keep, Image{Digest: digest(1)}); err != nil {
		t.Fatal(err)
	}
	p.Finish()
	if text, err := json.Marshal(p); err != nil || !strings.Contains(string(text), `"delete":[]`) || strings.Contains(string(text), "null") {
		t.Errorf("%s, %v", text, err)
	}
}

// A plan with more warnings than it lists says so.
func TestWarningsBeyondTheBound(t *testing.T) {
	p := New("r.example.com", time.Time{})
	for n := range maxWarnings {
		p.Warn(fmt.Sprint(n))
		p.Warn("0")
	}
	if p.Finish(); len(p.Warnings) != maxWarnings {
		t.Errorf("%d warnings of %d", len(p.Warnings), maxWarnings)
	}
	p.Warn("one more")
	if p.Finish(); len(p.Warnings) != maxWarnings+1 || !strings.Contains(p.Warnings[maxWarnings], "there are more") {
		t.Errorf("it is not said that there are more: %v", p.Warnings[maxWarnings:])
	}
}

// Whatever was decided, nothing that is kept loses anything that it lists or that is attached to
// it, and each is in one list.
func TestPlanKeepsWhatKeptImagesNeed(t *testing.T) {
	for seed := range uint64(200) {
		r, p := rand.New(rand.NewPCG(seed, 1)), New("r", time.Time{})
		for n := range 12 {
			image := Image{Digest: digest(n)}
			for child := range n { // an index is made after what it lists
				if r.IntN(4) == 0 {
					image.Lists = append(image.Lists, digest(child))
				}
				if r.IntN(6) == 0 {
					image.Attached = append(image.Attached, digest(100+child))
				}
			}
			if err := p.Add("r/a", Kind(r.IntN(3)), image); err != nil {
				t.Fatal(err)
			}
		}
		p.Finish()
		of := p.Repositories[0]
		gone := slices.Clone(of.Attached)
		for i, image := range of.Delete {
			gone = append(gone, image.Digest)
			for _, earlier := range of.Delete[:i] {
				if slices.Contains(image.Lists, earlier.Digest) {
					t.Fatalf("seed %d: %s goes before the index that lists it", seed, earlier.Digest)
				}
			}
		}
		for _, image := range slices.Concat(of.Keep, of.Unknown) {
			for _, needed := range slices.Concat([]string{image.Digest}, image.Lists, image.Attached) {
				if slices.Contains(gone, needed) {
					t.Fatalf("seed %d: %s is deleted, which %s needs", seed, needed, image.Digest)
				}
			}
		}
		if all := len(of.Delete) + len(of.Keep) + len(of.Unknown); all != 12 {
			t.Fatalf("seed %d: %d images", seed, all)
		}
	}
}
