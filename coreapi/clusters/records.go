package clusters

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxGaps is how many gaps are kept of a cluster.
const maxGaps = 200

// ErrRecordsChanged is returned if the stored records are not those that this server last read or
// wrote. Another server has written them, or an earlier state of the store was restored.
var ErrRecordsChanged = errors.New("the records of a cluster were changed elsewhere")

// Same reports whether both are stored as the same.
func (r ClusterRecords) Same(other ClusterRecords) bool {
	a, errA := json.Marshal(r)
	b, errB := json.Marshal(other)
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// KnownUntil returns the time after which nothing is known: Until or, if the server ended before it
// had stored that, Since. It is never after now.
func (r *ClusterRecords) KnownUntil(now time.Time) time.Time {
	at := r.Until.Time
	if at.IsZero() {
		at = r.Since.Time
	}
	if at.After(now) {
		return now
	}
	return at
}

// Miss notes that the cluster could not be seen in a time, which is after all that was noted
// before. until is zero while it still cannot be.
func (r *ClusterRecords) Miss(from, until time.Time) {
	gap := Gap{From: metav1.NewTime(from)}
	if !until.IsZero() {
		gap.Until = &metav1.Time{Time: until}
	}
	if n := len(r.Unseen); n > 0 {
		if last := &r.Unseen[n-1]; last.Until == nil || !last.Until.Before(&gap.From) {
			last.Until = gap.Until // it goes on, or ends
			return
		}
	}
	if r.Unseen = append(r.Unseen, gap); len(r.Unseen) <= maxGaps {
		return
	}
	// Two gaps become one, with what is between them: that is the least that is forgotten.
	nearest := 0
	between := func(i int) time.Duration { return r.Unseen[i+1].From.Sub(r.Unseen[i].Until.Time) }
	for i := range len(r.Unseen) - 1 {
		if between(i) < between(nearest) {
			nearest = i
		}
	}
	r.Unseen[nearest].Until = r.Unseen[nearest+1].Until
	r.Unseen = slices.Delete(r.Unseen, nearest+1, nearest+2)
}

// GapsIn returns the gaps that overlap a time; until is zero for a time without an end.
func (r *ClusterRecords) GapsIn(from, until time.Time) (all []Gap) {
	for _, gap := range r.Unseen {
		if (gap.Until == nil || !gap.Until.Time.Before(from)) && (until.IsZero() || !gap.From.After(until)) {
			all = append(all, *gap.DeepCopy())
		}
	}
	return all
}

// UnseenIn returns the parts of the gaps within a time; until is zero for a time without an end.
func (r *ClusterRecords) UnseenIn(from, until time.Time) (all []Gap) {
	for _, gap := range r.GapsIn(from, until) {
		if gap.From.Time.Before(from) {
			gap.From = metav1.NewTime(from)
		}
		if !until.IsZero() && (gap.Until == nil || gap.Until.After(until)) {
			gap.Until = &metav1.Time{Time: until}
		}
		if gap.Until == nil || gap.From.Before(gap.Until) {
			all = append(all, gap)
		}
	}
	return all
}
