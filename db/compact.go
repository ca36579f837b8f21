package db

import (
	"context"
	"database/sql/driver"
	"fmt"
	"sync"
	"time"

	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

// Compaction removes revisions that can no longer be read. It reads the changes in the order of
// revisions. Each change names the revision that it superseded; when the change leaves the history,
// that revision is removed. So compaction reads each change once, needs no index, and can stop
// anywhere.

// Bounds of one step, which holds the writer: rows, and the time after which it
// stops early.
const (
	compactRows = 128
	compactTime = 2 * time.Millisecond
)

// Compact removes the history before rev at once, without waiting for the end of the history
// window. Lists, watches and continue tokens older than rev then fail with ErrCompacted.
func (d *DB) Compact(ctx context.Context, rev int64) error {
	if cur := d.revision.Load(); rev > cur {
		return fmt.Errorf("compact to revision %d, current %d: %w", rev, cur, ErrFutureRevision)
	}
	return d.compact(ctx, rev, time.Time{}, time.Time{})
}

// compact removes the history before revision to. It stops early at the first change that was made
// after from and not after until; if from is zero, it does not stop early.
func (d *DB) compact(ctx context.Context, to int64, from, until time.Time) error {
	for {
		done, err := d.compactStep(ctx, to, from, until)
		if done || err != nil {
			return err
		}
	}
}

// compactStep is a step of compact. done is set when nothing more can be removed.
func (d *DB) compactStep(ctx context.Context, to int64, from, until time.Time) (done bool, err error) {
	all := from.IsZero()
	err = d.write(ctx, func(t *tx) error {
		start := time.Now()
		swept, _, err := t.c.First("SELECT value FROM meta WHERE name = 'swept'")
		if err != nil {
			return err
		}
		reached, removed := swept, int64(0)
		done = true
		type change struct {
			rev, prev int64
			deletion  bool
		}
		var changes []change
		err = t.c.Each(func(row []driver.Value) error {
			if at := time.UnixMilli(row[3].(int64)); !all && at.After(from) && !at.After(until) {
				return sqlite.ErrStop
			}
			changes = append(changes, change{row[0].(int64), row[1].(int64), row[2].(int64) != 0})
			return nil
		}, "SELECT rev, prev_rev, until IS rev, at FROM revisions WHERE rev > ? AND rev <= ? ORDER BY rev LIMIT ?", swept, to, int64(compactRows))
		if err != nil {
			return err
		}
		for _, c := range changes {
			if removed%16 == 15 && time.Since(start) > compactTime {
				done = false
				break
			}
			if c.prev != 0 {
				if err := t.remove(c.prev); err != nil {
					return err
				}
				removed++
			}
			if c.deletion {
				if err := t.remove(c.rev); err != nil {
					return err
				}
			}
			reached = c.rev
		}
		if len(changes) == compactRows {
			done = false
		}
		if done && all {
			reached = to
		}
		if reached <= swept {
			return nil
		}
		if _, err := t.c.Exec("UPDATE meta SET value = ? WHERE name = 'swept'", reached); err != nil {
			return err
		}
		compacted := max(reached, d.compacted.Load())
		if _, err := t.c.Exec("UPDATE meta SET value = ? WHERE name = 'compacted'", compacted); err != nil {
			return err
		}
		// Stored before the commit, so that no reader reads a revision whose rows are already gone.
		d.compacted.Store(compacted)
		t.after = append(t.after, func() { d.metrics.compactedRevisions.Add(float64(removed)) })
		return nil
	})
	return done, err
}

// remove deletes a revision with its contents and index entries.
func (t *tx) remove(rev int64) error {
	var key string
	var packed []byte
	err := t.c.Each(func(row []driver.Value) error {
		key, _ = row[0].(string)
		packed, _ = row[1].([]byte)
		return nil
	}, "DELETE FROM revisions WHERE rev = ? RETURNING key, indexed", rev)
	if err != nil {
		return err
	}
	if _, err := t.c.Exec("DELETE FROM contents WHERE rev = ?", rev); err != nil {
		return err
	}
	entries, err := unpackIndexed(packed)
	if err != nil {
		return t.db.corruptError(fmt.Sprintf("revision %d of %s: %v", rev, key, err), err)
	}
	for _, e := range entries {
		if _, err := t.c.Exec("DELETE FROM index_entries WHERE id = ? AND value = ? AND rev = ?", e.id, e.value, rev); err != nil {
			return err
		}
	}
	return nil
}

// Unused space that the file may keep.
const (
	// freeReserve pages or, if that is more, a twentieth of the file stay free for the next writes.
	freeReserve = 256
	// vacuumPages is the number of pages that one step returns. A step blocks the writer.
	vacuumPages = 64
)

// shrink returns free pages to the file system, so that the file shrinks with its contents.
func (d *DB) shrink(ctx context.Context) error {
	for {
		again := false
		err := d.write(ctx, func(t *tx) error {
			free, _, err := t.c.First("PRAGMA freelist_count")
			if err != nil {
				return err
			}
			pages, _, err := t.c.First("PRAGMA page_count")
			if err != nil {
				return err
			}
			keep := max(freeReserve, pages/20)
			if d.space.Full() {
				keep = 0
			}
			excess := free - keep
			if excess <= 0 {
				return nil
			}
			again = excess > vacuumPages
			return t.c.Run(fmt.Sprintf("PRAGMA incremental_vacuum(%d)", min(excess, vacuumPages)))
		})
		if err != nil {
			return err
		}
		if !again {
			break
		}
	}
	return nil
}

// holdWindows bounds Hold: it keeps changes readable for at most this many history windows, by
// default an hour.
const holdWindows = 12

// holds counts the readers of each held revision.
type holds struct {
	mu      sync.Mutex
	readers map[int64]int
}

// Hold keeps revision rev, and the changes after it, readable until release is called. It is for
// readers that need more time than the history window. It does not bring back compacted revisions,
// and keeps none that are older than twelve times Options.HistoryWindow. release may be called more
// than once.
func (h *holds) Hold(rev int64) (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.readers == nil {
		h.readers = map[int64]int{}
	}
	h.readers[rev]++
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.readers[rev]--; h.readers[rev] == 0 {
			delete(h.readers, rev)
		}
	})
}

// oldest is the oldest revision that is held, or rev if that is older.
func (h *holds) oldest(rev int64) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	for held := range h.readers {
		rev = min(rev, held)
	}
	return rev
}
