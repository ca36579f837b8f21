package datafile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/tidewaiter/tidewaiter/db/trusted"
)

// partialPrefix begins the names of folders for files that are not whole yet.
const partialPrefix = ".tidewaiter-partial-"

// partial is a folder for a file that is not whole yet, beside where the file will
// be. A process that is killed leaves one; the next finds that nobody holds its
// lock, flock(2), and removes it.
type partial struct {
	Dir  string
	lock *os.File
}

// NewPartial makes a partial in folder, and removes those that were left there.
func NewPartial(folder string) (*partial, error) {
	if err := RemovePartials(folder); err != nil {
		return nil, err
	}
	for {
		dir, err := os.MkdirTemp(folder, partialPrefix)
		if err != nil {
			return nil, err
		}
		lock, err := os.Open(dir)
		if err == nil {
			if err = flock(lock); err == nil {
				// Somebody who cleans up may have come before the lock.
				if _, err = os.Stat(dir); err == nil {
					return &partial{Dir: dir, lock: lock}, nil
				}
			}
			lock.Close()
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, err
		}
	}
}

// Remove removes the folder with its contents.
func (p *partial) Remove() {
	os.RemoveAll(p.Dir)
	p.lock.Close()
}

// RemovePartials removes the partials in folder that no process holds.
func RemovePartials(folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), partialPrefix) {
			continue
		}
		dir := filepath.Join(folder, e.Name())
		lock, err := os.Open(dir)
		if err != nil {
			continue // it has gone, or is somebody else's
		}
		// In a folder that all may write, others may have made one that cannot be removed.
		if trusted.Check(lock) == nil && syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			err = os.RemoveAll(dir)
		}
		lock.Close()
		if err != nil {
			return fmt.Errorf("removing what an interrupted backup or restore left: %w", err)
		}
	}
	return nil
}
