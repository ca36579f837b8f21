package datafile

import (
	"fmt"
	"time"

	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

// A database that was restored, or that lost its newest commits, begins a new epoch. Clients may
// hold revisions of the earlier epoch, whose changes are missing in this one. So an epoch begins
// above every revision of earlier epochs, and everything before it counts as compacted: a client
// that comes back gets 410 and lists again.

const (
	// revisionsPerMilli is a rate of writes that no server reaches. An epoch begins at the time in
	// milliseconds, multiplied by this rate. So it begins above every revision that exists by then,
	// even in an epoch of another machine or of a directory that is gone. It stays below 2^53 until
	// the year 2248, for clients that read numbers as floats.
	revisionsPerMilli = 1 << 10
	// If the last known revision is not below the one for the present time, the clock was ahead
	// earlier or is behind now. Then an epoch begins revisionJump above the last known revision.
	revisionJump = 1 << 30
)

// BeginEpoch raises the revision above last and all known revisions, and moves the beginning of the
// history there. It returns the new revision.
func BeginEpoch(c *sqlite.Conn, path string, last int64, now time.Time) (rev int64, err error) {
	err = c.Transact(func() (err error) { rev, err = beginEpoch(c, path, last, now); return err })
	return rev, err
}

// beginEpoch is BeginEpoch within a transaction.
func beginEpoch(c *sqlite.Conn, path string, last int64, now time.Time) (rev int64, err error) {
	have, err := ReadMeta(c, path, "revision")
	if err != nil {
		return 0, err
	}
	last = max(last, have)
	if rev = now.UnixMilli() * revisionsPerMilli; rev <= last {
		rev = last + revisionJump
	}
	if rev > maxRevision {
		return 0, fmt.Errorf("%s is at revision %d, and no higher revision is left", path, last)
	}
	for _, name := range []string{"revision", "compacted"} {
		if _, err := c.Exec("UPDATE meta SET value = ? WHERE name = ?", rev, name); err != nil {
			return 0, err
		}
	}
	return rev, nil
}

// ReadMeta reads a number that every database has in its table meta.
func ReadMeta(c *sqlite.Conn, path, name string) (int64, error) {
	n, ok, err := c.First("SELECT value FROM meta WHERE name = ?", name)
	if err == nil && (!ok || n < 0 || n > maxRevision) {
		err = &CorruptError{Path: path, Detail: fmt.Sprintf("the meta table has no %s, or an impossible one", name)}
	}
	return n, err
}
