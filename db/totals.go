package db

import (
	"context"
	"database/sql/driver"
	"github.com/tidewaiter/tidewaiter/db/sqlite"
)

// Totals returns the number of live keys below prefix, which ends in "/", and
// the bytes of their values. It reads a row per directory, not per key.
func (d *DB) Totals(ctx context.Context, prefix string) (objects, bytes int64, err error) {
	err = d.read(ctx, func(c *sqlite.Conn) error {
		return c.Each(func(row []driver.Value) error {
			objects, _ = row[0].(int64)
			bytes, _ = row[1].(int64)
			return nil
		}, "SELECT sum(objects), sum(bytes) FROM directories WHERE dir >= ? AND dir < ?", prefix, prefixEnd(prefix))
	})
	return objects, bytes, err
}
