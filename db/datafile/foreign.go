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

// A database file may come from an attacker: as a backup, or in an unpacked archive. SQLite
// executes parts of a file's schema (triggers, views, defaults, expressions), so the schema is
// checked before anything else of a file is read.

// ForeignError says that a file in the data directory differs from the files that this program
// makes. Nothing in it was executed, and nothing was written to it.
type ForeignError struct {
	Path string
	// Detail names the foreign part, as "it has a trigger \"spy\" that ...".
	Detail string
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s: %s: nothing in it was executed. Move it away and restore a backup that you trust", e.Path, e.Detail)
}

// schemaWait is how long the check of a file's schema may take. For a proper file, the check reads
// a few pages. With a crafted file, SQLite may read for years, in a call that cannot be
// interrupted.
var schemaWait = time.Minute // a variable for tests

// CheckSchema refuses the database file at path unless its schema is exactly the one that the
// migrations up to its version make: see verifySchema. It uses a connection of its own. If the
// check does not end, it abandons the connection with its goroutine; the caller then must not use
// the file, and in practice the process ends.
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

// schemaEntry is a row of sqlite_schema, without the root page.
type schemaEntry struct{ kind, name, table, sql string }

func (e schemaEntry) String() string { return fmt.Sprintf("%s %.100q", e.kind, e.name) }

// verifySchema compares the schema of a file with the one that the migrations make for its version.
// Views other than objects may differ: every release has its own, and an administrator may have
// made some. No view is read before DeclareViews has dropped foreign ones.
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

// litestream are the tables that https://litestream.io keeps in a database that it replicates. One
// has a counter, the other is empty.
var litestream = map[string]schemaEntry{
	"_litestream_seq":  {"table", "_litestream_seq", "_litestream_seq", "CREATE TABLE _litestream_seq (id INTEGER PRIMARY KEY, seq INTEGER)"},
	"_litestream_lock": {"table", "_litestream_lock", "_litestream_lock", "CREATE TABLE _litestream_lock (id INTEGER)"},
}

// maxSchemaEntries bounds how much of a schema is read; ours has some thirty entries.
const maxSchemaEntries = 1000

func readSchema(c *sqlite.Conn) (entries []schemaEntry, err error) {
	text := func(v driver.Value) string {
		switch v := v.(type) {
		case string:
			return v
		case nil:
			return "" // the SQL of an index that a UNIQUE constraint creates
		}
		return fmt.Sprintf("%T %v", v, v) // equals no entry of ours
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

// schemaOf returns the schema of a version by name. SQLite creates it from the migrations, in
// memory.
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
