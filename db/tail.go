package db

import (
	"bytes"
	"cmp"
	"slices"
	"sync"
)

// tail has the index entries of the latest revisions in memory, as their rows have them, so that a
// read by an index need not search those rows in the file. The rows are candidates: the reader
// checks each row itself. So entries of a failed transaction do no harm, but a missing entry would.
//
// A copy of a store has none, because its revisions do not come in order.
type tail struct {
	mu    sync.Mutex
	from  int64 // it has all rows with entries of later revisions
	rows  []tailRow
	bytes int // of the entries
}

// tailRow is a revision and its entries. Readers share it, so it never changes.
type tailRow struct {
	rev    int64
	packed []byte
}

// The tail has at most maxTailRows rows, and maxTailBytes of entries beside the last row's. Rows
// that it drops are searched in the file.
const (
	maxTailRows  = 1024
	maxTailBytes = 4 << 20
)

// add adds a row before it is committed. Rows of later revisions were rolled back.
func (t *tail) add(rev int64, packed []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.after(rev - 1); n < len(t.rows) {
		for _, row := range t.rows[n:] {
			t.bytes -= len(row.packed)
		}
		t.rows = slices.Clip(t.rows[:n]) // readers may have the rows after it
	}
	for len(t.rows) == maxTailRows || len(t.rows) > 0 && t.bytes > maxTailBytes {
		t.drop(len(t.rows)/2 + 1)
	}
	t.rows = append(t.rows, tailRow{rev, packed})
	t.bytes += len(packed)
}

// forget drops the rows up to a revision.
func (t *tail) forget(to int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(t.after(to))
	t.from = max(t.from, to)
}

// drop drops the first n rows. The caller holds mu.
func (t *tail) drop(n int) {
	for _, row := range t.rows[:n] {
		t.from = max(t.from, row.rev)
		t.bytes -= len(row.packed)
	}
	if t.rows = t.rows[n:]; len(t.rows) == 0 {
		t.rows = nil
	}
}

// after returns the index of the first row after a revision. The caller holds mu.
func (t *tail) after(rev int64) int {
	n, _ := slices.BinarySearchFunc(t.rows, rev+1, func(row tailRow, rev int64) int { return cmp.Compare(row.rev, rev) })
	return n
}

// find returns up to limit revisions later than after whose rows may have one of the packed
// entries. ok is false if there may be others.
func (t *tail) find(after int64, entries [][]byte, limit int) (revs []int64, ok bool) {
	t.mu.Lock()
	known, rows := t.from <= after, t.rows[t.after(after):]
	t.mu.Unlock()
	if !known {
		return nil, false
	}
	for _, row := range rows {
		if !slices.ContainsFunc(entries, func(entry []byte) bool { return bytes.Contains(row.packed, entry) }) {
			continue
		}
		if len(revs) == limit {
			return nil, false
		}
		revs = append(revs, row.rev)
	}
	return revs, true
}
