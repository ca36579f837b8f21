package datafile

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

// A file that is a copy of what several servers share has two more numbers in its table meta.
const (
	// MirrorMeta is the identity of the store that the file is a copy of.
	MirrorMeta = "mirror"
	// FilledMeta is the revision at which the file was last filled, 0 while it is being filled.
	FilledMeta = "filled"
)

// IsMirror reports whether an open file is a copy.
func IsMirror(c *sqlite.Conn) (bool, error) {
	_, ok, err := c.First("SELECT value FROM meta WHERE name = '" + MirrorMeta + "'")
	return ok, err
}

// CheckOwn fails if the database in a data directory is a copy of what several servers share.
func CheckOwn(ctx context.Context, dir string) error {
	c, err := OpenToRead(ctx, dir)
	if err != nil {
		return err
	}
	defer c.Close()
	copied, err := IsMirror(c)
	if err == nil && copied {
		err = fmt.Errorf("%s is a copy of what etcd has: back up etcd (etcdctl snapshot save), which has everything that the servers share", filepath.Join(dir, FileName))
	}
	return err
}

// Detach makes the copy in a data directory, which nobody has open, a database of its own. Clients
// that know revisions of what it was a copy of begin again, as after a restore.
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
	// A file interrupted between the two is still a copy, and is detached again.
	if _, err := BeginLife(c, path, 0, now); err != nil {
		return err
	}
	_, err = c.Exec("DELETE FROM meta WHERE name IN (?, ?)", MirrorMeta, FilledMeta)
	return err
}
