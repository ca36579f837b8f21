package db

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// lockName is the file in the data directory whose flock(2) marks the owner.
// The kernel drops the lock with the process, so a crash leaves no stale one.
const lockName = "lock"

// maxLockFile bounds what is read of the lock file.
const maxLockFile = 4 << 10

// LockedError says that another process owns the data directory.
type LockedError struct {
	Dir string
	// PID is the owner's process id, 0 when it could not be read.
	PID int
	// Info is what the owner wrote with SetInfo: the server's address.
	Info string
}

func (e *LockedError) Error() string {
	who := "another process"
	if e.PID != 0 {
		who = fmt.Sprintf("process %d", e.PID)
	}
	if e.Info != "" {
		who += " (serving " + e.Info + ")"
	}
	return fmt.Sprintf("data directory %s is in use by %s: stop it, or use another directory", e.Dir, who)
}

type lockFile struct {
	PID  int    `json:"pid"`
	Info string `json:"info,omitempty"`
}

// lock takes the data directory, or returns *LockedError.
func lock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		// Somebody may only be asking who owns it, as Owner does, for a moment.
		time.Sleep(50 * time.Millisecond)
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		defer f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			held := readLock(f)
			return nil, &LockedError{Dir: dir, PID: held.PID, Info: held.Info}
		}
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	if err := writeLock(f, ""); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func readLock(f *os.File) (l lockFile) {
	if b, err := io.ReadAll(io.LimitReader(f, maxLockFile)); err == nil {
		_ = json.Unmarshal(b, &l) // an unreadable file leaves the owner unnamed
	}
	return l
}

func writeLock(f *os.File, info string) error {
	b, err := json.Marshal(lockFile{PID: os.Getpid(), Info: info})
	if err != nil {
		return err
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.WriteAt(append(b, '\n'), 0)
	return err
}

// Owner reports who owns the data directory: *LockedError when a process
// does, nil when none does or the directory does not exist. A directory that
// another user could have made or changed gives *trusted.Error.
func Owner(dir string) error {
	switch err := checkTrusted(dir); {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		held := readLock(f)
		return &LockedError{Dir: dir, PID: held.PID, Info: held.Info}
	}
	return err
}

// SetInfo records a line about the owner, such as the server's address, for
// the LockedError of others.
func (d *DB) SetInfo(info string) error { return writeLock(d.lockFile, info) }
