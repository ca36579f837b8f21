package server

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// promotions are images that have been verified since the guarded tags that wait for them were
// looked at.
type promotions struct {
	mu      sync.Mutex
	waiting map[string]bool // by digest; at most maxPromotions
	all     bool            // there were more, so all streams are looked at
	wake    chan struct{}   // holds a token while something waits
}

const (
	maxPromotions  = 10_000           // images that wait
	promotionRetry = 10 * time.Second // after a failure
)

func newPromotions() *promotions {
	return &promotions{wake: make(chan struct{}, 1), waiting: map[string]bool{}}
}

// add notes an image that was verified; "" means any. It does not wait.
func (p *promotions) add(image string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.all:
	case image == "" || len(p.waiting) >= maxPromotions:
		p.all, p.waiting = true, map[string]bool{}
	default:
		p.waiting[image] = true
	}
	select {
	case p.wake <- struct{}{}:
	default: // there is one
	}
}

// next takes one image; ok is false if none waits.
func (p *promotions) next() (image string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all {
		p.all = false
		return "", true
	}
	for image = range p.waiting {
		delete(p.waiting, image)
		return image, true
	}
	return "", false
}

// promoter moves the guarded tags of streams that wait for an image; with "", for any.
type promoter interface {
	Promote(ctx context.Context, image string) error
}

// run moves guarded tags whose images were verified, until ctx is done. It begins with all streams:
// a server may have ended between a verdict and the move.
func (p *promotions) run(ctx context.Context, streams promoter) error {
	p.add("")
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		}
		for image, ok := p.next(); ok && ctx.Err() == nil; image, ok = p.next() {
			err := streams.Promote(ctx, image)
			if err == nil || ctx.Err() != nil {
				continue
			}
			slog.Warn("Moving tags to an image that was verified failed, will retry", "image", image, "after", promotionRetry, "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(promotionRetry):
			}
			p.add(image)
		}
	}
}
