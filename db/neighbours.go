package db

import (
	"database/sql/driver"
	"fmt"
)

// A flipped bit in a page of the index live takes a key's entry out of its place,
// and SQLite does not notice: a get says that the object is gone, and a create puts
// a second one beside it. What stands where the key was looked for gives it away:
// the damaged entry is next to that place, in a leaf or above it, and names a row
// with another key, or is out of order. So before a key counts as missing, the
// entries beside its place are compared with the rows that they name.
//
// What this does not see is a page that is whole and not the right one, as a disk
// leaves it that has lost a write. A list of all keys does (see remaining), and Check.

// neighbours are the two entries of the index before a key and the two after it, from
// the place outwards: -1 or 1, the entry's key, and the key of its row, which is NULL
// where there is none that is live.
const neighbours = `SELECT e.side, e.key, r.key FROM (
	SELECT * FROM (SELECT -1 AS side, key, rev FROM revisions INDEXED BY live WHERE until IS NULL AND key < ?1 ORDER BY key DESC LIMIT 2)
	UNION ALL
	SELECT * FROM (SELECT 1, key, rev FROM revisions INDEXED BY live WHERE until IS NULL AND key > ?1 ORDER BY key LIMIT 2)
	) e LEFT JOIN revisions r NOT INDEXED ON r.rev = e.rev AND r.until IS NULL`

// indexError says that the index of live keys does not agree with its table.
type indexError struct{ key, beside string }

func (e *indexError) Error() string {
	return fmt.Sprintf("whether %s exists cannot be told: beside its place the index of keys has %.100q, and the table has not", e.key, e.beside)
}

// checkMissing fails with *indexError if a key that the index does not have may be
// missing from the index alone.
func (c *conn) checkMissing(key string) error {
	last := map[int64]string{-1: key, 1: key} // on each side of the place
	return c.each(func(row []driver.Value) error {
		side, beside := row[0].(int64), row[1].(string)
		ordered := beside < last[side]
		if side == 1 {
			ordered = beside > last[side]
		}
		if !ordered || row[2] != beside {
			return &indexError{key: key, beside: beside}
		}
		last[side] = beside
		return nil
	}, neighbours, key)
}
