package datafile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

// FileName is the database's file in the data directory; SQLite keeps
// "-wal" and "-shm" files beside it while it is open.
const FileName = "tidewaiter.db"

// ownFiles are the names of the files that this package keeps in a data directory.
var ownFiles = []string{lockName, revisionName, FileName, FileName + "-wal", FileName + "-shm", FileName + "-journal"}

// CheckTrusted fails with a *trusted.Error for a data directory, or a file of its database, that
// another user owns or can write. It fails with a *ForeignError for a file that is not regular,
// because the server would write to the target of a link. It opens no file: when the process closes
// a file of the database, the system drops the locks that SQLite has on it.
func CheckTrusted(dir string) error {
	if err := trusted.CheckDir(dir); err != nil {
		return err
	}
	for _, name := range ownFiles {
		path := filepath.Join(dir, name)
		fi, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if !fi.Mode().IsRegular() {
			return &ForeignError{Path: path, Detail: fmt.Sprintf("it is not a regular file (%s)", fi.Mode().Type())}
		}
		if err := trusted.CheckPath(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
