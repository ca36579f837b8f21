package datafile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

// The pragmas, with their reasons:
//   - auto_vacuum lets SQLite return freed pages to the file system in steps
//     (https://sqlite.org/pragma.html#pragma_auto_vacuum). It is set only in a new file, before the
//     first table, because setting it writes to the file;
//   - WAL lets readers continue while the writer commits; FULL makes every commit wait for the
//     log's fsync, so that an acknowledged write survives power loss;
//   - wal_autocheckpoint, in pages, is the writer's own checkpoint; it finds
//     little to do, see checkpointLoop;
//   - cache_size is per connection, in KiB when negative. There is no mmap: its pages would count
//     as the process's memory, and a failing disk would cause SIGBUS.
var (
	WriterPragmas = []string{"journal_mode=WAL", "synchronous=FULL", "foreign_keys=OFF",
		"cache_size=-16384", "wal_autocheckpoint=12000", "journal_size_limit=67108864"}
	ReaderPragmas = []string{"query_only=ON", "cache_size=-4096"}
)

// OpenWriter opens a connection that can write. It does not write to a database that is set up
// already, so that such a database can be opened and read on a full disk.
func OpenWriter(path string) (*sqlite.Conn, error) {
	c, err := sqlite.Open(path)
	if err != nil {
		return nil, err
	}
	const incremental = 2
	mode, _, err := c.First("PRAGMA auto_vacuum")
	pragmas := WriterPragmas
	if mode != incremental {
		pragmas = append([]string{"auto_vacuum=INCREMENTAL"}, pragmas...)
	}
	for _, p := range pragmas {
		if err == nil {
			err = c.Run("PRAGMA " + p)
		}
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return c, nil
}

// OpenToRead opens the database of a data directory for reading, also if another process owns it.
// Its queries end when ctx does.
func OpenToRead(ctx context.Context, dir string) (*sqlite.Conn, error) {
	path := filepath.Join(dir, FileName)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s has no database: it is not a data directory, or no server has run there", dir)
	} else if err != nil {
		return nil, err
	}
	if err := CheckTrusted(dir); err != nil {
		return nil, err
	}
	if Owner(dir) == nil { // opening applies the log, as a server's start does
		if err := CheckLog(path); err != nil {
			return nil, err
		}
	}
	if err := CheckSchema(ctx, path); err != nil {
		return nil, NameFile(path, err)
	}
	c, err := sqlite.Open(path, ReaderPragmas...)
	if err != nil {
		return nil, NameFile(path, err)
	}
	c.Ctx = ctx
	version, _, err := c.First("PRAGMA user_version")
	if err == nil && version == 0 {
		err = fmt.Errorf("%s is empty: no server has opened it yet", path)
	}
	if err != nil {
		c.Close()
		return nil, NameFile(path, err)
	}
	return c, nil
}

// CreatePrivate makes sure that the file exists, readable only by its owner. SQLite creates files
// with the process's umask, and its "-wal" and "-shm" files with the mode of the database's.
func CreatePrivate(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// FileSize returns 0 for a missing file.
func FileSize(path string) int64 {
	fi, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return fi.Size()
}
