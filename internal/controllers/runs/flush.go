package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
)

// asked identifies a question for a verdict.
type asked struct{ namespace, image, imageID string }

// flush writes changed stretches. With all, it also writes numbers of pods that grew, and the time
// up to which everything is recorded. With again it gets all verdicts anew.
func (r *Recorder) flush(ctx context.Context, all, again bool) error {
	seen := map[string]time.Time{}
	for _, name := range r.names() {
		seen[name] = r.Clusters.Seen(name) // read before the changes up to then are collected
	}
	r.ask(ctx, again)
	due := r.due(all)
	if err := r.check(ctx, due, all); err != nil {
		return err
	}
	var writing errgroup.Group
	writing.SetLimit(writers)
	for _, w := range due {
		writing.Go(func() error {
			err := r.store(ctx, &w.object)
			r.mu.Lock()
			defer r.mu.Unlock()
			if err != nil {
				w.again()
			} else {
				w.run.stored = true
			}
			return err
		})
	}
	if err := writing.Wait(); err != nil {
		return err
	}
	return r.confirm(ctx, seen, all)
}

// check is called before something is written. It returns [clusters.ErrRecordsChanged] if another
// server records by now, and errFilled or this if the store was put back to an earlier state: what
// would be written stands beside what others write, or what was written before is lost.
func (r *Recorder) check(ctx context.Context, due []write, all bool) error {
	r.mu.Lock()
	for _, c := range r.clusters {
		all = all || c.dirty
	}
	r.mu.Unlock()
	if len(due) == 0 && !all {
		return nil
	}
	records, err := r.Clusters.Records(ctx) // as they are now, so that a fill is noticed
	if err == nil && r.filled() != r.fills {
		err = errFilled
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, c := range r.clusters {
		if err == nil && !slices.ContainsFunc(c.known(), records[name].Same) {
			err = fmt.Errorf("cluster %s: %w", name, clusters.ErrRecordsChanged)
		}
	}
	if err != nil {
		for _, w := range due {
			w.again()
		}
	}
	return err
}

// known are the records that may be stored.
func (c *cluster) known() []clusters.ClusterRecords {
	if c.tried != nil {
		return []clusters.ClusterRecords{c.stored, *c.tried}
	}
	return []clusters.ClusterRecords{c.stored}
}

// set stores records of a cluster.
func (r *Recorder) set(ctx context.Context, name string, records clusters.ClusterRecords) error {
	r.mu.Lock()
	c := r.clusters[name]
	known := c.known()
	r.mu.Unlock()
	err := r.Clusters.SetRecords(ctx, name, records, known...)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		c.stored, c.tried = records, nil
	} else if !errors.Is(err, clusters.ErrRecordsChanged) {
		c.tried = &records
	}
	return err
}

// names are the names of the clusters.
func (r *Recorder) names() (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.clusters {
		all = append(all, name)
	}
	return all
}

// reading is a stretch whose verdict is read, and why.
type reading struct {
	run *run
	by  imageruns.By
}

// ask gets the verdicts of stretches that began, or whose image was judged again.
func (r *Recorder) ask(ctx context.Context, again bool) {
	questions := map[asked][]reading{}
	r.mu.Lock()
	judge := func(one *run, by imageruns.By) {
		if one.begun && one.object.Status.Until == nil {
			one.judge = false
			if one.object.Status.Admission == "" {
				r.admit(one)
			}
			q := asked{one.namespace, one.image, one.object.Spec.ImageID}
			questions[q] = append(questions[q], reading{one, by})
		}
	}
	for _, c := range r.clusters {
		if again || len(r.recheck) > 0 {
			for _, one := range c.runs {
				switch by, recheck := r.recheck[one.object.Spec.Digest]; {
				case recheck:
					judge(one, cmp.Or(by, imageruns.ByWrite))
				case one.judge:
					judge(one, imageruns.ByAbsence)
				case again:
					judge(one, imageruns.ByReading)
				}
			}
			continue
		}
		for one := range c.changed {
			if one.judge {
				judge(one, imageruns.ByAbsence)
			}
		}
	}
	clear(r.recheck)
	r.mu.Unlock()
	var turns []Turn
	var asking errgroup.Group
	asking.SetLimit(writers)
	for q, of := range questions {
		asking.Go(func() error {
			v, digest := r.Verdicts.VerdictOf(ctx, q.namespace, q.image, q.imageID)
			v.Since = metav1.NewTime(r.Clock.Now().Truncate(time.Second))
			r.mu.Lock()
			defer r.mu.Unlock()
			turned := false
			for _, one := range of {
				if before := one.run.verdict(v, digest, one.by); before != nil && aged(*before, v) && !turned {
					turned = true // for all stretches of the question
					turns = append(turns, Turn{q.namespace, q.image, q.imageID, *before, v})
				}
			}
			return nil
		})
	}
	_ = asking.Wait() // no error: an unknown verdict is a verdict, too
	if len(turns) > 0 {
		r.Verdicts.Turned(ctx, turns)
	}
}

// aged reports whether a verdict turned because the registry had not confirmed its tag for too
// long, or has confirmed it now. No other write reports such a turn.
func aged(before, v imageruns.RunVerdict) bool {
	old, other := before, v
	if v.Reason == imageruns.ReasonTagTooOld {
		old, other = v, before
	}
	return old.Reason == imageruns.ReasonTagTooOld && (verdicts.IsVerified(other.Verified) || other.Verified == verdicts.Excepted)
}

// verdict adds a verdict, if it differs from the last, which it returns: nil if there is none. The
// verdict was read because of by.
func (one *run) verdict(v imageruns.RunVerdict, digest string, by imageruns.By) (before *imageruns.RunVerdict) {
	// the runtime may have reported the digest of a config, whose image is known now
	if had := one.object.Spec.Digest; digest != "" && digest != had && (had == "" || had == podimages.Manifest(one.image, one.object.Spec.ImageID)) {
		one.object.Spec.Digest, one.dirty, one.in.changed[one] = digest, true, true
	}
	known, versions := one.object.Status.Verdicts, one.versions
	one.versions = v.PolicyVersions
	n := len(known)
	if n > 0 && same(known[n-1], v) || one.object.Status.Until != nil {
		return nil
	}
	if n > 0 {
		before = &known[n-1]
		was := *before
		if versions != nil { // a change of policies since then changed no verdict
			was.PolicyVersions = versions
		}
		v.Cause = imageruns.Cause(&was, v, by)
	}
	one.dirty, one.in.changed[one] = true, true
	known = append(slices.Clone(known), v)
	if len(known) > maxVerdicts {
		known = slices.Delete(known, 1, 2)
		one.object.Status.VerdictsDropped++
	}
	one.object.Status.Verdicts = known
	return before
}

// same reports whether two verdicts are equal except for times, messages, causes and the versions
// of policies.
func same(a, b imageruns.RunVerdict) bool {
	a.Since, a.Message, a.Cause, a.PolicyVersions = b.Since, b.Message, b.Cause, b.PolicyVersions
	return reflect.DeepEqual(a, b)
}

// write is a stretch that waits to be written.
type write struct {
	run    *run
	object imageruns.ImageRun
}

// again has it written later. The caller holds the Recorder's mu.
func (w *write) again() { w.run.dirty, w.run.in.changed[w.run] = true, true }

// due returns the stretches to write, and marks them as written.
func (r *Recorder) due(all bool) (due []write) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.Clock.Now()
	for _, c := range r.clusters {
		for one := range c.changed {
			if one.dirty || one.begun && all && one.grown {
				one.dirty, one.grown = false, false
				due = append(due, write{one, *one.object.DeepCopy()})
			}
			if !one.begun || !one.grown && !(one.judge && one.object.Status.Until == nil) { // what begins, or goes on, is noted once more
				delete(c.changed, one)
			}
		}
		c.drop(now)
	}
	return due
}

// drop drops stretches that have ended for good, and those that ended long ago and could not be
// written.
func (c *cluster) drop(now time.Time) {
	c.ended = slices.DeleteFunc(c.ended, func(one *run) bool {
		if one.object.Status.Until == nil {
			return true // it continued
		}
		over := one.stored && !one.dirty && now.Sub(one.object.Status.Until.Time) >= pause
		if over && c.runs[one.key] == one {
			delete(c.runs, one.key)
		}
		return over
	})
	if len(c.ended) <= maxWaiting {
		return
	}
	for _, one := range c.ended {
		if !one.stored {
			delete(c.runs, one.key)
			delete(c.changed, one)
		}
	}
	c.ended = slices.DeleteFunc(c.ended, func(one *run) bool { return !one.stored })
	c.records.Miss(c.records.KnownUntil(now), now)
	c.dirty = true
}

// confirm stores the times for which records are complete, after everything that was seen is
// written.
func (r *Recorder) confirm(ctx context.Context, seen map[string]time.Time, all bool) error {
	changed := map[string]clusters.ClusterRecords{}
	r.mu.Lock()
	for name, c := range r.clusters {
		if c.records.Since.IsZero() || !c.dirty && !(all && c.current) {
			continue
		}
		if at := seen[name]; c.current && at.After(c.records.Until.Time) {
			c.records.Until = metav1.NewTime(at.Truncate(time.Second))
		}
		c.dirty = false
		changed[name] = *c.records.DeepCopy()
	}
	r.mu.Unlock()
	for name, records := range changed {
		if err := r.set(ctx, name, records); err != nil {
			r.mu.Lock()
			r.clusters[name].dirty = true
			r.mu.Unlock()
			return err
		}
	}
	return nil
}
