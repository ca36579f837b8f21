package datafile

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

// A database file may come from anybody: as a backup, or in a folder that
// somebody unpacked. SQLite runs what the schema of a file says (triggers, views,
// defaults, expressions), so nothing of a file is read before its schema is known
// to be ours.

// ForeignError says that a file in the data directory is not as this program
// makes it. Nothing in it was run, and nothing was written to it.
type ForeignError struct {
	Path string
	// Detail names the foreign part, as "it has a trigger \"spy\" that ...".
	Detail string
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s: %s: nothing in it was executed. Move it away and restore a backup that you trust", e.Path, e.Detail)
}

// schemaWait is how long a look at a file's schema may take. It reads a few pages
// of a file of ours. A crafted one can have SQLite read for years, in a call that
// nothing interrupts.
var schemaWait = time.Minute // a variable for tests

// CheckSchema refuses the database file at path unless its schema is exactly what
// the migrations up to its version make: see verifySchema. It has a connection of
// its own, which is given up with its goroutine when the look does not end; the
// caller then leaves the file alone, and in practice the process ends.
func CheckSchema(ctx context.Context, path string) error {
	look, cancel := context.WithTimeout(ctx, schemaWait)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		c, err := sqlite.Open(path, ReaderPragmas...)
		if err != nil {
			done <- err
			return
		}
		defer c.Close()
		c.Ctx = look
		done <- verifySchema(c, path)
	}()
	select {
	case err := <-done:
		return err
	case <-look.Done():
		if err := ctx.Err(); err != nil {
			return err
		}
		return &ForeignError{Path: path, Detail: fmt.Sprintf("its schema takes longer than %s to read", schemaWait)}
	}
}

// schemaEntry is a row of sqlite_schema, but for the page where its tree begins.
type schemaEntry struct{ kind, name, table, sql string }

func (e schemaEntry) String() string { return fmt.Sprintf("%s %.100q", e.kind, e.name) }

// verifySchema compares the schema of a file with what the migrations make for
// its version. Views other than objects may differ: every release has its own,
// an administrator may have made one, and nobody reads from one before
// DeclareViews has dropped those that are not ours.
func verifySchema(c *sqlite.Conn, path string) error {
	version, _, err := c.First("PRAGMA user_version")
	if err != nil {
		return err
	}
	if version > int64(len(Migrations)) {
		return &NewerSchemaError{Path: path, Have: int(version), Known: len(Migrations)}
	}
	foreign := func(format string, args ...any) error {
		return &ForeignError{Path: path, Detail: fmt.Sprintf(format, args...)}
	}
	if version < 0 {
		return foreign("it has schema version %d, but this program's versions are never negative", version)
	}
	if id, _, err := c.First("PRAGMA application_id"); err != nil {
		return err
	} else if id != 0 {
		return foreign("it is the database of another program (its application_id is %#x)", id)
	}
	want, err := schemaOf(int(version))
	if err != nil {
		return err
	}
	have, err := readSchema(c)
	if err != nil {
		return err
	}
	if len(have) == maxSchemaEntries {
		return foreign("its schema has at least %d entries, this program's has %d", len(have), len(want))
	}
	seen := map[string]bool{}
	for _, e := range have {
		if e.kind == "view" && e.name != objectsView && !strings.ContainsRune(e.name, 0) {
			continue
		}
		switch w, ok := want[e.name]; {
		case !ok && litestream[e.name] == e:
		case !ok:
			return foreign("it has the %s, which is not in version %d of this program's schema", e, version)
		case w != e:
			return foreign("its %s differs from that in version %d of this program's schema", e, version)
		case seen[e.name]:
			return foreign("it has the %s twice", e)
		}
		seen[e.name] = true
	}
	for name, w := range want {
		if !seen[name] {
			return foreign("it lacks the %s, which version %d of the schema has", w, version)
		}
	}
	var encoding string
	err = c.Each(func(row []driver.Value) error { encoding, _ = row[0].(string); return nil }, "PRAGMA encoding")
	if err == nil && encoding != "UTF-8" {
		return foreign("its text is in %s, not in UTF-8", encoding)
	}
	return err
}

// litestream are the tables that https://litestream.io keeps in a database which it
// replicates. They hold a counter and nothing.
var litestream = map[string]schemaEntry{
	"_litestream_seq":  {"table", "_litestream_seq", "_litestream_seq", "CREATE TABLE _litestream_seq (id INTEGER PRIMARY KEY, seq INTEGER)"},
	"_litestream_lock": {"table", "_litestream_lock", "_litestream_lock", "CREATE TABLE _litestream_lock (id INTEGER)"},
}

// maxSchemaEntries bounds what is read of a schema; ours has some thirty entries.
const maxSchemaEntries = 1000

func readSchema(c *sqlite.Conn) (entries []schemaEntry, err error) {
	text := func(v driver.Value) string {
		switch v := v.(type) {
		case string:
			return v
		case nil:
			return "" // the SQL of an index that a UNIQUE makes
		}
		return fmt.Sprintf("%T %v", v, v) // like nothing of ours
	}
	err = c.Each(func(row []driver.Value) error {
		entries = append(entries, schemaEntry{text(row[0]), text(row[1]), text(row[2]), text(row[3])})
		return nil
	}, fmt.Sprintf("SELECT type, name, tbl_name, sql FROM sqlite_master LIMIT %d", maxSchemaEntries))
	return entries, err
}

var (
	schemasMu sync.Mutex
	schemas   = map[int]map[string]schemaEntry{}
)

// schemaOf returns the schema of a version by name, as SQLite itself makes it of
// the migrations, in memory.
func schemaOf(version int) (map[string]schemaEntry, error) {
	schemasMu.Lock()
	defer schemasMu.Unlock()
	if s := schemas[version]; s != nil {
		return s, nil
	}
	c, err := sqlite.OpenMemory()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := Migrate(c, "memory", Migrations[:version]); err != nil {
		return nil, err
	}
	entries, err := readSchema(c)
	if err != nil {
		return nil, err
	}
	s := map[string]schemaEntry{}
	for _, e := range entries {
		s[e.name] = e
	}
	schemas[version] = s
	return s, nil
}
