package db

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

// Bounds of one group commit: at most maxBatch writers share it, and none joins it after
// maxBatchBytes of values. maxBatch also bounds the queue: when the queue is full, further writers
// wait in write. maxBatch is a variable for benchmarks.
var maxBatch = 256

const maxBatchBytes = 8 << 20

// request is one writer waiting for its commit.
type request struct {
	ctx   context.Context
	fn    func(*tx) error
	whole bool  // see writeWhole
	err   error // sent to done, once it is known
	done  chan error
}

var requests = sync.Pool{New: func() any { return &request{done: make(chan error, 1)} }}

// write runs fn in the next transaction and returns when that is durable. fn shares the transaction
// with other writers: if it returns an error, only its own writes are undone. It runs on the
// writer's goroutine, so it must be short and must not call methods of DB. It may run twice: if the
// shared commit fails, every writer commits alone.
func (d *DB) write(ctx context.Context, fn func(*tx) error) error {
	return d.enqueue(ctx, fn, false)
}

// writeWhole is write for an fn that has written nothing when it returns an error, unless the error
// is SQLite's. It needs no savepoint, which would make SQLite copy every page that fn changes.
func (d *DB) writeWhole(ctx context.Context, fn func(*tx) error) error {
	return d.enqueue(ctx, fn, true)
}

func (d *DB) enqueue(ctx context.Context, fn func(*tx) error, whole bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r := requests.Get().(*request)
	r.ctx, r.fn, r.whole = ctx, fn, whole
	select {
	case d.queue <- r:
	case <-ctx.Done():
		return ctx.Err()
	case <-d.stop:
		return ErrClosed
	}
	// From here on ignore the deadline: a caller that returned early would not know whether the write
	// happened.
	select {
	case err := <-r.done:
		r.ctx, r.fn, r.err = nil, nil, nil
		requests.Put(r)
		return err
	case <-d.writerDone:
	}
	select {
	case err := <-r.done:
		return err
	default: // queued after the writer had ended
		return ErrClosed
	}
}

// commitLoop owns the writing connection.
func (d *DB) commitLoop(c *sqlite.Conn) {
	defer d.wg.Done()
	w := &tx{db: d, c: c}
	batch := make([]*request, 0, maxBatch)
	for {
		select {
		case r := <-d.queue:
			batch = append(batch[:0], r)
		case fn := <-d.betweenCommits:
			fn()
			continue
		case <-d.stop:
			d.closeErr = c.Close()
			close(d.writerDone)
			return
		}
		d.commitBatch(w, batch)
	}
}

// commitBatch commits the first request together with those that gather returns. If a commit of
// several fails, each request gets a transaction of its own, so that a write that is too large for
// the disk fails alone. The same happens after the reserve has been released, so that deletions do
// not fail.
func (d *DB) commitBatch(w *tx, batch []*request) {
	start := time.Now()
	batch, err := d.tryBatch(w, batch, true)
	if err != nil {
		again := d.space.RanOut(err) || len(batch) > 1
		for _, r := range batch {
			for again {
				if _, err = d.tryBatch(w, []*request{r}, false); err == nil || !d.space.RanOut(err) {
					break
				}
			}
			if err != nil {
				r.err = err
			}
		}
	}
	d.metrics.batch.Observe(float64(len(batch)))
	since(d.metrics.commit, start)
	for _, r := range batch {
		r.done <- r.err
	}
	clear(batch)
}

// tryBatch runs the requests in one transaction and, if more is set, further requests from gather.
// Each gets its own error; err is the failure of the whole transaction.
func (d *DB) tryBatch(w *tx, batch []*request, more bool) (_ []*request, err error) {
	var late <-chan time.Time
	err = w.begin()
	for i := 0; err == nil; i++ {
		if i == len(batch) {
			if !more || len(batch) == maxBatch || w.bytes >= maxBatchBytes {
				break
			}
			r := d.gather(len(batch), &late)
			if r == nil {
				break
			}
			batch = append(batch, r)
		}
		batch[i].err, err = w.run(batch[i])
	}
	if err == nil {
		err = w.commit()
	}
	if err != nil {
		w.rollback()
		d.metrics.commitFailures.Inc()
		err = d.translate(err)
		if unavailable, ok := errors.AsType[*datafile.UnavailableError](err); ok {
			d.failing.Store(unavailable)
		}
		return batch, err
	}
	return batch, nil
}

func (t *tx) begin() error {
	t.now = t.db.clock.Now().UnixMilli()
	t.base = t.db.revision.Load()
	t.rev = t.base
	t.indexedTo = t.db.indexedTo.Load()
	t.bytes, t.unindexed = 0, 0
	t.events, t.deltas, t.after = nil, t.deltas[:0], nil
	if _, err := t.c.Exec("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	return t.checkSpace()
}

// run runs one closure, within a savepoint unless the request is whole. err is the closure's error;
// fatal is an error after which the transaction cannot continue.
func (t *tx) run(r *request) (err, fatal error) {
	t.db.arrived(r.ctx)
	if err := r.ctx.Err(); err != nil {
		return err, nil
	}
	if r.whole {
		if err = r.fn(t); t.db.isSQLite(err) {
			return nil, err
		}
		return err, nil
	}
	rev, events, deltas, after := t.rev, len(t.events), len(t.deltas), len(t.after)
	if _, err := t.c.Exec("SAVEPOINT writer"); err != nil {
		return nil, err
	}
	if err = r.fn(t); err != nil {
		if t.db.isSQLite(err) {
			return nil, err // SQLite may have rolled everything back itself
		}
		t.rev, t.events, t.deltas, t.after = rev, t.events[:events], t.deltas[:deltas], t.after[:after]
		if _, rerr := t.c.Exec("ROLLBACK TO writer"); rerr != nil {
			return nil, rerr
		}
	}
	_, fatal = t.c.Exec("RELEASE writer")
	return err, fatal
}

func (t *tx) commit() error {
	if t.rev != t.base {
		if _, err := t.c.Exec("UPDATE meta SET value = ? WHERE name = 'revision'", t.rev); err != nil {
			return err
		}
	}
	if err := t.applyDeltas(); err != nil {
		return err
	}
	t.db.live.begin(t.events)
	defer t.db.live.end()
	if _, err := t.c.Exec("COMMIT"); err != nil {
		return err
	}
	if t.rev != t.base { // nothing may have been written
		t.db.revisionFile.Set(t.rev)
		t.db.failing.Store(nil)
	}
	t.grown()
	t.db.observe(t.rev)
	t.db.live.commit(t.events)
	t.db.changes.Publish(t.events, t.rev)
	t.db.unindexed.Add(t.unindexed)
	for _, fn := range t.after {
		fn()
	}
	if t.db.manyUnindexed() {
		select {
		case t.db.entriesDue <- struct{}{}:
		default: // signalled already
		}
	}
	return nil
}

// rollback undoes the transaction. SQLite may have done so already (after
// SQLITE_FULL or SQLITE_IOERR), in which case there is nothing to roll back.
func (t *tx) rollback() {
	if !t.c.Raw.AutoCommit() {
		if _, err := t.c.Exec("ROLLBACK"); err != nil {
			t.db.log.Error("rolling back a failed commit", "err", err)
		}
	}
}

// applyDeltas updates the directories' totals, with a statement for each changed directory.
func (t *tx) applyDeltas() error {
	if len(t.deltas) == 0 {
		return nil
	}
	sums := make(map[string]delta, 4)
	for _, d := range t.deltas {
		s := sums[d.dir]
		s.objects += d.objects
		s.bytes += d.bytes
		sums[d.dir] = s
	}
	for dir, s := range sums {
		if _, err := t.c.Exec(`INSERT INTO directories VALUES (?1, ?2, ?3)
			ON CONFLICT (dir) DO UPDATE SET objects = objects + ?2, bytes = bytes + ?3`, dir, s.objects, s.bytes); err != nil {
			return fmt.Errorf("count %s: %w", dir, err)
		}
		if s.objects < 0 {
			if _, err := t.c.Exec("DELETE FROM directories WHERE dir = ? AND objects = 0", dir); err != nil {
				return err
			}
		}
	}
	return nil
}
