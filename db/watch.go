package db

import (
	"context"
	"database/sql/driver"
	"fmt"
	"github.com/tidewaiter/tidewaiter/db/sqlite"
	"sort"
	"strings"
	"sync"
)

// Bounds of one Poll: events returned, and bytes of those read from the file.
const (
	maxPollEvents = 128
	maxPollBytes  = 4 << 20
)

// Watcher follows the changes of a key or a prefix from a revision on. Poll
// until it returns nothing, wait for Ready, and so on. One goroutine uses it.
type Watcher struct {
	db     *DB
	prefix string
	exact  bool
	ready  chan struct{}

	// Under feed.mu:
	cursor int64 // every matching event up to this revision was returned
	// idle: the watcher had seen everything at its last look. next is the first matching
	// event since, 0 if none. So a watcher of something quiet never falls out of the
	// history, however much else happens.
	idle bool
	next int64

	expired bool // the start was before the history, or after all of it
}

// Watch follows the changes after revision rev: of the one key when exact is
// set, else of all keys below key, which ends in "/" (or is "", for all keys).
// Stop must be called.
func (d *DB) Watch(key string, exact bool, rev int64) (*Watcher, error) {
	if !exact && key != "" && !strings.HasSuffix(key, "/") {
		return nil, fmt.Errorf("watch of prefix %q: a prefix ends in a slash", key)
	}
	// A revision that is still to come is one of an earlier life: in this one a client
	// cannot have seen more than there is.
	expired := rev < d.compacted.Load() || rev > d.revision.Load()
	w := &Watcher{db: d, prefix: key, exact: exact, cursor: rev, ready: make(chan struct{}, 1), expired: expired}
	d.feed.add(w)
	return w, nil
}

// Stop ends the watch.
func (w *Watcher) Stop() { w.db.feed.remove(w) }

// Ready is signalled when Poll may have something to return.
func (w *Watcher) Ready() <-chan struct{} { return w.ready }

func (w *Watcher) signal() {
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

// wake is called with feed.mu held.
func (w *Watcher) wake(rev int64) {
	if w.idle && w.next == 0 {
		w.next = rev
	}
	w.signal()
}

func (w *Watcher) matches(key string) bool {
	if w.exact {
		return key == w.prefix
	}
	return len(key) > len(w.prefix) && strings.HasPrefix(key, w.prefix) || key == w.prefix
}

// Poll returns the next events in order of revision, at most maxPollEvents, and nothing
// when there are none yet. It fails with ErrCompacted when the watch started before the
// history or after all of it, or fell behind it. It fails with ErrClosed when the database
// was closed.
func (w *Watcher) Poll(ctx context.Context) ([]*Event, error) {
	if w.expired {
		return nil, fmt.Errorf("watch from revision %d: %w", w.cursor, ErrCompacted)
	}
	f := w.db.feed
	for {
		f.mu.Lock()
		if f.closed {
			f.mu.Unlock()
			return nil, ErrClosed
		}
		w.skipIdle()
		if w.cursor >= f.last {
			w.idle, w.next = w.cursor == f.last, 0
			f.mu.Unlock()
			return nil, nil
		}
		if w.cursor >= f.floor {
			events := w.fromFeed()
			f.mu.Unlock()
			if len(events) > 0 {
				since(w.db.metrics.lag, events[0].published)
				return events, nil
			}
			continue
		}
		from, to := w.cursor, f.floor
		f.mu.Unlock()

		events, cursor, err := w.db.eventsBetween(ctx, w, from, to)
		if err != nil {
			return nil, err
		}
		f.mu.Lock()
		w.cursor = cursor
		f.mu.Unlock()
		if len(events) > 0 {
			return events, nil
		}
	}
}

// skipIdle moves an idle watcher to just before the first event for it.
func (w *Watcher) skipIdle() {
	if !w.idle {
		return
	}
	to := w.db.feed.last
	if w.next != 0 {
		to = w.next - 1
	}
	w.cursor = max(w.cursor, to)
	w.idle, w.next = false, 0
}

// fromFeed collects matching events and moves the cursor past what it looked at.
func (w *Watcher) fromFeed() []*Event {
	f := w.db.feed
	var out []*Event
	i := sort.Search(len(f.events), func(i int) bool { return f.events[i].Rev > w.cursor })
	for ; i < len(f.events); i++ {
		if len(out) == maxPollEvents {
			return out
		}
		e := f.events[i]
		w.cursor = e.Rev
		if w.matches(e.Key) {
			out = append(out, e)
		}
	}
	w.cursor = f.last
	return out
}

// Progress returns a revision up to which Poll has returned every matching event, and
// whether there are no later ones now.
func (w *Watcher) Progress() (rev int64, current bool) {
	f := w.db.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if w.idle && w.next == 0 {
		w.cursor = max(w.cursor, f.last)
	}
	return w.cursor, w.cursor >= f.last
}

// maxEventScan bounds the rows one statement of eventsBetween looks at.
const maxEventScan = 4096

// eventsBetween reads the matching events of (from, to] from the file, as many
// as a Poll may return. cursor is how far it looked.
func (d *DB) eventsBetween(ctx context.Context, w *Watcher, from, to int64) (events []*Event, cursor int64, err error) {
	if from < d.compacted.Load() {
		return nil, 0, fmt.Errorf("watch from revision %d: %w", from, ErrCompacted)
	}
	cursor, bytes, scanned := from, 0, 0
	full := false
	err = d.read(ctx, func(c *sqlite.Conn) error {
		return c.Each(func(row []driver.Value) error {
			scanned++
			rev, key := row[0].(int64), row[1].(string)
			if w.matches(key) {
				if len(events) == maxPollEvents || bytes >= maxPollBytes {
					full = true
					return sqlite.ErrStop
				}
				e := d.replay.get(rev)
				if e == nil {
					e = &Event{Key: key, Rev: rev, PrevRev: row[2].(int64), Deleted: row[3].(int64) != 0}
					if !e.Deleted {
						// A nested statement: values of other keys are never read.
						if e.Value, err = d.contents(c, key, rev); err != nil {
							return err
						}
					}
					e = d.replay.add(e)
				}
				events = append(events, e)
				bytes += len(e.Value)
			}
			cursor = rev
			return nil
		}, "SELECT rev, key, prev_rev, until IS rev FROM revisions WHERE rev > ? AND rev <= ? ORDER BY rev LIMIT ?", from, to, int64(maxEventScan))
	})
	if err != nil {
		return nil, 0, err
	}
	if !full && scanned < maxEventScan {
		cursor = to
	}
	if from < d.compacted.Load() {
		return nil, 0, fmt.Errorf("watch from revision %d: %w", from, ErrCompacted)
	}
	return events, cursor, nil
}

// contents reads the value of a revision of key.
func (d *DB) contents(c *sqlite.Conn, key string, rev int64) (value []byte, err error) {
	found := false
	err = c.Each(func(row []driver.Value) error {
		found = true
		kv := d.kv(key, rev, row[0], row[1])
		value = kv.Value
		return kv.Err
	}, "SELECT sum, value FROM contents WHERE rev = ?", rev)
	if err == nil && !found {
		err = fmt.Errorf("contents of revision %d: %w", rev, ErrCompacted)
	}
	return value, err
}

type prevValue struct {
	mu    sync.Mutex
	done  bool
	value []byte
}

// PrevValue returns the value that e superseded, nil for a creation. It is read
// from the file once for all watchers; ErrCompacted if it is gone.
func (d *DB) PrevValue(ctx context.Context, e *Event) ([]byte, error) {
	if e.PrevRev == 0 {
		return nil, nil
	}
	e.prev.mu.Lock()
	defer e.prev.mu.Unlock()
	if e.prev.done {
		return e.prev.value, nil
	}
	err := d.read(ctx, func(c *sqlite.Conn) (err error) {
		e.prev.value, err = d.contents(c, e.Key, e.PrevRev)
		return err
	})
	e.prev.done = err == nil
	return e.prev.value, err
}
