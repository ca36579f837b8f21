package policyapi

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A count has its age. A policy is not written for each sweep that counts the same.
func TestCounted(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	const first = "2 images in 1 repository, as of 2026-11-26T12:00:00Z"
	for _, c := range []struct {
		before, count string
		after         time.Duration
		want          string
	}{
		{"", "2 images in 1 repository", 0, first},
		{"being counted", "2 images in 1 repository", 0, first},
		// a release before wrote it
		{"2 images in 1 repository", "2 images in 1 repository", 0, first},
		{first, "2 images in 1 repository", recount - time.Second, first},
		{first, "2 images in 1 repository", recount, "2 images in 1 repository, as of 2026-11-26T12:10:00Z"},
		{first, "3 images in 1 repository", time.Second, "3 images in 1 repository, as of 2026-11-26T12:00:01Z"},
		{first, "no image", time.Second, "no image, as of 2026-11-26T12:00:01Z"},
	} {
		if got := counted(&metav1.Condition{Message: c.before}, c.count, at.Add(c.after)); got != c.want {
			t.Errorf("%q after %q: %q, want %q", c.count, c.before, got, c.want)
		}
	}
	if got := counted(nil, "no image", at); got != "no image, as of 2026-11-26T12:00:00Z" {
		t.Error(got)
	}
	if count, when := countIn(first); count != "2 images in 1 repository" || !when.Equal(at) {
		t.Errorf("%q at %s", count, when)
	}
	if count, when := countIn("being counted"); count != "being counted" || !when.IsZero() {
		t.Errorf("%q at %s", count, when)
	}
}
