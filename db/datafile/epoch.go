package datafile

import (
	"fmt"
	"time"

	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

// A database that was restored, or that lost its newest commits, begins a new epoch.
// Clients know revisions of the epoch before, whose changes did not happen in this one. So an
// epoch begins above every revision of earlier epochs, and everything before it counts as
// compacted: a client that comes back gets 410 and lists again.

const (
	// revisionsPerMilli is a rate of writing that no server reaches. An epoch begins at the
	// time in milliseconds, multiplied by this rate. So it begins above every revision
	// given out until then, also by an epoch that is unknown here: on another machine, or
	// in a directory that is gone. It stays below 2^53 until the year 2248, for clients
	// that read numbers as floats.
	revisionsPerMilli = 1 << 10
	// revisionJump is how far an epoch begins above the last known revision, if that is
	// above the time's: the clock was ahead then, or is behind now.
	revisionJump = 1 << 30
)

// BeginLife moves the revision above last and all others that are known, and the
// beginning of the history with it. It returns the new revision.
func BeginLife(c *sqlite.Conn, path string, last int64, now time.Time) (rev int64, err error) {
	err = c.Transact(func() error {
		have, err := ReadMeta(c, path, "revision")
		if err != nil {
			return err
		}
		last = max(last, have)
		if rev = now.UnixMilli() * revisionsPerMilli; rev <= last {
			rev = last + revisionJump
		}
		if rev > maxRevision {
			return fmt.Errorf("%s is at revision %d: none is left above it", path, last)
		}
		for _, name := range []string{"revision", "compacted"} {
			if _, err := c.Exec("UPDATE meta SET value = ? WHERE name = ?", rev, name); err != nil {
				return err
			}
		}
		return nil
	})
	return rev, err
}

// ReadMeta reads a number that every database has.
func ReadMeta(c *sqlite.Conn, path, name string) (int64, error) {
	n, ok, err := c.First("SELECT value FROM meta WHERE name = ?", name)
	if err == nil && (!ok || n < 0 || n > maxRevision) {
		err = &CorruptError{Path: path, Detail: fmt.Sprintf("the meta table has no %s, or an impossible one", name)}
	}
	return n, err
}
