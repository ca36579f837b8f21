package prune

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

// A list in which nothing is has no other form for programs than one that has something.
func TestEmptyListsAreLists(t *testing.T) {
	p := NewPlan("r.example.com", time.Unix(1700000000, 0))
	if err := p.Add("r.example.com/app", PlanKeep, Image{Digest: digest(1)}); err != nil {
		t.Fatal(err)
	}
	p.Finish()
	if text, err := json.Marshal(p); err != nil || !strings.Contains(string(text), `"delete":[]`) || strings.Contains(string(text), "null") {
		t.Errorf("%s, %v", text, err)
	}
}

// A plan with more warnings than it lists says so.
func TestWarningsBeyondTheBound(t *testing.T) {
	p := NewPlan("r.example.com", time.Time{})
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
		r, p := rand.New(rand.NewPCG(seed, 1)), NewPlan("r", time.Time{})
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

// A plan says when tags were last confirmed, and warns if that is long ago.
func TestPlanWarnsOfOldTags(t *testing.T) {
	now := time.Unix(1700000000, 0)
	p := NewPlan("r.example.com", now)
	for _, repository := range []string{"r.example.com/fresh", "r.example.com/never", "r.example.com/old", "r.example.com/older"} {
		if err := p.Add(repository, PlanDelete, Image{Digest: digest(1)}); err != nil {
			t.Fatal(err)
		}
	}
	older := now.Add(-48 * time.Hour)
	p.checked(map[string]time.Time{"r.example.com/fresh": now.Add(-time.Minute), "r.example.com/old": now.Add(-2 * time.Hour), "r.example.com/older": older})
	if got := p.Repositories[3].TagsChecked; got == nil || !got.Equal(older) || p.Repositories[1].TagsChecked != nil {
		t.Errorf("the tags were checked at %v", got)
	}
	if text := strings.Join(p.Warnings, "; "); !strings.Contains(text, "the tags of 2 repositories were last confirmed more than 1h0m0s ago, those of r.example.com/older at "+older.UTC().Format(time.RFC3339)) {
		t.Errorf("the warnings are %q", text)
	}
}
