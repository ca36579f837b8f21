package spool

import (
	"context"
	"errors"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/push"
)

// ClaimNow is Claim without the waiting.
func (s *Queue[S, E]) ClaimNow(n int, lease time.Duration) ([]*job.Job[S, E], error) {
	due, _, err := s.findDue(context.Background(), s.db.Now(), n, func(string) (int, time.Time) { return n, time.Time{} })
	if err != nil {
		return nil, err
	}
	return s.lease(context.Background(), due, lease)
}

// ClaimNow is [Pushes.Claim] without the waiting.
func (p *Pushes) ClaimNow(n int, lease time.Duration) ([]*push.Job, error) {
	jobs, err := p.Queue.ClaimNow(n, lease)
	if errors.Is(err, errStrays) {
		if err = p.moveStrays(context.Background()); err == nil {
			return p.Queue.ClaimNow(n, lease)
		}
	}
	return jobs, err
}

// Delay is the wait after so many attempts.
func (s *Queue[S, E]) Delay(attempts int) time.Duration { return s.opts.delay(attempts) }

// Counted counts the events of all jobs, as the quotas do.
func (s *Queue[S, E]) Counted(ctx context.Context) (n int64, err error) {
	err = s.known(ctx, func() error {
		for _, events := range s.events {
			n += events
		}
		return nil
	})
	return n, err
}
