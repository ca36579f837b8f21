package db

import (
	"container/list"
	"context"
	"database/sql/driver"
	"fmt"
	"strings"
	"sync"

	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

// maxPageCounts bounds the remembered pages; a forgotten one is counted again.
const maxPageCounts = 4096

// pageCounts caches, for a page of a list, how many keys that page and all later pages have. The
// count for the next page follows from it, so paging does not count all keys for each page. A page
// is identified by its range and revision, for which the count never changes.
type pageCounts struct {
	mu    sync.Mutex
	pages map[pageKey]*list.Element
	order *list.List // of pageCount, oldest first
}

type pageKey struct {
	prefix, from string
	rev          int64
}

type pageCount struct {
	key       pageKey
	remaining int64
}

func newPageCounts() *pageCounts {
	return &pageCounts{pages: map[pageKey]*list.Element{}, order: list.New()}
}

func (p *pageCounts) get(k pageKey) (int64, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, ok := p.pages[k]
	if !ok {
		return 0, false
	}
	return e.Value.(pageCount).remaining, true
}

func (p *pageCounts) put(k pageKey, remaining int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.pages[k]; ok {
		return
	}
	p.pages[k] = p.order.PushBack(pageCount{k, remaining})
	if len(p.pages) > maxPageCounts {
		oldest := p.order.Front()
		delete(p.pages, oldest.Value.(pageCount).key)
		p.order.Remove(oldest)
	}
}

// remaining returns the number of keys after page p, which was read for o, if o.Count is set or the
// number is cached. It also detects missing keys: SQLite may skip damaged pages of an index without
// an error. If o reads the newest revision, remaining runs in the transaction that read p.
func (d *DB) remaining(c *sqlite.Conn, o RangeOptions, p Page) (int64, error) {
	end := prefixEnd(o.Prefix)
	first := o.From <= o.Prefix
	var left int64
	var known bool
	switch {
	case first && o.Rev == 0 && strings.HasSuffix(o.Prefix, "/"):
		n, _, err := c.First("SELECT sum(objects) FROM directories WHERE dir >= ? AND dir < ?", o.Prefix, end)
		if err != nil {
			return 0, err
		}
		left, known = n-int64(len(p.KVs)), true
	case !first && o.Rev != 0:
		n, ok := d.pages.get(pageKey{o.Prefix, o.From, o.Rev})
		left, known = n-int64(len(p.KVs)), ok
	}
	if known && (left < 0 || p.More != (left > 0)) {
		if o.Rev != 0 {
			if err := d.checkRev(o.Rev); err != nil {
				return 0, err // the revision was compacted meanwhile
			}
		}
		return 0, d.corrupt(fmt.Errorf("keys below %s are missing or too many: %d", o.Prefix, left))
	}
	if !p.More || !known && !o.Count {
		return 0, nil
	}
	next := p.KVs[len(p.KVs)-1].Key + "\x00"
	if !known {
		var err error
		left, _, err = c.First(`SELECT
			(SELECT count(*) FROM revisions INDEXED BY live WHERE until IS NULL AND key >= ?1 AND key < ?2 AND rev <= ?3) +
			(SELECT count(*) FROM revisions INDEXED BY history WHERE until > ?3 AND key >= ?1 AND key < ?2 AND rev <= ?3)`,
			next, end, p.Rev)
		if err != nil {
			return 0, err
		}
	}
	d.pages.put(pageKey{o.Prefix, next, p.Rev}, left)
	return left, nil
}

// Totals returns the number of live keys below prefix, which ends in "/", and the bytes of their
// values. It reads one row for each directory, not for each key.
func (d *DB) Totals(ctx context.Context, prefix string) (objects, bytes int64, err error) {
	err = d.read(ctx, func(c *sqlite.Conn) error {
		return c.Each(func(row []driver.Value) error {
			objects, _ = row[0].(int64)
			bytes, _ = row[1].(int64)
			return nil
		}, "SELECT sum(objects), sum(bytes) FROM directories WHERE dir >= ? AND dir < ?", prefix, prefixEnd(prefix))
	})
	return objects, bytes, err
}
