package db

import (
	"context"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

// indexBuilder fills new indexes of one prefix.
type indexBuilder struct {
	db      *DB
	prefix  string
	entries IndexFunc
	indexes []*Index
	target  int64 // later revisions are indexed when they are written
}

// buildRows bounds the rows one step looks at.
const buildRows = 128

func (b *indexBuilder) run(drop []int64) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for {
		err := b.build(ctx)
		if err == nil {
			err = b.db.dropIndexes(ctx, drop)
		}
		if err == nil || errors.Is(err, ErrClosed) {
			return
		}
		b.db.log.Error("building indexes failed, will retry", "prefix", b.prefix, "err", err)
		select {
		case <-b.db.clock.After(10 * time.Second):
		case <-b.db.stop:
			return
		}
	}
}

func (b *indexBuilder) build(ctx context.Context) error {
	if len(b.indexes) == 0 {
		return nil
	}
	var from int64
	err := b.db.read(ctx, func(c *sqlite.Conn) (err error) {
		from, _, err = c.First("SELECT min(built) FROM indexes WHERE prefix = ? AND built >= 0", b.prefix)
		return err
	})
	if err != nil {
		return err
	}
	start, logged := b.db.clock.Now(), b.db.clock.Now()
	rows := 0
	for from < b.target {
		kvs, to, err := b.batch(ctx, from)
		if err != nil {
			return err
		}
		if err := b.store(ctx, kvs, to); err != nil {
			return err
		}
		from = to
		rows += len(kvs)
		if now := b.db.clock.Now(); now.Sub(logged) > 10*time.Second {
			logged = now
			b.db.log.Info("building indexes", "prefix", b.prefix, "revision", from, "of", b.target, "objects", rows)
		}
	}
	err = b.db.write(ctx, func(t *tx) error {
		for _, ix := range b.indexes {
			if _, err := t.c.Exec("UPDATE indexes SET built = ? WHERE id = ?", int64(complete), ix.id); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, ix := range b.indexes {
		ix.ready.Store(true)
	}
	b.db.log.Info("indexes built", "prefix", b.prefix, "indexes", len(b.indexes), "objects", rows, "took", b.db.clock.Now().Sub(start).String())
	b.indexes = nil
	return nil
}

// batch reads the next revisions below the prefix. to is the revision up to which it has read.
func (b *indexBuilder) batch(ctx context.Context, from int64) (kvs []KV, to int64, err error) {
	looked, bytes := 0, 0
	err = b.db.read(ctx, func(c *sqlite.Conn) error {
		return c.Each(func(row []driver.Value) (err error) {
			kv := KV{Rev: row[0].(int64), Key: row[1].(string)}
			if row[2].(int64) != 0 && len(kv.Key) > len(b.prefix) && kv.Key[:len(b.prefix)] == b.prefix {
				kv.Value, kv.Err = b.db.contents(c, kv.Key, kv.Rev)
				var damaged *DamagedError
				if kv.Err != nil && !errors.As(kv.Err, &damaged) {
					return kv.Err
				}
				bytes += len(kv.Value)
				kvs = append(kvs, kv)
			}
			looked, to = looked+1, kv.Rev
			if bytes > maxRangeBytes {
				return sqlite.ErrStop
			}
			return nil
		}, "SELECT rev, key, until IS NOT rev FROM revisions WHERE rev > ? AND rev <= ? ORDER BY rev LIMIT ?", from, b.target, int64(buildRows))
	})
	if looked < buildRows && bytes <= maxRangeBytes {
		to = b.target
	}
	return kvs, to, err
}

// store writes the entries of a batch. They are computed before the transaction, outside of the
// writer.
func (b *indexBuilder) store(ctx context.Context, kvs []KV, to int64) error {
	entries := make([]indexedValues, len(kvs))
	for i, kv := range kvs {
		for _, e := range b.db.indexed(kv, b.entries, b.indexes) {
			entries[i] = append(entries[i], indexedValue{id: e.Index.id, value: e.Value})
		}
	}
	return b.db.write(ctx, func(t *tx) error {
		if err := t.mayGrow(); err != nil {
			return err
		}
		for i, kv := range kvs {
			if err := t.addEntries(kv, entries[i]); err != nil {
				return err
			}
		}
		for _, ix := range b.indexes {
			if _, err := t.c.Exec("UPDATE indexes SET built = ? WHERE id = ?", to, ix.id); err != nil {
				return err
			}
		}
		return nil
	})
}

// indexed returns the entries of kv. If they cannot be computed, it logs that and returns none: the
// index then does not find the object.
func (d *DB) indexed(kv KV, compute IndexFunc, indexes []*Index) []IndexEntry {
	entries, err := []IndexEntry(nil), kv.Err
	if err == nil {
		entries, err = compute(kv, indexes)
	}
	if err != nil {
		d.log.Warn("object left out of an index", "key", kv.Key, "err", err)
	}
	return entries
}
