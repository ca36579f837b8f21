// Package sqlite is one connection to SQLite with its prepared statements.
package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"
	"runtime"

	"github.com/mattn/go-sqlite3"

	_ "github.com/tidewaiter/tidewaiter/db/internal/needscgo" // without cgo, its error is the only one
)

// Conn is one SQLite connection with its prepared statements. It uses the driver without
// database/sql, whose pool, locks and reflection cost more than the statements that run here. One
// goroutine uses a conn at a time.
type Conn struct {
	Raw   *sqlite3.SQLiteConn
	stmts map[string]*stmt
	// Ctx interrupts queries when it is done; nil for never.
	Ctx context.Context
}

// stmt is a prepared statement with buffers kept from call to call.
type stmt struct {
	raw  *sqlite3.SQLiteStmt
	args []driver.NamedValue
	row  []driver.Value
}

// background is the context of statements that change something: they are short, and the caller
// must know whether the change happened.
var background = context.Background()

// Open opens a connection on the database file. The busy timeout matters
// only for other programs, such as the sqlite3 shell: within the process there
// is one writer.
func Open(path string, pragmas ...string) (*Conn, error) {
	q := url.Values{"_busy_timeout": {"5000"}, "_mutex": {"no"}}
	dsn := "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + q.Encode()
	raw, err := (&sqlite3.SQLiteDriver{}).Open(dsn)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	c := &Conn{Raw: raw.(*sqlite3.SQLiteConn), stmts: map[string]*stmt{}}
	c.restrict()
	for _, p := range append([]string{"trusted_schema=OFF"}, pragmas...) {
		if err := c.Run("PRAGMA " + p); err != nil {
			c.Close()
			return nil, fmt.Errorf("open %s: PRAGMA %s: %w", path, p, err)
		}
	}
	return c, nil
}

// OpenMemory opens a database in memory that ends with its connection.
func OpenMemory() (*Conn, error) {
	raw, err := (&sqlite3.SQLiteDriver{}).Open(":memory:")
	if err != nil {
		return nil, err
	}
	return &Conn{Raw: raw.(*sqlite3.SQLiteConn), stmts: map[string]*stmt{}}, nil
}

func (c *Conn) context() context.Context {
	if c.Ctx == nil {
		return background
	}
	return c.Ctx
}

func (c *Conn) Close() error {
	for _, s := range c.stmts {
		s.raw.Close()
	}
	return c.Raw.Close()
}

// Run executes a statement completely, without preparing it for reuse.
func (c *Conn) Run(sql string) error {
	rows, err := c.Raw.QueryContext(c.context(), sql, nil)
	if err != nil {
		return err
	}
	dest := make([]driver.Value, len(rows.Columns()))
	for err == nil {
		err = rows.Next(dest)
	}
	if cerr := rows.Close(); err == io.EOF {
		err = cerr
	}
	return err
}

// Transact runs fn in a transaction, and rolls it back if fn fails.
func (c *Conn) Transact(fn func() error) error {
	if err := c.Run("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	err := fn()
	if err == nil {
		err = c.Run("COMMIT")
	}
	if err != nil && !c.Raw.AutoCommit() {
		err = errors.Join(err, c.Run("ROLLBACK"))
	}
	return err
}

func (c *Conn) prepare(sql string) (*stmt, error) {
	if s := c.stmts[sql]; s != nil {
		return s, nil
	}
	raw, err := c.Raw.PrepareContext(background, sql)
	if err != nil {
		return nil, fmt.Errorf("prepare %q: %w", sql, err)
	}
	s := &stmt{raw: raw.(*sqlite3.SQLiteStmt)}
	c.stmts[sql] = s
	return s, nil
}

func (s *stmt) bind(args []any) []driver.NamedValue {
	s.args = s.args[:0]
	for i, a := range args {
		s.args = append(s.args, driver.NamedValue{Ordinal: i + 1, Value: a})
	}
	return s.args
}

// Exec runs a prepared statement that yields no row and returns the number of
// rows changed. Arguments are int64, string, []byte or nil.
func (c *Conn) Exec(sql string, args ...any) (int64, error) {
	s, err := c.prepare(sql)
	if err != nil {
		return 0, err
	}
	res, err := s.raw.ExecContext(background, s.bind(args))
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// ErrStop is an error that fn may return to end Each without an error.
var ErrStop = errors.New("stop")

// Each runs a prepared query and calls fn with every row. Each reuses the row, but fn may keep its
// strings and byte slices.
func (c *Conn) Each(fn func(row []driver.Value) error, sql string, args ...any) error {
	s, err := c.prepare(sql)
	if err != nil {
		return err
	}
	rows, err := s.raw.QueryContext(c.context(), s.bind(args))
	if err != nil {
		return err
	}
	if s.row == nil {
		s.row = make([]driver.Value, len(rows.Columns()))
	}
	for {
		if err = rows.Next(s.row); err != nil {
			break
		}
		if err = scanRow(fn, s.row); err != nil {
			break
		}
	}
	cerr := rows.Close()
	clear(s.row) // do not keep a value alive
	if err == io.EOF || err == ErrStop {
		err = cerr
	}
	return err
}

// scanRow calls fn with a row. fn asserts that columns have the types that the table declares.
// SQLite does not check that, so a damaged or crafted file may have others.
func scanRow(fn func(row []driver.Value) error, row []driver.Value) (err error) {
	defer func() {
		switch e := recover().(type) {
		case nil:
		case *runtime.TypeAssertionError:
			err = fmt.Errorf("%w: a column has a value of another type: %w", sqlite3.Error{Code: sqlite3.ErrCorrupt}, e)
		default:
			panic(e)
		}
	}()
	return fn(row)
}

// First returns the first column of the first row as an integer, or ok false
// when there is no row or the column is NULL.
func (c *Conn) First(sql string, args ...any) (n int64, ok bool, err error) {
	err = c.Each(func(row []driver.Value) error {
		n, ok = row[0].(int64)
		return ErrStop
	}, sql, args...)
	return n, ok, err
}

// Faults returns at most limit faults that a check finds, with their pages. See
// https://sqlite.org/pragma.html#pragma_integrity_check and #pragma_quick_check.
func (c *Conn) Faults(check string, limit int) (faults []string, err error) {
	err = c.Each(func(row []driver.Value) error {
		if s := fmt.Sprint(row[0]); s != "ok" {
			faults = append(faults, s)
		}
		return nil
	}, fmt.Sprintf("PRAGMA %s(%d)", check, limit))
	return faults, err
}
