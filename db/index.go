package db

import (
	"context"
	"database/sql/driver"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

// Index is a secondary index over the keys below a prefix, see DB.DeclareIndexes.
type Index struct {
	Name  string
	id    int64
	ready atomic.Bool
}

// Ready reports whether the index is complete, so that Range may use it.
func (i *Index) Ready() bool { return i.ready.Load() }

// IndexFunc computes the entries of kv in some of the declared indexes; kv is decoded once for all
// of them. If it returns an error, it also returns the entries in the indexes that the error does
// not affect. It must be pure: an index whose meaning changes needs another name.
type IndexFunc func(kv KV, indexes []*Index) ([]IndexEntry, error)

// DeclareIndexes gives the keys below prefix the named indexes, and no others. From then on every
// Put below prefix must give the entries of its value. A new index is built from the stored values,
// in the background and in small steps; nothing uses it until it is Ready. An index that is no
// longer named is dropped, in small steps, too. While the database is open, a prefix can be
// declared again with the same names only: a caller that does not know an index would write keys
// without entries in it.
func (d *DB) DeclareIndexes(ctx context.Context, prefix string, names []string, entries IndexFunc) ([]*Index, error) {
	d.declareMu.Lock()
	defer d.declareMu.Unlock()
	if have, ok := d.declared[prefix]; ok {
		if !slices.EqualFunc(have, names, func(ix *Index, name string) bool { return ix.Name == name }) {
			return nil, fmt.Errorf("indexes of %s are already declared differently: not %q", prefix, names)
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
		err := t.c.Each(func(row []driver.Value) error {
			known[row[0].(string)] = [2]int64{row[1].(int64), row[2].(int64)}
			return nil
		}, "SELECT name, id, built FROM indexes WHERE prefix = ?", prefix)
		if err != nil {
			return err
		}
		for name, k := range known {
			if !slices.Contains(names, name) {
				if _, err := t.c.Exec("DELETE FROM indexes WHERE id = ?", k[0]); err != nil {
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
		d.functions.Store(prefix, &declaration{prefix, indexes, entries})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("declare the indexes of %s: %w", prefix, err)
	}
	d.declared[prefix] = indexes
	if len(build) == 0 && len(drop) == 0 {
		return indexes, nil
	}
	b := &indexBuilder{db: d, prefix: prefix, entries: entries, target: target}
	for _, ix := range indexes {
		if slices.Contains(build, ix.id) {
			b.indexes = append(b.indexes, ix)
		}
	}
	d.wg.Go(func() { b.run(drop) })
	return indexes, nil
}

// declaration has the indexes of a prefix with the function that computes their values.
type declaration struct {
	prefix  string
	indexes []*Index
	entries IndexFunc
}

// indexesFor returns the declaration for a key, nil if there is none. On the writer's goroutine the
// result is final: an index that is declared later is built from everything that was written
// before.
func (d *DB) indexesFor(key string) (found *declaration) {
	d.functions.Range(func(_, v any) bool {
		if decl := v.(*declaration); strings.HasPrefix(key, decl.prefix) {
			found = decl
		}
		return found == nil
	})
	return found
}

// complete in the built column marks an index that needs no building.
const complete = -1

// createIndex adds an index, complete at once when there is nothing to index.
func (t *tx) createIndex(prefix, name string) (id, built int64, err error) {
	n, _, err := t.c.First("SELECT count(*) FROM (SELECT 1 FROM revisions WHERE key >= ?1 AND key < ?2 AND until IS NULL LIMIT 1)", prefix, prefixEnd(prefix))
	if err != nil {
		return 0, 0, err
	}
	if n == 0 {
		// Deleted objects that are still in the history count, too.
		n, _, err = t.c.First("SELECT count(*) FROM (SELECT 1 FROM revisions WHERE key >= ?1 AND key < ?2 AND until IS NOT NULL LIMIT 1)", prefix, prefixEnd(prefix))
		if err != nil {
			return 0, 0, err
		}
	}
	if n == 0 {
		built = complete
	}
	id, _, err = t.c.First("INSERT INTO indexes (prefix, name, built) VALUES (?, ?, ?) RETURNING id", prefix, name, built)
	return id, built, err
}

// dropIndexes removes the entries of indexes that are gone.
func (d *DB) dropIndexes(ctx context.Context, ids []int64) error {
	for _, id := range ids {
		for more := true; more; {
			err := d.write(ctx, func(t *tx) error {
				n, err := t.c.Exec(`DELETE FROM index_entries WHERE (id, value, rev) IN
					(SELECT id, value, rev FROM index_entries WHERE id = ? LIMIT 500)`, id)
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

// dropOrphans completes a dropIndexes that a crash interrupted.
func (d *DB) dropOrphans(ctx context.Context) error {
	var orphans []int64
	err := d.read(ctx, func(c *sqlite.Conn) error {
		for id := int64(0); ; {
			next, ok, err := c.First("SELECT min(id) FROM index_entries WHERE id > ?", id)
			if err != nil || !ok {
				return err
			}
			id = next
			if _, known, err := c.First("SELECT 1 FROM indexes WHERE id = ?", id); err != nil {
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
