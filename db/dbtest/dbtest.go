// Package dbtest opens databases for tests.
package dbtest

import (
	"context"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
)

// AwaitWaiters returns when n or more goroutines wait for clock. The first is a database's
// maintenance.
func AwaitWaiters(t testing.TB, clock *testclock.FakeClock, n int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); clock.Waiters() < n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d wait for the clock, want %d", clock.Waiters(), n)
		}
	}
}

// Open opens a database in a directory of the test's own. When the test ends, Open closes
// the database, and fails the test if PRAGMA integrity_check finds a fault.
func Open(t testing.TB, change ...func(*db.Options)) *db.DB {
	t.Helper()
	opts := db.Options{Dir: t.TempDir()}
	for _, c := range change {
		c(&opts)
	}
	return OpenOptions(t, opts)
}

// OpenOptions is Open with the caller's options, for instance to open a directory again.
func OpenOptions(t testing.TB, opts db.Options) *db.DB {
	t.Helper()
	d, err := db.Open(opts)
	if err != nil {
		t.Fatalf("open database: %v", err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close database: %v", err)
		}
		if err := datafile.Check(context.Background(), opts.Dir); err != nil {
			t.Error(err)
		}
	})
	return d
}
