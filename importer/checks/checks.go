// Package checks remembers when registries last confirmed that references still lead to the same
// images.
//
// Such a check changes no object: an import of a known image writes nothing, and a sweep of 100,000
// tags would write as many objects, each with a revision that watches report. Checks are kept in
// memory instead, and written to a table of their own once a minute, many at a time. A server that
// is killed forgets the checks of the last minute, so a remembered check may be too early, but
// never too late. Checks older than 30 days are forgotten, too.
package checks

import (
	"context"
	"database/sql/driver"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reconcile"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/warn"
)

const (
	interval = time.Minute         // between two writes
	maxAge   = 30 * 24 * time.Hour // of what is remembered
	maxHeld  = 100_000             // checks in memory, about 30 MB
	soon     = maxHeld / 10        // checks in memory that are written at once
	perWrite = 1000                // rows of a transaction, which other writers wait for
)

// Checks are safe for concurrent use.
type Checks struct {
	db    *db.DB
	tasks *reconcile.Controller[struct{}] // writes
	told  warn.Trouble

	untold warn.Trouble // of Share

	flushing sync.Mutex // held by Flush

	mu      sync.Mutex
	held    map[string]check // by reference: not written yet
	writing map[string]check // being written
}

type check struct {
	digest string
	at     int64 // Unix milliseconds
}

// New returns the checks of a database. A nil clock is the real one.
func New(d *db.DB, k clock.WithTicker) *Checks {
	c := &Checks{db: d, held: map[string]check{}}
	c.tasks = reconcile.New(c, reconcile.Options[struct{}]{Task: "writing when registries last confirmed references", Clock: k})
	return c
}

// Confirm remembers checks. It skips a check that is not a reference, and one for which there is no
// room: then what is known of it is only older.
func (c *Checks) Confirm(all []tags.Check) {
	now := c.db.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range all {
		ref, err := reference.Parse(one.Reference)
		if err != nil || !reference.IsDigest(one.Digest) || one.At.Before(now.Add(-maxAge)) {
			continue
		}
		if one.At.After(now) {
			one.At = now // by another clock
		}
		key, next := ref.Pulled().String(), check{one.Digest, one.At.UnixMilli()}
		had, ok := c.held[key]
		if !ok && len(c.held) == maxHeld || ok && had.at > next.at && had.at <= now.UnixMilli() { // else the clock was set back
			continue
		}
		c.held[key] = next
	}
	if len(c.held) >= soon {
		c.tasks.Add(struct{}{})
	}
}

// Asked is a reference, and where it is known to lead.
type Asked struct{ Reference, Digest string }

// At returns for each reference when a registry last confirmed that it leads to the digest; zero if
// that is not known.
func (c *Checks) At(ctx context.Context, asked []Asked) ([]time.Time, error) {
	out, unheld := make([]time.Time, len(asked)), make([]int, 0, len(asked))
	c.mu.Lock()
	for i, a := range asked {
		found, ok := c.held[a.Reference]
		if !ok {
			found, ok = c.writing[a.Reference]
		}
		if !ok {
			unheld = append(unheld, i)
			continue
		}
		if found.digest == a.Digest {
			out[i] = time.UnixMilli(found.at).UTC()
		}
	}
	c.mu.Unlock()
	if len(unheld) == 0 {
		return out, nil
	}
	err := c.db.Read(ctx, func(s db.Snapshot) error {
		for _, i := range unheld {
			err := s.Each(func(row []driver.Value) error {
				out[i] = time.UnixMilli(row[0].(int64)).UTC()
				return nil
			}, "SELECT at FROM checks WHERE reference = ? AND digest = ?", asked[i].Reference, asked[i].Digest)
			if err != nil {
				return err
			}
		}
		return nil
	})
	return out, err
}

// Complete writes into ImageTags when a registry last confirmed where they lead, if that is later
// than the time that they have. It skips checks that cannot be read.
func (c *Checks) Complete(ctx context.Context, all []*imagev1.ImageTag) {
	asked, now := make([]Asked, len(all)), c.db.Now()
	for i, tag := range all {
		if ref, ok := tags.Reference(tag); ok {
			leads, _ := tags.Now(tag)
			asked[i] = Asked{ref.String(), leads}
		}
	}
	at, err := c.At(ctx, asked)
	if err != nil {
		return
	}
	for i, tag := range all {
		tags.Confirm(tag, at[i], now)
	}
}

// Run calls Flush once a minute until ctx is done, and when there are many checks to write.
func (c *Checks) Run(ctx context.Context) error {
	c.tasks.Add(struct{}{})
	return c.tasks.Run(ctx)
}

// Reconcile implements [reconcile.Reconciler].
func (c *Checks) Reconcile(ctx context.Context, _ struct{}) (again time.Duration, err error) {
	c.Flush(ctx)
	return interval, nil
}

// Flush writes the checks in memory and removes old ones. After an error they stay in memory. Call
// it before the database is closed.
func (c *Checks) Flush(ctx context.Context) {
	c.flushing.Lock()
	defer c.flushing.Unlock()
	c.mu.Lock()
	c.writing, c.held = c.held, make(map[string]check, len(c.held))
	writing := c.writing
	c.mu.Unlock()
	var err error
	for some := range slices.Chunk(slices.Sorted(maps.Keys(writing)), perWrite) {
		if err = errors.Join(err, c.db.Transact(ctx, func(t db.Transaction) error { return put(t, some, writing) })); err != nil {
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writing = nil
	if err == nil {
		c.told.End("", "Writing when registries last confirmed references works again")
		return
	}
	c.told.Begin("", "Writing when registries last confirmed references failed; a restart would forget it", "err", err)
	for key, one := range writing {
		if _, newer := c.held[key]; !newer && len(c.held) < maxHeld {
			c.held[key] = one
		}
	}
}

// put writes rows, and removes as many old ones at most.
func put(t db.Transaction, keys []string, checks map[string]check) error {
	if _, err := t.Exec("DELETE FROM checks WHERE reference IN (SELECT reference FROM checks WHERE at < ? ORDER BY at LIMIT ?)", t.Now()-maxAge.Milliseconds(), int64(perWrite)); err != nil {
		return err
	}
	if err := t.MayGrow(); err != nil {
		return err
	}
	for _, key := range keys {
		one := checks[key]
		if _, err := t.Exec("INSERT INTO checks VALUES (?, ?, ?) ON CONFLICT (reference) DO UPDATE SET digest = excluded.digest, at = excluded.at WHERE excluded.at > at OR at > ?", key, one.digest, one.at, t.Now()); err != nil {
			return err
		}
	}
	return nil
}
