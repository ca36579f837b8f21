package db

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/truth"
	"github.com/tidewaiter/tidewaiter/internal/warn"
)

const (
	// lagLimit is how long a reader or writer waits for changes that the store has and the file lacks.
	lagLimit = 15 * time.Second
	// faultLimit replaces lagLimit while following fails.
	faultLimit = 2 * time.Second
	// maxDamaged bounds the damaged values that wait to be fetched again. If there are more, the next
	// read of such a value queues it.
	maxDamaged = 64
)

// mirror is the authority of a database that is a copy of a truth.Store. Writes go to the store.
// All writes there, also those of other servers, are applied to the file in order. A read sees
// every write that was acknowledged before it began.
type mirror struct {
	db    *DB
	store truth.Store
	head  truth.Barrier

	mu       sync.Mutex
	applied  int64 // the file has all changes up to this revision
	fills    int64 // how often the file has been filled
	filledAt int64 // the revision of the last fill
	filling  bool  // the file does not show one revision of the store
	mustFill bool  // changes of the store are missing from the file
	// the store was restored: its history differs from the file's
	replaced bool
	changed  chan struct{} // closed when one of these changes
	fault    error         // why following fails
	known    int64         // the store is known to have reached this revision
	// unsure is true after following has failed, or the store did not answer, until the store reports
	// its revision again.
	unsure bool
	// behind is since when the file may lack changes of the store; zero while it has all known ones.
	behind time.Time

	pending map[string]*pendingWrite // running writes of this database, by key

	stopFollowing context.CancelFunc

	unreadable warn.Trouble // keys of the store
}

// pendingWrite has the index entries of a value, so that they are not computed again when the store
// reports the write.
type pendingWrite struct {
	value   []byte
	entries []IndexEntry
}

func newMirror(d *DB, s truth.Store) *mirror {
	m := &mirror{db: d, store: s, applied: d.revision.Load(), filling: true, behind: d.clock.Now(), changed: make(chan struct{}), pending: map[string]*pendingWrite{}, stopFollowing: func() {}}
	m.head.Head = m.askHead
	m.unreadable.Logger = d.log
	d.damaged = make(chan *DamagedError, maxDamaged)
	d.metrics.addMirror(m)
	return m
}

// lag returns for how long the file may have lacked changes of the store; 0 while it has all known
// changes.
func (m *mirror) lag() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.behind.IsZero() {
		return 0
	}
	return m.db.clock.Now().Sub(m.behind)
}

// noteBehind records whether the file has all known changes of the store. The caller holds mu.
func (m *mirror) noteBehind() {
	switch {
	case !m.filling && !m.unsure && m.applied >= m.known:
		m.behind = time.Time{}
	case m.behind.IsZero():
		m.behind = m.db.clock.Now()
	}
}

// askHead returns the store's head. If that is below the file's revision, the store was restored
// from an earlier state.
func (m *mirror) askHead(ctx context.Context) (int64, error) {
	m.mu.Lock()
	had, filling := m.applied, m.filling
	m.mu.Unlock()
	head, err := m.store.Head(ctx)
	if err == nil && !filling && head < had {
		err = truth.ErrReplaced
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.unsure = err != nil; !m.unsure {
		m.known = max(m.known, head)
	}
	m.noteBehind()
	return head, err
}

// set changes the state and wakes all waiters.
func (m *mirror) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
	m.noteBehind()
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *mirror) catchUp(ctx context.Context, seen int64) (int64, error) {
	m.mu.Lock()
	fills, has := m.fills, !m.filling && seen > 0 && m.applied >= seen
	m.mu.Unlock()
	if has {
		return fills, nil
	}
	defer since(m.db.metrics.barrier, time.Now())
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
		return 0, &datafile.UnavailableError{Reason: "the shared store does not answer", Err: err}
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
				fault = errors.New("changes arrive too slowly")
			}
			return 0, &datafile.UnavailableError{Reason: "the copy in " + m.db.dir + " lags behind the shared store", Err: fault}
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

// maxWrites is how many keys one call writes at a time.
const maxWrites = 16

func (m *mirror) putAll(ctx context.Context, writes []Write) error {
	errs := make([]error, len(writes))
	last := len(writes) - 1
	m.putEach(ctx, writes[:last], errs)
	if err := cmp.Or(errs...); err != nil {
		return err
	}
	return m.do(ctx, writes[last])
}

func (m *mirror) putEach(ctx context.Context, writes []Write, errs []error) {
	var writing errgroup.Group
	writing.SetLimit(maxWrites)
	for i, w := range writes {
		writing.Go(func() error {
			errs[i] = m.do(ctx, w)
			return nil
		})
	}
	_ = writing.Wait()
}

func (m *mirror) do(ctx context.Context, w Write) error {
	if err := checkKey(w.Key); err != nil {
		return err
	}
	_, err := m.put(ctx, w.Key, w.Expect, w.Value, PutOptions{TTL: w.TTL})
	return err
}

func (m *mirror) delete(ctx context.Context, key string, expect int64) (int64, error) {
	had, err := m.serves(ctx)
	if err != nil {
		return 0, err
	}
	rev, err := m.store.Delete(ctx, key, expect)
	return m.written(ctx, had, rev, err)
}

// serves waits until the file is a copy of the store, and returns its revision. It fails for a
// store that was restored without raising its revision: a write there would be lost when the store
// is restored correctly.
func (m *mirror) serves(ctx context.Context) (rev int64, err error) {
	if _, err = m.wait(ctx, math.MinInt64); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.applied, nil
}

// written waits until the file has a write, or the change that it conflicts with. had is the file's
// revision before the write.
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
	// The store has the write, even if the copy lags; readers wait themselves.
	_, _ = m.wait(ctx, rev)
	return rev, err
}

// expire deletes the keys in the store. Each mirror tries, and one of them succeeds.
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

// Fills returns how often the database has been filled from the store of all servers; 0 without
// one. After a fill, earlier writes may be missing: the store may have been restored to an earlier
// state.
func (d *DB) Fills() int64 {
	m, ok := d.authority.(*mirror)
	if !ok {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fills
}

// refill starts another fill of the file. Until it ends, nothing can be read.
func (m *mirror) refill(replaced bool) {
	m.set(func() {
		m.filling, m.mustFill, m.replaced = true, true, m.replaced || replaced
		m.stopFollowing()
	})
}
