package dbtest

import (
	"bytes"
	"database/sql"
	"encoding/binary"
	"path"
	"path/filepath"
	"testing"

	_ "github.com/mattn/go-sqlite3" // the driver that writes past the engine

	"github.com/tidewaiter/tidewaiter/db/datafile"
)

// stored is an object with its packed index entries.
type stored struct {
	key            string
	value, indexed []byte
}

// Multiply writes a copy of an object below prefix for each name, without the engine and in one
// transaction, so that a benchmark gets a million objects in minutes. It copies the first 1,000
// objects in turn, and replaces their names within their values; a new name must have the same
// length. No server may have dir open.
func Multiply(t testing.TB, dir, prefix string, names []string) {
	t.Helper()
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	raw, err := sql.Open("sqlite3", "file:"+filepath.Join(dir, datafile.FileName)+"?_journal_mode=OFF&_synchronous=OFF&_locking_mode=EXCLUSIVE&_cache_size=-500000")
	check(err)
	defer raw.Close()
	rows, err := raw.Query("SELECT r.key, c.value, r.indexed FROM revisions r JOIN contents c ON c.rev = r.rev WHERE r.until IS NULL AND r.key >= ? AND r.key < ? LIMIT 1000", prefix, prefix+"~")
	check(err)
	var all []stored
	for rows.Next() {
		var one stored
		check(rows.Scan(&one.key, &one.value, &one.indexed))
		all = append(all, one)
	}
	check(rows.Err())
	tx, err := raw.Begin()
	check(err)
	var rev, size int64
	check(tx.QueryRow("SELECT value FROM meta WHERE name = 'revision'").Scan(&rev))
	revision, err := tx.Prepare("INSERT INTO revisions (rev, key, create_rev, prev_rev, at, size, indexed) SELECT ?1, ?2, ?1, 0, coalesce(max(at), 0), ?3, ?4 FROM revisions WHERE rev = ?1 - 1")
	check(err)
	content, err := tx.Prepare("INSERT INTO contents VALUES (?, ?, ?)")
	check(err)
	entry, err := tx.Prepare("INSERT INTO index_entries (id, value, rev) VALUES (?, ?, ?)")
	check(err)
	for i, name := range names {
		of := all[i%len(all)]
		old := []byte(path.Base(of.key))
		key, value, indexed := prefix+name, bytes.ReplaceAll(of.value, old, []byte(name)), bytes.ReplaceAll(of.indexed, old, []byte(name))
		rev++
		size += int64(len(value))
		_, err := revision.Exec(rev, key, len(value), indexed)
		check(err)
		_, err = content.Exec(rev, datafile.Checksum(key, value), value)
		check(err)
		for len(indexed) > 0 { // an identifier, a length, and that many bytes
			id, n := binary.Uvarint(indexed)
			length, m := binary.Uvarint(indexed[n:])
			_, err := entry.Exec(int64(id), string(indexed[n+m:n+m+int(length)]), rev)
			check(err)
			indexed = indexed[n+m+int(length):]
		}
	}
	_, err = tx.Exec("UPDATE directories SET objects = objects + ?, bytes = bytes + ? WHERE dir = ?", len(names), size, prefix)
	check(err)
	_, err = tx.Exec("UPDATE meta SET value = ? WHERE name IN ('revision', 'indexed')", rev)
	check(err)
	check(tx.Commit())
}
