package dbtest

import (
	"context"
	"errors"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/tidewaiter/tidewaiter/db/truth"
)

// Truth is a truth.Store in memory. Databases that are copies of one Truth behave like servers that
// share an etcd.
type Truth struct {
	mu        sync.Mutex
	id        int64
	rev       int64
	compacted int64
	log       []truth.Change // all of them, in order
	changed   chan struct{}
	down      error

	// Fills counts the calls of Range that begin.
	Fills atomic.Int64
}

// NewTruth returns a Truth that is empty.
func NewTruth() *Truth { return &Truth{id: 1, rev: 1, changed: make(chan struct{})} }

// errDown is the error of a Truth that does not answer.
var errDown = errors.New("connection refused")

// change runs fn and wakes the followers.
func (s *Truth) change(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn()
	close(s.changed)
	s.changed = make(chan struct{})
}

// Stop makes the store fail all calls until Start.
func (s *Truth) Stop() { s.change(func() { s.down = errDown }) }

// Start makes the store answer again after Stop.
func (s *Truth) Start() { s.change(func() { s.down = nil }) }

// Compact drops all changes but the newest.
func (s *Truth) Compact() { s.change(func() { s.compacted = s.rev }) }

// PutUnreadable writes a value that the store cannot read, and returns the revision.
func (s *Truth) PutUnreadable(key string, stored []byte) (rev int64) {
	s.change(func() {
		s.rev++
		rev = s.rev
		s.log = append(s.log, truth.Change{Key: key, Rev: rev, Value: stored, Unreadable: errors.New("no header")})
	})
	return rev
}

// Elsewhere raises the revision without a change, as writers of other prefixes do.
func (s *Truth) Elsewhere() { s.change(func() { s.rev++ }) }

// Restore resets the store to an earlier revision, as another cluster, and raises its revision by
// bump.
func (s *Truth) Restore(rev, bump int64) {
	s.RestoreInPlace(rev, bump)
	s.change(func() { s.id++ })
}

// RestoreInPlace is Restore as the same cluster, because etcd computes its ID from the members'
// names and addresses.
func (s *Truth) RestoreInPlace(rev, bump int64) {
	s.change(func() {
		n := sort.Search(len(s.log), func(i int) bool { return s.log[i].Rev > rev })
		s.log, s.rev = s.log[:n:n], rev+bump
		if bump > 0 {
			s.compacted = s.rev
		}
	})
}

// DeleteTogether deletes keys at one revision, as etcdctl del --prefix does.
func (s *Truth) DeleteTogether(keys ...string) {
	s.change(func() {
		s.rev++
		for _, k := range keys {
			s.log = append(s.log, truth.Change{Key: k, Rev: s.rev, Deleted: true})
		}
	})
}

// PutTogether writes keys at one revision, as a transaction of etcd does.
func (s *Truth) PutTogether(value string, keys ...string) {
	s.change(func() {
		s.rev++
		for _, k := range keys {
			s.log = append(s.log, truth.Change{Key: k, Rev: s.rev, Value: []byte(value)})
		}
	})
}

// at returns the keys that exist at a revision.
func (s *Truth) at(rev int64) map[string]truth.Change {
	all := map[string]truth.Change{}
	for _, c := range s.log {
		if c.Rev > rev {
			break
		}
		if c.Deleted {
			delete(all, c.Key)
		} else {
			all[c.Key] = c
		}
	}
	return all
}

func (s *Truth) write(expect int64, c truth.Change) (rev int64, err error) {
	s.change(func() {
		switch have := s.at(s.rev)[c.Key]; {
		case s.down != nil:
			err = &truth.UnknownError{Err: s.down}
		case have.Rev != expect || c.Deleted && expect == 0:
			rev, err = s.rev, truth.ErrConflict
		default:
			s.rev++
			c.Rev, rev = s.rev, s.rev
			s.log = append(s.log, c)
		}
	})
	return rev, err
}

// Identity is part of truth.Store.
func (s *Truth) Identity(context.Context) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id, s.down
}

// Put is part of truth.Store.
func (s *Truth) Put(_ context.Context, key string, expect int64, value []byte, expires int64) (int64, error) {
	return s.write(expect, truth.Change{Key: key, Value: value, Expires: expires})
}

// Delete is part of truth.Store.
func (s *Truth) Delete(_ context.Context, key string, expect int64) (int64, error) {
	return s.write(expect, truth.Change{Key: key, Deleted: true})
}

// Head is part of truth.Store.
func (s *Truth) Head(context.Context) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rev, s.down
}

// Follow is part of truth.Store.
func (s *Truth) Follow(ctx context.Context, from int64, apply func([]truth.Change, int64) error) error {
	s.mu.Lock()
	id := s.id
	s.mu.Unlock()
	for {
		s.mu.Lock()
		changes := slices.Clone(s.log[sort.Search(len(s.log), func(i int) bool { return s.log[i].Rev > from }):])
		upTo, changed, err := s.rev, s.changed, s.down
		switch {
		case err != nil:
		case s.id != id:
			err = truth.ErrReplaced
		case from < s.compacted:
			err = truth.ErrCompacted
		}
		s.mu.Unlock()
		if err != nil {
			return err
		}
		if upTo > from {
			if err := apply(changes, upTo); err != nil {
				return err
			}
			from = upTo
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// rangeRows is how many keys a page has, few enough that tests have several.
const rangeRows = 3

// Range is part of truth.Store.
func (s *Truth) Range(_ context.Context, from string, rev int64) (page []truth.Change, at int64, more bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rev == 0 {
		rev = s.rev
		s.Fills.Add(1)
	}
	if s.down != nil || rev < s.compacted {
		return nil, 0, false, errors.Join(s.down, truth.ErrCompacted)
	}
	for _, c := range s.at(rev) {
		if c.Key >= from {
			page = append(page, c)
		}
	}
	sort.Slice(page, func(i, j int) bool { return page[i].Key < page[j].Key })
	if len(page) > rangeRows {
		page, more = page[:rangeRows], true
	}
	return page, rev, more, nil
}

// Close is part of truth.Store.
func (s *Truth) Close() error { return nil }
