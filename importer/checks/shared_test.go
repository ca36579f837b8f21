package checks_test

import (
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/importer/checks"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
)

// What one server was told by a registry, all that share their objects know, also one that starts a
// little later, and one whose copy was filled again.
func TestServersShareChecks(t *testing.T) {
	t.Parallel()
	store := dbtest.NewTruth()
	open := func() *checks.Checks {
		d := dbtest.Open(t, func(o *db.Options) { o.Truth = store })
		if err := d.Filled(t.Context()); err != nil {
			t.Fatal(err)
		}
		c := checks.New(d, nil)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := c.Follow(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		t.Cleanup(func() { <-done })
		return c
	}
	one, other := open(), open()
	now := time.Now().Truncate(time.Millisecond)
	await := func(c *checks.Checks, reference string) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !at(t, c, reference).Equal(now.UTC()); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s was confirmed at %v, and another server knows %v", reference, now, at(t, c, reference))
			}
		}
	}
	one.Share([]tags.Check{{Reference: "registry.example.com/app:v1", Digest: digestA, At: now}})
	await(other, "registry.example.com/app:v1")
	await(open(), "registry.example.com/app:v1")
	store.Compact()
	store.Restore(1<<40, 1000)
	one.Share([]tags.Check{{Reference: "registry.example.com/app:v2", Digest: digestA, At: now}})
	await(other, "registry.example.com/app:v2")
}
