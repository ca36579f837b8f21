package datafile

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

// A process owns a data directory while it holds flock(2) on the directory itself, which cannot be
// replaced as a file can, and on the file lockName in it. The file names the owner; earlier
// releases lock only the file. The kernel drops both locks when the process ends, so a crash leaves
// none.
const lockName = "lock"

// maxLockFile bounds how much of the lock file is read.
const maxLockFile = 4 << 10

// LockedError says that another process owns the data directory.
type LockedError struct {
	Dir string
	// PID is the owner's process id, 0 when it could not be read.
	PID int
	// Info is the text that the owner wrote with SetInfo: the server's address.
	Info string
}

// IsServer reports whether the owner is a listening server, which keeps the directory until it is
// stopped. Other owners, such as an import, release it themselves.
func (e *LockedError) IsServer() bool { return e.Info != "" }

func (e *LockedError) Error() string {
	who := "another process"
	if e.PID != 0 {
		who = fmt.Sprintf("process %d", e.PID)
	}
	if e.IsServer() {
		who += " (serving " + e.Info + ")"
	}
	return fmt.Sprintf("data directory %s is in use by %s: stop it, or use another directory", e.Dir, who)
}

type lockFile struct {
	PID  int    `json:"pid"`
	Info string `json:"info,omitempty"`
}

// Ownership is the ownership of a data directory.
type Ownership struct{ dir, file *os.File }

// Close releases the directory at once. Closing the files is not enough: a child that another
// goroutine has just forked has them open, too, until it executes its program.
func (l *Ownership) Close() error {
	for _, f := range []*os.File{l.file, l.dir} {
		if f != nil {
			_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) // Close follows even after an error
		}
	}
	return errors.Join(l.file.Close(), l.dir.Close())
}

// Lock acquires the data directory, or returns *LockedError.
func Lock(dir string) (_ *Ownership, err error) {
	l := &Ownership{}
	defer func() {
		if err != nil {
			l.Close() // closing a nil file is an error without effect
		}
	}()
	if l.dir, err = os.Open(dir); err != nil {
		return nil, err
	}
	if l.file, err = os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600); err != nil {
		return nil, err
	}
	for _, f := range []*os.File{l.dir, l.file} {
		if err := flock(f); errors.Is(err, syscall.EWOULDBLOCK) {
			held := readLock(l.file)
			return nil, &LockedError{Dir: dir, PID: held.PID, Info: held.Info}
		} else if err != nil {
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
	}
	return l, writeLock(l.file, "")
}

// flock acquires the exclusive lock of f. It fails with EWOULDBLOCK if a process owns f, but not if
// a process only looks for the owner (see Owner).
func flock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
			return err
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_UN); err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// readLockOf is readLock for a directory's lock file. If the file is gone, the result is empty.
func readLockOf(dir string) (l lockFile) {
	f, err := os.Open(filepath.Join(dir, lockName))
	if err != nil {
		return l
	}
	defer f.Close()
	return readLock(f)
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
	b = append(b, '\n')
	if _, err := f.WriteAt(b, 0); err != nil {
		// before Truncate, because a full disk may have no room for it afterwards
		return err
	}
	return f.Truncate(int64(len(b)))
}

// Owner reports who owns the data directory: *LockedError when a process
// does, nil when none does or the directory does not exist. A directory that
// another user could have made or changed gives *trusted.Error.
func Owner(dir string) error {
	switch err := CheckTrusted(dir); {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	for _, name := range []string{dir, filepath.Join(dir, lockName)} {
		f, err := os.Open(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			held := readLockOf(dir)
			return &LockedError{Dir: dir, PID: held.PID, Info: held.Info}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// SetInfo writes a line about the owner into the lock file.
func (l *Ownership) SetInfo(info string) error { return writeLock(l.file, info) }
