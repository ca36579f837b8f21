package db

import (
	"database/sql/driver"
	"time"
)

// checkpointBytes of values written since the last checkpoint start the next.
const checkpointBytes = 8 << 20

// walLimit is the size of the log from which it is restarted by force. A
// variable for tests.
var walLimit int64 = 64 << 20

// checkpointLoop copies the log into the database file beside the writer, which
// would otherwise do it within a commit, and make 16 MiB's worth of writers
// wait for tens of milliseconds at a time.
func (d *DB) checkpointLoop(c *conn) {
	defer d.wg.Done()
	defer c.close()
	for {
		select {
		case <-d.stop:
			return
		case <-d.checkpoint:
		}
		if _, err := checkpoint(c, "PASSIVE"); err != nil {
			d.log.Error("copying the database's log fails and will be tried again", "file", d.path+"-wal", "err", d.translate(err))
		}
	}
}

// grown is told of bytes written to the log.
func (t *tx) grown(bytes int64) {
	if t.logged += bytes; t.logged < checkpointBytes {
		return
	}
	t.logged = 0
	select {
	case t.db.checkpoint <- struct{}{}:
	default:
	}
}

// boundLog restarts a log that has grown too large: readers that always overlap
// keep SQLite from reusing it. They hold it for milliseconds each; the
// checkpoint waits for them, and the writer for the checkpoint. See
// https://sqlite.org/wal.html, "Avoiding Excessively Large WAL Files".
func (d *DB) boundLog() error {
	if fileSize(d.path+"-wal") <= walLimit {
		return nil
	}
	c, err := openConn(d.path)
	if err != nil {
		return d.translate(err)
	}
	defer c.close()
	start := time.Now()
	busy, err := checkpoint(c, "TRUNCATE")
	if err == nil && busy {
		d.log.Warn("the database's log cannot be restarted: a program reads the database for long", "file", d.path+"-wal",
			"bytes", fileSize(d.path+"-wal"), "waited", time.Since(start).String())
	}
	return d.translate(err)
}

// checkpoint runs a checkpoint. busy: it could not be finished.
func checkpoint(c *conn, mode string) (busy bool, err error) {
	err = c.each(func(row []driver.Value) error {
		busy = row[0] != int64(0)
		return nil
	}, "PRAGMA wal_checkpoint("+mode+")")
	return busy, err
}
