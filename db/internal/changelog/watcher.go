package changelog

import (
	"context"
	"sort"
	"strings"
)

// Bounds of one Poll: events returned, and bytes of those read from the file.
const (
	MaxPollEvents = 128
	MaxPollBytes  = 4 << 20
)

// Reader reads the matching events in (from, to] that the log has dropped, at most as many as a
// Poll may return. cursor is the revision up to which it has searched.
type Reader interface {
	EventsBetween(ctx context.Context, w *Watcher, from, to int64) (events []*Event, cursor int64, err error)
}

// Watcher follows the changes of a key or a prefix from a revision on. Poll
// until it returns nothing, wait for Ready, and so on. One goroutine uses it.
type Watcher struct {
	log    *Log
	reads  Reader
	prefix string
	exact  bool
	ready  chan struct{}
	// keysOnly is true if events may come without values.
	keysOnly bool

	// Under log.mu:
	cursor int64 // every matching event up to this revision was returned
	// idle is true if the watcher had seen everything at its last Poll. next is the revision of the
	// first matching event since, 0 if there is none. So a watcher of keys that rarely change never
	// falls out of the history, even if other keys change often.
	idle bool
	next int64

	// why the watch cannot begin: its start is before the history, or in the future
	gone error
}

// Watch follows the changes after revision rev: of the key if exact is set, otherwise of all keys
// below it. It reads changes that the log has dropped from reads. gone, if not nil, is why it
// cannot begin at rev.
func (f *Log) Watch(key string, exact bool, rev int64, gone error, reads Reader) *Watcher {
	w := &Watcher{log: f, reads: reads, prefix: key, exact: exact, cursor: rev, ready: make(chan struct{}, 1), gone: gone}
	f.add(w)
	return w
}

// Stop ends the watch.
func (w *Watcher) Stop() { w.log.remove(w) }

// Ready is signalled when Poll may have something to return.
func (w *Watcher) Ready() <-chan struct{} { return w.ready }

// Notify replaces the channel that Ready returns by ready. Call it before the watch is used.
func (w *Watcher) Notify(ready chan struct{}) {
	w.log.mu.Lock()
	defer w.log.mu.Unlock()
	w.ready = ready
}

// OmitValues makes Poll return events without their values, which saves reads from the file. Call
// it before the watch is used.
func (w *Watcher) OmitValues() { w.keysOnly = true }

// NeedsValues reports whether events must have their values.
func (w *Watcher) NeedsValues() bool { return !w.keysOnly }

func (w *Watcher) signal() {
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

// wake is called with log.mu held.
func (w *Watcher) wake(rev int64) {
	if w.idle && w.next == 0 {
		w.next = rev
	}
	w.signal()
}

// Matches reports whether a key is watched.
func (w *Watcher) Matches(key string) bool {
	if w.exact {
		return key == w.prefix
	}
	return len(key) > len(w.prefix) && strings.HasPrefix(key, w.prefix) || key == w.prefix
}

// Poll returns the next events in order of revision, at most MaxPollEvents, and nothing when there
// are none yet. It fails if the watch started before the history or in the future, if it fell out
// of the history, and if the database was closed.
func (w *Watcher) Poll(ctx context.Context) ([]*Event, error) {
	if w.gone != nil {
		return nil, w.gone
	}
	f := w.log
	for {
		f.mu.Lock()
		if err := f.closed; err != nil {
			f.mu.Unlock()
			return nil, err
		}
		w.skipIdle()
		if w.cursor >= f.last {
			w.idle, w.next = w.cursor == f.last, 0
			f.mu.Unlock()
			return nil, nil
		}
		if w.cursor >= f.floor {
			events := w.fromLog()
			f.mu.Unlock()
			if len(events) > 0 {
				f.fetched(events[0])
				return events, nil
			}
			continue
		}
		from, to := w.cursor, f.floor
		f.mu.Unlock()

		events, cursor, err := w.reads.EventsBetween(ctx, w, from, to)
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
	to := w.log.last
	if w.next != 0 {
		to = w.next - 1
	}
	w.cursor = max(w.cursor, to)
	w.idle, w.next = false, 0
}

// fromLog collects matching events and moves the cursor behind the events that it has searched.
func (w *Watcher) fromLog() []*Event {
	f := w.log
	var out []*Event
	i := sort.Search(len(f.events), func(i int) bool { return f.events[i].Rev > w.cursor })
	for ; i < len(f.events); i++ {
		if len(out) == MaxPollEvents {
			return out
		}
		e := f.events[i]
		w.cursor = e.Rev
		if w.Matches(e.Key) {
			out = append(out, e)
		}
	}
	w.cursor = f.last
	return out
}

// Progress returns a revision up to which Poll has returned every matching event, and
// whether there are no later ones now.
func (w *Watcher) Progress() (rev int64, current bool) {
	f := w.log
	f.mu.Lock()
	defer f.mu.Unlock()
	if w.idle && w.next == 0 {
		w.cursor = max(w.cursor, f.last)
	}
	return w.cursor, w.cursor >= f.last
}
