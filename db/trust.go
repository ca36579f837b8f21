package db

import (
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/tidewaiter/tidewaiter/trusted"
)

// checkTrusted fails with a *trusted.Error for a data directory or a file of its
// database that another user owns or can write. No file is opened: when one of the
// database's is closed, the system drops the locks that SQLite has on it in this
// process.
func checkTrusted(dir string) error {
	if err := trusted.CheckDir(dir); err != nil {
		return err
	}
	for _, name := range []string{lockName, FileName, FileName + "-wal", FileName + "-shm"} {
		if err := trusted.CheckPath(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
