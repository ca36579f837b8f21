package imagetag

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// A writer whose clock is ahead does not date a tag's events later than the server's clock, neither
// its own nor those of writers that come after it. What is stored keeps its time.
func TestEventsAreNotLaterThanTheServersClock(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	s := tagStatusStrategy{tagStrategy{now: func() time.Time { return now }}}
	ref := reference.Reference{Host: "a.example.com", Repository: "team/app", Tag: "v1"}
	begin := now

	tag := tags.New(ref)
	tags.Lead(tag, ref, "sha256:a", metav1.NewTime(now.AddDate(1, 0, 0)))
	s.PrepareForCreate(t.Context(), tag)
	move := func(digest string, at time.Time) {
		t.Helper()
		next := tag.DeepCopy()
		if !tags.Lead(next, ref, digest, metav1.NewTime(at)) {
			t.Fatalf("%s is no news", digest)
		}
		s.PrepareForUpdate(t.Context(), next, tag)
		tag = next
	}
	now = now.Add(time.Minute)
	move("sha256:b", now)
	now = now.Add(time.Minute)
	move("sha256:c", now.AddDate(1, 0, 0))
	now = now.Add(-time.Hour) // the server's own clock is set back
	move("sha256:d", now)

	for i, want := range []time.Duration{2 * time.Minute, 2 * time.Minute, time.Minute, 0} {
		if got := tag.Status.Items[i]; !got.Created.Time.Equal(begin.Add(want)) {
			t.Errorf("%s is of %s, want %s", got.Image, got.Created, begin.Add(want))
		}
	}
}
