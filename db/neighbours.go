package db

import (
	"database/sql/driver"
	"fmt"
	"github.com/tidewaiter/tidewaiter/db/sqlite"
)

// A flipped bit in a page of the index live takes a key's entry out of its place, and
// SQLite does not notice: a get finds no object, and a create puts a second one beside
// it. The entries around the key's place show the damage: the damaged entry is next to
// that place, in a leaf or above it, and names a row with another key. So before a key
// counts as missing, the entries beside its place are compared with the rows that they
// name.
//
// An old page that is whole is not noticed here but by liveKeys, which needs no such look. A
// list of all keys finds both (see remaining), and so does Check.

// wrongNeighbour selects the key of an entry beside the place of ?1 in the index, if the
// entry's row has another key or is not live.
const wrongNeighbour = `SELECT e.key FROM (
	SELECT * FROM (SELECT key, rev FROM revisions INDEXED BY live WHERE until IS NULL AND key < ?1 ORDER BY key DESC LIMIT 1)
	UNION ALL
	SELECT * FROM (SELECT key, rev FROM revisions INDEXED BY live WHERE until IS NULL AND key > ?1 ORDER BY key LIMIT 1)
	) e WHERE e.key IS NOT (SELECT key FROM revisions NOT INDEXED WHERE rev = e.rev AND until IS NULL)`

// checkNeighbours fails with *indexError if an entry beside the place of a key that the
// index does not have is damaged.
func checkNeighbours(c *sqlite.Conn, key string) error {
	return c.Each(func(row []driver.Value) error {
		return &indexError{key, fmt.Sprintf("beside its place the index of keys has %.100q, and the table has not", fmt.Sprint(row[0]))}
	}, wrongNeighbour, key)
}
