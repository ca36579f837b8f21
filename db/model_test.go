package db_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/internal/changelog"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "seed of the model test; 0 takes the time")
	stepsFlag = flag.Int("steps", 400, "operations of each goroutine of the model test")
)

// model is what the store should hold, replayed from its own log of changes.
type model struct {
	log []*changelog.Event
}

// at returns the state at a revision: key to event.
func (m *model) at(rev int64) map[string]*changelog.Event {
	state := map[string]*changelog.Event{}
	for _, e := range m.log {
		if e.Rev > rev {
			break
		}
		if e.Deleted {
			delete(state, e.Key)
		} else {
			state[e.Key] = e
		}
	}
	return state
}

// write is an acknowledged write, list a list with its result, conflict a refused write.
type (
	write struct {
		key     string
		rev     int64
		expect  int64
		deleted bool
		value   []byte
	}
	listed struct {
		prefix, from string
		limit        int
		page         db.Page
	}
	conflict struct {
		key           string
		expect        int64
		before, after int64 // revisions of the store around the attempt
	}
)

// history is what one goroutine saw.
type history struct {
	writes    []write
	lists     []listed
	conflicts []conflict
	err       error
}

// TestModel lets goroutines do random operations, and then compares every result with a model: the
// map that results from the log of changes. It also checks the log: each change supersedes the
// previous one, and the log has every acknowledged write once, and otherwise only expiries.
func TestModel(t *testing.T) {
	testModel(t, dbtest.Open(t, modelOptions))
}

// TestModelOfMirrors is TestModel with two copies of one store; half of the goroutines use each
// copy.
func TestModelOfMirrors(t *testing.T) {
	store := dbtest.NewTruth()
	testModel(t, openMirror(t, store, t.TempDir(), modelOptions), openMirror(t, store, t.TempDir(), modelOptions))
}

func modelOptions(o *db.Options) {
	o.HistoryWindow = time.Hour // the workers compact, see compact
	o.MaintenanceInterval = 3 * time.Millisecond
	o.ChangelogBytes = 8 << 10 // so that watchers read from the file, too
}

func testModel(t *testing.T, all ...*db.DB) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d; run again with -seed=%d", seed, seed)
	const workers = 8
	ctx := context.Background()
	d, last := all[0], all[len(all)-1]
	start := d.Revision()
	tail := follow(t, d, "", start)
	var others []*follower
	for _, prefix := range []string{"/a/", "/a/x/", "/b/", "/none/"} {
		others = append(others, follow(t, last, prefix, start))
	}

	histories := make([]history, workers)
	followers := append(others, tail)
	var seen atomic.Int64
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			w := &worker{d: all[i%len(all)], rnd: rand.New(rand.NewPCG(seed, uint64(i))), h: &histories[i], followers: followers, seen: &seen}
			w.run(ctx, *stepsFlag)
		})
	}
	wg.Wait()
	for _, h := range histories {
		if h.err != nil {
			t.Fatal(h.err)
		}
	}
	// Keys must expire without any further write.
	deadline := time.Now().Add(time.Minute)
	for {
		page, err := d.Range(ctx, db.RangeOptions{Prefix: "/"})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(page.KVs, func(kv db.KV) bool { return bytes.HasPrefix(kv.Value, []byte("ttl")) }) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("keys with a TTL of milliseconds are still there")
		}
		time.Sleep(time.Millisecond)
	}

	end := d.Revision()
	m := &model{log: tail.until(t, end)}
	checkLog(t, m, histories)
	for _, f := range others {
		var want []*changelog.Event
		for _, e := range m.log {
			if strings.HasPrefix(e.Key, f.prefix) {
				want = append(want, e)
			}
		}
		if got := f.until(t, end); !slices.EqualFunc(got, want, sameEvent) {
			t.Errorf("watch of %s saw %d events, want %d", f.prefix, len(got), len(want))
		}
	}
	checkLists(t, m, histories)
}

func sameEvent(a, b *changelog.Event) bool {
	return a.Key == b.Key && a.Rev == b.Rev && a.PrevRev == b.PrevRev && a.Deleted == b.Deleted && bytes.Equal(a.Value, b.Value)
}

func checkLog(t *testing.T, m *model, histories []history) {
	t.Helper()
	acked := map[int64]write{}
	for _, h := range histories {
		for _, w := range h.writes {
			if other, ok := acked[w.rev]; ok {
				t.Errorf("revision %d given to %s and to %s", w.rev, other.key, w.key)
			}
			acked[w.rev] = w
		}
	}
	state := map[string]*changelog.Event{}
	var last int64
	for _, e := range m.log {
		if e.Rev <= last {
			t.Errorf("revision %d after %d", e.Rev, last)
		}
		last = e.Rev
		var prev int64
		if p := state[e.Key]; p != nil {
			prev = p.Rev
		}
		if e.PrevRev != prev {
			t.Errorf("%s at revision %d supersedes %d, want %d", e.Key, e.Rev, e.PrevRev, prev)
		}
		if w, ok := acked[e.Rev]; ok {
			if w.key != e.Key || w.expect != prev || w.deleted != e.Deleted || !bytes.Equal(w.value, e.Value) {
				t.Errorf("acknowledged %+v, log has %+v", w, e)
			}
			delete(acked, e.Rev)
		} else if !e.Deleted || state[e.Key] == nil || !bytes.HasPrefix(state[e.Key].Value, []byte("ttl")) {
			t.Errorf("no worker wrote %s at revision %d", e.Key, e.Rev)
		}
		if e.Deleted {
			delete(state, e.Key)
		} else {
			state[e.Key] = e
		}
	}
	for _, w := range acked {
		t.Errorf("acknowledged write lost: %+v", w)
	}
	for _, h := range histories {
		for _, c := range h.conflicts {
			if !m.differed(c) {
				t.Errorf("%s was at revision %d from %d to %d, yet the write was refused", c.key, c.expect, c.before, c.after)
			}
		}
	}
}

// differed reports whether c's key was at another revision at some time.
func (m *model) differed(c conflict) bool {
	var cur int64
	for _, e := range m.log {
		if e.Rev > c.before && cur != c.expect {
			return true
		}
		if e.Rev > c.after {
			return false
		}
		if e.Key == c.key {
			cur = e.Rev
			if e.Deleted {
				cur = 0
			}
		}
	}
	return cur != c.expect
}

func checkLists(t *testing.T, m *model, histories []history) {
	t.Helper()
	n := 0
	for _, h := range histories {
		for _, l := range h.lists {
			n++
			var keys []string
			state := m.at(l.page.Rev)
			for k := range state {
				if strings.HasPrefix(k, l.prefix) && k >= l.from {
					keys = append(keys, k)
				}
			}
			sort.Strings(keys)
			want := keys[:min(len(keys), l.limit)]
			var got []string
			for _, kv := range l.page.KVs {
				got = append(got, kv.Key)
				if e := state[kv.Key]; e == nil || e.Rev != kv.Rev || !bytes.Equal(e.Value, kv.Value) {
					t.Errorf("list at %d has %s@%d, model has %v", l.page.Rev, kv.Key, kv.Rev, e)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("list of %s from %q at %d:\n got %v\nwant %v", l.prefix, l.from, l.page.Rev, got, want)
			}
			if more := len(keys) > len(want); l.page.More != more {
				t.Errorf("list of %s at %d: more %v, want %v", l.prefix, l.page.Rev, l.page.More, more)
			} else if more && l.page.Remaining != int64(len(keys)-len(want)) {
				t.Errorf("list of %s from %q at %d: remaining %d, want %d", l.prefix, l.from, l.page.Rev, l.page.Remaining, len(keys)-len(want))
			}
		}
	}
	t.Logf("%d changes, %d lists checked", len(m.log), n)
}

// worker does random operations.
type worker struct {
	d         *db.DB
	rnd       *rand.Rand
	h         *history
	followers []*follower
	seen      *atomic.Int64 // the newest revision in a result of any worker
}

// saw fails if a result has a lower revision than a result that any worker got before the request.
func (w *worker) saw(what string, rev, seen int64) error {
	if rev < seen {
		return fmt.Errorf("%s has revision %d, after an earlier result had %d", what, rev, seen)
	}
	for have := w.seen.Load(); rev > have && !w.seen.CompareAndSwap(have, rev); {
		have = w.seen.Load()
	}
	return nil
}

var modelDirs = []string{"/a/", "/a/x/", "/a/y/", "/b/"}

func (w *worker) run(ctx context.Context, steps int) {
	for i := range steps {
		key := modelDirs[w.rnd.IntN(len(modelDirs))] + fmt.Sprintf("k%02d", w.rnd.IntN(12))
		var err error
		switch op := w.rnd.IntN(20); {
		case op < 12:
			err = w.write(ctx, key, i)
		case op < 19:
			err = w.list(ctx)
		default:
			err = w.compact(ctx)
		}
		if err != nil {
			w.h.err = err
			return
		}
	}
}

// compact removes history, but none that a follower has yet to read: the database may drop a slow
// follower, and that would end the test.
func (w *worker) compact(ctx context.Context) error {
	to := w.d.Revision() - w.rnd.Int64N(200) - 1
	for _, f := range w.followers {
		to = min(to, f.seen.Load())
	}
	return w.d.Compact(ctx, to)
}

func (w *worker) write(ctx context.Context, key string, i int) error {
	before, seen := w.d.Revision(), w.seen.Load()
	kv, _, atLeast, err := w.d.Get(ctx, key)
	if err == nil {
		err = w.saw("a get", atLeast, seen)
	}
	if err != nil {
		return err
	}
	expect := kv.Rev
	if w.rnd.IntN(10) == 0 {
		expect = max(0, before-w.rnd.Int64N(50)) // mostly wrong
	}
	wr := write{key: key, expect: expect}
	if w.rnd.IntN(4) == 0 && expect != 0 {
		wr.deleted = true
		wr.rev, err = w.d.Delete(ctx, key, expect)
	} else {
		var opts db.PutOptions
		wr.value = fmt.Appendf(nil, "value %d of %s %s", i, key, strings.Repeat("x", w.rnd.IntN(300)))
		if w.rnd.IntN(6) == 0 {
			wr.value = append([]byte("ttl "), wr.value...)
			opts.TTL = time.Duration(1+w.rnd.IntN(20)) * time.Millisecond
		}
		wr.rev, err = w.d.Put(ctx, key, expect, wr.value, opts)
	}
	switch {
	case errors.Is(err, db.ErrConflict):
		w.h.conflicts = append(w.h.conflicts, conflict{key: key, expect: expect, before: before, after: w.d.Revision()})
		return nil
	case err == nil:
		w.h.writes = append(w.h.writes, wr)
		err = w.saw("a write", wr.rev, seen)
	}
	return err
}

// list pages through a prefix, now or in the past.
func (w *worker) list(ctx context.Context) error {
	o := db.RangeOptions{
		Prefix: append(modelDirs, "/")[w.rnd.IntN(len(modelDirs)+1)],
		Limit:  1 + w.rnd.IntN(20),
		Count:  true,
	}
	if w.rnd.IntN(2) == 0 {
		o.Rev = max(1, w.d.Revision()-w.rnd.Int64N(100))
	}
	for {
		seen := w.seen.Load()
		page, err := w.d.Range(ctx, o)
		if err == nil && o.Rev == 0 {
			err = w.saw("a list", page.Rev, seen)
		}
		if errors.Is(err, db.ErrCompacted) && o.Rev < w.d.CompactedRevision() {
			return nil
		}
		if err != nil {
			return err
		}
		w.h.lists = append(w.h.lists, listed{prefix: o.Prefix, from: o.From, limit: o.Limit, page: page})
		if !page.More {
			return nil
		}
		o.Rev, o.From = page.Rev, page.KVs[len(page.KVs)-1].Key+"\x00"
	}
}

// follower collects the events of a prefix.
type follower struct {
	prefix string
	seen   atomic.Int64 // everything up to this revision was collected
	want   chan int64
	done   chan error
	events []*changelog.Event
}

func follow(t *testing.T, d *db.DB, prefix string, rev int64) *follower {
	w, err := d.Watch(prefix, false, rev)
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{prefix: prefix, want: make(chan int64, 1), done: make(chan error, 1)}
	f.seen.Store(rev)
	go func() {
		defer w.Stop()
		end := int64(-1)
		for {
			events, err := w.Poll(context.Background())
			if err != nil {
				f.done <- err
				return
			}
			f.events = append(f.events, events...)
			rev, _ := w.Progress()
			f.seen.Store(rev)
			if len(events) > 0 {
				continue
			}
			if end >= 0 && rev >= end {
				f.done <- nil
				return
			}
			select {
			case end = <-f.want:
			case <-w.Ready():
			}
		}
	}()
	return f
}

// until waits until the follower has seen everything up to rev.
func (f *follower) until(t *testing.T, rev int64) []*changelog.Event {
	t.Helper()
	f.want <- rev
	select {
	case err := <-f.done:
		if err != nil {
			t.Fatalf("watch of %q: %v", f.prefix, err)
		}
	case <-time.After(time.Minute):
		t.Fatalf("watch of %q does not reach revision %d", f.prefix, rev)
	}
	return f.events
}
