package spool

import (
	"context"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/importer/push"
)

// ClaimNow is Claim without the waiting.
func (s *Spool) ClaimNow(n int, lease time.Duration) ([]*push.Job, error) {
	return s.claim(context.Background(), n, lease, func(string) (int, time.Time) { return n, time.Time{} })
}

// Delay is the wait after so many attempts.
func (s *Spool) Delay(attempts int) time.Duration { return s.delay(attempts) }

// Events counts the events of all jobs, as the quotas do.
func (s *Spool) Events(ctx context.Context) (n int64, err error) {
	err = s.db.Read(ctx, func(c db.Snapshot) error {
		n, _, err = c.First("SELECT sum(payloads) FROM spool_sources")
		return err
	})
	return n, err
}
