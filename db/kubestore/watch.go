package kubestore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/tidewaiter/tidewaiter/db"
)

// resultBuffer is how many events wait for a reader that is briefly behind. If there are more, the
// watch stops reading, either from the database's changelog, whose events are shared, or existing
// objects, which are not. The watch cache's buffer is as large.
const resultBuffer = 10

// watchChan is one watch. A single goroutine reads from the database when the reader has room, so a
// slow reader delays no others and holds nothing in memory.
type watchChan struct {
	s         *Store
	key       string
	recursive bool
	pred      storage.SelectionPredicate
	rev       int64 // where the watch starts, 0 for now
	since     int64 // existing objects are sent as of this revision or later, 0 for now
	// initial is true to send existing objects first; initialBookmark adds a bookmark after them.
	initial, initialBookmark bool
	progressNotify           bool
	recordTimes              bool

	ctx     context.Context
	cancel  context.CancelFunc
	result  chan watch.Event
	request chan struct{} // requests a progress notification
	sent    int64         // revision of the last event or bookmark sent
	// release releases the history that the watch still has to send. The watch holds it until it has
	// caught up with the present for the first time, because sending existing objects may take longer
	// than history is kept.
	release func()
}

// Watch implements storage.Interface.
func (s *Store) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	key, err := s.prepareKey(key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	rv, err := s.versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
	}
	if opts.Recursive && !strings.HasSuffix(key, "/") {
		return nil, fmt.Errorf(`recursive key needs to end with "/"`)
	}
	if opts.ProgressNotify && s.newFunc == nil {
		return nil, apierrors.NewInternalError(errors.New("progress notification needs Config.New, to create bookmarks"))
	}
	watchList := utilfeature.DefaultFeatureGate.Enabled(features.WatchList)
	w := &watchChan{
		s: s, key: key, recursive: opts.Recursive, pred: opts.Predicate, rev: int64(rv),
		progressNotify: opts.ProgressNotify,
		recordTimes:    opts.RecordTimestamps,
		result:         make(chan watch.Event, resultBuffer),
		request:        make(chan struct{}, 1),
	}
	if send := opts.SendInitialEvents; send == nil || !watchList {
		w.initial = rv == 0 // revision 0 asks for an ADDED event for each existing object
	} else {
		w.initial = *send
		w.initialBookmark = *send && opts.Predicate.AllowWatchBookmarks
	}
	w.ctx, w.cancel = context.WithCancel(ctx)
	if w.since, err = s.since(opts.ResourceVersion); err != nil {
		return nil, err
	}
	if !w.initial || w.since > 0 { // otherwise the read of existing objects waits
		if err := s.db.CatchUp(ctx, w.since); err != nil {
			// the client may have this revision from another server
			w.cancel()
			return nil, s.interpret(err)
		}
	}
	if w.rev == 0 && !w.initial {
		w.rev = s.db.Revision()
	}
	hold := w.rev
	if w.initial {
		hold = s.db.Revision() // existing objects are sent as of now, or later
	}
	w.release = s.db.Hold(hold)
	s.mu.Lock()
	s.watches[w] = struct{}{}
	s.mu.Unlock()
	go w.run()
	utilflowcontrol.WatchInitialized(ctx)
	return w, nil
}

// RequestWatchProgress implements storage.Interface: every watch that allows bookmarks sends one,
// as soon as it is up to date.
func (s *Store) RequestWatchProgress(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		if w.progressNotify || w.pred.AllowWatchBookmarks {
			select {
			case w.request <- struct{}{}:
			default:
			}
		}
	}
	return nil
}

// Stop implements watch.Interface.
func (w *watchChan) Stop() { w.cancel() }

// ResultChan implements watch.Interface.
func (w *watchChan) ResultChan() <-chan watch.Event { return w.result }

func (w *watchChan) run() {
	defer func() {
		w.cancel()
		w.release()
		w.s.mu.Lock()
		delete(w.s.watches, w)
		w.s.mu.Unlock()
		close(w.result)
	}()
	err := w.serve()
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, db.ErrClosed) {
		return
	}
	w.send(watch.Event{Type: watch.Error, Object: w.s.watchError(err)})
}

// serve sends events until the watch ends.
func (w *watchChan) serve() error {
	if w.initial {
		if cur := w.s.db.Revision(); w.rev > cur {
			return storage.NewTooLargeResourceVersionError(uint64(w.rev), uint64(cur), int(wait.Jitter(time.Second, 3).Seconds()))
		}
		if err := w.sendExisting(); err != nil {
			return err
		}
	}
	if w.initialBookmark && !w.sendBookmark(w.rev, true) {
		return nil
	}
	watcher, err := w.s.db.Watch(w.key, !w.recursive, w.rev)
	if err != nil {
		return err
	}
	defer watcher.Stop()
	w.sent = max(w.sent, w.rev)

	tick, stopTick := w.ticker()
	defer stopTick()
	for {
		events, err := watcher.Poll(w.ctx)
		if err != nil {
			return err
		}
		for _, e := range events {
			ev, ok, err := w.s.shared(e).event(w.ctx, &w.pred)
			if err != nil {
				return err
			}
			if !ok {
				continue
			}
			if w.recordTimes {
				ev.Object = &timedObject{Object: ev.Object, at: time.Now()}
			}
			if !w.send(ev) {
				return nil
			}
			w.sent = e.Rev
		}
		if len(events) > 0 {
			// A busy watch sends its bookmarks, too.
			select {
			case <-tick:
				if rev, _ := watcher.Progress(); !w.sendBookmark(rev, false) {
					return nil
				}
			default:
			}
			continue
		}
		w.release()
		select {
		case <-watcher.Ready():
		case <-tick:
			if rev, _ := watcher.Progress(); !w.sendBookmark(rev, false) {
				return nil
			}
		case <-w.request:
			if rev, _ := watcher.Progress(); !w.sendBookmark(rev, false) {
				return nil
			}
		case <-w.ctx.Done():
			return nil
		}
	}
}

// ticker ticks when a bookmark is due. It also ticks just before the context's deadline: the client
// gets a bookmark before its watch times out, and starts the next one there.
func (w *watchChan) ticker() (<-chan time.Time, func()) {
	var every time.Duration
	switch {
	case w.s.newFunc == nil:
		return nil, func() {}
	case w.progressNotify:
		every = w.s.progress
	case w.pred.AllowWatchBookmarks:
		every = w.s.bookmark
		if deadline, ok := w.ctx.Deadline(); ok {
			every = min(every, time.Until(deadline)-2*time.Second)
		}
		every = max(every, time.Second)
	default:
		return nil, func() {}
	}
	t := time.NewTicker(every)
	return t.C, t.Stop
}

// sendExisting sends every object as ADDED, as of one revision, from which the watch then
// continues.
func (w *watchChan) sendExisting() error {
	o := db.RangeOptions{Prefix: w.key, Since: w.since, Limit: chunkRows, Bytes: watchPageBytes}
	var weight int64
	watches, who := w.s.budget.watches, w.s.budget.user(w.ctx)
	defer func() { watches.Remove(who, weight) }()
	if begin := w.s.budget.begin; begin != nil {
		defer begin(w.ctx)()
	}
pages:
	for {
		page, err := w.s.page(w.ctx, o, w.recursive)
		if err != nil {
			return err
		}
		if o.Rev == 0 {
			w.rev = page.Rev
			o.Rev = w.rev
		}
		for i := range page.KVs {
			kv := &page.KVs[i]
			// The objects that wait for the reader count as if each were the largest so far.
			if n := min(decodedWeight*resultBuffer*int64(len(kv.Value)), watchBytes); n > weight {
				watches.Remove(who, weight)
				weight = 0
				room := watches.TryAdd(who, 0, n)
				if !room {
					// A watch that waits drops its page, and reads it again.
					o.From = kv.Key
					clear(page.KVs[i:])
					if err := w.s.budget.admitWatch(w.ctx, n); err != nil {
						return err
					}
				}
				if weight = n; !room {
					continue pages
				}
			}
			obj, err := w.s.decodeEvent(w.ctx, *kv)
			if err != nil {
				return err
			}
			kv.Value = nil
			yield()
			if !w.pred.Empty() && !matches(&w.pred, obj) {
				continue
			}
			// No other watch has this object, so no copy is needed.
			if !w.send(watch.Event{Type: watch.Added, Object: obj}) {
				return context.Canceled
			}
		}
		if !page.More {
			return nil
		}
		o.From = page.KVs[len(page.KVs)-1].Key + "\x00"
	}
}

// sendBookmark sends a bookmark: the reader has seen everything up to rev.
func (w *watchChan) sendBookmark(rev int64, initialEnd bool) bool {
	if w.s.newFunc == nil || rev < w.sent || rev == 0 {
		return true
	}
	obj := w.s.newFunc()
	if err := w.s.versioner.UpdateObject(obj, uint64(rev)); err != nil {
		return true
	}
	if initialEnd {
		if err := storage.AnnotateInitialEventsEndBookmark(obj); err != nil {
			return true
		}
	}
	w.sent = rev
	return w.send(watch.Event{Type: watch.Bookmark, Object: obj})
}

// send sends an event to the reader. It returns false if the watch has ended.
func (w *watchChan) send(ev watch.Event) bool {
	select {
	case w.result <- ev:
		return true
	case <-w.ctx.Done():
		return false
	}
}

// timedObject carries the time an event was decoded, for the watch cache's
// latency metric (ListOptions.RecordTimestamps).
type timedObject struct {
	runtime.Object
	at time.Time
}

var _ storage.WatchEventWithRecordTime = (*timedObject)(nil)

// RecordTime implements storage.WatchEventWithRecordTime.
func (t *timedObject) RecordTime() time.Time { return t.at }

// Unwrap implements storage.WatchEventWithRecordTime.
func (t *timedObject) Unwrap() runtime.Object { return t.Object }

// DeepCopyObject implements runtime.Object.
func (t *timedObject) DeepCopyObject() runtime.Object {
	return &timedObject{Object: t.Object.DeepCopyObject(), at: t.at}
}
