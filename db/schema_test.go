package db_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// TestMigrate migrates from every released schema version to the newest, and checks that the
// objects are still there.
func TestMigrate(t *testing.T) {
	for from := range len(datafile.Migrations) + 1 {
		dir := t.TempDir()
		path := filepath.Join(dir, datafile.FileName)
		if err := db.Migrate(path, datafile.Migrations[:from]); err != nil {
			t.Fatalf("to version %d: %v", from, err)
		}
		d := dbtest.OpenOptions(t, db.Options{Dir: dir})
		if v, err := d.QueryInt("PRAGMA user_version"); err != nil || v != int64(len(datafile.Migrations)) {
			t.Errorf("from version %d: at %d, %v; want %d", from, v, err, len(datafile.Migrations))
		}
		put(t, d, "/a/k", 0, "v")
	}
}

// TestMigrateIndexes: index entries are still found after a migration of their table.
func TestMigrateIndexes(t *testing.T) {
	dir := t.TempDir()
	fill := "INSERT INTO indexes (id, prefix, name, built) VALUES (1, '/a/', 'color', -1); INSERT INTO directories VALUES ('/a/', 3, 10); UPDATE meta SET value = 4 WHERE name = 'revision';"
	for i, o := range []struct{ key, color string }{{"/a/2", "red"}, {"/a/1", "red"}, {"/a/3", "blue"}} {
		rev := i + 2
		fill += fmt.Sprintf(`
			INSERT INTO revisions (rev, key, create_rev, prev_rev, at, size, indexed) VALUES (%[1]d, '%[2]s', %[1]d, 0, 1, %[4]d, x'01%02[4]x%[3]x');
			INSERT INTO contents VALUES (%[1]d, %[5]d, CAST('%[3]s' AS BLOB));
			INSERT INTO index_entries VALUES (1, '%[3]s', '%[2]s', %[1]d);`, rev, o.key, o.color, len(o.color), db.Checksum(o.key, []byte(o.color)))
	}
	old := []string{datafile.Migrations[0], datafile.Migrations[1] + fill}
	if err := db.Migrate(filepath.Join(dir, datafile.FileName), old); err != nil {
		t.Fatal(err)
	}
	d := dbtest.OpenOptions(t, db.Options{Dir: dir})
	ix := declare(t, d, "color")
	if n, err := d.QueryInt("SELECT count(*) FROM index_entries"); err != nil || n != 3 {
		t.Errorf("%d entries, %v; want 3", n, err)
	}
	if got := keysOf(t, d, db.RangeOptions{Index: []db.IndexQuery{{Index: ix[0], Values: []string{"red"}}}, KeysOnly: true}); got != "1 2" {
		t.Errorf("red: %q", got)
	}
}

func TestMigrateFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), datafile.FileName)
	good := append([]string{}, datafile.Migrations...)
	if err := db.Migrate(path, good); err != nil {
		t.Fatal(err)
	}
	bad := append(good, "CREATE TABLE half (x); INSERT INTO no_such_table VALUES (1);")
	err := db.Migrate(path, bad)
	if err == nil || !strings.Contains(err.Error(), "schema version") {
		t.Fatalf("a failing step: %v, want an error naming the version", err)
	}
	// The first half of the step must be undone, so that a corrected step can run.
	if err := db.Migrate(path, append(good, "CREATE TABLE half (x);")); err != nil {
		t.Errorf("after the failed step: %v", err)
	}
}

func TestNewerSchema(t *testing.T) {
	dir := t.TempDir()
	newer := append(append([]string{}, datafile.Migrations...), "CREATE TABLE future (x);")
	if err := db.Migrate(filepath.Join(dir, datafile.FileName), newer); err != nil {
		t.Fatal(err)
	}
	_, err := db.Open(db.Options{Dir: dir})
	var ns *datafile.NewerSchemaError
	if !errors.As(err, &ns) || ns.Have != len(newer) || ns.Known != len(datafile.Migrations) {
		t.Fatalf("open: %v, want *NewerSchemaError{%d, %d}", err, len(newer), len(datafile.Migrations))
	}
	if err := datafile.Owner(dir); err != nil {
		t.Errorf("a refused database keeps the lock: %v", err)
	}
}
