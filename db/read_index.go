package db

import (
	"database/sql/driver"
	"fmt"
	"math"

	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

// indexedRange is a page of the keys that stand under a value of an index.
type indexedRange struct {
	prefix, from, end string // of the keys: all, the first, and what is after the last
	limit             int64  // rows
	rev               int64  // as of this revision
	value             indexedValue
	keysOnly          bool
}

// An index is in the order of revisions, and a range in that of keys. If a value has few
// revisions, they are gathered and sorted, with those of the latest rows, whose entries
// are not in index_entries yet. If it has many, many of the next keys have it:
// so keys are read in their order, and each row tells its own index entries. SQL asks
// whether these contain the value's bytes, and the reader of the rows whether the bytes
// are an entry.
const (
	rangeSparse = `SELECT key, rev, indexed FROM (
		SELECT r.key AS key, r.rev AS rev, NULL AS indexed FROM index_entries e CROSS JOIN revisions r ON r.rev = e.rev
			WHERE e.id = ?5 AND e.value = ?6 AND e.rev <= min(?4, (SELECT value FROM meta WHERE name = 'indexed'))
			AND r.key >= ?1 AND r.key < ?2 AND (r.until IS NULL OR r.until > ?4)
		UNION ALL
		SELECT key, rev, indexed FROM revisions NOT INDEXED
			WHERE rev > (SELECT value FROM meta WHERE name = 'indexed') AND rev <= ?4
			AND key >= ?1 AND key < ?2 AND (until IS NULL OR until > ?4) AND instr(indexed, ?3) > 0
		ORDER BY key LIMIT -1)`
	rangeDense = `SELECT key, rev, indexed FROM (
		SELECT key, rev, indexed FROM revisions INDEXED BY live
			WHERE until IS NULL AND key >= ?1 AND key < ?2 AND rev <= ?4 AND instr(indexed, ?3) > 0
		UNION ALL
		SELECT key, rev, indexed FROM %s AND key >= ?1 AND key < ?2 AND rev <= ?4 AND instr(indexed, ?3) > 0
		ORDER BY key LIMIT -1)`
	withIndexedValues = `SELECT s.key, s.rev, c.sum, c.value, s.indexed FROM (%s) s CROSS JOIN contents c ON c.rev = s.rev`
)

// fewMatches is how many revisions of a value are gathered and sorted for a page
// of limit rows. To gather m takes m steps; to look at keys until a page is full
// takes limit * objects / m, each about twice as long. A variable for tests.
var fewMatches = func(limit, objects int64) int64 {
	return int64(math.Sqrt(2 * float64(limit) * float64(objects)))
}

// eachIndexed calls take with the rows of a range: key and revision and, unless only
// keys are wanted, checksum and value.
func (d *DB) eachIndexed(c *sqlite.Conn, take func(row []driver.Value) error, r indexedRange) error {
	objects, _, err := c.First("SELECT sum(objects) FROM directories WHERE dir >= ? AND dir < ?", r.prefix, r.end)
	if err != nil {
		return err
	}
	few := fewMatches(r.limit, objects)
	matches, _, err := c.First("SELECT count(*) FROM (SELECT 1 FROM index_entries WHERE id = ? AND value = ? LIMIT ?)", r.value.id, r.value.value, few+1)
	if err != nil {
		return err
	}
	args := []any{r.from, r.end, indexedValues{r.value}.pack(), r.rev}
	sql := fmt.Sprintf(rangeDense, d.superseded(r.rev))
	if matches <= few {
		sql, args = rangeSparse, append(args, r.value.id, r.value.value)
	}
	if !r.keysOnly {
		sql = fmt.Sprintf(withIndexedValues, sql)
	}
	return c.Each(func(row []driver.Value) error {
		last := len(row) - 1
		packed, ok := row[last].([]byte)
		if !ok { // found in index_entries
			return take(row[:last])
		}
		switch has, err := r.value.in(packed); {
		case err != nil:
			return err
		case !has:
			return nil // the bytes are part of another entry
		}
		return take(row[:last])
	}, sql, args...)
}
