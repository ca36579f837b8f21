package db

import (
	"database/sql/driver"

	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

// checkpointPages is how many new pages in the log (8 MiB) start the next checkpoint. A variable
// for benchmarks.
var checkpointPages int64 = 2048

// walLimit is the size of the log above which boundLog restarts it. A variable for tests.
var walLimit int64 = 64 << 20

// checkpointLoop copies the log into the database file, in parallel to the writer. Otherwise the
// writer would do so within a commit, and delay all writers for tens of milliseconds.
func (d *DB) checkpointLoop(c *sqlite.Conn) {
	defer d.wg.Done()
	defer c.Close()
	for {
		select {
		case <-d.stop:
			return
		case <-d.checkpoint:
		}
		d.checkpointing.Lock()
		_, err := checkpoint(c, "PASSIVE")
		for err != nil && d.space.RanOut(err) {
			_, err = checkpoint(c, "PASSIVE")
		}
		d.checkpointing.Unlock()
		if err != nil {
			d.log.Error("checkpointing the database's log failed, will retry", "file", d.path+"-wal", "err", d.translate(err))
		}
	}
}

// grown runs after each commit, on the writing connection, and starts a checkpoint if the log has
// grown enough. It reads from SQLite how many pages the log has and how many are copied. It does
// not count the bytes of values, because a small value can change as many pages as a large one.
func (t *tx) grown() {
	var behind int64 // bytes that are not copied
	err := t.c.Each(func(row []driver.Value) error {
		pages, copied := row[1].(int64), row[2].(int64)
		if pages < t.logPages { // SQLite has restarted the log
			t.logPages = 0
		}
		t.logged += pages - t.logPages
		t.logPages = pages
		behind = (pages - copied) * pageSize
		return nil
	}, "PRAGMA wal_checkpoint(NOOP)")
	full := t.db.space.Full()
	if err == nil && t.logged < checkpointPages && !full {
		return
	}
	t.logged = 0
	if (full || t.db.space.IsMuch(behind)) && t.copyLog() {
		return
	}
	select {
	case t.db.checkpoint <- struct{}{}:
	default:
	}
}

// copyLog copies the log as the loop does, and reports whether it succeeded. The writer calls it if
// the loop is too late: each page that is only in the log will need room in the file, too, and that
// room must exist even on a full disk.
func (t *tx) copyLog() bool {
	if !t.db.checkpointing.TryLock() {
		return false
	}
	defer t.db.checkpointing.Unlock()
	_, err := checkpoint(t.c, "PASSIVE")
	return err == nil
}

// boundLog restarts a log that has grown too large: readers that always overlap keep SQLite from
// reusing it. See https://sqlite.org/wal.html, "Avoiding Excessively Large WAL Files". Another
// program that reads for a long time, or a backup, can prevent it. Then boundLog tries again after
// the log has grown by walLimit more.
func (d *DB) boundLog() error {
	size := datafile.FileSize(d.path + "-wal")
	if size <= d.logBound {
		return nil
	}
	busy := false
	err := d.alone(func() error {
		c, err := sqlite.Open(d.path, "busy_timeout=100") // ms; writers wait for it
		if err != nil {
			return err
		}
		defer c.Close()
		busy, err = checkpoint(c, "TRUNCATE")
		return err
	})
	d.logBound = walLimit
	if err == nil && busy {
		d.logBound += size
		d.log.Warn("the database's log cannot be restarted: another program has been reading the database for a long time", "file", d.path+"-wal", "bytes", size)
	}
	return d.translate(err)
}

// alone runs fn while nothing else in the process uses the database. SQLite's own locks are not
// sufficient: a connection polls for them, and a dense sequence of readers and commits can starve
// it.
func (d *DB) alone(fn func() error) error {
	for range cap(d.readers) {
		select {
		case c := <-d.readers:
			defer func() { d.readers <- c }()
		case <-d.stop:
			return ErrClosed
		}
	}
	d.checkpointing.Lock()
	defer d.checkpointing.Unlock()
	done := make(chan error)
	select {
	case d.betweenCommits <- func() { done <- fn() }:
		return <-done
	case <-d.stop:
		return ErrClosed
	}
}

// checkpoint runs a checkpoint. busy is true if it could not finish.
func checkpoint(c *sqlite.Conn, mode string) (busy bool, err error) {
	err = c.Each(func(row []driver.Value) error {
		busy = row[0] != int64(0)
		return nil
	}, "PRAGMA wal_checkpoint("+mode+")")
	return busy, err
}
