package spool

import (
	"context"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/push"
)

// ClaimNow is Claim without the waiting.
func (s *Spool) ClaimNow(n int, lease time.Duration) ([]*push.Job, error) {
	due, _, err := s.findDue(context.Background(), s.db.Now(), n, func(string) (int, time.Time) { return n, time.Time{} })
	if err != nil {
		return nil, err
	}
	return s.lease(context.Background(), due, lease)
}

// Delay is the wait after so many attempts.
func (s *Spool) Delay(attempts int) time.Duration { return s.opts.delay(attempts) }

// Counted counts the events of all jobs, as the quotas do.
func (s *Spool) Counted(ctx context.Context) (n int64, err error) {
	err = s.known(ctx, func() error {
		for _, events := range s.events {
			n += events
		}
		return nil
	})
	return n, err
}
