package db

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"
	"runtime"

	"github.com/mattn/go-sqlite3"

	_ "github.com/tidewaiter/tidewaiter/db/needscgo" // the one error of a build without it
)

// conn is one SQLite connection with its prepared statements. It speaks to the
// driver without database/sql, whose pool, locks and reflection cost more than
// the statements we run. One goroutine uses a conn at a time.
type conn struct {
	raw   *sqlite3.SQLiteConn
	stmts map[string]*stmt
	// ctx interrupts queries when it is done; nil for never.
	ctx context.Context
}

// stmt is a prepared statement with buffers kept from call to call.
type stmt struct {
	raw  *sqlite3.SQLiteStmt
	args []driver.NamedValue
	row  []driver.Value
}

// background is the context of statements that change something: they are short, and
// their caller must learn whether the change happened.
var background = context.Background()

// openConn opens a connection on the database file. The busy timeout matters
// only for other programs, such as the sqlite3 shell: within the process there
// is one writer.
func openConn(path string, pragmas ...string) (*conn, error) {
	q := url.Values{"_busy_timeout": {"5000"}, "_mutex": {"no"}}
	dsn := "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + q.Encode()
	raw, err := (&sqlite3.SQLiteDriver{}).Open(dsn)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	c := &conn{raw: raw.(*sqlite3.SQLiteConn), stmts: map[string]*stmt{}}
	c.restrict()
	for _, p := range append([]string{"trusted_schema=OFF"}, pragmas...) {
		if err := c.run("PRAGMA " + p); err != nil {
			c.close()
			return nil, fmt.Errorf("open %s: PRAGMA %s: %w", path, p, err)
		}
	}
	return c, nil
}

func (c *conn) context() context.Context {
	if c.ctx == nil {
		return background
	}
	return c.ctx
}

func (c *conn) close() error {
	for _, s := range c.stmts {
		s.raw.Close()
	}
	return c.raw.Close()
}

// run executes a statement that is not worth preparing, to its end.
func (c *conn) run(sql string) error {
	rows, err := c.raw.QueryContext(c.context(), sql, nil)
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

// transact runs fn in a transaction that is there whole or not at all.
func (c *conn) transact(fn func() error) error {
	if err := c.run("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	err := fn()
	if err == nil {
		err = c.run("COMMIT")
	}
	if err != nil && !c.raw.AutoCommit() {
		err = errors.Join(err, c.run("ROLLBACK"))
	}
	return err
}

func (c *conn) prepare(sql string) (*stmt, error) {
	if s := c.stmts[sql]; s != nil {
		return s, nil
	}
	raw, err := c.raw.PrepareContext(background, sql)
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

// exec runs a prepared statement that yields no row and returns the number of
// rows changed. Arguments are int64, string, []byte or nil.
func (c *conn) exec(sql string, args ...any) (int64, error) {
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

// errStop, returned by fn, ends each without an error.
var errStop = errors.New("stop")

// each runs a prepared query and calls fn with every row. The row is reused;
// its strings and byte slices are the caller's to keep.
func (c *conn) each(fn func(row []driver.Value) error, sql string, args ...any) error {
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
		if err = take(fn, s.row); err != nil {
			break
		}
	}
	cerr := rows.Close()
	clear(s.row) // do not keep a value alive
	if err == io.EOF || err == errStop {
		err = cerr
	}
	return err
}

// take calls fn with a row. fn asserts that a column has the type which its table
// declares. SQLite does not, so a damaged or crafted file may have another.
func take(fn func(row []driver.Value) error, row []driver.Value) (err error) {
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

// first returns the first column of the first row as an integer, or ok false
// when there is no row or the column is NULL.
func (c *conn) first(sql string, args ...any) (n int64, ok bool, err error) {
	err = c.each(func(row []driver.Value) error {
		n, ok = row[0].(int64)
		return errStop
	}, sql, args...)
	return n, ok, err
}
