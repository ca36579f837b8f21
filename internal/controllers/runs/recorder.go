package runs

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/internal/pages"
	"github.com/tidewaiter/tidewaiter/internal/warn"
)

const (
	// flushEvery is how often changes are written.
	flushEvery = time.Second
	// pause is how long a stretch may be without pods: the pod that replaces another continues its
	// stretch.
	pause = time.Minute
	// slow is how often growing numbers of pods are written, and the times up to which records are
	// complete.
	slow = time.Minute
	// rejudge is how often all verdicts are read again.
	rejudge = 5 * time.Minute
	// yield is how long a server waits after it found that another one records: by then a server that
	// does not lead any more knows.
	yield   = 10 * time.Second
	writers = 8
	// maxWaiting bounds the ended stretches of a cluster that wait to be written.
	maxWaiting = 100_000
	// maxVerdicts is how many verdicts a stretch keeps: the first, and the newest.
	maxVerdicts = 16
)

// Store is the storage of ImageRuns.
type Store interface {
	rest.Lister
	rest.Updater
	rest.GracefulDeleter
}

// Clusters stores for which times the records of clusters are complete.
type Clusters interface {
	// Names returns the names of the followed clusters.
	Names() []string
	Records(ctx context.Context) (map[string]clusters.ClusterRecords, error)
	// SetRecords returns [clusters.ErrRecordsChanged] if what is stored is none of known.
	SetRecords(ctx context.Context, cluster string, r clusters.ClusterRecords, known ...clusters.ClusterRecords) error
	// Seen returns the time up to which everything that a cluster had was observed.
	Seen(cluster string) time.Time
}

// Verdicts judges what ran.
type Verdicts interface {
	// VerdictOf returns the verdict on the image that ran, without its time, and the digest of this
	// image; "" if it is not known.
	VerdictOf(ctx context.Context, namespace, image, imageID string) (v imageruns.RunVerdict, digest string)
	// Turned gets the verdicts that turned by the age of a tag alone.
	Turned(ctx context.Context, all []Turn)
}

// Options of a Recorder. All but SeveralServers and Fills are required.
type Options struct {
	Store    Store
	Clusters Clusters
	Verdicts Verdicts
	// SeveralServers is set if others answer the admission of clusters, too.
	SeveralServers bool
	// Fills counts how often the store was filled anew, after which it may lack what was written. Nil
	// is never.
	Fills func() int64
	Clock clock.WithTicker
}

// Turn is a verdict for a container that followed another one.
type Turn struct {
	Namespace, Image, ImageID string
	Before, After             imageruns.RunVerdict
}

// Recorder records what runs in clusters. It is their [clusters.Observer].
type Recorder struct {
	Options
	failing warn.Trouble
	started time.Time
	// admitted has how images were admitted: an [admitted] for each [askedAbout].
	admitted *lru.Cache

	mu        sync.Mutex
	recording bool // the stored stretches have been read, and changes are written
	clusters  map[string]*cluster
	recheck   map[string]imageruns.By // digests whose verdicts must be read, and why
	limits    Limits
	expired   time.Time // when old stretches were deleted last; zero if not since Limit

	oldest time.Time // no stored stretch ended before; only expire uses it
	fills  int64     // of the store, when the stored stretches were read; only Run uses it
}

// New returns a recorder that counts. It writes nothing until Run.
func New(o Options) *Recorder {
	return &Recorder{Options: o, started: o.Clock.Now(), admitted: lru.New(maxAdmitted), clusters: map[string]*cluster{}, recheck: map[string]imageruns.By{}}
}

// of returns a cluster. The caller holds mu.
func (r *Recorder) of(name string) *cluster {
	if r.clusters[name] == nil {
		r.clusters[name] = newCluster(name)
	}
	return r.clusters[name]
}

// Pod is part of [clusters.Observer].
func (r *Recorder) Pod(cluster, namespace, name string, spec *clusters.ClusterPodSpec) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of(cluster).set(podID{namespace, name}, spec, r.Clock.Now(), r.recording)
}

// Current is part of [clusters.Observer].
func (r *Recorder) Current(cluster string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.of(cluster)
	if c.current, c.since = true, now; r.recording {
		c.resume(now)
	}
}

// Away is part of [clusters.Observer].
func (r *Recorder) Away(cluster string, seen time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.of(cluster)
	if c.current = false; r.recording {
		c.missed, c.dirty = seen, true
		c.records.Miss(seen, time.Time{})
	}
}

// Recheck makes the Recorder read the verdicts of running stretches of these images again. by is
// why, "" if another call says it.
func (r *Recorder) Recheck(by imageruns.By, digests ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.recording { // when recording begins, the verdicts of all stretches are read
		return
	}
	for _, digest := range digests {
		if was := r.recheck[digest]; was != "" && by != "" && was != by {
			r.recheck[digest] = imageruns.BySeveral
		} else {
			r.recheck[digest] = cmp.Or(by, was)
		}
	}
}

// Forget is part of [clusters.Observer]. The cluster's stretches end at an unknown time after it
// was last seen.
func (r *Recorder) Forget(ctx context.Context, cluster string, records clusters.ClusterRecords) error {
	now := r.Clock.Now()
	records.Miss(records.KnownUntil(now), now)
	var open []imageruns.ImageRun
	err := r.each(ctx, imageruns.Running(), func(one *imageruns.ImageRun) error {
		if one.Spec.Cluster == cluster {
			open = append(open, *one)
		}
		return nil
	})
	for i := range open {
		if err != nil {
			return err
		}
		open[i].Status.Until = &metav1.Time{Time: now}
		open[i].Status.Unseen = records.UnseenIn(open[i].Spec.From.Time, now)
		err = r.store(ctx, &open[i])
	}
	return err
}

// each calls use with each selected stored stretch.
func (r *Recorder) each(ctx context.Context, selected fields.Selector, use func(*imageruns.ImageRun) error) error {
	return r.eachPage(ctx, selected, pages.Size, func(list *imageruns.ImageRunList) error {
		for i := range list.Items {
			if err := use(&list.Items[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// eachPage calls use with pages of size selected stretches.
func (r *Recorder) eachPage(ctx context.Context, selected fields.Selector, size int64, use func(*imageruns.ImageRunList) error) error {
	ctx = genericapirequest.WithNamespace(ctx, metav1.NamespaceAll)
	return pages.EachReadable(ctx, metav1.ListOptions{Limit: size}, func(ctx context.Context, o metav1.ListOptions) (*imageruns.ImageRunList, error) {
		obj, err := r.Store.List(ctx, &internalversion.ListOptions{FieldSelector: selected, Limit: o.Limit, Continue: o.Continue})
		if err != nil {
			return nil, err
		}
		return obj.(*imageruns.ImageRunList), nil
	}, use, func(err error) { slog.Error("A record of what ran cannot be read", "err", err) })
}

// store writes a stretch.
func (r *Recorder) store(ctx context.Context, one *imageruns.ImageRun) error {
	ctx = genericapirequest.WithNamespace(ctx, one.Namespace)
	info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, before runtime.Object) (runtime.Object, error) {
		after := one.DeepCopy()
		if old, ok := before.(*imageruns.ImageRun); ok && old.UID != "" {
			after.ObjectMeta = old.ObjectMeta
		}
		after.ResourceVersion = "" // only this server writes
		return after, nil
	})
	_, _, err := r.Store.Update(ctx, one.Name, info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, true, &metav1.UpdateOptions{})
	return err
}

// remove deletes a stretch.
func (r *Recorder) remove(ctx context.Context, one *imageruns.ImageRun) error {
	_, _, err := r.Store.Delete(genericapirequest.WithNamespace(ctx, one.Namespace), one.Name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// Run writes changes until ctx is done, and then the last ones.
func (r *Recorder) Run(ctx context.Context) error {
	ticker := r.Clock.NewTicker(flushEvery)
	defer ticker.Stop()
	defer r.stop()
	var slowly, judged, yielding time.Time
	for loaded := false; ; {
		now, last := r.Clock.Now(), ctx.Err() != nil
		if !loaded && !last && !now.Before(yielding) {
			err := r.load(ctx)
			loaded = err == nil
			r.note(ctx, err)
		}
		if loaded {
			all, again := now.Sub(slowly) >= slow, now.Sub(judged) >= rejudge
			err := r.flush(context.WithoutCancel(ctx), all || last, again && !last)
			if errors.Is(err, clusters.ErrRecordsChanged) || errors.Is(err, errFilled) {
				slog.Warn("What runs is recorded anew", "why", err)
				r.stop()
				if loaded = false; errors.Is(err, clusters.ErrRecordsChanged) {
					yielding = now.Add(yield)
				}
				continue
			}
			if r.note(ctx, err); err == nil && all {
				slowly = now
			}
			if err == nil && !last {
				r.noteExpired(ctx, r.expire(ctx))
			}
			if again {
				judged = now
			}
		}
		if last {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-ticker.C():
		}
	}
}

// note logs when recording begins to fail, and when it works again.
func (r *Recorder) note(ctx context.Context, err error) {
	switch {
	case err == nil:
		r.failing.End("", "What runs is recorded again")
	case ctx.Err() == nil:
		r.failing.Begin("", "What runs cannot be recorded, will retry", "err", err)
	}
}

// noteExpired does the same for deleting old records.
func (r *Recorder) noteExpired(ctx context.Context, err error) {
	switch {
	case err == nil:
		r.failing.End("expire", "Records of what ran that are no longer kept are deleted again")
	case ctx.Err() == nil:
		r.failing.Begin("expire", "Records of what ran that are no longer kept cannot be deleted, will retry", "err", err)
	}
}

// errFilled: the store was filled anew.
var errFilled = errors.New("the store was filled anew, and may lack what was written")

// filled returns how often the store was filled.
func (r *Recorder) filled() int64 {
	if r.Fills == nil {
		return 0
	}
	return r.Fills()
}

// claim stores for which times records are complete that some server has recorded before: from the
// end of these on, nothing is known. Whoever recorded until then and is still at work finds them
// changed, and writes no more. It returns the records.
func (r *Recorder) claim(ctx context.Context) (map[string]clusters.ClusterRecords, error) {
	stored, err := r.Clusters.Records(ctx)
	if err != nil {
		return nil, err
	}
	claimed, now := map[string]clusters.ClusterRecords{}, r.Clock.Now()
	for _, name := range r.Clusters.Names() {
		was, ok := stored[name]
		if !ok {
			continue
		}
		records := *was.DeepCopy()
		if records.Until.After(now) { // by a clock that was ahead
			records.Until = metav1.NewTime(now.Add(-slow).Truncate(time.Second))
			records.Unseen = slices.DeleteFunc(records.Unseen, func(g clusters.Gap) bool { return g.From.After(now) })
		}
		records.Miss(records.KnownUntil(now), time.Time{})
		if !records.Same(was) {
			if err := r.Clusters.SetRecords(ctx, name, records, was); err != nil {
				return nil, err
			}
		}
		claimed[name] = records
	}
	return claimed, nil
}

// load reads the stored stretches, and begins to record.
func (r *Recorder) load(ctx context.Context) error {
	r.fills = r.filled()
	records, err := r.claim(ctx)
	if err != nil {
		return err
	}
	followed := r.Clusters.Names()
	var open []*imageruns.ImageRun
	if err := r.each(ctx, imageruns.Running(), func(one *imageruns.ImageRun) error {
		open = append(open, one.DeepCopy())
		return nil
	}); err != nil {
		return err
	}
	over := map[string]map[key]time.Time{}
	missed := map[string]time.Time{} // everything seen before is written
	for name, known := range records {
		missed[name] = known.Unseen[len(known.Unseen)-1].From.Time
		if over[name], err = r.endedAfter(ctx, name, missed[name]); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range followed {
		known, ok := records[name]
		if !ok {
			continue
		}
		c := r.of(name)
		c.records, c.stored, c.tried, c.over = *known.DeepCopy(), known, nil, over[name]
		c.missed = missed[name]
	}
	r.oldest = time.Time{} // older ones may have come back
	for _, one := range open {
		if c := r.clusters[one.Spec.Cluster]; c != nil { // else Forget ends it
			c.adopt(one)
		}
	}
	r.recording = true
	now := r.Clock.Now()
	for _, c := range r.clusters {
		if c.current {
			c.resume(now)
		}
	}
	return nil
}

// endedAfter returns when the stretches of a cluster ended that ended after a time and were stored
// nevertheless.
func (r *Recorder) endedAfter(ctx context.Context, cluster string, at time.Time) (map[key]time.Time, error) {
	all := map[key]time.Time{}
	err := r.each(ctx, imageruns.RanIn(cluster, imageruns.Window{From: at, Until: r.Clock.Now().Add(day)}), func(one *imageruns.ImageRun) error {
		if end := one.Status.Until; end != nil && end.After(all[keyOfStored(one)]) {
			all[keyOfStored(one)] = end.Time
		}
		return nil
	})
	return all, err
}

// stop ends recording, so that another server can begin.
func (r *Recorder) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recording = false
	for _, c := range r.clusters {
		for k, one := range c.runs {
			if one.pods == 0 {
				delete(c.runs, k)
				continue
			}
			one.begun, one.stored, one.dirty = false, false, false
		}
		c.ended, c.dirty, c.changed = nil, false, map[*run]bool{}
		c.records, c.stored, c.tried, c.missed = clusters.ClusterRecords{}, clusters.ClusterRecords{}, nil, time.Time{}
	}
}
