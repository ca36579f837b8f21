package db

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"

	"github.com/tidewaiter/tidewaiter/db/internal/changelog"
	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

// Watcher follows changes, see Watch.
type Watcher = changelog.Watcher

// Watch follows the changes after revision rev: of the key itself if exact is set, otherwise of all
// keys below key, which ends in "/" (or is "", for all keys). Stop must be called.
func (d *DB) Watch(key string, exact bool, rev int64) (*Watcher, error) {
	if !exact && key != "" && !strings.HasSuffix(key, "/") {
		return nil, fmt.Errorf("watch of prefix %q: a prefix ends in a slash", key)
	}
	// A revision in the future comes from an earlier epoch: in this epoch no client can have seen it.
	var gone error
	expired := rev < d.compacted.Load() || rev > d.revision.Load()
	if expired {
		gone = fmt.Errorf("watch from revision %d: %w", rev, ErrCompacted)
	}
	return d.changes.Watch(key, exact, rev, gone, fileEvents{d}), nil
}

// RangeAndWatch calls visit with each key below prefix, and returns a Watcher of later changes.
func (d *DB) RangeAndWatch(ctx context.Context, prefix string, visit func(KV)) (*Watcher, error) {
	for o := (RangeOptions{Prefix: prefix}); ; {
		p, err := d.Range(ctx, o)
		if err != nil {
			return nil, err
		}
		for _, kv := range p.KVs {
			visit(kv)
		}
		if !p.More {
			return d.Watch(prefix, false, p.Rev)
		}
		o.From, o.Rev = p.KVs[len(p.KVs)-1].Key+"\x00", p.Rev
	}
}

// Follow calls visit with each key below prefix, and then with each changed key, until ctx is done.
// A deleted key has a nil value. Follow returns nil as soon as it may have missed changes: call it
// again.
func (d *DB) Follow(ctx context.Context, prefix string, visit func(KV)) error {
	w, err := d.RangeAndWatch(ctx, prefix, visit)
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		events, err := w.Poll(ctx)
		if errors.Is(err, ErrCompacted) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, e := range events {
			kv := KV{Key: e.Key, Rev: e.Rev}
			if !e.Deleted {
				kv.Value = e.Value
			}
			visit(kv)
		}
		if len(events) > 0 {
			continue
		}
		select {
		case <-w.Ready():
		case <-ctx.Done():
			return nil
		}
	}
}

// fileEvents reads from the file the events that the changelog has dropped.
type fileEvents struct{ *DB }

// maxEventScan bounds the rows one statement of EventsBetween looks at.
const maxEventScan = 4096

// EventsBetween implements Reader.
func (d fileEvents) EventsBetween(ctx context.Context, w *changelog.Watcher, from, to int64) (events []*changelog.Event, cursor int64, err error) {
	if from < d.compacted.Load() {
		return nil, 0, fmt.Errorf("watch from revision %d: %w", from, ErrCompacted)
	}
	cursor, bytes, scanned := from, 0, 0
	full := false
	err = d.read(ctx, func(c *sqlite.Conn) error {
		return c.Each(func(row []driver.Value) error {
			scanned++
			rev, key := row[0].(int64), row[1].(string)
			if w.Matches(key) {
				if len(events) == changelog.MaxPollEvents || bytes >= changelog.MaxPollBytes {
					full = true
					return sqlite.ErrStop
				}
				e := d.replay.Get(rev)
				if e == nil {
					e = &changelog.Event{Key: key, Rev: rev, PrevRev: row[2].(int64), Deleted: row[3].(int64) != 0}
					if w.NeedsValues() {
						if e, err = d.readValue(c, e); err != nil {
							return err
						}
					}
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

// readValue reads an event's value and keeps the event for other watchers. It uses a nested
// statement, so that values of other keys are never read.
func (d fileEvents) readValue(c *sqlite.Conn, e *changelog.Event) (*changelog.Event, error) {
	if !e.Deleted {
		var damaged *DamagedError
		var err error
		if e.Value, err = d.contents(c, e.Key, e.Rev); errors.As(err, &damaged) {
			e.Err = err
			return e, nil // it may be repaired later, so the event is not kept
		}
		if err != nil {
			return nil, err
		}
	}
	return d.replay.Add(e), nil
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

// PrevValue returns the value that e superseded, nil for a creation. It is read
// from the file once for all watchers; ErrCompacted if it is gone.
func (d *DB) PrevValue(ctx context.Context, e *changelog.Event) ([]byte, error) {
	return e.Prev(func() (value []byte, err error) {
		err = d.read(ctx, func(c *sqlite.Conn) (err error) {
			value, err = d.contents(c, e.Key, e.PrevRev)
			return err
		})
		return value, err
	})
}
