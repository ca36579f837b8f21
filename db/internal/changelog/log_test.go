package changelog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestLogBounds publishes events of many sizes. It checks that the log keeps its bounds and has
// exactly the events after its floor.
func TestLogBounds(t *testing.T) {
	const maxBytes = 100_000
	f := New(0, maxBytes, nil)
	rnd := rand.New(rand.NewPCG(1, 1))
	var all []*Event
	rev := int64(0)
	for range 2000 {
		var batch []*Event
		for range 1 + rnd.IntN(4) {
			rev++
			size := rnd.IntN(5000)
			if rnd.IntN(100) == 0 {
				size = 2 * maxBytes // larger than the log
			}
			batch = append(batch, &Event{Key: fmt.Sprintf("/a/%d", rev), Rev: rev, Value: make([]byte, size)})
			batch[len(batch)-1].Memo(func() any { return "derived" })
		}
		all = append(all, batch...)
		f.Publish(batch, rev)

		var bytes, memoBytes int64
		for _, e := range f.events {
			bytes += e.cost()
			if e.memo.value != nil {
				memoBytes += e.cost()
			}
		}
		if bytes != f.bytes || bytes > maxBytes || len(f.events) > maxEvents {
			t.Fatalf("%d events of %d bytes, counted %d, at most %d", len(f.events), bytes, f.bytes, maxBytes)
		}
		if memoBytes > maxBytes/4 {
			t.Fatalf("memos on %d bytes of events, at most %d", memoBytes, maxBytes/4)
		}
		if got := int(f.last - f.floor); got != len(f.events) || len(f.events) > 0 && f.events[0] != all[f.floor] {
			t.Fatalf("floor %d, last %d, %d events", f.floor, f.last, len(f.events))
		}
	}
	if f.floor == 0 {
		t.Error("nothing was dropped: the test shows nothing")
	}
}

// gone is a Reader without changes before a revision.
type gone int64

var errGone = errors.New("gone")

func (g gone) EventsBetween(_ context.Context, _ *Watcher, from, to int64) ([]*Event, int64, error) {
	if from < int64(g) {
		return nil, 0, errGone
	}
	return nil, to, nil
}

// TestRestartFailsEveryWatcher: after a restart, every watcher gets the Reader's error. That
// includes a watcher that polls only after a commit from before the restart's revision: it must not
// continue and miss the changes up to that revision.
func TestRestartFailsEveryWatcher(t *testing.T) {
	f := New(0, 1000, func(*Event) {})
	f.Publish(nil, 2)
	watchers := []*Watcher{f.Watch("/a/", false, 2, nil, gone(10)), f.Watch("/a/", false, 2, nil, gone(10))}
	for _, w := range watchers {
		if events, err := w.Poll(t.Context()); len(events) > 0 || err != nil {
			t.Fatal(events, err)
		}
	}
	f.Restart(10)
	if _, err := watchers[0].Poll(t.Context()); !errors.Is(err, errGone) {
		t.Errorf("a watcher after the restart: %v", err)
	}
	f.Publish(nil, 2)
	if _, err := watchers[1].Poll(t.Context()); !errors.Is(err, errGone) {
		t.Errorf("a watcher after an earlier commit: %v", err)
	}
}
