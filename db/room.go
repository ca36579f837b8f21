package db

import "database/sql/driver"

const (
	// Even when there is no room, an update is accepted if its value has at most smallUpdate bytes,
	// and at most smallGrowth more than before. So leases can be renewed, and objects can be marked
	// for deletion.
	smallUpdate = 16 << 10
	smallGrowth = 1 << 10
	// pageSize is SQLite's default.
	pageSize = 4096
)

// checkSpace measures the space before a transaction.
func (t *tx) checkSpace() error {
	s := t.db.space
	s.Retry()
	if !s.HasQuota() {
		return nil
	}
	pages, _, err := t.c.First("PRAGMA page_count")
	if err != nil {
		return err
	}
	free, _, err := t.c.First("PRAGMA freelist_count")
	if err != nil {
		return err
	}
	s.Measure((pages - free) * pageSize)
	return nil
}

// mayGrow returns an error if writes that need more room are refused.
func (t *tx) mayGrow() error {
	if e := t.db.space.Refusal(); e != nil {
		return e
	}
	return nil
}

// mayPut is mayGrow for a value of size bytes that supersedes revision expect of key. A wrong
// expect is a conflict, as if there were room.
func (t *tx) mayPut(key string, expect int64, size int) error {
	refusal := t.mayGrow()
	if refusal == nil {
		return nil
	}
	var rev, old int64
	err := t.c.Each(func(row []driver.Value) error {
		rev, old = row[0].(int64), row[1].(int64)
		return nil
	}, "SELECT rev, size FROM revisions WHERE key = ? AND until IS NULL", key)
	switch {
	case err != nil:
		return err
	case rev != expect:
		return ErrConflict
	case expect == 0 || size > smallUpdate || int64(size) > old+smallGrowth || t.db.space.Tight():
		return refusal
	}
	return nil
}

// mayDelete returns an error if even deletions are refused: a deletion stays in the history for a
// while, and compaction needs the rest of the room.
func (t *tx) mayDelete() error {
	if e := t.db.space.Deletions(); e != nil {
		return e
	}
	return nil
}

// WriteFault returns why some writes are refused: *UnavailableError while the disk is
// full, the quota is reached, or the device fails; else nil.
func (d *DB) WriteFault() error {
	if e := d.space.Refusal(); e != nil {
		return e
	}
	if e := d.failing.Load(); e != nil {
		return e
	}
	return nil
}
