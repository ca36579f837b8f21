package db

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/truth"
)

const (
	// lagLimit is how long a reader or writer waits for changes that the store has and the file
	// does not.
	lagLimit = 15 * time.Second
	// faultLimit is how long it is when following fails.
	faultLimit = 2 * time.Second
	// maxDamaged bounds the values that wait to be fetched again. Others are noticed again when
	// they are read again.
	maxDamaged = 64
)

// mirror is the authority of a database whose contents are those of a truth.Store. Writes go to the
// store. All writes there, also those of others, are applied to the file in order; reads wait until
// the file has them.
type mirror struct {
	db    *DB
	store truth.Store
	head  truth.Barrier

	mu       sync.Mutex
	applied  int64 // the file has all changes up to this revision
	fills    int64 // how often the file has been filled
	filling  bool  // the file is not known to be of a revision
	mustFill bool  // changes of the store are missing from the file
	// the store was restored: what it has at the file's revision is something else
	replaced bool
	changed  chan struct{} // closed when one of these changes
	fault    error         // why following fails

	pending map[string]*pendingWrite // writes of this database under way, by key

	stopFollowing context.CancelFunc
}

// pendingWrite has the index entries of a value, so that they are not computed again when it comes
// back.
type pendingWrite struct {
	value   []byte
	entries []IndexEntry
}

func newMirror(d *DB, s truth.Store) *mirror {
	m := &mirror{db: d, store: s, applied: d.revision.Load(), filling: true, changed: make(chan struct{}), pending: map[string]*pendingWrite{}, stopFollowing: func() {}}
	m.head.Head = m.askHead
	d.damaged = make(chan *DamagedError, maxDamaged)
	return m
}

// askHead is the store's Head. A store that knows less than the file was put back to an earlier
// state.
func (m *mirror) askHead(ctx context.Context) (int64, error) {
	m.mu.Lock()
	had, filling := m.applied, m.filling
	m.mu.Unlock()
	head, err := m.store.Head(ctx)
	if err == nil && !filling && head < had {
		err = truth.ErrReplaced
	}
	return head, err
}

// set changes the state and wakes those who wait for it.
func (m *mirror) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *mirror) catchUp(ctx context.Context, since int64) (int64, error) {
	m.mu.Lock()
	fills, has := m.fills, !m.filling && since > 0 && m.applied >= since
	m.mu.Unlock()
	if has {
		return fills, nil
	}
	// A revision that another mirror reported is no later than the head.
	head, err := m.head.Wait(ctx)
	if errors.Is(err, truth.ErrReplaced) {
		m.refill(true)
		head, err = 0, nil
	}
	if err != nil {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		return 0, &datafile.UnavailableError{Reason: "the store of all servers does not answer", Err: err}
	}
	return m.wait(ctx, head)
}

// wait returns when the file has revision rev.
func (m *mirror) wait(ctx context.Context, rev int64) (fills int64, err error) {
	var late <-chan time.Time
	limit := lagLimit
	for {
		m.mu.Lock()
		fills, has, changed, fault := m.fills, !m.filling && m.applied >= rev, m.changed, m.fault
		m.mu.Unlock()
		if has {
			return fills, nil
		}
		if late == nil || fault != nil && limit != faultLimit {
			if fault != nil {
				limit = faultLimit
			}
			late = m.db.clock.After(limit)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-m.db.stop:
			return 0, ErrClosed
		case <-late:
			if fault == nil {
				fault = errors.New("changes come late")
			}
			return 0, &datafile.UnavailableError{Reason: "the copy in " + m.db.dir + " lags behind the store of all servers", Err: fault}
		}
	}
}

func (m *mirror) put(ctx context.Context, key string, expect int64, value []byte, opts PutOptions) (int64, error) {
	had, err := m.serves(ctx)
	if err != nil {
		return 0, err
	}
	var expires int64
	if opts.TTL > 0 {
		expires = m.db.clock.Now().Add(opts.TTL).UnixMilli()
	}
	own := &pendingWrite{value, opts.Index}
	m.mu.Lock()
	m.pending[key] = own
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.pending[key] == own {
			delete(m.pending, key)
		}
	}()
	rev, err := m.store.Put(ctx, key, expect, value, expires)
	return m.written(ctx, had, rev, err)
}

func (m *mirror) delete(ctx context.Context, key string, expect int64) (int64, error) {
	had, err := m.serves(ctx)
	if err != nil {
		return 0, err
	}
	rev, err := m.store.Delete(ctx, key, expect)
	return m.written(ctx, had, rev, err)
}

// serves waits until the file is a copy of the store, and returns its revision. A store that was
// restored is refused: what is written there would be lost with it when it is restored as it should
// be.
func (m *mirror) serves(ctx context.Context) (rev int64, err error) {
	if _, err = m.wait(ctx, math.MinInt64); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.applied, nil
}

// written waits until the file has a write, or what it conflicts with. The file had revision had
// before.
func (m *mirror) written(ctx context.Context, had, rev int64, err error) (int64, error) {
	if err == nil && rev <= had {
		err = &truth.UnknownError{Err: fmt.Errorf("%w: it writes at revision %d, and was at %d", truth.ErrReplaced, rev, had)}
	}
	var refused *truth.RefusedError
	switch {
	case errors.Is(err, truth.ErrReplaced):
		m.refill(true)
		return 0, err
	case err == nil:
		m.db.failing.Store(nil)
	case errors.As(err, &refused):
		unavailable := &datafile.UnavailableError{Reason: refused.Reason, Err: refused.Err}
		m.db.failing.Store(unavailable)
		return 0, unavailable
	case !errors.Is(err, ErrConflict):
		return 0, err
	}
	// it is written, whatever becomes of the copy; readers wait for themselves
	_, _ = m.wait(ctx, rev)
	return rev, err
}

// expire lets each mirror try; the store has one of them succeed.
func (m *mirror) expire(ctx context.Context, keys []expiring) (expired int, err error) {
	for _, k := range keys {
		switch _, err := m.delete(ctx, k.key, k.rev); {
		case err == nil:
			expired++
		case !errors.Is(err, ErrConflict):
			return expired, err
		}
	}
	return expired, nil
}

// refill has the file filled again, during which nothing is read.
func (m *mirror) refill(replaced bool) {
	m.set(func() {
		m.filling, m.mustFill, m.replaced = true, true, m.replaced || replaced
		m.stopFollowing()
	})
}
