package kubestore

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	testclock "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/truth"
)

// TestSlowWatch: a watch whose client does not read delays no other. It ends with 410 when its
// revision has left the history. The other watches get everything.
func TestSlowWatch(t *testing.T) {
	ctx := t.Context()
	d := dbtest.Open(t, func(o *db.Options) { o.ChangelogBytes = 100_000; o.MaintenanceInterval = time.Hour })
	f := setupOn(t, d)
	open := func() watch.Interface {
		w, err := f.Watch(ctx, "/pods/", storage.ListOptions{ResourceVersion: fmt.Sprint(d.Revision()), Recursive: true, Predicate: storage.Everything})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Stop)
		return w
	}
	const events = 1000
	slow, fast := open(), open()
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range events {
			ev := <-fast.ResultChan()
			if pod, ok := object(ev).(*example.Pod); !ok || pod.Name != fmt.Sprint(i) {
				t.Errorf("event %d: %v %v", i, ev.Type, ev.Object)
				return
			}
		}
	})
	for i := range events {
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint(i), Annotations: map[string]string{"a": string(make([]byte, 1000))}}}
		if err := f.Create(ctx, fmt.Sprintf("/pods/ns/%d", i), pod, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	if err := d.Compact(ctx, d.Revision()); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for ev := range slow.ResultChan() {
		if ev.Type != watch.Error {
			seen++
			continue
		}
		if status, ok := ev.Object.(*metav1.Status); !ok || status.Code != http.StatusGone || status.Reason != metav1.StatusReasonExpired {
			t.Errorf("the slow watch ends with %v, want 410 Expired", ev.Object)
		}
		if seen >= events {
			t.Errorf("the slow watch was sent all %d events: the test shows nothing", seen)
		}
		return
	}
	t.Errorf("the slow watch was closed without an error, after %d events", seen)
}

func object(ev watch.Event) runtime.Object {
	if c, ok := ev.Object.(runtime.CacheableObject); ok {
		return c.GetObject()
	}
	return ev.Object
}

// TestWatchesShareDecoding: with any number of watches, each event is decoded once, and a large one
// in a turn. The same holds for watches that come later and read from the file.
func TestWatchesShareDecoding(t *testing.T) {
	d := dbtest.Open(t)
	f := setupOn(t, d)
	var turns, ended atomic.Int64
	f.budget.begin = func(context.Context) func() {
		turns.Add(1)
		return func() { ended.Add(1) }
	}
	start := fmt.Sprint(d.Revision())
	const watches, events = 20, 50
	read := func(n int) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var wg sync.WaitGroup
		for range n {
			w, err := f.Watch(ctx, "/pods/", storage.ListOptions{ResourceVersion: start, Recursive: true, Predicate: storage.Everything})
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				for range events {
					if ev := <-w.ResultChan(); ev.Type != watch.Added {
						t.Errorf("event %v", ev.Type)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	for i := range events {
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint(i)}}
		if i == 0 {
			pod.Annotations = map[string]string{"large": strings.Repeat("x", largeEvent)}
		}
		if err := f.Create(t.Context(), fmt.Sprintf("/pods/ns/%d", i), pod, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	f.transformer.GetReadsAndReset()
	read(watches)
	if got := f.transformer.GetReadsAndReset(); got != events {
		t.Errorf("%d watches of %d events decoded %d objects, want each once", watches, events, got)
	}
	if turns.Load() != 1 || ended.Load() != 1 {
		t.Errorf("%d turns for one large event, and %d of them have ended", turns.Load(), ended.Load())
	}
}

// TestLargeExistingObjectsTakeOneTurn: a watch that begins with a large object takes one turn. If
// it took two and there is only one, it would wait for itself, and all lists and watches would wait
// for it.
func TestLargeExistingObjectsTakeOneTurn(t *testing.T) {
	f := setup(t)
	var turns, held atomic.Int64
	f.budget.begin = func(context.Context) func() {
		turns.Add(1)
		if n := held.Add(1); n > 1 {
			t.Errorf("the watch has %d turns", n)
		}
		return func() { held.Add(-1) }
	}
	const objects = 3
	for i := range objects {
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint(i), Annotations: map[string]string{"large": strings.Repeat("x", largeEvent)}}}
		if err := f.Create(t.Context(), fmt.Sprintf("/pods/ns/%d", i), pod, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	w, err := f.Watch(t.Context(), "/pods/", storage.ListOptions{Recursive: true, Predicate: storage.Everything})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for range objects {
		if ev := <-w.ResultChan(); ev.Type != watch.Added {
			t.Fatalf("event %v", ev.Type)
		}
	}
	if turns.Load() != 1 {
		t.Errorf("the watch had %d turns", turns.Load())
	}
}

// TestRequestWatchProgress: a quiet watch that accepts bookmarks gets one at once, with the store's
// revision.
func TestRequestWatchProgress(t *testing.T) {
	ctx := t.Context()
	f := setup(t, func(c *Config) { c.ProgressInterval = time.Hour })
	w, err := f.Watch(ctx, "/pods/", storage.ListOptions{ResourceVersion: fmt.Sprint(f.db.Revision()), Recursive: true, Predicate: storage.Everything, ProgressNotify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	want := f.increaseRV(ctx, t)
	for {
		if err := f.RequestWatchProgress(ctx); err != nil {
			t.Fatal(err)
		}
		select {
		case ev := <-w.ResultChan():
			rv, err := f.versioner.ObjectResourceVersion(ev.Object)
			if err != nil || ev.Type != watch.Bookmark {
				t.Fatalf("event %v, %v", ev, err)
			}
			if int64(rv) == want {
				return
			}
		case <-time.After(time.Minute):
			t.Fatal("no bookmark")
		}
	}
}

// heldTruth is a store that reports its changes only after open is closed.
type heldTruth struct {
	*dbtest.Truth
	open, asked chan struct{} // asked is signalled by each call of Head
}

// Head is part of truth.Store.
func (s heldTruth) Head(ctx context.Context) (int64, error) {
	select {
	case s.asked <- struct{}{}:
	default:
	}
	return s.Truth.Head(ctx)
}

// Follow is part of truth.Store.
func (s heldTruth) Follow(ctx context.Context, from int64, apply func([]truth.Change, int64) error) error {
	select {
	case <-s.open:
	case <-ctx.Done():
		return ctx.Err()
	}
	return s.Truth.Follow(ctx, from, apply)
}

// TestWatchFromARevisionToCome: a watch from a revision that another server has returned, and that
// this server's copy does not have yet, waits for it and begins after it.
func TestWatchFromARevisionToCome(t *testing.T) {
	ctx, store := t.Context(), dbtest.NewTruth()
	held := heldTruth{store, make(chan struct{}), make(chan struct{}, 1)}
	open := func(s truth.Store) *fixture {
		d := dbtest.Open(t, func(o *db.Options) { o.Truth = s })
		if err := d.Filled(ctx); err != nil {
			t.Fatal(err)
		}
		return setupOn(t, d)
	}
	there, behind := open(store), open(held)
	<-held.asked // by the fill
	create := func(name string) *example.Pod {
		made := &example.Pod{}
		if err := there.Create(ctx, "/pods/ns/"+name, &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}, made, 0); err != nil {
			t.Fatal(err)
		}
		return made
	}
	known := create("known").ResourceVersion
	began := make(chan watch.Interface, 1)
	go func() {
		w, err := behind.Watch(ctx, "/pods/", storage.ListOptions{ResourceVersion: known, Recursive: true, Predicate: storage.Everything})
		if err != nil {
			t.Error(err)
		}
		began <- w
	}()
	select {
	case <-held.asked:
	case <-began:
		t.Fatalf("the watch from revision %s began at %d", known, behind.db.Revision())
	}
	create("next")
	close(held.open)
	w := <-began
	if w == nil {
		return
	}
	defer w.Stop()
	if ev := <-w.ResultChan(); ev.Type != watch.Added || object(ev).(*example.Pod).Name != "next" {
		t.Errorf("the watch begins with %v %v", ev.Type, ev.Object)
	}
}

// TestInitialEventsOutlastHistory: even if its client reads existing objects for longer than the
// history window, a watch sends the objects at one revision, and then every later change.
func TestInitialEventsOutlastHistory(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	clock := testclock.NewFakeClock(time.Now())
	const round = 6 * time.Minute // history is kept for five
	d := dbtest.Open(t, func(o *db.Options) { o.Clock, o.MaintenanceInterval, o.ChangelogBytes = clock, round, 1000 })
	f := setupOn(t, d)
	const pods = 3 * chunkRows / 2 // two reads
	for i := range pods {
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("%04d", i)}}
		if err := f.Create(ctx, "/pods/ns/"+pod.Name, pod, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	yes := true
	w, err := f.Watch(ctx, "/pods/", storage.ListOptions{SendInitialEvents: &yes, Recursive: true, Predicate: storage.SelectionPredicate{
		Label: labels.Everything(), Field: fields.Everything(), AllowWatchBookmarks: true}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	first := <-w.ResultChan() // the rest is not read yet
	if err := f.Delete(ctx, "/pods/ns/0740", &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 3 { // the watch reads this history only after the other objects
		dbtest.AwaitWaiters(t, clock, 1)
		clock.Step(round)
		dbtest.AwaitWaiters(t, clock, 1)
	}
	for i := range pods + 2 {
		ev := first
		if i > 0 {
			ev = <-w.ResultChan()
		}
		switch want := []watch.EventType{watch.Added, watch.Bookmark, watch.Deleted}[max(0, i-pods+1)]; {
		case ev.Type != want:
			t.Fatalf("event %d is %s %v, want %s", i, ev.Type, ev.Object, want)
		case want == watch.Added && object(ev).(*example.Pod).Name != fmt.Sprintf("%04d", i),
			want == watch.Deleted && object(ev).(*example.Pod).Name != "0740":
			t.Fatalf("event %d is of %v", i, object(ev))
		}
	}
	// The watch has caught up, so it no longer holds the history.
	if err := f.Create(ctx, "/pods/ns/last", &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "last"}}, nil, 0); err != nil {
		t.Fatal(err)
	}
	if ev := <-w.ResultChan(); ev.Type != watch.Added {
		t.Fatalf("%s %v", ev.Type, ev.Object)
	}
	for deadline := time.Now().Add(time.Minute); d.CompactedRevision() < d.Revision(); {
		dbtest.AwaitWaiters(t, clock, 1)
		clock.Step(round)
		if time.Now().After(deadline) {
			t.Fatalf("history is kept from revision %d on, the present is %d", d.CompactedRevision(), d.Revision())
		}
	}
}

// unreliable is a transformer whose reads fail while err is set.
type unreliable struct {
	value.Transformer
	err atomic.Pointer[error]
}

// TransformFromStorage implements value.Transformer.
func (u *unreliable) TransformFromStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, bool, error) {
	if err := u.err.Load(); err != nil {
		return nil, false, *err
	}
	return u.Transformer.TransformFromStorage(ctx, data, dataCtx)
}

// TestReadThatFailedForOneWatch: if a read fails for one watch, because reads fail for a moment,
// the next watch reads again.
func TestReadThatFailedForOneWatch(t *testing.T) {
	reads := &unreliable{}
	f := setup(t, func(c *Config) { reads.Transformer, c.Transformer = c.Transformer, reads })
	pred := storage.SelectionPredicate{Label: labels.SelectorFromSet(labels.Set{"app": "a"}), Field: fields.Everything(), GetAttrs: storage.DefaultNamespaceScopedAttr}
	for name, want := range map[string]watch.EventType{"added": watch.Added, "deleted": watch.Deleted} {
		key := "/pods/ns/" + name
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"app": "a"}}}
		if err := f.Create(t.Context(), key, pod, nil, 0); err != nil {
			t.Fatal(err)
		}
		if want == watch.Deleted {
			if err := f.Delete(t.Context(), key, &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		from := fmt.Sprint(f.db.Revision() - 1)
		next := func() watch.EventType {
			w, err := f.Watch(t.Context(), key, storage.ListOptions{ResourceVersion: from, Predicate: pred})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			return (<-w.ResultChan()).Type
		}
		err := errors.New("the disk is busy")
		reads.err.Store(&err)
		if got := next(); got != watch.Error {
			t.Errorf("while reads fail: %q", got)
		}
		reads.err.Store(nil)
		if got := next(); got != want {
			t.Errorf("afterwards: %q, want %q", got, want)
		}
	}
}

// TestDamageIsReadOnce: watches share the result of a read. They also share damage, which is
// permanent, but no other error.
func TestDamageIsReadOnce(t *testing.T) {
	for err, want := range map[error]int{
		nil:                                  1,
		&db.DamagedError{}:                   1,
		&corruptError{kind: damaged}:         1,
		&corruptError{kind: undecodable}:     1,
		&corruptError{kind: untransformable}: 2,
		&datafile.UnavailableError{}:         2,
		context.DeadlineExceeded:             2,
	} {
		o, reads := lazyObject{}, 0
		for range 2 {
			if _, got := o.get(func() (runtime.Object, error) { reads++; return nil, err }); got != err {
				t.Errorf("%T: %v", err, got)
			}
		}
		if reads != want {
			t.Errorf("%T: read %d times, want %d", err, reads, want)
		}
	}
}
