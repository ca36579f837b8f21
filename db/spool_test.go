package db_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"tidewaiter/db"
	"tidewaiter/db/dbtest"
)

// spoolTest is a spool whose time the test moves.
type spoolTest struct {
	*db.Spool
	t     *testing.T
	clock *clocktesting.FakeClock
}

func openSpool(t *testing.T, opts db.SpoolOptions) *spoolTest {
	t.Helper()
	clock := clocktesting.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	d := dbtest.Open(t, func(o *db.Options) { o.Clock = clock; o.MaintenanceInterval = time.Hour })
	s, err := d.Spool(opts)
	if err != nil {
		t.Fatal(err)
	}
	return &spoolTest{s, t, clock}
}

func request(key, id, payload string) db.SpoolRequest {
	return db.SpoolRequest{Key: key, Source: "local", EventID: id, Payload: []byte(payload)}
}

func (s *spoolTest) enqueue(requests ...db.SpoolRequest) {
	s.t.Helper()
	if err := s.Enqueue(context.Background(), requests); err != nil {
		s.t.Fatal(err)
	}
}

// claim leases for a minute what is due now; it waits for nothing.
func (s *spoolTest) claim(n int) []*db.SpooledJob {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	type result struct {
		jobs []*db.SpooledJob
		err  error
	}
	done := make(chan result, 1)
	waiting := make(chan struct{})
	go func() {
		jobs, err := s.Claim(ctx, n, time.Minute)
		done <- result{jobs, err}
	}()
	go func() {
		// Claim has nothing to do once it waits for the clock or the wake-up; a
		// cancelled Claim that has jobs returns them.
		time.Sleep(50 * time.Millisecond)
		close(waiting)
	}()
	select {
	case r := <-done:
		cancel()
		if r.err != nil {
			s.t.Fatal(r.err)
		}
		return r.jobs
	case <-waiting:
	}
	cancel()
	if r := <-done; r.err == nil {
		return r.jobs
	} else if !errors.Is(r.err, context.Canceled) {
		s.t.Fatal(r.err)
	}
	return nil
}
