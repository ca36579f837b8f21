package runs

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/internal/pages"
)

// Limits bound the stretches that are kept after their end.
type Limits struct {
	// Keep is how long a stretch is kept after its end.
	Keep time.Duration
	// Most bounds the number of stretches. The stretches that ended first are deleted first; running
	// ones stay.
	Most int64
}

const (
	expireEvery = 10 * time.Minute
	// expireBatch is how many stretches are deleted between two flushes.
	expireBatch = 1000
)

// Limit replaces the limits.
func (r *Recorder) Limit(l Limits) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.limits, r.expired = l, time.Time{}
}

// ended is a stretch that has ended.
type ended struct {
	namespace, name, cluster string
	until                    time.Time
}

const (
	day = 24 * time.Hour
	// settled is how long after its end a stretch may still be written.
	settled = 2 * day
)

// firstDay is before the first version that recorded: nothing ended earlier.
var firstDay = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// expire deletes old stretches, if that is due, and moves the time from which records are complete.
func (r *Recorder) expire(ctx context.Context) error {
	now := r.Clock.Now()
	r.mu.Lock()
	limits, due := r.limits, now.Sub(r.expired) >= expireEvery
	r.mu.Unlock()
	if !due || limits.Most <= 0 {
		return nil
	}
	total, err := r.total(ctx)
	if err != nil {
		return err
	}
	over, cutoff, deleted := total-limits.Most, now.Add(-limits.Keep), 0
	if over > 0 || r.oldest.Before(cutoff) {
		at := r.oldest.Truncate(day)
		if at.Before(firstDay) {
			at = firstDay
		}
		oldest := at
		for ; deleted < expireBatch && !at.After(now) && (over > 0 || at.Before(cutoff)); at = at.Add(day) {
			all, err := r.endedOn(ctx, at)
			if err != nil {
				return err
			}
			for len(all) > 0 && deleted < expireBatch && (over > 0 || all[0].until.Before(cutoff)) {
				one := all[0]
				// first store that records are incomplete, then delete
				if err := r.wholeAfter(ctx, one.cluster, one.until); err != nil {
					return err
				}
				if err := r.remove(ctx, &imageruns.ImageRun{ObjectMeta: metav1.ObjectMeta{Namespace: one.namespace, Name: one.name}}); err != nil {
					return err
				}
				all, deleted, over = all[1:], deleted+1, over-1
			}
			if len(all) > 0 {
				oldest = all[0].until
				break
			}
			oldest = at.Add(day)
		}
		// stretches that ended later may not be written yet
		if r.oldest = oldest; oldest.After(now.Add(-settled)) {
			r.oldest = now.Add(-settled)
		}
	}
	if deleted < expireBatch {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.limits == limits {
			r.expired = now
		}
	}
	return nil
}

// total counts the stored stretches.
func (r *Recorder) total(ctx context.Context) (n int64, err error) {
	counted := errors.New("counted")
	err = r.eachPage(ctx, fields.Everything(), 1, func(list *imageruns.ImageRunList) error {
		n = pages.Total(list)
		return counted
	})
	if errors.Is(err, counted) {
		err = nil
	}
	return n, err
}

// endedOn returns the stretches that ended first on a day, in order: one more than are deleted at
// once.
func (r *Recorder) endedOn(ctx context.Context, at time.Time) (first []ended, err error) {
	cut := func() {
		slices.SortFunc(first, func(a, b ended) int { return cmp.Or(a.until.Compare(b.until), cmp.Compare(a.name, b.name)) })
		first = first[:min(len(first), expireBatch+1)]
	}
	err = r.each(ctx, imageruns.EndedOn(at), func(one *imageruns.ImageRun) error {
		if first = append(first, ended{one.Namespace, one.Name, one.Spec.Cluster, one.Status.Until.Time}); len(first) > 2*expireBatch {
			cut()
		}
		return nil
	})
	cut()
	return first, err
}

// wholeStep is how far the time from which records are complete moves at once, so that it is
// written once for many stretches.
const wholeStep = time.Hour

// wholeAfter stores that the records of a cluster are complete only after a time.
func (r *Recorder) wholeAfter(ctx context.Context, cluster string, until time.Time) error {
	r.mu.Lock()
	c := r.clusters[cluster]
	if c == nil || c.records.Since.IsZero() || until.Before(c.records.Since.Time) {
		r.mu.Unlock()
		return nil
	}
	records := *c.records.DeepCopy()
	r.mu.Unlock()
	records.Since = metav1.NewTime(until.Truncate(wholeStep).Add(wholeStep))
	if err := r.set(ctx, cluster, records); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c.records.Since = records.Since
	return nil
}
