package db_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/internal/changelog"
)

// poll collects events until there are none.
func poll(t *testing.T, w *changelog.Watcher) (keys []string) {
	t.Helper()
	for _, e := range pollEvents(t, w) {
		keys = append(keys, e.Key)
	}
	return keys
}

func pollEvents(t *testing.T, w *changelog.Watcher) (all []*changelog.Event) {
	t.Helper()
	for {
		events, err := w.Poll(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(events) == 0 {
			return all
		}
		all = append(all, events...)
	}
}

func TestWatchScope(t *testing.T) {
	d := dbtest.Open(t)
	if _, err := d.Watch("/a", false, 1); err == nil {
		t.Error("a prefix that ends within a name was accepted")
	}
	tests := []struct {
		key   string
		exact bool
		want  []string
	}{
		{"", false, []string{"/a/1", "/a/x/1", "/ab/1", "/a/"}},
		{"/", false, []string{"/a/1", "/a/x/1", "/ab/1", "/a/"}},
		{"/a/", false, []string{"/a/1", "/a/x/1", "/a/"}},
		{"/a/x/", false, []string{"/a/x/1"}},
		{"/a/1", true, []string{"/a/1"}},
		{"/a", true, nil},
		{"/a/", true, []string{"/a/"}},
	}
	start := d.Revision()
	var early []*changelog.Watcher
	for _, tt := range tests {
		w, err := d.Watch(tt.key, tt.exact, start)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		early = append(early, w)
	}
	for _, k := range []string{"/a/1", "/a/x/1", "/ab/1", "/a/"} {
		put(t, d, k, 0, "v")
	}
	for i, tt := range tests {
		late, err := d.Watch(tt.key, tt.exact, start)
		if err != nil {
			t.Fatal(err)
		}
		defer late.Stop()
		for what, w := range map[string]*changelog.Watcher{"early": early[i], "late": late} {
			if got := poll(t, w); fmt.Sprint(got) != fmt.Sprint(tt.want) {
				t.Errorf("%s watch of %q (exact %v): %v, want %v", what, tt.key, tt.exact, got, tt.want)
			}
		}
		if tt.want != nil {
			select {
			case <-early[i].Ready():
			default:
				t.Errorf("watch of %q (exact %v) was not woken", tt.key, tt.exact)
			}
		}
	}
}

// TestSlowWatcher lets a watcher sleep until first the changelog and then the history no longer
// have its revision.
func TestSlowWatcher(t *testing.T) {
	d := dbtest.Open(t, func(o *db.Options) { o.ChangelogBytes = 2000; o.MaintenanceInterval = time.Hour })
	slow, _ := d.Watch("/a/", false, d.Revision())
	defer slow.Stop()
	fast, _ := d.Watch("/a/", false, d.Revision())
	defer fast.Stop()
	for i := range 50 {
		put(t, d, fmt.Sprintf("/a/%d", i), 0, "a value of some length")
		if got := poll(t, fast); len(got) != 1 {
			t.Fatalf("fast watcher got %v", got)
		}
	}
	if got := poll(t, slow); len(got) != 50 {
		t.Errorf("slow watcher got %d events, want 50 from the file", len(got))
	}
	for i := range 50 {
		put(t, d, fmt.Sprintf("/a/b%d", i), 0, "a value of some length")
	}
	if err := d.Compact(t.Context(), d.Revision()); err != nil {
		t.Fatal(err)
	}
	if _, err := slow.Poll(t.Context()); !errors.Is(err, db.ErrCompacted) {
		t.Errorf("slow watcher behind the history: %v, want ErrCompacted", err)
	}
}

// TestWatchWithoutValues: a watcher that needs no values reads none from the file, and a watcher
// that needs them gets them afterwards.
func TestWatchWithoutValues(t *testing.T) {
	d := dbtest.Open(t, func(o *db.Options) { o.ChangelogBytes = 2000; o.MaintenanceInterval = time.Hour })
	named, _ := d.Watch("/a/", false, d.Revision())
	defer named.Stop()
	named.OmitValues()
	whole, _ := d.Watch("/a/", false, d.Revision())
	defer whole.Stop()
	var last int64
	for i := range 50 {
		last = put(t, d, fmt.Sprintf("/a/%d", i), 0, "a value of some length")
	}
	events := pollEvents(t, named)
	if len(events) != 50 || events[0].Key != "/a/0" || events[0].Value != nil || events[49].Rev != last {
		t.Errorf("%d events without values, the first %+v", len(events), events[0])
	}
	events = pollEvents(t, whole)
	if len(events) != 50 || string(events[0].Value) != "a value of some length" {
		t.Errorf("%d events with values, the first %+v", len(events), events[0])
	}
}

// TestQuietWatcher: a watcher of a key that does not change survives any number of changes of other
// keys.
func TestQuietWatcher(t *testing.T) {
	d := dbtest.Open(t, func(o *db.Options) { o.ChangelogBytes = 2000; o.MaintenanceInterval = time.Hour })
	w, _ := d.Watch("/quiet/", false, d.Revision())
	defer w.Stop()
	poll(t, w)
	for i := range 100 {
		put(t, d, fmt.Sprintf("/busy/%d", i), 0, "a value of some length")
	}
	if err := d.Compact(t.Context(), d.Revision()); err != nil {
		t.Fatal(err)
	}
	rev := put(t, d, "/quiet/k", 0, "v")
	if got := poll(t, w); len(got) != 1 {
		t.Errorf("got %v, want the one event", got)
	}
	if got, current := w.Progress(); got != rev || !current {
		t.Errorf("progress %d, current %v; want %d", got, current, rev)
	}
}

// TestWatchFuture: a client that names a revision in the future saw it in an earlier epoch of the
// database. A watch that waited for this revision would miss the changes before it.
func TestWatchFuture(t *testing.T) {
	d := dbtest.Open(t)
	w, _ := d.Watch("/a/", false, d.Revision()+2)
	defer w.Stop()
	for i := range 4 {
		put(t, d, fmt.Sprintf("/a/%d", i), 0, "v")
	}
	if events, err := w.Poll(t.Context()); !errors.Is(err, db.ErrCompacted) {
		t.Errorf("got %v, %v; want ErrCompacted", events, err)
	}
}

func TestPrevValue(t *testing.T) {
	d := dbtest.Open(t)
	w, _ := d.Watch("/a/", false, d.Revision())
	defer w.Stop()
	rev := put(t, d, "/a/k", 0, "one")
	if _, err := d.Delete(t.Context(), "/a/k", rev); err != nil {
		t.Fatal(err)
	}
	events, err := w.Poll(t.Context())
	if err != nil || len(events) != 2 {
		t.Fatalf("%d events, %v", len(events), err)
	}
	for i, want := range []string{"", "one"} {
		if got, err := d.PrevValue(t.Context(), events[i]); err != nil || string(got) != want {
			t.Errorf("event %d: previous value %q, %v; want %q", i, got, err, want)
		}
	}
}
