package db

import (
	"context"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

// Snapshot reads tables that another package has in the file, such as importer/checks. All its
// statements see one state of the file. It is valid only within the function to which it is passed.
// Arguments of a statement are int64, string, []byte or nil.
type Snapshot struct{ c *sqlite.Conn }

// Each calls fn with every row of a query, until fn returns an error. Each reuses the row, but fn
// may keep its strings and byte slices.
func (s Snapshot) Each(fn func(row []driver.Value) error, sql string, args ...any) error {
	return s.c.Each(fn, sql, args...)
}

// First returns the first column of the first row as an integer. ok is false when
// there is no row, or the column is NULL.
func (s Snapshot) First(sql string, args ...any) (n int64, ok bool, err error) {
	return s.c.First(sql, args...)
}

// Transaction also writes such tables.
type Transaction struct {
	Snapshot
	tx *tx
}

// Exec runs a statement that yields no row, and returns the number of rows changed.
func (t Transaction) Exec(sql string, args ...any) (int64, error) { return t.c.Exec(sql, args...) }

// Put is [DB.Put] of a key that does not exist, with the time at which it expires in Unix
// milliseconds, 0 for never. A copy of a store refuses it.
func (t Transaction) Put(key string, value []byte, expires int64) error {
	if _, own := t.tx.db.authority.(local); !own {
		return errors.ErrUnsupported
	}
	_, err := t.tx.put(key, 0, value, expires, nil)
	return err
}

// Now is the time of the transaction, in Unix milliseconds.
func (t Transaction) Now() int64 { return t.tx.now }

// MayGrow returns why writes that need more room are refused, such as a full disk:
// *datafile.UnavailableError, or nil.
func (t Transaction) MayGrow() error { return t.tx.mayGrow() }

// After runs fn once the transaction is durable. fn must not wait.
func (t Transaction) After(fn func()) { t.tx.after = append(t.tx.after, fn) }

// Read runs fn in a read transaction. fn reads a bounded number of rows.
func (d *DB) Read(ctx context.Context, fn func(Snapshot) error) error {
	return d.snapshot(ctx, func(c *sqlite.Conn) error { return fn(Snapshot{c}) })
}

// Transact runs fn in the next commit, which other writers share, and returns once the commit is
// durable. If fn returns an error, its writes are undone. fn must be short, must not call other
// methods of DB, and may run twice, so it must have no other effects.
func (d *DB) Transact(ctx context.Context, fn func(Transaction) error) error {
	return d.write(ctx, func(t *tx) error { return fn(Transaction{Snapshot{t.c}, t}) })
}

// Now is the time by Options.Clock.
func (d *DB) Now() time.Time { return d.clock.Now() }

// After sends the time once the duration has passed by Options.Clock.
func (d *DB) After(wait time.Duration) <-chan time.Time { return d.clock.After(wait) }

// Closing is closed when Close is called.
func (d *DB) Closing() <-chan struct{} { return d.stop }

// SetInfo records a line about the owner, such as the server's address, which other
// processes find in LockedError.
func (d *DB) SetInfo(info string) error { return d.lock.SetInfo(info) }
