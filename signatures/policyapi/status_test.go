package policyapi

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// A count has its age. A policy is not written for each sweep that counts the same.
func TestCounted(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	first := &Coverage{Images: 2, Repositories: 1, AsOf: metav1.NewTime(at)}
	two := coverage{images: 2, repositories: 1}
	for _, c := range []struct {
		before *Coverage
		count  coverage
		after  time.Duration
		asOf   time.Duration // after at
		words  string
	}{
		{nil, two, 0, 0, "2 images in 1 repository"}, // also if an older version has written the status
		{first, two, recount - time.Second, 0, "2 images in 1 repository"},
		{first, two, recount, recount, "2 images in 1 repository"},
		{first, coverage{images: 3, repositories: 1, unmet: 1}, time.Second, time.Second, "3 images in 1 repository; 1 does not meet it"},
		{first, coverage{images: 2, repositories: 1, unmet: 2}, time.Second, time.Second, "2 images in 1 repository; 2 do not meet it"},
		{first, coverage{images: 2, repositories: 1, spared: 1}, time.Second, time.Second, "2 images in 1 repository; 1 meets only an alternative"},
		{first, coverage{images: 4, repositories: 1, unmet: 1, spared: 2}, time.Second, time.Second, "4 images in 1 repository; 1 does not meet it; 2 meet only an alternative"},
		{first, coverage{}, time.Second, time.Second, "no image"},
		{nil, coverage{}, 0, 0, "no image"},
	} {
		got := counted(c.before, c.count, at.Add(c.after))
		if !got.AsOf.Time.Equal(at.Add(c.asOf)) || got.words() != c.words {
			t.Errorf("%+v after %+v: %+v, %q", c.count, c.before, got, got.words())
		}
	}
}

// The table counts the exceptions of the spec themselves.
func TestExceptionsCell(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	ends := func(after ...time.Duration) (all []policy.Exception) {
		for _, d := range after {
			all = append(all, policy.Exception{Until: at.Add(d).Format(time.RFC3339)})
		}
		return all
	}
	for want, all := range map[string][]policy.Exception{
		none:             nil,
		"all have ended": ends(-time.Hour, 0),
		"2 in force; the next ends at 2026-11-26T13:00:00Z": ends(2*time.Hour, -time.Hour, time.Hour),
	} {
		if got := exceptionsCell(all, at); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
