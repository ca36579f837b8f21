package db

import (
	"context"
	"fmt"
	"time"
)

// Limits of what the file and its log may hold beyond what they need.
const (
	// freeReserve pages stay free for the next writes, or a twentieth of the file.
	freeReserve = 256
	// vacuumPages are given back in one step, which holds the writer.
	vacuumPages = 64
)

// walLimit is the size of the log from which it is restarted by force: readers
// that always overlap would otherwise keep SQLite from reusing it. A variable
// for tests.
var walLimit int64 = 64 << 20

// shrink gives free pages back to the file system, so that the file follows
// the live data, and keeps the log bounded.
func (d *DB) shrink(ctx context.Context) error {
	for {
		again := false
		err := d.write(ctx, func(t *tx) error {
			free, _, err := t.c.first("PRAGMA freelist_count")
			if err != nil {
				return err
			}
			pages, _, err := t.c.first("PRAGMA page_count")
			if err != nil {
				return err
			}
			excess := free - max(freeReserve, pages/20)
			if excess <= 0 {
				return nil
			}
			again = excess > vacuumPages
			return t.c.run(fmt.Sprintf("PRAGMA incremental_vacuum(%d)", min(excess, vacuumPages)))
		})
		if err != nil {
			return err
		}
		if !again {
			break
		}
	}
	if fileSize(d.path+"-wal") <= walLimit {
		return nil
	}
	// Readers hold the log for milliseconds each; the checkpoint waits for them,
	// and the writer for the checkpoint. See https://sqlite.org/wal.html, "avoiding
	// excessively large WAL files".
	c, err := openConn(d.path)
	if err != nil {
		return err
	}
	defer c.close()
	start := time.Now()
	busy, _, err := c.first("PRAGMA wal_checkpoint(TRUNCATE)")
	if err == nil && busy != 0 {
		d.log.Warn("the database's log cannot be restarted: another program reads the database for long", "file", d.path+"-wal",
			"bytes", fileSize(d.path+"-wal"), "waited", time.Since(start).String())
	}
	return d.translate(err)
}
