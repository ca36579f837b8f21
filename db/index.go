package db

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
)

// IndexEntry says under which value a revision stands in an index.
type IndexEntry struct {
	Index *Index
	Value string
}

// Index is a secondary index over the keys below a prefix, see DB.DeclareIndexes.
type Index struct {
	Name  string
	id    int64
	ready atomic.Bool
}

// Ready reports whether the index is complete, and Range may use it.
func (i *Index) Ready() bool { return i.ready.Load() }

// indexedValue is an index entry as the revisions table keeps it, so that the
// entry can be removed with its row.
type indexedValue struct {
	id    int64
	value string
}

type indexedValues []indexedValue

func (t *tx) encodeIndex(key string, entries []IndexEntry) (out indexedValues, err error) {
	for _, e := range entries {
		out = append(out, indexedValue{id: e.Index.id, value: e.Value})
	}
	return out, nil
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
			return nil, fmt.Errorf("index entries: bad id")
		}
		b = b[n:]
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			return nil, fmt.Errorf("index entries: bad length")
		}
		out = append(out, indexedValue{id: int64(id), value: string(b[n : n+int(size)])})
		b = b[n+int(size):]
	}
	return out, nil
}
