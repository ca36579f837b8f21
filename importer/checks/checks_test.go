package checks_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testclock "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/importer/checks"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

var digestA, digestB = "sha256:" + strings.Repeat("a", 64), "sha256:" + strings.Repeat("b", 64)

// at is when a reference was last confirmed to lead to digestA.
func at(t *testing.T, c *checks.Checks, reference string) time.Time {
	t.Helper()
	got, err := c.At(t.Context(), []checks.Asked{{Reference: "registry.example.com/other:v1", Digest: digestA}, {Reference: reference, Digest: digestA}})
	if err != nil || !got[0].IsZero() {
		t.Fatalf("%v, %v", got, err)
	}
	return got[1]
}

// What was confirmed is known before it is written, when it is written, and after a restart. It
// says nothing of another digest, and is never later than the clock.
func TestChecksSurviveARestart(t *testing.T) {
	t.Parallel()
	const tag = "registry.example.com/app:v1"
	clock := testclock.NewFakeClock(time.Date(2026, 11, 24, 2, 0, 0, 0, time.UTC))
	options := db.Options{Dir: t.TempDir(), Clock: clock}
	now := clock.Now()
	first, err := db.Open(options)
	if err != nil {
		t.Fatal(err)
	}
	c := checks.New(first, clock)
	c.Confirm([]tags.Check{
		{Reference: tag, Digest: digestA, At: now.Add(time.Hour)}, // by a clock that is ahead
		{Reference: tag, Digest: digestA, At: now.Add(-time.Hour)},
		{Reference: "Not a reference", Digest: digestA, At: now},
		{Reference: "registry.example.com/bad:v1", Digest: "sha256:x", At: now},
	})
	for _, when := range []string{"held", "written"} {
		if got := at(t, c, tag); !got.Equal(now) {
			t.Errorf("%s: confirmed at %v, want %v", when, got, now)
		}
		if got, err := c.At(t.Context(), []checks.Asked{{Reference: tag, Digest: digestB}}); err != nil || !got[0].IsZero() {
			t.Errorf("%s: another digest was confirmed at %v, %v", when, got, err)
		}
		c.Flush(t.Context())
	}
	// told late
	c.Confirm([]tags.Check{{Reference: tag, Digest: digestA, At: now.Add(-time.Minute)}})
	c.Flush(t.Context())
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	c = checks.New(dbtest.OpenOptions(t, options), clock)
	if got := at(t, c, tag); !got.Equal(now) {
		t.Errorf("after a restart it was confirmed at %v, want %v", got, now)
	}
	clock.Step(31 * 24 * time.Hour)
	c.Confirm([]tags.Check{{Reference: "registry.example.com/new:v1", Digest: digestA, At: clock.Now()}})
	c.Flush(t.Context())
	if got := at(t, c, tag); !got.IsZero() {
		t.Errorf("what is 31 days old is still known, of %v", got)
	}
}

// Checks are written once a minute, and at once if many are held. What is held is bounded.
func TestChecksAreWrittenOnceAMinute(t *testing.T) {
	t.Parallel()
	clock := testclock.NewFakeClock(time.Date(2026, 11, 24, 2, 0, 0, 0, time.UTC))
	d := dbtest.Open(t, func(o *db.Options) { o.Clock = clock })
	rows := func() (n int64) {
		if err := d.Read(t.Context(), func(s db.Snapshot) (err error) {
			n, _, err = s.First("SELECT count(*) FROM checks")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	c := checks.New(d, clock)
	many := func(from, to int) {
		all := make([]tags.Check, 0, to-from)
		for i := from; i < to; i++ {
			all = append(all, tags.Check{Reference: fmt.Sprint("registry.example.com/app:", i), Digest: digestA, At: clock.Now()})
		}
		c.Confirm(all)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { _ = c.Run(ctx); close(ended) }()
	dbtest.AwaitWaiters(t, clock, 3) // the database, and the two timers of a queue that waits
	many(0, 5)
	if n := rows(); n != 0 {
		t.Errorf("%d rows are written before a minute is over", n)
	}
	clock.Step(time.Minute)
	await := func(want int64) {
		for deadline := time.Now().Add(time.Minute); rows() < want; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d rows are written, want %d", rows(), want)
			}
		}
	}
	await(5)
	many(0, 12_000) // without another minute
	await(12_000)
	cancel()
	<-ended
	many(20_000, 130_000)
	c.Flush(t.Context())
	if n := rows(); n != 112_000 {
		t.Errorf("%d rows: more than 100,000 checks were held, or fewer", n)
	}
}

// A tag that is read says when it was last confirmed, unless it says more by itself.
func TestTagsTellWhenTheyWereConfirmed(t *testing.T) {
	t.Parallel()
	clock := testclock.NewFakeClock(time.Date(2026, 11, 24, 2, 0, 0, 0, time.UTC))
	c := checks.New(dbtest.Open(t, func(o *db.Options) { o.Clock = clock }), clock)
	ref := reference.Reference{Host: "registry.example.com", Repository: "app", Tag: "v1"}
	clock.Step(time.Hour)
	c.Confirm([]tags.Check{{Reference: ref.String(), Digest: digestA, At: clock.Now()}})
	for name, tt := range map[string]struct {
		digest  string
		checked time.Duration // by its annotation, from the confirmation
		want    time.Duration
	}{
		"older":           {digestA, -time.Minute, 0},
		"newer":           {digestA, time.Minute, time.Minute},
		"moved meanwhile": {digestB, -time.Minute, -time.Minute},
	} {
		tag, confirmed := tags.New(ref), clock.Now()
		tag.Status, tag.Annotations = &imagev1.NamedTagEventList{Tag: ref.Tag}, map[string]string{tags.CheckedAt: confirmed.Add(tt.checked).Format(time.RFC3339)}
		tags.Lead(tag, ref, tt.digest, metav1.NewTime(confirmed.Add(-time.Hour)))
		unread := tags.New(ref)
		c.Complete(t.Context(), []*imagev1.ImageTag{tag, unread})
		if got := tags.Checked(tag, confirmed); got == nil || !got.Time.Equal(confirmed.Add(tt.want)) {
			t.Errorf("%s: checked %v, want %v", name, got, confirmed.Add(tt.want))
		}
		if tags.Checked(unread, confirmed) != nil {
			t.Errorf("%s: a tag that nobody has looked at was checked at %v", name, tags.Checked(unread, confirmed))
		}
	}
}

// After the clock was set back, what is confirmed since counts, and not a time in the future,
// whether that was written or not. Nobody knows how long ago that was.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	begun := time.Date(2026, 11, 24, 2, 0, 0, 0, time.UTC)
	clock := testclock.NewFakeClock(begun)
	c := checks.New(dbtest.Open(t, func(o *db.Options) { o.Clock = clock }), clock)
	ref := reference.Reference{Host: "registry.example.com", Repository: "app", Tag: "v1"}
	confirm := func() {
		c.Confirm([]tags.Check{{Reference: ref.String(), Digest: digestA, At: clock.Now()}})
	}
	recorded := tags.New(ref) // while the clock was ahead
	recorded.Status = &imagev1.NamedTagEventList{Tag: ref.Tag}
	tags.Lead(recorded, ref, digestA, metav1.NewTime(begun.Add(24*time.Hour)))
	early := recorded.DeepCopy() // before it was
	early.Status.Items[0].Created = metav1.NewTime(begun.Add(-time.Minute))
	checked := func(when string, want time.Duration) {
		t.Helper()
		tag := early.DeepCopy()
		c.Complete(t.Context(), []*imagev1.ImageTag{tag})
		if got := tags.Checked(tag, clock.Now()); got == nil || !got.Time.Equal(begun.Add(want)) {
			t.Errorf("%s: a tag that moved before was checked %v, want %v", when, got, begun.Add(want))
		}
		tag = recorded.DeepCopy()
		c.Complete(t.Context(), []*imagev1.ImageTag{tag})
		if got := tags.Checked(tag, clock.Now()); got == nil || !got.Time.Equal(begun.Add(want)) {
			t.Errorf("%s: checked %v, want %v", when, got, begun.Add(want))
		}
	}
	for _, isWritten := range []bool{false, true} {
		when := fmt.Sprintf("written %v", isWritten)
		clock.SetTime(begun.Add(24 * time.Hour))
		confirm()
		checked(when, 24*time.Hour)
		if isWritten {
			c.Flush(t.Context())
		}
		clock.SetTime(begun)
		checked("set back, "+when, 24*time.Hour)
		clock.Step(time.Hour)
		confirm()
		checked("confirmed since, "+when, time.Hour)
		c.Flush(t.Context())
		checked("confirmed and written since, "+when, time.Hour)
	}
}
