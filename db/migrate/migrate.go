// Package migrate copies all live keys from a database into a truth.Store, and compares the two.
package migrate

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/truth"
)

// writes is how many keys are written at a time.
const writes = 32

// ErrDiffers says that a database and a store have different contents. The error that wraps it
// names the first such key.
var ErrDiffers = errors.New("not the same")

// Copy writes to a store all keys of a database that the store lacks. It fails with ErrDiffers if
// the store has anything else below its prefix. Keys that an interrupted Copy has written stay, and
// are not written again. It returns how many keys the database has, and how many were written.
func Copy(ctx context.Context, from *db.DB, to truth.Store) (keys, written int, err error) {
	writing, wctx := errgroup.WithContext(ctx)
	writing.SetLimit(writes)
	keys, err = compare(wctx, from, to, func(missing truth.Change) error {
		written++
		writing.Go(func() error {
			if _, err := to.Put(wctx, missing.Key, 0, missing.Value, missing.Expires); err != nil {
				return fmt.Errorf("writing %s: %w", missing.Key, err)
			}
			return nil
		})
		return wctx.Err()
	})
	// an error of a write is the cause of compare's error
	return keys, written, cmp.Or(writing.Wait(), err)
}

const (
	// neverReached is above all revisions that an etcd can reach, and below those of a database that
	// has begun another epoch.
	neverReached = 1 << 40
	// maxRaise bounds the writes of Raise.
	maxRaise = 100_000
)

// FarBehindError says that a store would need too many writes to reach the revision of a database.
type FarBehindError struct{ At, Above int64 }

func (e *FarBehindError) Error() string {
	return fmt.Sprintf("the store is at revision %d, and clients hold revisions up to %d, which would be invalid there", e.At, e.Above)
}

// Raise writes keys to a store until its revision is higher than above, the highest revision that
// clients of a database may hold. The clients' revisions are then older than the history of all
// copies. If that needs too many writes, Raise fails with *FarBehindError.
func Raise(ctx context.Context, s truth.Store, above int64, key string) error {
	if err := removeBelow(ctx, s, key+"-"); err != nil { // left by an interrupted Raise
		return err
	}
	at, err := s.Head(ctx)
	if err != nil || at > above || above >= neverReached {
		return err
	}
	if above-at > maxRaise {
		return &FarBehindError{at, above}
	}
	writing, wctx := errgroup.WithContext(ctx)
	var left atomic.Int64
	left.Store(above - at + 1)
	for i := range writes {
		writing.Go(func() error {
			one, rev := fmt.Sprintf("%s-%d", key, i), int64(0)
			for left.Add(-1) >= 0 {
				var err error
				if rev, err = s.Put(wctx, one, rev, []byte("{}"), 0); err != nil {
					return fmt.Errorf("writing %s: %w", one, err)
				}
			}
			if rev == 0 {
				return nil
			}
			_, err := s.Delete(wctx, one, rev)
			return err
		})
	}
	return writing.Wait()
}

// removeBelow deletes the keys that begin with a prefix.
func removeBelow(ctx context.Context, s truth.Store, prefix string) error {
	for {
		page, _, _, err := s.Range(ctx, prefix, 0)
		if err != nil {
			return err
		}
		removed := 0
		for _, c := range page {
			if !strings.HasPrefix(c.Key, prefix) {
				break
			}
			if _, err := s.Delete(ctx, c.Key, c.Rev); err != nil {
				return fmt.Errorf("deleting %s: %w", c.Key, err)
			}
			removed++
		}
		if removed == 0 {
			return nil
		}
	}
}

// Verify compares each key, value and expiry time of a database with the store's, and returns the
// number of keys. It fails with ErrDiffers.
func Verify(ctx context.Context, d *db.DB, s truth.Store) (keys int, err error) {
	return compare(ctx, d, s, func(missing truth.Change) error {
		return fmt.Errorf("%w: the store does not have %s", ErrDiffers, missing.Key)
	})
}

// compare reads both in the order of keys, and calls missing with each key that only the database
// has.
func compare(ctx context.Context, d *db.DB, s truth.Store, missing func(truth.Change) error) (keys int, err error) {
	stored := &pages{read: func(from string, rev int64) ([]truth.Change, int64, bool, error) { return s.Range(ctx, from, rev) }}
	own := &pages{read: func(from string, _ int64) ([]truth.Change, int64, bool, error) {
		page, more, err := d.LivePage(ctx, from)
		return page, 0, more, err
	}}
	for ctx.Err() == nil {
		other, err := stored.peek()
		if err != nil {
			return keys, err
		}
		have, err := own.peek()
		if err != nil {
			return keys, err
		}
		switch {
		case other != nil && other.Unreadable != nil:
			return keys, fmt.Errorf("the store has a value of %s that cannot be read: write it again or delete it there: %w", other.Key, other.Unreadable)
		case have == nil && other == nil:
			return keys, nil
		case have == nil || other != nil && other.Key < have.Key:
			return keys, fmt.Errorf("%w: the store also has %s", ErrDiffers, other.Key)
		case other == nil || have.Key < other.Key:
			if err := missing(*have); err != nil {
				return keys, err
			}
		case !bytes.Equal(have.Value, other.Value) || have.Expires != other.Expires:
			return keys, fmt.Errorf("%w: the store has another %s", ErrDiffers, have.Key)
		default:
			stored.next()
		}
		own.next()
		keys++
	}
	return keys, ctx.Err()
}

// pages reads keys in their order.
type pages struct {
	read func(from string, rev int64) (page []truth.Change, at int64, more bool, err error)
	page []truth.Change
	from string
	rev  int64
	last bool // this is the last page
}

// peek returns the next key, nil at the end.
func (p *pages) peek() (*truth.Change, error) {
	for len(p.page) == 0 {
		if p.last {
			return nil, nil
		}
		page, at, more, err := p.read(p.from, p.rev)
		if err != nil {
			return nil, err
		}
		p.page, p.rev, p.last = page, at, !more
		if len(page) > 0 {
			p.from = page[len(page)-1].Key + "\x00"
		}
	}
	return &p.page[0], nil
}

func (p *pages) next() { p.page = p.page[1:] }
