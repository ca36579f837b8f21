package db

import (
	"cmp"
	"context"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

// IndexEntry is the value of a revision in an index.
type IndexEntry struct {
	Index *Index
	Value string
}

// indexedValue is an index entry as the revisions table stores it, so that the entry can be removed
// with its row.
type indexedValue struct {
	id    int64
	value string
}

type indexedValues []indexedValue

func indexed(entries []IndexEntry) (out indexedValues) {
	for _, e := range entries {
		out = append(out, indexedValue{id: e.Index.id, value: e.Value})
	}
	return out
}

// pack encodes the entries as id (uvarint), length (uvarint), bytes, repeated.
func (v indexedValues) pack() []byte {
	var b []byte
	for _, e := range v {
		b = binary.AppendUvarint(b, uint64(e.id))
		b = binary.AppendUvarint(b, uint64(len(e.value)))
		b = append(b, e.value...)
	}
	return b
}

// unpackIndexed is the inverse of pack.
func unpackIndexed(b []byte) (out indexedValues, err error) {
	err = eachPacked(b, func(id int64, value []byte) { out = append(out, indexedValue{id, string(value)}) })
	if err != nil {
		return nil, err
	}
	return out, nil
}

// eachPacked calls use with each packed entry. It refuses bytes that pack never makes.
func eachPacked(b []byte, use func(id int64, value []byte)) error {
	for len(b) > 0 {
		id, n := binary.Uvarint(b)
		if n <= 0 {
			return errors.New("index entries: bad id")
		}
		b = b[n:]
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			return errors.New("index entries: bad length")
		}
		use(int64(id), b[n:n+int(size)])
		b = b[n+int(size):]
	}
	return nil
}

// addEntries adds entries to a revision, unless it has been compacted away.
func (t *tx) addEntries(kv KV, add indexedValues) error {
	var have indexedValues
	found := false
	err := t.c.Each(func(row []driver.Value) (err error) {
		found = true
		packed, _ := row[0].([]byte)
		have, err = unpackIndexed(packed)
		return err
	}, "SELECT indexed FROM revisions WHERE rev = ?", kv.Rev)
	if err != nil || !found {
		return err
	}
	for _, e := range add {
		if slices.Contains(have, e) {
			continue // an earlier step or a Put wrote it
		}
		have = append(have, e)
		if err := t.addEntry(kv.Rev, e); err != nil {
			return err
		}
	}
	if t.db.tail != nil {
		t.db.tail.forget(kv.Rev) // its entries have changed
	}
	_, err = t.c.Exec("UPDATE revisions SET indexed = ? WHERE rev = ?", have.pack(), kv.Rev)
	return err
}

func (t *tx) addEntry(rev int64, e indexedValue) error {
	_, err := t.c.Exec("INSERT OR IGNORE INTO index_entries VALUES (?, ?, ?)", e.id, e.value, rev)
	return err
}

// One call of writeEntries writes the entries of at most entriesRows revisions, and stops early
// after entriesBytes of entries. Variables for tests.
var (
	entriesRows  int64 = 256
	entriesBytes int64 = 1 << 20
)

// Each row of the table revisions holds its own index entries. writeEntries copies them to
// index_entries later, many at a time and sorted. Values such as digests are random, so each entry
// of one object would change another page, and a commit would write all these pages. The entries of
// 256 objects share pages: the creation of an Image with 12 layers writes 88 kB instead of 147. The
// row "indexed" of meta is the revision up to which index_entries is complete. Readers search the
// rows of later revisions themselves: in memory if the tail has them, otherwise in the file. For
// 256 rows with 14 entries each, that takes 0.7 ms in the file.

// entriesLoop copies entries when enough revisions wait for it.
func (d *DB) entriesLoop() {
	defer d.wg.Done()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for {
		select {
		case <-d.stop:
			return
		case <-d.entriesDue:
		}
		for d.manyUnindexed() {
			err := d.write(ctx, func(t *tx) error { return t.writeEntries() })
			if err == nil {
				continue
			}
			var full *datafile.UnavailableError
			if !errors.As(err, &full) && !errors.Is(err, ErrClosed) {
				d.log.Error("writing index entries failed, will retry", "dir", d.dir, "err", err)
			}
			break
		}
	}
}

// manyUnindexed reports whether the entries of enough revisions, or enough bytes of entries, wait
// for one call of writeEntries. Readers must search all of them.
func (d *DB) manyUnindexed() bool {
	return d.revision.Load()-d.indexedTo.Load() >= entriesRows || d.unindexed.Load() >= entriesBytes
}

// entryOf is an index entry of a revision.
type entryOf struct {
	indexedValue
	rev int64
}

// writeEntries writes the entries of the next revisions that index_entries lacks.
func (t *tx) writeEntries() error {
	if err := t.mayGrow(); err != nil {
		return err
	}
	known := map[int64]bool{} // rows may have entries of indexes that were dropped
	if err := t.c.Each(func(row []driver.Value) error {
		known[row[0].(int64)] = true
		return nil
	}, "SELECT id FROM indexes"); err != nil {
		return err
	}
	var all []entryOf
	var rows, size int64
	to := t.indexedTo
	err := t.c.Each(func(row []driver.Value) error {
		if size >= entriesBytes {
			rows = entriesRows
			return sqlite.ErrStop
		}
		rows, to = rows+1, row[0].(int64)
		packed, _ := row[1].([]byte)
		size += int64(len(packed))
		entries, err := unpackIndexed(packed)
		if err != nil { // the object gets no entries, as if they could not be computed
			t.db.log.Error("object left out of the indexes: its entries are damaged", "revision", to, "err", err)
		}
		for _, e := range entries {
			if known[e.id] {
				all = append(all, entryOf{e, to})
			}
		}
		return nil
	}, "SELECT rev, indexed FROM revisions WHERE rev > ? ORDER BY rev LIMIT ?", t.indexedTo, entriesRows)
	if err != nil {
		return err
	}
	whole := rows < entriesRows
	if whole {
		to = max(to, t.rev)
	}
	slices.SortFunc(all, func(a, b entryOf) int {
		return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.value, b.value), cmp.Compare(a.rev, b.rev))
	})
	for _, e := range all {
		if err := t.addEntry(e.rev, e.indexedValue); err != nil {
			return err
		}
	}
	if _, err := t.c.Exec("UPDATE meta SET value = ? WHERE name = 'indexed'", to); err != nil {
		return err
	}
	t.indexedTo = to
	if whole {
		size = t.db.unindexed.Load() + t.unindexed
	}
	t.after = append(t.after, func() {
		t.db.indexedTo.Store(to)
		if t.db.tail != nil {
			t.db.tail.forget(to)
		}
		t.db.unindexed.Store(max(t.db.unindexed.Load()-size, 0))
	})
	return nil
}
