package spool

import (
	"context"
	"time"
)

// ClaimNow is Claim without the waiting.
func (s *Spool) ClaimNow(n int, lease time.Duration) ([]*Job, error) {
	return s.claim(context.Background(), n, lease, func(string) (int, time.Time) { return n, time.Time{} })
}

// Delay is the wait after so many attempts.
func (s *Spool) Delay(attempts int) time.Duration { return s.delay(attempts) }
