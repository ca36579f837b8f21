package db

import (
	"context"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// IndexEntry says under which value a revision stands in an index.
type IndexEntry struct {
	Index *Index
	Value string
}

// Index is a secondary index over the keys below a prefix, see DB.DeclareIndexes.
type Index struct {
	Name  string
	id    int64
	ready atomic.Bool
}

// Ready reports whether the index is complete, so that Range may use it.
func (i *Index) Ready() bool { return i.ready.Load() }

// IndexFunc computes the values under which kv stands in the index of that
// name. It must be pure: an index whose meaning changes needs another name.
type IndexFunc func(name string, kv KV) (values []string, err error)

// DeclareIndexes makes the indexes of the keys below prefix be those named, and
// no others. From then on every Put below prefix must give the entries of its
// value. An index that is new is built from what is stored, by values, in the
// background and in small steps; until it is Ready nothing uses it. An index
// that is no longer named is dropped, in small steps, too. While the database is
// open a prefix can be declared again with the same names only: who does not
// know of an index would write below the prefix without entries.
func (d *DB) DeclareIndexes(ctx context.Context, prefix string, names []string, values IndexFunc) ([]*Index, error) {
	d.declareMu.Lock()
	defer d.declareMu.Unlock()
	if have, ok := d.declared[prefix]; ok {
		if !slices.EqualFunc(have, names, func(ix *Index, name string) bool { return ix.Name == name }) {
			return nil, fmt.Errorf("indexes of %s are declared already, and differently: not %q", prefix, names)
		}
		return have, nil
	}
	indexes := make([]*Index, len(names))
	for i, name := range names {
		if name == "" || slices.Contains(names[:i], name) {
			return nil, fmt.Errorf("indexes of %s: name %q is empty or given twice", prefix, name)
		}
		indexes[i] = &Index{Name: name}
	}
	var build, drop []int64
	var target int64
	err := d.write(ctx, func(t *tx) error {
		build, drop, target = nil, nil, t.rev
		known := map[string][2]int64{}
		err := t.c.each(func(row []driver.Value) error {
			known[row[0].(string)] = [2]int64{row[1].(int64), row[2].(int64)}
			return nil
		}, "SELECT name, id, built FROM indexes WHERE prefix = ?", prefix)
		if err != nil {
			return err
		}
		for name, k := range known {
			if !slices.Contains(names, name) {
				if _, err := t.c.exec("DELETE FROM indexes WHERE id = ?", k[0]); err != nil {
					return err
				}
				drop = append(drop, k[0])
			}
		}
		for _, ix := range indexes {
			k, ok := known[ix.Name]
			if !ok {
				if k[0], k[1], err = t.createIndex(prefix, ix.Name); err != nil {
					return err
				}
			}
			ix.id = k[0]
			ix.ready.Store(k[1] == complete)
			if k[1] != complete {
				build = append(build, ix.id)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("declare the indexes of %s: %w", prefix, err)
	}
	d.declared[prefix] = indexes
	if len(build) == 0 && len(drop) == 0 {
		return indexes, nil
	}
	b := &indexBuilder{db: d, prefix: prefix, values: values, target: target}
	for _, ix := range indexes {
		if slices.Contains(build, ix.id) {
			b.indexes = append(b.indexes, ix)
		}
	}
	d.wg.Go(func() { b.run(drop) })
	return indexes, nil
}

// complete in the built column marks an index that needs no building.
const complete = -1

// createIndex adds an index, complete at once when there is nothing to index.
func (t *tx) createIndex(prefix, name string) (id, built int64, err error) {
	n, _, err := t.c.first("SELECT count(*) FROM (SELECT 1 FROM revisions WHERE key >= ?1 AND key < ?2 AND until IS NULL LIMIT 1)", prefix, prefixEnd(prefix))
	if err != nil {
		return 0, 0, err
	}
	if n == 0 {
		// Deleted objects may still be in the history; they count as well.
		n, _, err = t.c.first("SELECT count(*) FROM (SELECT 1 FROM revisions WHERE key >= ?1 AND key < ?2 AND until IS NOT NULL LIMIT 1)", prefix, prefixEnd(prefix))
		if err != nil {
			return 0, 0, err
		}
	}
	if n == 0 {
		built = complete
	}
	id, _, err = t.c.first("INSERT INTO indexes (prefix, name, built) VALUES (?, ?, ?) RETURNING id", prefix, name, built)
	return id, built, err
}

// indexBuilder fills new indexes of one prefix.
type indexBuilder struct {
	db      *DB
	prefix  string
	values  IndexFunc
	indexes []*Index
	target  int64 // later revisions are indexed when they are written
}

// buildRows bounds the rows one step looks at.
const buildRows = 128

func (b *indexBuilder) run(drop []int64) {
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	for {
		err := b.build(ctx)
		if err == nil {
			err = b.db.dropIndexes(ctx, drop)
		}
		if err == nil || errors.Is(err, ErrClosed) {
			return
		}
		b.db.log.Error("building indexes fails and will be tried again", "prefix", b.prefix, "err", err)
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
	err := b.db.read(ctx, func(c *conn) (err error) {
		from, _, err = c.first("SELECT min(built) FROM indexes WHERE prefix = ? AND built >= 0", b.prefix)
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
			if _, err := t.c.exec("UPDATE indexes SET built = ? WHERE id = ?", int64(complete), ix.id); err != nil {
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

// batch reads the next revisions below the prefix, and how far it looked.
func (b *indexBuilder) batch(ctx context.Context, from int64) (kvs []KV, to int64, err error) {
	looked, bytes := 0, 0
	err = b.db.read(ctx, func(c *conn) error {
		return c.each(func(row []driver.Value) (err error) {
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
				return errStop
			}
			return nil
		}, "SELECT rev, key, until IS NOT rev FROM revisions WHERE rev > ? AND rev <= ? ORDER BY rev LIMIT ?", from, b.target, int64(buildRows))
	})
	if looked < buildRows && bytes <= maxRangeBytes {
		to = b.target
	}
	return kvs, to, err
}

// store writes the entries of a batch. Values are computed before, outside of
// the writer; one that cannot be computed is left out, as an object that cannot
// be read matches no list.
func (b *indexBuilder) store(ctx context.Context, kvs []KV, to int64) error {
	entries := make([]indexedValues, len(kvs))
	for i, kv := range kvs {
		for _, ix := range b.indexes {
			values, err := b.valuesOf(ix, kv)
			if err != nil {
				b.db.log.Warn("object left out of an index", "key", kv.Key, "index", ix.Name, "err", err)
				continue
			}
			for _, v := range values {
				entries[i] = append(entries[i], indexedValue{id: ix.id, value: v})
			}
		}
	}
	return b.db.write(ctx, func(t *tx) error {
		for i, kv := range kvs {
			if err := t.addEntries(kv, entries[i]); err != nil {
				return err
			}
		}
		for _, ix := range b.indexes {
			if _, err := t.c.exec("UPDATE indexes SET built = ? WHERE id = ?", to, ix.id); err != nil {
				return err
			}
		}
		return nil
	})
}

func (b *indexBuilder) valuesOf(ix *Index, kv KV) ([]string, error) {
	if kv.Err != nil {
		return nil, kv.Err
	}
	return b.values(ix.Name, kv)
}

// addEntries adds entries to a revision, unless it has been compacted away.
func (t *tx) addEntries(kv KV, add indexedValues) error {
	var have indexedValues
	found := false
	err := t.c.each(func(row []driver.Value) (err error) {
		found = true
		packed, _ := row[0].([]byte)
		have, err = unpackIndexed(packed)
		return err
	}, "SELECT indexed FROM revisions WHERE rev = ?", kv.Rev)
	if err != nil || !found {
		return err
	}
	for _, e := range add {
		if slices.Contains(have, e) {
			continue // written so by this process, or before a crash
		}
		have = append(have, e)
		if err := t.addEntry(kv.Key, kv.Rev, e); err != nil {
			return err
		}
	}
	_, err = t.c.exec("UPDATE revisions SET indexed = ? WHERE rev = ?", have.pack(), kv.Rev)
	return err
}

func (t *tx) addEntry(key string, rev int64, e indexedValue) error {
	_, err := t.c.exec("INSERT OR IGNORE INTO index_entries VALUES (?, ?, ?, ?)", e.id, e.value, key, rev)
	return err
}

// dropIndexes removes the entries of indexes that are gone.
func (d *DB) dropIndexes(ctx context.Context, ids []int64) error {
	for _, id := range ids {
		for more := true; more; {
			err := d.write(ctx, func(t *tx) error {
				n, err := t.c.exec(`DELETE FROM index_entries WHERE (id, value, key, rev) IN
					(SELECT id, value, key, rev FROM index_entries WHERE id = ? LIMIT 500)`, id)
				more = n > 0
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// dropOrphans ends what dropIndexes began before a crash.
func (d *DB) dropOrphans(ctx context.Context) error {
	var orphans []int64
	err := d.read(ctx, func(c *conn) error {
		for id := int64(0); ; {
			next, ok, err := c.first("SELECT min(id) FROM index_entries WHERE id > ?", id)
			if err != nil || !ok {
				return err
			}
			id = next
			if _, known, err := c.first("SELECT 1 FROM indexes WHERE id = ?", id); err != nil {
				return err
			} else if !known {
				orphans = append(orphans, id)
			}
		}
	})
	if err != nil {
		return err
	}
	return d.dropIndexes(ctx, orphans)
}

// indexedValue is an index entry as the revisions table keeps it, so that the
// entry can be removed with its row.
type indexedValue struct {
	id    int64
	value string
}

type indexedValues []indexedValue

func indexed(entries []IndexEntry) (out indexedValues) {
	for _, e := range entries {
		out = append(out, indexedValue{id: e.Index.id, value: e.Value})
	}
	return out
}

// pack encodes the entries as id (uvarint), length (uvarint), bytes, repeated.
func (v indexedValues) pack() []byte {
	var b []byte
	for _, e := range v {
		b = binary.AppendUvarint(b, uint64(e.id))
		b = binary.AppendUvarint(b, uint64(len(e.value)))
		b = append(b, e.value...)
	}
	return b
}

// unpackIndexed is the inverse of pack. It refuses bytes that pack never makes.
func unpackIndexed(b []byte) (out indexedValues, err error) {
	for len(b) > 0 {
		id, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, errors.New("index entries: bad id")
		}
		b = b[n:]
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			return nil, errors.New("index entries: bad length")
		}
		out = append(out, indexedValue{id: int64(id), value: string(b[n : n+int(size)])})
		b = b[n+int(size):]
	}
	return out, nil
}
