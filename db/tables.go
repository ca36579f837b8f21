package db

import (
	"context"
	"database/sql/driver"
	"time"

	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

// Snapshot reads tables that another package keeps in the file, as db/spool does.
// All its statements see one state of the file. It is valid within the function
// that it was given to. Arguments of a statement are int64, string, []byte or nil.
type Snapshot struct{ c *sqlite.Conn }

// Each calls fn with every row of a query, until fn returns an error. The row is
// reused; its strings and byte slices are the caller's to keep.
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

// Now is the time of the transaction, in Unix milliseconds.
func (t Transaction) Now() int64 { return t.tx.now }

// MayGrow returns why nothing that takes more room may be written, such as a full
// disk: *UnavailableError, or nil.
func (t Transaction) MayGrow() error { return t.tx.mayGrow() }

// After has fn run once the transaction is durable. fn must not wait.
func (t Transaction) After(fn func()) { t.tx.after = append(t.tx.after, fn) }

// Read runs fn in a read transaction. fn reads a bounded number of rows.
func (d *DB) Read(ctx context.Context, fn func(Snapshot) error) error {
	return d.snapshot(ctx, func(c *sqlite.Conn) error { return fn(Snapshot{c}) })
}

// Transact runs fn in the next commit, which other writers share, and returns once
// that is durable. When fn returns an error, its writes are undone. fn must
// be short, must not call other methods of DB, and may run twice: it has no effect
// but on the transaction.
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
