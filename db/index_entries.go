package db

import (
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"slices"
)

// IndexEntry says under which value a revision stands in an index.
type IndexEntry struct {
	Index *Index
	Value string
}

// indexedValue is an index entry as the revisions table keeps it, so that the
// entry can be removed with its row.
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

// unpackIndexed is the inverse of pack. It refuses bytes that pack never makes.
func unpackIndexed(b []byte) (out indexedValues, err error) {
	for len(b) > 0 {
		id, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, errors.New("index entries: bad id")
		}
		b = b[n:]
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			return nil, errors.New("index entries: bad length")
		}
		out = append(out, indexedValue{id: int64(id), value: string(b[n : n+int(size)])})
		b = b[n+int(size):]
	}
	return out, nil
}

// in reports whether packed entries have this one.
func (e indexedValue) in(packed []byte) (bool, error) {
	all, err := unpackIndexed(packed)
	return slices.Contains(all, e), err
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
			continue // an earlier step wrote it, or a Put
		}
		have = append(have, e)
		if err := t.addEntry(kv.Rev, e); err != nil {
			return err
		}
	}
	_, err = t.c.Exec("UPDATE revisions SET indexed = ? WHERE rev = ?", have.pack(), kv.Rev)
	return err
}

func (t *tx) addEntry(rev int64, e indexedValue) error {
	_, err := t.c.Exec("INSERT OR IGNORE INTO index_entries VALUES (?, ?, ?)", e.id, e.value, rev)
	return err
}
