// Package backup copies the database of a data directory, also while it is in use and on a
// schedule, and restores a copy into a data directory.
package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

// stepPages is how many pages are copied before the context is checked again.
const stepPages = 1024

// Make copies the database of a data directory to a new file, with SQLite's backup API. The
// directory may be in use, also by another process: the copy shows one moment, and writes continue
// meanwhile (the log grows while it runs). The copy gets its name after it is complete and synced.
// An existing file is not overwritten.
func Make(ctx context.Context, dir, file string) error {
	if err := makeFile(ctx, dir, file, nil); err != nil {
		return fmt.Errorf("backup to %s: %w", file, err)
	}
	return nil
}

// makeFile is Make with a check: it calls verify, if that is not nil, with a directory that
// contains only the copy, before the copy gets its name.
func makeFile(ctx context.Context, dir, file string, verify func(dir string) error) error {
	errExists := errors.New("the file exists: move it away or choose another name")
	if _, err := os.Lstat(file); err == nil {
		return errExists
	}
	src, err := datafile.OpenToRead(ctx, dir)
	if err != nil {
		return err
	}
	defer src.Close()
	folder := filepath.Dir(file)
	tmp, err := datafile.NewPartial(folder)
	if err != nil {
		return err
	}
	defer tmp.Remove()
	copied := filepath.Join(tmp.Dir, datafile.FileName)
	if err := datafile.CreatePrivate(copied); err != nil {
		return err
	}
	dst, err := sqlite.Open(copied, copyPragmas...)
	if err != nil {
		return err
	}
	if err := errors.Join(copyDatabase(ctx, src, dst), dst.Close(), syncFile(copied)); err != nil {
		return err
	}
	if verify != nil {
		if err := verify(tmp.Dir); err != nil {
			return err
		}
	}
	// A link, unlike a rename, fails if the name exists. Not every file system supports links.
	if err := os.Link(copied, file); errors.Is(err, fs.ErrExist) {
		return errExists
	} else if err != nil {
		if _, err := os.Lstat(file); err == nil {
			return errExists
		}
		if err := os.Rename(copied, file); err != nil {
			return err
		}
	}
	return syncDir(folder)
}

// Stream writes a backup to a stream. A stream is sequential and SQLite copies pages in any order,
// so Stream first makes the copy in a file in os.TempDir. The file is unlinked as soon as it is
// open, so that it disappears with the process. (Reading the database and its log directly, in a
// read transaction, would need no space, but only SQLite knows where in the log that transaction
// ends.)
func Stream(ctx context.Context, dir string, w io.Writer) error {
	if err := streamTo(ctx, dir, w); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	return nil
}

func streamTo(ctx context.Context, dir string, w io.Writer) error {
	src, err := datafile.OpenToRead(ctx, dir)
	if err != nil {
		return err
	}
	defer src.Close()
	f, err := os.CreateTemp("", "tidewaiter-backup-")
	if err != nil {
		return err
	}
	defer f.Close()
	dst, err := sqlite.Open(f.Name(), copyPragmas...)
	if err := errors.Join(err, os.Remove(f.Name())); err != nil {
		return err
	}
	if err := errors.Join(copyDatabase(ctx, src, dst), dst.Close()); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}

// copyPragmas are the pragmas of a copy in progress. It has no journal, because an incomplete copy
// is deleted.
var copyPragmas = []string{"journal_mode=OFF", "synchronous=FULL"}

// copyDatabase copies the current state of src to dst.
func copyDatabase(ctx context.Context, src, dst *sqlite.Conn) error {
	// Open a read transaction: without one, every commit of others would restart the copy.
	if _, err := src.Exec("BEGIN"); err != nil {
		return err
	}
	defer src.Exec("COMMIT")
	if _, _, err := src.First("SELECT value FROM meta WHERE name = 'revision'"); err != nil {
		return err
	}
	b, err := dst.Raw.Backup("main", src.Raw, "main")
	if err != nil {
		return err
	}
	for {
		done, err := b.Step(stepPages)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			b.Finish()
			return err
		}
		if done {
			return b.Finish()
		}
	}
}

// Restore makes a database from a backup in a data directory that has none. Restore refuses a
// backup that another user owns or can write, because its contents decide who has which rights. It
// checks the whole backup. It raises the revision above every earlier epoch, and all earlier
// revisions count as compacted: a client that saw changes which the backup lacks gets 410 and lists
// again, instead of seeing an older state.
func Restore(ctx context.Context, file, dir string) (err error) {
	from, err := trusted.Open(file)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	defer from.Close()
	for _, log := range []string{file + "-wal", file + "-journal"} {
		if datafile.FileSize(log) > 0 {
			return fmt.Errorf("restore: part of %s is in its log %s: it is not a backup but a database that was not closed; copy it with \"tidewaiter backup\" and restore the copy", file, log)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := datafile.CheckTrusted(dir); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	owned, err := datafile.Lock(dir)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	defer owned.Close()
	path := filepath.Join(dir, datafile.FileName)
	for _, f := range []string{path, path + "-wal", path + "-journal"} {
		// SQLite would apply a remaining log to the new file
		if _, err := os.Lstat(f); err == nil {
			return fmt.Errorf("restore: %s has a database: move %s* away, or use another directory", dir, path)
		}
	}
	revisionFile, last, err := datafile.OpenRevisionFile(dir, slog.Default())
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	defer revisionFile.Close()
	tmp, err := datafile.NewPartial(dir)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	defer tmp.Remove()
	var corrupt *datafile.CorruptError
	var foreign *datafile.ForeignError
	rev, err := restoreInto(ctx, from, tmp.Dir, last)
	if errors.As(err, &corrupt) { // the error names the copy
		return fmt.Errorf("restore from %s: it is damaged (%s): use another backup", file, corrupt.Detail)
	} else if errors.As(err, &foreign) {
		return fmt.Errorf("restore from %s: it is not a backup of this program: %s: use a backup that you trust", file, foreign.Detail)
	} else if err != nil {
		return fmt.Errorf("restore from %s: %w", file, err)
	}
	revisionFile.Set(rev)
	if err := revisionFile.Sync(); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := os.Rename(filepath.Join(tmp.Dir, datafile.FileName), path); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	return syncDir(dir)
}

// restoreInto copies the backup into an empty directory, checks it and begins a new epoch above
// revision last. It returns the first revision of the epoch.
func restoreInto(ctx context.Context, backup io.Reader, tmp string, last int64) (rev int64, err error) {
	copied := filepath.Join(tmp, datafile.FileName)
	// Copy plain bytes: opening the backup with SQLite would leave files beside it.
	if err := copyTo(copied, backup); err != nil {
		return 0, err
	}
	if err := datafile.Check(ctx, tmp); err != nil {
		return 0, err
	}
	c, err := sqlite.Open(copied, datafile.WriterPragmas...)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if err := datafile.Migrate(c, copied, datafile.Migrations); err != nil {
		return 0, err
	}
	if err := datafile.DeclareViews(c, nil); err != nil { // the server declares its own views
		return 0, err
	}
	if rev, err = datafile.BeginEpoch(c, copied, last, time.Now()); err != nil {
		return 0, err
	}
	return rev, c.Run("PRAGMA wal_checkpoint(TRUNCATE)") // then only this one file must be moved
}

// copyTo copies in to a new file.
func copyTo(file string, in io.Reader) error {
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}

// syncFile makes the contents of a file durable.
func syncFile(file string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// syncDir makes a rename in dir durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
