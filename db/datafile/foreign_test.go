package datafile_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/backup"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// goodFile is a database of this release with a few objects, made once.
var goodFile = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "good-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	d, err := db.Open(db.Options{Dir: dir, Logger: quietLogger, Views: []datafile.View{{Name: "images", SQL: "SELECT key FROM objects"}}})
	if err != nil {
		return nil, err
	}
	for i := range 30 {
		if _, err := d.Put(context.Background(), fmt.Sprintf("/a/%d", i), 0, []byte(`{"name":"ferry"}`), db.PutOptions{}); err != nil {
			return nil, err
		}
	}
	if err := d.Close(); err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(dir, datafile.FileName))
})

// craft writes a valid database to a new data directory, changes it with an attacker's SQL, and
// returns the directory.
func craft(t testing.TB, statements ...string) string {
	t.Helper()
	good, err := goodFile()
	if err != nil {
		t.Fatal(err)
	}
	dir := dataDir(t, good)
	raw, err := sql.Open("sqlite3", "file:"+filepath.Join(dir, datafile.FileName)+"?_journal_mode=DELETE")
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	raw.SetMaxOpenConns(1) // a pragma belongs to its connection
	for _, s := range statements {
		if _, err := raw.Exec(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	return dir
}

// dataDir makes a data directory with this database file. Its parent directory is new, so that a
// test can detect files that appear beside it.
func dataDir(t testing.TB, file []byte) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, datafile.FileName), file, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// everyWay opens a database file in every way that exists, each time in a copy of the directory,
// and returns the errors. It fails the test if anything appears outside of the directory.
func everyWay(t testing.TB, dir string) map[string]error {
	t.Helper()
	copied := func() (room, to string) {
		room = t.TempDir()
		to = filepath.Join(room, "data")
		if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		return room, to
	}
	only := func(room string) {
		t.Helper()
		entries, err := os.ReadDir(room)
		if err != nil || len(entries) != 1 {
			t.Errorf("beside the data directory there are %v, %v", entries, err)
		}
	}
	errs := map[string]error{}
	for name, open := range map[string]func(dir string) error{
		"open": func(dir string) error {
			d, err := db.Open(db.Options{Dir: dir, Logger: quietLogger, Views: []datafile.View{{Name: "images", SQL: "SELECT key FROM objects"}}})
			if err != nil {
				return err
			}
			return d.Close()
		},
		"stats":  func(dir string) error { _, err := datafile.ReadStats(t.Context(), dir); return err },
		"check":  func(dir string) error { return datafile.Check(t.Context(), dir) },
		"backup": func(dir string) error { return backup.Make(t.Context(), dir, filepath.Join(dir, "copy.db")) },
		"restore": func(dir string) error {
			return backup.Restore(t.Context(), filepath.Join(dir, datafile.FileName), filepath.Join(dir, "restored"))
		},
	} {
		room, dir := copied()
		errs[name] = open(dir)
		only(room)
	}
	return errs
}

// TestForeignSchema opens database files whose schema has foreign SQL. Every way of opening one
// fails with an error that names it.
func TestForeignSchema(t *testing.T) {
	t.Parallel()
	const writable = "PRAGMA writable_schema = ON"
	tests := []struct {
		name string
		sql  []string
		want string
	}{
		{"trigger", []string{"CREATE TRIGGER spy AFTER INSERT ON revisions BEGIN DELETE FROM contents; END"}, `trigger "spy"`},
		{"trigger on a view", []string{"CREATE TRIGGER spy INSTEAD OF INSERT ON images BEGIN DELETE FROM contents; END"}, `trigger "spy"`},
		{"index in place of ours", []string{"DROP INDEX history", "CREATE INDEX history ON revisions (key, until) WHERE until IS NOT NULL AND length(key) > 3"}, `index "history"`},
		{"endless trigger", []string{`CREATE TRIGGER endless AFTER UPDATE ON meta BEGIN
			INSERT INTO contents WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i, i, x'00' FROM n; END`}, `trigger "endless"`},
		{"generated column", []string{"ALTER TABLE contents ADD COLUMN leak TEXT GENERATED ALWAYS AS (hex(value)) VIRTUAL"}, `table "contents"`},
		{"check", []string{writable, "UPDATE sqlite_schema SET sql = replace(sql, 'value INTEGER NOT NULL', 'value INTEGER NOT NULL CHECK (randomblob(1000000000) IS NULL)') WHERE name = 'meta'"}, `table "meta"`},
		{"default", []string{"ALTER TABLE contents ADD COLUMN x TEXT DEFAULT 'spy'"}, `table "contents"`},
		{"index on an expression", []string{"CREATE INDEX lower ON revisions (upper(key))"}, `index "lower"`},
		{"partial index", []string{"CREATE INDEX part ON revisions (key) WHERE length(key) > 3"}, `index "part"`},
		{"index lacks", []string{"DROP INDEX live"}, `lacks the index "live"`},
		{"table", []string{"CREATE TABLE theirs (x)"}, `table "theirs"`},
		{"full-text search", []string{"CREATE VIRTUAL TABLE words USING fts4(x)"}, `"words`},
		{"r-tree", []string{"CREATE VIRTUAL TABLE boxes USING rtree(id, a, b)"}, `"boxes`},
		{"virtual table of no module", []string{writable, "INSERT INTO sqlite_schema VALUES ('table', 'v', 'v', 0, 'CREATE VIRTUAL TABLE v USING no_such_module(x)')"}, `table "v"`},
		{"virtual table in place of ours", []string{writable, "UPDATE sqlite_schema SET sql = 'CREATE VIRTUAL TABLE indexes USING fts4(id, prefix, name, built)', rootpage = 0 WHERE name = 'indexes' AND type = 'table'"}, ""},
		{"view in place of a table", []string{"DROP TABLE directories", "CREATE VIEW directories AS WITH RECURSIVE n(dir, objects, bytes) AS (SELECT '/', 1, 1 UNION ALL SELECT dir || 'x/', 1, 1 FROM n) SELECT * FROM n"}, `lacks the table "directories"`},
		{"view objects", []string{"DROP VIEW objects", "CREATE VIEW objects AS WITH RECURSIVE n(key) AS (SELECT 1 UNION ALL SELECT key + 1 FROM n) SELECT key, key AS resource_version, key AS expires, key AS value FROM n"}, `view "objects"`},
		{"statistics", []string{"ANALYZE"}, `table "sqlite_stat1"`},
		{"name with a zero byte", []string{writable, "INSERT INTO sqlite_schema VALUES ('view', 'a' || char(0) || '; ATTACH DATABASE ''x'' AS e', 'a', 0, 'CREATE VIEW a AS SELECT 1')"}, ""},
		{"SQL behind a zero byte", []string{writable, "UPDATE sqlite_schema SET sql = sql || char(0) || 'more' WHERE name = 'meta'"}, `table "meta"`},
		{"SQL as a blob", []string{writable, "UPDATE sqlite_schema SET sql = CAST(sql AS BLOB) WHERE name = 'contents'"}, `table "contents"`},
		{"two of one name", []string{writable, "INSERT INTO sqlite_schema SELECT * FROM sqlite_schema WHERE name = 'live'"}, ""},
		{"type of another", []string{writable, "UPDATE sqlite_schema SET type = 'view' WHERE name = 'contents'"}, ""},
		{"a view as sqlite_schema", []string{writable, "INSERT INTO sqlite_schema VALUES ('view', 'sqlite_schema', 'sqlite_schema', 0, 'CREATE VIEW sqlite_schema AS SELECT 1')"}, ""},
		{"a view as sqlite_master", []string{writable, "INSERT INTO sqlite_schema VALUES ('view', 'sqlite_master', 'sqlite_master', 0, 'CREATE VIEW sqlite_master AS SELECT 1')"}, ""},
		{"no SQL", []string{writable, "UPDATE sqlite_schema SET sql = NULL WHERE name = 'meta'"}, ""},
		{"no CREATE", []string{writable, "UPDATE sqlite_schema SET sql = 'DROP TABLE contents' WHERE name = 'meta'"}, ""},
		{"trees that share a page", []string{writable, "UPDATE sqlite_schema SET rootpage = (SELECT rootpage FROM sqlite_schema WHERE name = 'meta') WHERE name = 'directories'"}, ""},
		{"a tree beyond the file", []string{writable, "UPDATE sqlite_schema SET rootpage = 1000000 WHERE name = 'meta'"}, ""},
		{"application", []string{"PRAGMA application_id = 0x47504B47"}, "another program"},
		{"older version", []string{"PRAGMA user_version = 1"}, "version 1"},
		{"no version", []string{"PRAGMA user_version = 0"}, ""},
		{"negative version", []string{"PRAGMA user_version = -3"}, "negative"},
		{"newer version", []string{"PRAGMA user_version = 1000"}, "newer release"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for how, err := range everyWay(t, craft(t, tt.sql...)) {
				if tt.name == "trees that share a page" && how != "check" && how != "restore" {
					continue // SQLite handles it safely and runs nothing foreign
				}
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%s: %v, want an error with %q", how, err, tt.want)
				}
			}
		})
	}
	t.Run("thousands", func(t *testing.T) {
		t.Parallel()
		var many []string
		for i := range 3000 {
			many = append(many, fmt.Sprintf("CREATE VIEW v%d AS SELECT 1", i))
		}
		for how, err := range everyWay(t, craft(t, "BEGIN", strings.Join(many, ";"), "COMMIT")) {
			var foreign *datafile.ForeignError
			if how != "restore" && !errors.As(err, &foreign) || err == nil {
				t.Errorf("%s: %v, want *ForeignError", how, err)
			}
		}
	})
	t.Run("UTF-16", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(t.TempDir(), "data")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		raw, err := sql.Open("sqlite3", filepath.Join(dir, datafile.FileName))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range append([]string{"PRAGMA encoding = 'UTF-16le'"}, append(datafile.Migrations, fmt.Sprintf("PRAGMA user_version = %d", len(datafile.Migrations)))...) {
			if _, err := raw.Exec(s); err != nil {
				t.Fatal(err)
			}
		}
		raw.Close()
		for how, err := range everyWay(t, dir) {
			if err == nil || !strings.Contains(err.Error(), "UTF-16") {
				t.Errorf("%s: %v, want a refusal", how, err)
			}
		}
	})
}

// TestForeignViews: a start and a restore drop each view that this release does not declare,
// whatever its name is, and do not read it.
func TestForeignViews(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, sql string }{
		{"an administrator's", `CREATE VIEW "My View" AS SELECT key FROM objects`},
		{"attach", `CREATE VIEW "images; ATTACH DATABASE '../evil' AS e; CREATE TABLE e.x (y); --" AS SELECT 1`},
		{"drop", `CREATE VIEW "images; DROP TABLE contents; --" AS SELECT 1`},
		{"vacuum", `CREATE VIEW "images; VACUUM INTO '../evil'; --" AS SELECT 1`},
		{"quotes", `CREATE VIEW "a""; DROP TABLE contents; --" AS SELECT 1`},
		{"recursive", `CREATE VIEW endless AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n`},
		{"megabytes", "CREATE VIEW long AS SELECT '" + strings.Repeat("x", 3<<20) + "'"},
		{"broken", `CREATE VIEW broken AS SELECT * FROM no_such_table`},
		{"function", `CREATE VIEW loads AS SELECT load_extension('../evil.so')`},
		{"declared", `DROP VIEW images; CREATE VIEW images AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := craft(t, tt.sql)
			wd, err := os.Getwd()
			if err != nil {
				t.Fatal(err)
			}
			for how, err := range everyWay(t, dir) {
				if err != nil {
					t.Errorf("%s: %v", how, err)
				}
			}
			if _, err := os.Lstat(filepath.Join(wd, "../evil")); !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("a view's name ran as SQL: ../evil is there (%v)", err)
			}
			restored := filepath.Join(t.TempDir(), "restored")
			if err := backup.Restore(t.Context(), filepath.Join(dir, datafile.FileName), restored); err != nil {
				t.Fatal(err)
			}
			for _, dir := range []string{dir, restored} {
				d := dbtest.OpenOptions(t, db.Options{Dir: dir, Logger: quietLogger})
				if err := d.Read(t.Context(), func(s db.Snapshot) error {
					n, _, err := s.First("SELECT count(*) FROM sqlite_schema WHERE type = 'view'")
					if err == nil && n != 1 {
						t.Errorf("%d views are left, want objects alone", n)
					}
					return err
				}); err != nil {
					t.Error(err)
				}
				if n, _, err := d.Totals(t.Context(), "/"); err != nil || n != 30 {
					t.Errorf("%d objects, %v", n, err)
				}
			}
		})
	}
}

// TestForeignViewsOfOldSchema: a migration does not rewrite foreign views with its tables.
func TestForeignViewsOfOldSchema(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, datafile.FileName)
	if err := datafile.MigrateFile(path, datafile.Migrations[:2]); err != nil {
		t.Fatal(err)
	}
	raw, err := sql.Open("sqlite3", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := raw.Exec(`CREATE VIEW "broken; DROP TABLE meta" AS SELECT * FROM index_entries, no_such_table`); err != nil {
		t.Fatal(err)
	}
	raw.Close()
	d := dbtest.OpenOptions(t, db.Options{Dir: dir, Logger: quietLogger})
	if _, err := d.Put(t.Context(), "/a/1", 0, []byte("v"), db.PutOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestForeignFiles: if a data directory contains links, nothing is written to their targets.
func TestForeignFiles(t *testing.T) {
	t.Parallel()
	good, err := goodFile()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range datafile.OwnFiles {
		for what, content := range map[string][]byte{"text": []byte("precious"), "database": good, "nothing": nil} {
			t.Run(name+" to "+what, func(t *testing.T) {
				t.Parallel()
				dir := dataDir(t, good)
				precious := filepath.Join(t.TempDir(), "precious")
				if content != nil {
					if err := os.WriteFile(precious, content, 0o600); err != nil {
						t.Fatal(err)
					}
				}
				link := filepath.Join(dir, name)
				os.Remove(link)
				if err := os.Symlink(precious, link); err != nil {
					t.Fatal(err)
				}
				_, err := db.Open(db.Options{Dir: dir, Logger: quietLogger})
				var foreign *datafile.ForeignError
				if !errors.As(err, &foreign) || foreign.Path != link {
					t.Errorf("open: %v, want a *ForeignError for %s", err, link)
				}
				_, err = datafile.ReadStats(t.Context(), dir)
				if err == nil || name != datafile.FileName && !errors.As(err, &foreign) {
					t.Errorf("stats: %v, want a refusal", err)
				}
				if err := backup.Restore(t.Context(), filepath.Join(dataDir(t, good), datafile.FileName), dir); err == nil {
					t.Error("restored into it")
				}
				if b, err := os.ReadFile(precious); !bytes.Equal(b, content) || (err == nil) != (content != nil) {
					t.Errorf("the link's target was written: %.40q, %v", b, err)
				}
			})
		}
	}
	t.Run("directory", func(t *testing.T) {
		dir := dataDir(t, good)
		if err := os.Mkdir(filepath.Join(dir, datafile.FileName+"-wal"), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Open(db.Options{Dir: dir, Logger: quietLogger}); err == nil {
			t.Error("opened")
		}
	})
}

// TestForeignPages changes bytes of a good file. Every way of opening it ends, and either reports
// damage or a foreign file, or finds unchanged objects.
func TestForeignPages(t *testing.T) {
	t.Parallel()
	good, err := goodFile()
	if err != nil {
		t.Fatal(err)
	}
	patch := func(at int, b ...byte) []byte { p := bytes.Clone(good); copy(p[at:], b); return p }
	files := map[string][]byte{
		"a page count of four thousand million": patch(28, 0xff, 0xff, 0xff, 0xff),
		"page size 512":                         patch(16, 2, 0),
		"page size 65536":                       patch(16, 0, 1),
		"page size 3":                           patch(16, 0, 3),
		"reserved bytes":                        patch(20, 255),
		"a schema format of tomorrow":           patch(44, 0, 0, 0, 9),
		"a free list that is itself":            patch(32, 0, 0, 0, 1, 0, 0, 0, 100),
		"a free list beyond the file":           patch(32, 0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff),
		"auto-vacuum without its map":           patch(52, 0, 0, 0, 0),
		"a WAL version of tomorrow":             patch(18, 9, 9),
		"a version of tomorrow for writers":     patch(18, 3),
		"rollback journal":                      patch(18, 1, 1),
		"a header alone":                        good[:100],
		"half a header":                         good[:50],
		"one page":                              good[:4096],
		"half a page less":                      good[:len(good)-2048],
		"twice":                                 append(bytes.Clone(good), good...),
	}
	seed := uint64(time.Now().UnixNano())
	rnd := rand.New(rand.NewPCG(seed, 0))
	for i := range 40 {
		b := bytes.Clone(good)
		for range 1 + rnd.IntN(20) {
			b[rnd.IntN(len(b))] ^= 1 << rnd.IntN(8)
		}
		files[fmt.Sprintf("flipped bits %d of seed %d", i, seed)] = b
	}
	for name, file := range files {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkForeign(t, file)
		})
	}
}

// checkForeign opens a file in every way. If it opens without an error, it can be used. Nothing
// outside of its directory may change.
func checkForeign(t testing.TB, file []byte) {
	t.Helper()
	dir := dataDir(t, file)
	errs := everyWay(t, dir)
	if errs["check"] != nil && errs["restore"] == nil {
		t.Errorf("restored a file that the check refuses: %v", errs["check"])
	}
	for how, err := range errs {
		if err != nil && strings.Contains(err.Error(), "takes longer") {
			t.Errorf("%s: %v", how, err)
		}
	}
	if errs["open"] != nil {
		return
	}
	// This open drops views, and its writes may find damage that reading does not.
	d, err := db.Open(db.Options{Dir: dir, Logger: quietLogger})
	var corrupt *datafile.CorruptError
	if errors.As(err, &corrupt) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	page, err := d.Range(ctx, db.RangeOptions{Prefix: "/"})
	if err != nil && ctx.Err() != nil {
		t.Error("a list did not end")
	}
	for _, kv := range page.KVs {
		_, _, _, _ = d.Get(ctx, kv.Key)
	}
	_, _ = d.Put(ctx, "/a/new", 0, []byte("v"), db.PutOptions{})
	_ = d.Compact(ctx, d.Revision())
}

// FuzzForeignFile changes bytes of a good file.
func FuzzForeignFile(f *testing.F) {
	good, err := goodFile()
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte{})
	f.Add([]byte{0, 0, 0, 16, 2, 0})                      // page size
	f.Add([]byte{0, 0, 0, 28, 255, 0, 0, 0, 29, 255})     // page count
	f.Add([]byte{0, 0, 0, 103, 0, 0, 0, 0, 105, 0})       // cells of the schema's first page
	f.Add([]byte{0, 0, 0x10, 0, 2, 0, 0, 0x10, 3, 200})   // of the second page
	f.Add([]byte{0, 0, 0, 63, 0, 0, 0, 0, 59, 2})         // version, encoding
	f.Add([]byte("\x00\x00\x0f\x00C\x00\x00\x0f\x01R"))   // the schema's text
	f.Add([]byte{0, 0, 0, 32, 1, 0, 0, 0, 36, 255, 0, 0}) // free list
	f.Fuzz(func(t *testing.T, changes []byte) {
		// Each change has four bytes for the offset and one for the content.
		file := bytes.Clone(good)
		for ; len(changes) >= 5; changes = changes[5:] {
			file[int(binary.BigEndian.Uint32(changes))%len(file)] = changes[4]
		}
		checkForeign(t, file)
	})
}

// TestImpossibleRevision: a file whose revision is negative, or too high to continue, is refused.
func TestImpossibleRevision(t *testing.T) {
	t.Parallel()
	for _, rev := range []int64{math.MaxInt64, -1} {
		for how, err := range everyWay(t, craft(t, fmt.Sprintf("UPDATE meta SET value = %d WHERE name = 'revision'", rev))) {
			var corrupt *datafile.CorruptError
			if how == "open" && !errors.As(err, &corrupt) || how == "restore" && err == nil {
				t.Errorf("revision %d, %s: %v, want a refusal", rev, how, err)
			}
		}
	}
}
