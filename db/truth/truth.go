// Package truth defines a store that several databases mirror, so that servers on different
// machines serve the same objects. The store accepts or refuses writes and assigns revisions; each
// database has a copy of the store's contents.
package truth

import (
	"context"
	"errors"
)

// Errors of a Store.
var (
	// ErrConflict: the key is not at the expected revision. Nothing was written.
	ErrConflict = errors.New("key is not at the expected revision")
	// ErrCompacted: the requested revision is older than the history that is kept.
	ErrCompacted = errors.New("revision has been compacted")
	// ErrReplaced: the store was restored, or another store is at its address.
	ErrReplaced = errors.New("the store has been replaced or restored")
)

// RefusedError says why the store refuses a write. It will refuse others until the cause is gone.
type RefusedError struct {
	Reason string
	Err    error
}

func (e *RefusedError) Error() string { return e.Reason + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *RefusedError) Unwrap() error { return e.Err }

// TooLargeError says that a value is too large for the store.
type TooLargeError struct {
	Reason string
	Err    error
}

func (e *TooLargeError) Error() string { return e.Reason + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *TooLargeError) Unwrap() error { return e.Err }

// UnknownError says that it is unknown whether a write happened, because the store did not answer.
type UnknownError struct{ Err error }

func (e *UnknownError) Error() string {
	return "it is unknown whether the write happened; read the object again to see it: " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *UnknownError) Unwrap() error { return e.Err }

// Change is a change of one key. No two changes have the same revision.
type Change struct {
	Key     string
	Rev     int64
	Value   []byte
	Expires int64 // Unix milliseconds; 0 is never
	Deleted bool
	// Unreadable is why the store cannot read the value. Value then has the stored bytes.
	Unreadable error
}

// Store is the shared store. Its methods may be called from any goroutine.
type Store interface {
	// Identity returns a number above zero that no other store has. A store that was restored may keep
	// its number.
	Identity(context.Context) (int64, error)
	// Put writes value if key is at revision expect, 0 for a key that does not exist, and returns the
	// revision. With ErrConflict it returns a revision at which the conflict can be seen. Its other
	// errors are *RefusedError, *TooLargeError and *UnknownError.
	Put(ctx context.Context, key string, expect int64, value []byte, expires int64) (rev int64, err error)
	// Delete is Put for a deletion.
	Delete(ctx context.Context, key string, expect int64) (rev int64, err error)
	// Head returns a revision no older than the last write that was acknowledged before the call.
	Head(context.Context) (int64, error)
	// Follow calls apply with the changes after revision from, in order, and with the revision up to
	// which these are complete. It reaches every revision that Head has returned. It returns
	// ErrCompacted if changes were compacted.
	Follow(ctx context.Context, from int64, apply func(changes []Change, upTo int64) error) error
	// Range returns a page of the keys that exist at revision rev, 0 for now, in order and beginning
	// at from; the revision; and whether more keys follow.
	Range(ctx context.Context, from string, rev int64) (page []Change, at int64, more bool, err error)
	// Close ends all calls.
	Close() error
}
