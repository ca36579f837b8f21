package db

import (
	"context"
	"database/sql/driver"
	"fmt"

	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

// A flipped bit in a page of the index live moves a key's entry out of its place, and SQLite does
// not notice: a get finds no object, and a create creates a second one. The entries around the
// key's place show the damage: the damaged entry is next to that place, in a leaf or above it, and
// names a row with another key. So before a key counts as missing, the entries beside its place are
// compared with the rows that they name.
//
// This does not detect an old page that looks intact, but liveKeys does. A list of all keys detects
// both (see remaining), and so does Check.

// wrongNeighbour selects the key of an entry beside the place of ?1 in the index, if the
// entry's row has another key or is not live.
const wrongNeighbour = `SELECT e.key FROM (
	SELECT * FROM (SELECT key, rev FROM revisions INDEXED BY live WHERE until IS NULL AND key < ?1 ORDER BY key DESC LIMIT 1)
	UNION ALL
	SELECT * FROM (SELECT key, rev FROM revisions INDEXED BY live WHERE until IS NULL AND key > ?1 ORDER BY key LIMIT 1)
	) e WHERE e.key IS NOT (SELECT key FROM revisions NOT INDEXED WHERE rev = e.rev AND until IS NULL)`

// checkNeighbours fails with *indexError if the index lacks a key and an entry beside the key's
// place is damaged.
func checkNeighbours(c *sqlite.Conn, key string) error {
	return c.Each(func(row []driver.Value) error {
		return &indexError{key, fmt.Sprintf("the index of keys has %.100q out of place, and the table does not have it", fmt.Sprint(row[0]))}
	}, wrongNeighbour, key)
}

// missingLive finds a live key in the row of a revision, if the index lacks the key. It is one
// statement, so that it sees index and table at one moment.
const missingLive = `SELECT 1 FROM revisions NOT INDEXED WHERE rev = ?1 AND key = ?2 AND until IS NULL
	AND NOT EXISTS (SELECT 1 FROM revisions INDEXED BY live WHERE key = ?2 AND until IS NULL)`

// checkMissing fails with *indexError if a key that the index of live keys lacks may be in the
// table.
func (d *DB) checkMissing(c *sqlite.Conn, key string) error {
	rev, complete := d.live.find(key)
	if rev != 0 {
		switch _, missing, err := c.First(missingLive, rev, key); {
		case err != nil:
			return err
		case missing:
			return &indexError{key, fmt.Sprintf("the table has it at revision %d, but the index of keys does not", rev)}
		}
	}
	if complete {
		return nil
	}
	return checkNeighbours(c, key)
}

// learnLiveKeys reads the table up to the present revision; commits add later keys.
func (d *DB) learnLiveKeys(ctx context.Context) error {
	const rows = 1000 // read at a time
	l := d.live
	for from, to := int64(0), d.revision.Load(); ; {
		n := 0
		err := d.read(ctx, func(c *sqlite.Conn) error {
			return c.Each(func(row []driver.Value) error {
				rev := row[0].(int64)
				if rev <= from {
					return d.corrupt(fmt.Errorf("revision %d follows %d", rev, from))
				}
				n, from = n+1, rev
				if live := row[2].(int64) != 0; live {
					l.put(row[1].(string), rev)
				}
				return nil
			}, "SELECT rev, key, until IS NULL FROM revisions NOT INDEXED WHERE rev > ? AND rev <= ? ORDER BY rev LIMIT ?", from, to, int64(rows))
		})
		l.mu.Lock()
		full := l.revs == nil
		l.complete = err == nil && n < rows && !full
		l.mu.Unlock()
		if err != nil || n < rows || full {
			return err
		}
	}
}
