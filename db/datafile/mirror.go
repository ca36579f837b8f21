package datafile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

// The table meta of a copy of a shared store has two more numbers, MirrorMeta and FilledMeta. In a
// detached copy it has detachedMeta instead.
const (
	// MirrorMeta is the identity of the copied store.
	MirrorMeta = "mirror"
	// FilledMeta is the revision at which the file was last filled, 0 while it is being filled.
	FilledMeta = "filled"
	// detachedMeta is the revision at which the copy was detached from its store.
	detachedMeta = "detached"
)

// IsMirror reports whether an open file is a copy.
func IsMirror(c *sqlite.Conn) (bool, error) {
	_, ok, err := c.First("SELECT value FROM meta WHERE name = '" + MirrorMeta + "'")
	return ok, err
}

// CheckOwn fails if the database in a data directory is a copy of a store.
func CheckOwn(ctx context.Context, dir string) error {
	c, err := OpenToRead(ctx, dir)
	if err != nil {
		return err
	}
	defer c.Close()
	copied, err := IsMirror(c)
	if err == nil && copied {
		err = fmt.Errorf("%s is a copy of what etcd has: back up etcd instead (etcdctl snapshot save), because it has all data of the servers", filepath.Join(dir, FileName))
	}
	return err
}

// Detach turns the copy in a data directory into an independent database. No process may have it
// open. Clients must list again, as after a restore: the store's revisions are no longer valid. If
// Detach is interrupted, the copy stays as it was.
func Detach(dir string, now time.Time) error {
	owned, err := Lock(dir)
	if err != nil {
		return err
	}
	defer owned.Close()
	path := filepath.Join(dir, FileName)
	c, err := OpenWriter(path)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Transact(func() error {
		rev, err := beginEpoch(c, path, 0, now)
		if err != nil {
			return err
		}
		for _, change := range []struct {
			sql  string
			args []any
		}{
			{"DELETE FROM meta WHERE name IN (?, ?)", []any{MirrorMeta, FilledMeta}},
			{"INSERT OR REPLACE INTO meta VALUES (?, ?)", []any{detachedMeta, rev}},
		} {
			if _, err := c.Exec(change.sql, change.args...); err != nil {
				return err
			}
		}
		return nil
	})
}

// Detached reports whether the database in a data directory is a detached copy, and whether it was
// written to since.
func Detached(ctx context.Context, dir string) (was, written bool, err error) {
	path := filepath.Join(dir, FileName)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return false, false, nil
	}
	c, err := OpenToRead(ctx, dir)
	if err != nil {
		return false, false, err
	}
	defer c.Close()
	at, was, err := c.First("SELECT value FROM meta WHERE name = ?", detachedMeta)
	if err != nil || !was {
		return false, false, err
	}
	rev, err := ReadMeta(c, path, "revision")
	return true, rev != at, err
}
