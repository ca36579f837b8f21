package db_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/internal/changelog"
	"github.com/tidewaiter/tidewaiter/db/truth"
)

// openMirror opens a copy of a store in a directory.
func openMirror(t *testing.T, store *dbtest.Truth, dir string, change ...func(*db.Options)) *db.DB {
	t.Helper()
	o := db.Options{Dir: dir, Truth: store}
	for _, c := range change {
		c(&o)
	}
	d := dbtest.OpenOptions(t, o)
	if err := d.Filled(t.Context()); err != nil {
		t.Fatal(err)
	}
	return d
}

// contents returns the keys and values of a database.
func contents(t *testing.T, d *db.DB) (all []string) {
	t.Helper()
	p, err := d.Range(t.Context(), db.RangeOptions{Prefix: "/"})
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range p.KVs {
		all = append(all, fmt.Sprintf("%s@%d=%s", kv.Key, kv.Rev, kv.Value))
	}
	return all
}

func mustPut(t *testing.T, d *db.DB, key string, expect int64, value string) int64 {
	t.Helper()
	rev, err := d.Put(t.Context(), key, expect, []byte(value), db.PutOptions{})
	if err != nil {
		t.Fatalf("put %s: %v", key, err)
	}
	return rev
}

// TestMirrorsAgree: a write to one database can be read from the other at once, at the same
// revision, and both send it to their watches.
func TestMirrorsAgree(t *testing.T) {
	store := dbtest.NewTruth()
	a, b := openMirror(t, store, t.TempDir()), openMirror(t, store, t.TempDir())
	watched := map[*db.DB]*changelog.Watcher{}
	for _, d := range []*db.DB{a, b} {
		w, err := d.Watch("/k/", false, d.Revision())
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		watched[d] = w
	}
	const keys = 50
	var revs []int64
	for i := range keys {
		d, other := a, b
		if i%2 == 1 {
			d, other = b, a
		}
		key := fmt.Sprintf("/k/%d", i)
		rev := mustPut(t, d, key, 0, "one")
		kv, ok, atLeast, err := other.Get(t.Context(), key)
		if err != nil || !ok || kv.Rev != rev || atLeast < rev {
			t.Fatalf("%s was written at %d; the other database has %+v, %v, as of %d, %v", key, rev, kv, ok, atLeast, err)
		}
		if _, err := other.Put(t.Context(), key, 0, []byte("two"), db.PutOptions{}); !errors.Is(err, db.ErrConflict) {
			t.Fatalf("creating %s again: %v", key, err)
		}
		next := mustPut(t, other, key, rev, "three")
		if at, ok, err := d.GetAt(t.Context(), key, next); err != nil || !ok || string(at.Value) != "three" {
			t.Fatalf("%s at %d: %q, %v, %v", key, next, at.Value, ok, err)
		}
		if i%3 == 0 {
			if next, err = d.Delete(t.Context(), key, next); err != nil {
				t.Fatal(err)
			}
		}
		revs = append(revs, next)
	}
	store.Elsewhere()
	if x, y := contents(t, a), contents(t, b); !slices.Equal(x, y) || len(x) != keys-17 {
		t.Errorf("one has %q\nthe other %q", x, y)
	}
	var got [2][]string
	for i, d := range []*db.DB{a, b} {
		for last := int64(0); last < revs[keys-1]; {
			events, err := watched[d].Poll(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range events {
				got[i] = append(got[i], fmt.Sprintf("%s@%d %v %s", e.Key, e.Rev, e.Deleted, e.Value))
				last = e.Rev
			}
			if len(events) == 0 {
				<-watched[d].Ready()
			}
		}
	}
	if !slices.Equal(got[0], got[1]) || len(got[0]) != 2*keys+17 {
		t.Errorf("watches differ: %d and %d events", len(got[0]), len(got[1]))
	}
	if store.Fills.Load() != 2 {
		t.Errorf("%d fills, want one for each database", store.Fills.Load())
	}
}

// TestMirrorWaitsForNoAnnouncedWrite: a copy's commits apply the store's changes and do not wait
// for announced writes, which go to the store.
func TestMirrorWaitsForNoAnnouncedWrite(t *testing.T) {
	d := openMirror(t, dbtest.NewTruth(), t.TempDir())
	_, end := d.Announce(t.Context())
	defer end()
	if d.ExpectsWrite() {
		t.Error("a write to the store is expected at the copy")
	}
}

// TestMirrorFollowsAfterRestart: after a restart, a database applies the changes that it missed,
// also to its indexes, without a new fill. If the store has compacted those changes, a fill writes
// the objects that differ.
func TestMirrorFollowsAfterRestart(t *testing.T) {
	for _, compacted := range []bool{false, true} {
		t.Run(fmt.Sprint("compacted=", compacted), func(t *testing.T) {
			store := dbtest.NewTruth()
			a, dir := openMirror(t, store, t.TempDir()), t.TempDir()
			index := func(d *db.DB) *db.Index {
				ixs, err := d.DeclareIndexes(t.Context(), "/k/", []string{"value"}, func(kv db.KV, declared []*db.Index) ([]db.IndexEntry, error) {
					return []db.IndexEntry{{Index: declared[0], Value: string(kv.Value)}}, nil
				})
				if err != nil {
					t.Fatal(err)
				}
				return ixs[0]
			}
			index(a)
			o := db.Options{Dir: dir, Truth: store}
			b, err := db.Open(o)
			if err != nil {
				t.Fatal(err)
			}
			if err := b.Filled(t.Context()); err != nil {
				t.Fatal(err)
			}
			index(b)
			var revs []int64
			for i := range 20 {
				revs = append(revs, mustPut(t, a, fmt.Sprintf("/k/%02d", i), 0, "old"))
			}
			if got := contents(t, b); len(got) != 20 {
				t.Fatalf("%q", got)
			}
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			for i, rev := range revs[:10] {
				if i < 5 {
					if _, err := a.Delete(t.Context(), fmt.Sprintf("/k/%02d", i), rev); err != nil {
						t.Fatal(err)
					}
				} else {
					mustPut(t, a, fmt.Sprintf("/k/%02d", i), rev, "new")
				}
			}
			mustPut(t, a, "/k/later", 0, "new")
			fills := store.Fills.Load()
			if compacted {
				store.Compact()
				fills++
			}
			b = openMirror(t, store, dir)
			if x, y := contents(t, a), contents(t, b); !slices.Equal(x, y) || len(x) != 16 {
				t.Errorf("one has %q\nthe other %q", x, y)
			}
			if got := store.Fills.Load(); got != fills {
				t.Errorf("%d fills, want %d", got, fills)
			}
			ix := index(b) // declared after the changes were applied
			for deadline := time.Now().Add(time.Minute); !ix.Ready(); time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the index is not built")
				}
			}
			mustPut(t, a, "/k/last", 0, "new")
			p, err := b.Range(t.Context(), db.RangeOptions{Prefix: "/k/", Index: []db.IndexQuery{{Index: ix, Values: []string{"new"}}}})
			if err != nil || len(p.KVs) != 7 {
				t.Errorf("%d keys under their value, %v; want 7", len(p.KVs), err)
			}
			if n, _, err := b.Totals(t.Context(), "/k/"); err != nil || n != 17 {
				t.Errorf("%d keys are counted, %v; want 17", n, err)
			}
			// A watch from a revision before the restart continues, or gets ErrCompacted.
			w, err := b.Watch("/k/", false, revs[19])
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			events, err := w.Poll(t.Context())
			if compacted && !errors.Is(err, db.ErrCompacted) || !compacted && (err != nil || len(events) != 12) {
				t.Errorf("%d events, %v", len(events), err)
			}
		})
	}
}

// TestMirrorThatMissedMuchIsFilled: a database that misses more changes than it has objects is
// filled again, after a restart and after it was cut off. A fill is not followed by another.
func TestMirrorThatMissedMuchIsFilled(t *testing.T) {
	store := dbtest.NewTruth()
	a, dir := openMirror(t, store, t.TempDir()), t.TempDir()
	rev := mustPut(t, a, "/k/1", 0, "old")
	b, err := db.Open(db.Options{Dir: dir, Truth: store})
	if err == nil {
		err = errors.Join(b.Filled(t.Context()), b.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, missed := range []int{9_000, 11_000} {
		mustPut(t, a, fmt.Sprint("/k/", missed), 0, "new")
		for range missed {
			store.Elsewhere()
		}
		if missed == 11_000 {
			store.Stop() // a is cut off, too
			store.Elsewhere()
			store.Start()
		}
		fills := store.Fills.Load()
		b = openMirror(t, store, dir)
		if x, y := contents(t, a), contents(t, b); !slices.Equal(x, y) {
			t.Errorf("one has %q\nthe other %q", x, y)
		}
		if got := store.Fills.Load() - fills; (got > 0) != (missed > 10_000) {
			t.Errorf("%d fills after %d changes were missed", got, missed)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
	mustPut(t, a, "/k/1", rev, "new")
}

// TestMirrorIsReadyWhenItHasAll: a database that is opened again is ready when it has all changes,
// also those that come slowly.
func TestMirrorIsReadyWhenItHasAll(t *testing.T) {
	store, dir := dbtest.NewTruth(), t.TempDir()
	a := openMirror(t, store, t.TempDir())
	b, err := db.Open(db.Options{Dir: dir, Truth: store})
	if err == nil {
		err = errors.Join(b.Filled(t.Context()), b.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	last := mustPut(t, a, "/k/1", 0, "new")
	slow := &slowTruth{Truth: store, begun: make(chan bool), release: make(chan bool)}
	b = dbtest.OpenOptions(t, db.Options{Dir: dir, Truth: slow})
	ready := make(chan error, 1)
	go func() { ready <- b.Filled(t.Context()) }()
	<-slow.begun
	select {
	case err := <-ready:
		t.Errorf("it is ready at revision %d of %d: %v", b.Revision(), last, err)
	default:
	}
	close(slow.release)
	if err := <-ready; err != nil || b.Revision() < last {
		t.Errorf("it is ready at revision %d of %d: %v", b.Revision(), last, err)
	}
}

// slowTruth is a store that reports changes when it is let go.
type slowTruth struct {
	*dbtest.Truth
	begun, release chan bool
}

func (s *slowTruth) Follow(ctx context.Context, from int64, apply func([]truth.Change, int64) error) error {
	s.begun <- true
	<-s.release
	return s.Truth.Follow(ctx, from, apply)
}

// TestMirrorIsFilledWhileItServes: a database that cannot follow is filled. All its watches must
// start again, also idle ones, and no read sees a partial fill.
func TestMirrorIsFilledWhileItServes(t *testing.T) {
	store := dbtest.NewTruth()
	a, b := openMirror(t, store, t.TempDir()), openMirror(t, store, t.TempDir())
	var keys []string
	for i := range 40 {
		keys = append(keys, fmt.Sprintf("/k/%02d", i))
		mustPut(t, a, keys[i], 0, "v")
	}
	if err := b.CatchUp(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	busy, err := b.Watch("/k/", false, a.Revision())
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Stop()
	idle, err := b.Watch("/quiet/", false, a.Revision())
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Stop()
	for _, w := range []*changelog.Watcher{busy, idle} {
		if _, err := w.Poll(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var readers sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	for range 4 {
		readers.Go(func() {
			for ctx.Err() == nil {
				p, err := b.Range(context.Background(), db.RangeOptions{Prefix: "/k/"})
				if err != nil {
					t.Error(err)
					return
				}
				if n := len(p.KVs); n != 40 && n != 20 {
					t.Errorf("a read found %d keys, where 40 or 20 are there", n)
					return
				}
			}
		})
	}
	store.DeleteTogether(keys[20:]...)
	for a.Revision() != b.Revision() || len(contents(t, b)) != 20 {
		time.Sleep(time.Millisecond)
	}
	stop()
	readers.Wait()
	for name, w := range map[string]*changelog.Watcher{"busy": busy, "idle": idle} {
		for {
			<-w.Ready()
			if _, err = w.Poll(t.Context()); err != nil {
				break
			}
		}
		if !errors.Is(err, db.ErrCompacted) {
			t.Errorf("%s watch: %v", name, err)
		}
	}
	if x, y := contents(t, a), contents(t, b); !slices.Equal(x, y) {
		t.Errorf("one has %q\nthe other %q", x, y)
	}
}

// TestMirrorIndexesWhatItFills: a fill also indexes revisions older than the newest one in
// index_entries.
func TestMirrorIndexesWhatItFills(t *testing.T) {
	store := dbtest.NewTruth()
	d := openMirror(t, store, t.TempDir())
	ixs, err := d.DeclareIndexes(t.Context(), "/k/", []string{"value"}, func(kv db.KV, declared []*db.Index) ([]db.IndexEntry, error) {
		return []db.IndexEntry{{Index: declared[0], Value: string(kv.Value)}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for i := range 20 {
		keys = append(keys, fmt.Sprintf("/k/%02d", i))
		if _, err := d.Put(t.Context(), keys[i], 0, []byte("v"), db.PutOptions{Index: []db.IndexEntry{{Index: ixs[0], Value: "v"}}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.CatchUp(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	d.WriteEntries(t)
	// A fill fetches a missing value again.
	if err := d.Write(t.Context(), func(tx *db.Tx) error {
		return tx.ExecSQL("DELETE FROM contents WHERE rev = (SELECT rev FROM revisions WHERE key = '/k/07')")
	}); err != nil {
		t.Fatal(err)
	}
	fills := store.Fills.Load()
	store.DeleteTogether(keys[18:]...)
	eventually(t, "another fill", func() bool { return store.Fills.Load() != fills && len(contents(t, d)) == 18 })
	p, err := d.Range(t.Context(), db.RangeOptions{Prefix: "/k/", Index: []db.IndexQuery{{Index: ixs[0], Values: []string{"v"}}}})
	if err != nil || len(p.KVs) != 18 {
		t.Errorf("%d keys under their value, %v; want 18", len(p.KVs), err)
	}
}

// TestMirrorOfRestoredStore: a store that was restored to an earlier revision is not served until
// its revision is raised, because clients have seen other changes at its next revisions.
func TestMirrorOfRestoredStore(t *testing.T) {
	store := dbtest.NewTruth()
	d := openMirror(t, store, t.TempDir())
	kept := mustPut(t, d, "/k/kept", 0, "v")
	mustPut(t, d, "/k/lost", 0, "v")
	store.Restore(kept, 0)
	_, _, _, err := d.Get(t.Context(), "/k/kept")
	var unavailable *datafile.UnavailableError
	if !errors.As(err, &unavailable) || !strings.Contains(err.Error(), "--bump-revision") {
		t.Fatalf("%v, want what to do", err)
	}
	store.Restore(kept, 1000)
	for deadline := time.Now().Add(time.Minute); ; {
		if _, _, _, err = d.Get(t.Context(), "/k/kept"); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if got := contents(t, d); !slices.Equal(got, []string{fmt.Sprintf("/k/kept@%d=v", kept)}) {
		t.Errorf("%q", got)
	}
	if _, _, err := d.GetAt(t.Context(), "/k/lost", kept+1); !errors.Is(err, db.ErrCompacted) {
		t.Errorf("an earlier revision: %v", err)
	}
}

// TestMirrorOfStoreRestoredInPlace: a store that was restored in place keeps its identity. A write
// detects this by its revision, and fails. A database that starts again detects it, too: the store
// does not have its last change, although its revision is higher.
func TestMirrorOfStoreRestoredInPlace(t *testing.T) {
	store, dir := dbtest.NewTruth(), t.TempDir()
	away, err := db.Open(db.Options{Dir: dir, Truth: store})
	if err != nil {
		t.Fatal(err)
	}
	kept := mustPut(t, away, "/k/kept", 0, "v")
	mustPut(t, away, "/k/lost", 0, "v")
	if err := away.Close(); err != nil {
		t.Fatal(err)
	}
	there := openMirror(t, store, t.TempDir())
	if got := contents(t, there); len(got) != 2 {
		t.Fatalf("%q", got)
	}
	store.RestoreInPlace(kept, 0)
	var unknown *truth.UnknownError
	if _, err := there.Put(t.Context(), "/k/new", 0, []byte("v"), db.PutOptions{}); !errors.As(err, &unknown) {
		t.Errorf("a write at a revision that was used before: %v", err)
	}
	var unavailable *datafile.UnavailableError
	if _, err := there.Put(t.Context(), "/k/new", 0, []byte("v"), db.PutOptions{}); !errors.As(err, &unavailable) || !strings.Contains(err.Error(), "--bump-revision") {
		t.Errorf("the next one: %v", err)
	}

	store.RestoreInPlace(kept, 0)
	other := openMirror(t, store, t.TempDir())
	mustPut(t, other, "/k/lost", 0, "another") // at the revision that it had before
	mustPut(t, other, "/k/more", 0, "v")
	away = openMirror(t, store, dir)
	if x, y := contents(t, other), contents(t, away); !slices.Equal(x, y) || len(x) != 3 {
		t.Errorf("one has %q\nthe other %q", x, y)
	}
}

// TestMirrorWhileStoreIsDown: reads of the newest state fail with the reason, reads that accept an
// older revision succeed, and the outcome of writes is unknown.
func TestMirrorWhileStoreIsDown(t *testing.T) {
	store := dbtest.NewTruth()
	d := openMirror(t, store, t.TempDir())
	rev := mustPut(t, d, "/k/a", 0, "v")
	store.Stop()
	var unavailable *datafile.UnavailableError
	if _, _, _, err := d.Get(t.Context(), "/k/a"); !errors.As(err, &unavailable) {
		t.Errorf("get: %v", err)
	}
	if kv, ok, _, err := d.GetSince(t.Context(), "/k/a", rev); err != nil || !ok || kv.Rev != rev {
		t.Errorf("get of any revision: %v %v", ok, err)
	}
	if _, err := d.Put(t.Context(), "/k/b", 0, []byte("v"), db.PutOptions{}); err == nil || errors.As(err, &unavailable) {
		t.Errorf("put: %v", err)
	}
	store.Start()
	mustPut(t, d, "/k/b", 0, "v")
	if got := contents(t, d); len(got) != 2 {
		t.Errorf("%q", got)
	}
}

// TestMirrorExpires: the writer's clock sets when a key expires, and the key is deleted once.
func TestMirrorExpires(t *testing.T) {
	store := dbtest.NewTruth()
	often := func(o *db.Options) { o.MaintenanceInterval = 5 * time.Millisecond }
	a, b := openMirror(t, store, t.TempDir(), often), openMirror(t, store, t.TempDir(), often)
	rev, err := a.Put(t.Context(), "/k/short", 0, []byte("v"), db.PutOptions{TTL: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	mustPut(t, a, "/k/long", 0, "v")
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		_, x, _, _ := a.Get(t.Context(), "/k/short")
		if _, y, _, _ := b.Get(t.Context(), "/k/short"); !x && !y {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the key does not expire")
		}
	}
	if head, err := store.Head(t.Context()); err != nil || head != rev+2 {
		t.Errorf("revision %d, %v; want one write and one deletion after %d", head, err, rev)
	}
}

// TestMirrorIsMended: a value that is damaged in the file is fetched from the store again, and the
// error does not advise to delete the object or to restore a backup.
func TestMirrorIsMended(t *testing.T) {
	store := dbtest.NewTruth()
	d := openMirror(t, store, t.TempDir(), quiet)
	const keys = 9
	for i := range keys {
		mustPut(t, d, fmt.Sprintf("/k/%d", i), 0, fmt.Sprintf("value %d", i))
	}
	want := contents(t, d)
	for i := range keys {
		dbtest.Damage(t, d, fmt.Sprintf("/k/%d", i))
	}
	mended := func(i int) bool {
		kv, ok, _, err := d.Get(t.Context(), fmt.Sprintf("/k/%d", i))
		if err != nil || !ok {
			t.Fatalf("/k/%d: found %v, %v", i, ok, err)
		}
		var damaged *db.DamagedError
		if kv.Err != nil && (!errors.As(kv.Err, &damaged) || strings.Contains(kv.Err.Error(), "backup") || strings.Contains(kv.Err.Error(), "delete")) {
			t.Fatalf("of a damaged value of a copy: %v", kv.Err)
		}
		return kv.Err == nil
	}
	store.Stop()
	if kv, ok, _, err := d.GetSince(t.Context(), "/k/0", 1); err != nil || !ok || kv.Err == nil {
		t.Errorf("without the store a damaged value is read: %v, %v, %v", ok, kv.Err, err)
	}
	store.Start()
	for i := range keys {
		eventually(t, fmt.Sprintf("mending /k/%d", i), func() bool { return mended(i) })
	}
	if got := contents(t, d); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestMirrorPassesOverWhatCannotBeRead: a value that the store itself cannot read is reported as
// damaged, and logged once. All other values are served, before and after a restart and a new fill.
// After the value is written again or deleted, no error remains.
func TestMirrorPassesOverWhatCannotBeRead(t *testing.T) {
	store, dir := dbtest.NewTruth(), t.TempDir()
	var logged lockedBuffer
	log := func(o *db.Options) { o.Logger = slog.New(slog.NewTextHandler(&logged, nil)) }
	store.PutUnreadable("/k/filled", []byte{1, 2})
	fresh := openMirror(t, store, t.TempDir(), log)
	if text := logged.String(); strings.Count(text, "key=/k/filled") != 1 || !strings.Contains(text, "no header") {
		t.Errorf("the log is\n%s\nwant the key once, and why", text)
	}
	old, err := db.Open(db.Options{Dir: dir, Truth: store, Logger: quietLogger})
	if err != nil {
		t.Fatal(err)
	}
	if err := old.Filled(t.Context()); err != nil {
		t.Fatal(err)
	}
	rev := mustPut(t, fresh, "/k/a", 0, "one")
	w, err := fresh.Watch("/k/", false, rev)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	bad := store.PutUnreadable("/k/a", []byte{8})
	store.PutUnreadable("/k/deleted", []byte(nil))
	next := mustPut(t, fresh, "/k/b", 0, "two")
	// unreadable expects the error that etcd's value of the key cannot be read.
	unreadable := func(d *db.DB, key string, rev int64) {
		t.Helper()
		kv, ok, _, err := d.Get(t.Context(), key)
		var damaged *db.DamagedError
		if err != nil || !ok || !errors.As(kv.Err, &damaged) || !damaged.InStore || kv.Value != nil || rev > 0 && kv.Rev != rev ||
			!strings.Contains(kv.Err.Error(), "delete it there") || strings.Contains(kv.Err.Error(), "disk") {
			t.Errorf("%s is %+v, found %v, %v; want the damage at revision %d", key, kv, ok, err, rev)
		}
	}
	var got []string
	for last := int64(0); last < next; {
		events, err := w.Poll(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			got, last = append(got, fmt.Sprintf("%s %q %v", e.Key, e.Value, e.Err != nil)), e.Rev
		}
		if len(events) == 0 {
			<-w.Ready()
		}
	}
	if want := []string{`/k/a "" true`, `/k/deleted "" true`, `/k/b "two" false`}; !slices.Equal(got, want) {
		t.Errorf("a watch got %q, want %q", got, want)
	}
	unreadable(fresh, "/k/a", bad)
	unreadable(old, "/k/a", bad)
	// A database that restarts continues from its revision; a new copy is filled.
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	if err := datafile.Check(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "etcd has a value of /k/a") || strings.Contains(err.Error(), "/k/b") {
		t.Errorf("the check of the file is %v", err)
	}
	fills := store.Fills.Load()
	old = openMirror(t, store, dir, quiet)
	if got := store.Fills.Load() - fills; got != 0 {
		t.Errorf("filled %d times after a restart", got)
	}
	unreadable(old, "/k/a", bad)
	store.Compact()
	filled := openMirror(t, store, t.TempDir(), quiet)
	unreadable(filled, "/k/a", bad)

	mustPut(t, old, "/k/a", bad, "again")
	for _, key := range []string{"/k/deleted", "/k/filled"} {
		kv, _, _, err := old.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		unreadable(fresh, key, kv.Rev)
		if _, err := fresh.Delete(t.Context(), key, kv.Rev); err != nil {
			t.Errorf("deleting %s: %v", key, err)
		}
	}
	for name, d := range map[string]*db.DB{"one": fresh, "the other": old, "the third": filled, "a new copy": openMirror(t, store, t.TempDir(), quiet)} {
		if got := contents(t, d); len(got) != 2 || !strings.HasSuffix(got[0], "=again") || !strings.HasSuffix(got[1], "=two") {
			t.Errorf("%s has %q in the end", name, got)
		}
		if err := d.Compact(t.Context(), d.Revision()); err != nil {
			t.Error(err)
		}
	}
	if text := logged.String(); !strings.Contains(text, "read again, or is gone\" key=/k/a") {
		t.Errorf("the log does not say that the value can be read again:\n%s", text)
	}
}

// TestMirrorOfKeysWrittenTogether: keys that another program wrote at one revision do not stop the
// copies. Each key gets its own revision and keeps its value.
func TestMirrorOfKeysWrittenTogether(t *testing.T) {
	store := dbtest.NewTruth()
	follows := openMirror(t, store, t.TempDir(), quiet)
	mustPut(t, follows, "/k/3", 0, "before")
	store.PutTogether("v", "/k/1", "/k/3", "/k/5", "/k/7", "/k/9") // on two pages
	for name, d := range map[string]*db.DB{"one that follows": follows, "a new copy": openMirror(t, store, t.TempDir(), quiet)} {
		revs := map[int64]bool{}
		eventually(t, name+" has all keys", func() bool {
			p, err := d.Range(t.Context(), db.RangeOptions{Prefix: "/k/"})
			clear(revs)
			for _, kv := range p.KVs {
				if string(kv.Value) == "v" {
					revs[kv.Rev] = true
				}
			}
			return err == nil && len(revs) == 5
		})
	}
	if a, b := contents(t, follows), contents(t, openMirror(t, store, t.TempDir(), quiet)); !slices.Equal(a, b) {
		t.Errorf("one has %q, another %q", a, b)
	}
}

// TestMirrorsFile: Open refuses a copy without its store, and a database that is not a copy with a
// store. A copy can be checked while it is in use. It cannot be backed up, and the error for a
// damaged copy does not advise to restore a backup, because etcd has everything.
func TestMirrorsFile(t *testing.T) {
	store, dir := dbtest.NewTruth(), t.TempDir()
	d, err := db.Open(db.Options{Dir: dir, Truth: store})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Filled(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustPut(t, d, "/k", 0, "v")
	if err := datafile.CheckOwn(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "etcdctl snapshot save") {
		t.Errorf("a copy is backed up: %v", err)
	}
	if err := datafile.Check(t.Context(), dir); err != nil {
		t.Errorf("checking a copy that is in use: %v", err)
	}
	dbtest.Damage(t, d, "/k")
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := datafile.Check(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "fills from etcd") {
		t.Errorf("checking a copy that is damaged: %v", err)
	}
	if _, err := db.Open(db.Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "--etcd-servers") {
		t.Errorf("a copy opened by itself: %v", err)
	}
	file, err := os.OpenFile(d.Path(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteAt(make([]byte, 200), 100); err != nil { // where its schema begins
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Open(db.Options{Dir: dir, Truth: store, Logger: quietLogger}); err == nil || !strings.Contains(err.Error(), "fills from etcd") {
		t.Errorf("a copy with a damaged structure is opened: %v", err)
	}
	own := t.TempDir()
	if d, err = db.Open(db.Options{Dir: own}); err != nil {
		t.Fatal(err)
	}
	mustPut(t, d, "/k", 0, "v")
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Open(db.Options{Dir: own, Truth: store}); err == nil || !strings.Contains(err.Error(), "objects of its own") || !strings.Contains(err.Error(), "migrate --to-etcd") {
		t.Errorf("a database of its own opened as a copy: %v", err)
	}
}

// TestMirrorSaysHowFarItIsBehind: while the store does not answer, a metric of the copy shows for
// how long. It is 0 when the store answers again and the copy has all changes.
func TestMirrorSaysHowFarItIsBehind(t *testing.T) {
	store, clock := dbtest.NewTruth(), testclock.NewFakeClock(time.Now())
	d := openMirror(t, store, t.TempDir(), func(o *db.Options) { o.Clock = clock })
	behind := func() float64 { t.Helper(); return gauge(t, d, "copy_lag_seconds") }
	mustPut(t, d, "/k/1", 0, "v")
	if err := d.CatchUp(t.Context(), 0); err != nil || behind() != 0 {
		t.Fatalf("%v: %v s behind", err, behind())
	}
	store.Stop()
	if err := d.CatchUp(t.Context(), 0); err == nil {
		t.Fatal("a store that is away answers")
	}
	clock.Step(90 * time.Second)
	if got := behind(); got != 90 {
		t.Errorf("%v s behind, want 90", got)
	}
	store.Start()
	asked := make(chan error, 1)
	go func() { asked <- d.CatchUp(t.Context(), 0) }()
	eventually(t, "that the copy has all", func() bool {
		clock.Step(100 * time.Millisecond) // following begins again after a pause by this clock
		return behind() == 0
	})
	if err := <-asked; err != nil {
		t.Error(err)
	}
}
