package datafile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

// partialPrefix begins the names of folders for incomplete files.
const partialPrefix = ".tidewaiter-partial-"

// partial is a folder for an incomplete file, beside the file's final place. A killed process
// leaves one behind; the next process finds its lock, flock(2), free and removes it.
type partial struct {
	Dir  string
	lock *os.File
}

// NewPartial creates a partial in folder, and removes those that were left behind there.
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
				// Another process may have removed the folder before it was locked.
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
			continue // it is gone, or belongs to another user
		}
		// Where every user can write, another user may have created one that cannot be removed.
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
