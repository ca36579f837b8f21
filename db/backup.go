package db

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
)

// backupPages are copied between two looks at the context.
const backupPages = 1024

// Backup copies the database of a data directory to a new file, with SQLite's
// backup API. The directory may be in use, also by another process: the copy
// shows one moment, and writes go on meanwhile (the log grows while it runs). A
// file that exists is not overwritten; a backup that fails leaves none.
func Backup(ctx context.Context, dir, file string) (err error) {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("backup to %s: the file exists: move it away or choose another name", file)
	}
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	if err := f.Close(); err != nil {
		return err
	}
	src, err := openToRead(ctx, dir)
	if err != nil {
		os.Remove(file)
		return fmt.Errorf("backup: %w", err)
	}
	defer src.close()
	if err := copyDatabase(ctx, src, file); err != nil {
		os.Remove(file)
		return fmt.Errorf("backup to %s: %w", file, err)
	}
	return syncDir(filepath.Dir(file))
}

// BackupTo is Backup to a stream, by way of a temporary file in the data
// directory.
func BackupTo(ctx context.Context, dir string, w io.Writer) error {
	tmp, err := os.MkdirTemp(dir, "backup-")
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	defer os.RemoveAll(tmp)
	file := filepath.Join(tmp, FileName)
	if err := Backup(ctx, dir, file); err != nil {
		return err
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	// Without a name it is gone even if the reader goes away, which ends the process.
	if err := os.RemoveAll(tmp); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	if _, err := io.Copy(w, f); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	return nil
}

// copyDatabase copies what src sees now to file, and syncs it.
func copyDatabase(ctx context.Context, src *conn, file string) error {
	// An open read transaction: without one every commit of others would make
	// the copy start again.
	if _, err := src.exec("BEGIN"); err != nil {
		return err
	}
	defer src.exec("COMMIT")
	if _, _, err := src.first("SELECT value FROM meta WHERE name = 'revision'"); err != nil {
		return err
	}
	dst, err := openConn(file, "synchronous=FULL")
	if err != nil {
		return err
	}
	defer dst.close()
	b, err := dst.raw.Backup("main", src.raw, "main")
	if err != nil {
		return err
	}
	for {
		done, err := b.Step(backupPages)
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

// Restore makes a database from a backup in a data directory that has none. The
// backup is checked whole. Its revision goes above that of every earlier life, and
// everything before counts as compacted: clients that knew the lost future are
// told to start again (410) instead of being shown a past.
func Restore(ctx context.Context, file, dir string) (err error) {
	if fi, err := os.Stat(file); err != nil {
		return fmt.Errorf("restore: %w", err)
	} else if !fi.Mode().IsRegular() {
		return fmt.Errorf("restore: %s is no file", file)
	}
	for _, log := range []string{file + "-wal", file + "-journal"} {
		if fileSize(log) > 0 {
			return fmt.Errorf("restore: part of %s is in its log %s: it is no backup but a database that was not closed; copy it with \"tidewaiter backup\" and restore the copy", file, log)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := checkTrusted(dir); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	owned, err := lock(dir)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	defer owned.close()
	path := filepath.Join(dir, FileName)
	for _, f := range []string{path, path + "-wal", path + "-journal"} { // SQLite would apply a log that is left to the new file
		if _, err := os.Lstat(f); err == nil {
			return fmt.Errorf("restore: %s has a database: move %s* away, or use another directory", dir, path)
		}
	}
	mark, last, err := openMark(dir, slog.Default())
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	defer mark.close()
	tmp, err := os.MkdirTemp(dir, "restore-")
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	defer os.RemoveAll(tmp)
	var corrupt *CorruptError
	var foreign *ForeignError
	rev, err := restoreInto(ctx, file, tmp, last)
	if errors.As(err, &corrupt) { // it names the copy
		return fmt.Errorf("restore from %s: it is damaged (%s): take another backup", file, corrupt.Detail)
	} else if errors.As(err, &foreign) {
		return fmt.Errorf("restore from %s: it is no backup of this program: %s: take a backup that you trust", file, foreign.Detail)
	} else if err != nil {
		return fmt.Errorf("restore from %s: %w", file, err)
	}
	mark.set(rev)
	if err := mark.f.Sync(); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := os.Rename(filepath.Join(tmp, FileName), path); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	return syncDir(dir)
}

// restoreInto copies the backup into an empty directory, checks it and begins a new
// life above revision last. It returns the revision where that begins.
func restoreInto(ctx context.Context, file, tmp string, last int64) (rev int64, err error) {
	copied := filepath.Join(tmp, FileName)
	// As plain bytes: opening the backup with SQLite would leave files beside it.
	if err := copyFile(file, copied); err != nil {
		return 0, err
	}
	if err := Check(ctx, tmp); err != nil {
		return 0, err
	}
	c, err := openConn(copied, writerPragmas...)
	if err != nil {
		return 0, err
	}
	defer c.close()
	if err := migrate(c, copied, migrations); err != nil {
		return 0, err
	}
	if err := declareViews(c, nil); err != nil { // the server that opens it has its own
		return 0, err
	}
	if rev, err = beginLife(c, copied, last, time.Now()); err != nil {
		return 0, err
	}
	return rev, c.run("PRAGMA wal_checkpoint(TRUNCATE)") // the one file is all there is to move
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}

// syncDir makes a rename in dir durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
