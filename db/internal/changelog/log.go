// Package changelog delivers changes to watchers: the newest from memory, and earlier ones through
// a Reader.
package changelog

import (
	"strings"
	"sync"
	"time"
)

// maxEvents bounds the log by count, besides Options.ChangelogBytes.
const maxEvents = 16384

// eventOverhead is about the memory of an event without its value, in bytes.
const eventOverhead = 256

// Event is one change of one key. All watchers share it, so it must not be changed.
type Event struct {
	Key string
	// Rev is the revision of the change.
	Rev int64
	// PrevRev is the revision it superseded, 0 for a creation.
	PrevRev int64
	// Deleted is set for a deletion, which has no Value.
	Deleted bool
	Value   []byte
	// Err is why the value cannot be read; Value is nil then.
	Err error

	Published time.Time // when the commit was durable
	prev      prevValue
	memo      memo
}

// cost is how many bytes an event counts against the bounds of log and replay.
func (e *Event) cost() int64 { return int64(len(e.Value)) + eventOverhead }

// memo caches what a consumer derived from an event, see Event.Memo.
type memo struct {
	mu    sync.Mutex
	value any
}

// Memo returns the result of the first call's fn, so that work on an event, such as decoding it, is
// done once for all its watchers. For an event that most watchers have passed, the result may be
// dropped; then the next call computes it again.
func (e *Event) Memo(fn func() any) any {
	e.memo.mu.Lock()
	defer e.memo.mu.Unlock()
	if e.memo.value == nil {
		e.memo.value = fn()
	}
	return e.memo.value
}

func (e *Event) dropMemo() {
	e.memo.mu.Lock()
	defer e.memo.mu.Unlock()
	e.memo.value = nil
}

// Log holds the newest events, in order of revision, for all watchers. A watcher has a position in
// it, not a queue: a watcher that does not read costs nothing, and later reads from the file what
// the log has dropped meanwhile.
type Log struct {
	maxBytes int64
	fetched  func(*Event) // called with the first of the events that a watcher fetches

	mu     sync.Mutex
	events []*Event // a ring would save the copy in trim, which is rare
	bytes  int64
	// Only the newest events, from index hot on, keep their memos, because a memo can be several times
	// the size of its event.
	hot      int
	hotBytes int64
	// floor: every event after this revision is in events.
	floor int64
	// last is the last published revision. It has no event if a write only raised the revision.
	last   int64
	closed error // the error that watchers get from now on
	// watchers by what they watch: a prefix ending in "/" or a key.
	watchers map[string]map[*Watcher]struct{}
	count    int
}

// New returns a log that begins after revision rev and keeps events of at most maxBytes. Each time
// that a watcher fetches events, the log calls fetched with the first of them.
func New(rev, maxBytes int64, fetched func(*Event)) *Log {
	return &Log{maxBytes: maxBytes, fetched: fetched, floor: rev, last: rev, watchers: map[string]map[*Watcher]struct{}{}}
}

// Publish appends the events of a commit and wakes the watchers they concern.
func (f *Log) Publish(events []*Event, rev int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = max(f.last, rev) // after Restart, commits from before its revision arrive
	now := time.Now()
	for _, e := range events {
		e.Published = now
		f.events = append(f.events, e)
		f.bytes += e.cost()
		f.hotBytes += e.cost()
		if f.count > 0 {
			f.wake(e)
		}
	}
	f.cool()
	f.trim()
}

// Restart drops all events. It is for a Reader that no longer has the changes before revision rev:
// all watchers then read from the Reader, and get its error.
func (f *Log) Restart(rev int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events, f.bytes, f.hot, f.hotBytes = nil, 0, 0, 0
	f.floor, f.last = rev, rev
	for _, set := range f.watchers {
		for w := range set {
			w.idle, w.next = false, 0
			w.signal()
		}
	}
}

// cool drops the memos of events that are no longer among the newest.
func (f *Log) cool() {
	for ; f.hotBytes > f.maxBytes/4 && f.hot < len(f.events); f.hot++ {
		f.hotBytes -= f.events[f.hot].cost()
		f.events[f.hot].dropMemo()
	}
}

// wake finds the watchers of the key and of each of its directories.
func (f *Log) wake(e *Event) {
	for w := range f.watchers[e.Key] {
		w.wake(e.Rev)
	}
	for i := strings.LastIndexByte(e.Key, '/'); i >= 0; i = strings.LastIndexByte(e.Key[:i], '/') {
		if i+1 == len(e.Key) {
			continue // a key ending in "/" was looked up whole
		}
		for w := range f.watchers[e.Key[:i+1]] {
			w.wake(e.Rev)
		}
	}
	for w := range f.watchers[""] {
		w.wake(e.Rev)
	}
}

func (f *Log) trim() {
	drop := 0
	for f.bytes > f.maxBytes || len(f.events)-drop > maxEvents {
		e := f.events[drop]
		f.bytes -= e.cost()
		f.floor = e.Rev
		drop++
	}
	if drop == 0 {
		return
	}
	// Free the dropped events, without copying the rest each time.
	clear(f.events[:drop])
	f.events = f.events[drop:]
	f.hot = max(0, f.hot-drop)
}

func (f *Log) add(w *Watcher) {
	f.mu.Lock()
	defer f.mu.Unlock()
	set := f.watchers[w.prefix]
	if set == nil {
		set = map[*Watcher]struct{}{}
		f.watchers[w.prefix] = set
	}
	set[w] = struct{}{}
	f.count++
	if f.closed != nil {
		w.signal()
	}
}

func (f *Log) remove(w *Watcher) {
	f.mu.Lock()
	defer f.mu.Unlock()
	set := f.watchers[w.prefix]
	if _, ok := set[w]; !ok {
		return
	}
	delete(set, w)
	if len(set) == 0 {
		delete(f.watchers, w.prefix)
	}
	f.count--
}

// Watching returns the number of watchers.
func (f *Log) Watching() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

// Close wakes every watcher, which then gets err.
func (f *Log) Close(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = err
	for _, set := range f.watchers {
		for w := range set {
			w.signal()
		}
	}
}

type prevValue struct {
	mu    sync.Mutex
	done  bool
	value []byte
}

// Prev returns the value that e superseded, nil for a creation. It calls read once for all
// watchers, and again only if that fails.
func (e *Event) Prev(read func() ([]byte, error)) ([]byte, error) {
	if e.PrevRev == 0 {
		return nil, nil
	}
	e.prev.mu.Lock()
	defer e.prev.mu.Unlock()
	if e.prev.done {
		return e.prev.value, nil
	}
	var err error
	e.prev.value, err = read()
	e.prev.done = err == nil
	return e.prev.value, err
}
