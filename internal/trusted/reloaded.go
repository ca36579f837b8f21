package trusted

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	// retryReloaded is how long a file that cannot be used is left alone before it is read again.
	retryReloaded = time.Second
	// settleReloaded is how long a file must stay unchanged before it is read.
	settleReloaded = time.Second
)

// Reading is how a [Reloaded] reads its file.
type Reading[T any] struct {
	Path  string
	Limit int64                               // in bytes
	Open  func(path string) (*os.File, error) // [Open] or [OpenSecret]
	// Parse returns what the content means. before is what it meant, zero at first. Its errors are
	// logged, so they must quote no secret.
	Parse func(content []byte, before T) (T, error)
	Now   func() time.Time
	// Failed is called with each new reason why the changed file cannot be used.
	Failed func(error)
}

// Reloaded holds the parsed content of a file, and reads the file again when it has changed. If the
// file goes missing or bad later, the last good value stays in force, and the file is read again
// every second. It is safe for concurrent use.
type Reloaded[T any] struct {
	Reading[T]

	mu    sync.Mutex
	value T
	file  *Followed // nil if there is no file
}

// NewReloaded reads the file for the first time.
func NewReloaded[T any](how Reading[T]) (*Reloaded[T], error) {
	r := &Reloaded[T]{Reading: how}
	r.file = &Followed{Names: []string{how.Path}, Load: r.load, Settle: settleReloaded, Retry: retryReloaded, Failed: how.Failed}
	return r, r.file.Start(how.Now())
}

// Fixed has a value that is in no file.
func Fixed[T any](value T) *Reloaded[T] { return &Reloaded[T]{value: value} }

// Get returns the current value.
func (r *Reloaded[T]) Get() T {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file != nil {
		r.file.Look(r.Now())
	}
	return r.value
}

// load reads the file.
func (r *Reloaded[T]) load() error {
	content, err := read(r.Path, r.Limit, r.Open)
	if err != nil {
		return err
	}
	value, err := r.Parse(content, r.value)
	if err != nil {
		return fmt.Errorf("%s: %w", r.Path, err)
	}
	r.value = value
	return nil
}

// CutLine returns an error if the last line of content has no end and is only the beginning of a
// line in force: the file may be half written. The error quotes nothing.
func CutLine(content []byte, inForce ...string) error {
	last := string(content[bytes.LastIndexByte(content, '\n')+1:])
	if strings.TrimSpace(last) == "" {
		return nil
	}
	for _, line := range inForce {
		if line = strings.TrimSpace(line); len(last) < len(line) && strings.HasPrefix(line, last) {
			return errors.New("its last line does not end and is only the beginning of one in force, as if the file were half written; if it is meant, end the line")
		}
	}
	return nil
}
