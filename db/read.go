package db

import (
	"cmp"
	"context"
	"database/sql/driver"
	"fmt"

	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
	"github.com/tidewaiter/tidewaiter/db/truth"
)

// KV is a key with the value of one of its revisions. Value must not be changed.
type KV struct {
	Key   string
	Rev   int64
	Value []byte
	// Err is a *DamagedError if the stored bytes differ from those that were written; Value is nil
	// then.
	Err error
}

// Bounds of one Range call.
const (
	// MaxRangeRows is the most rows a Range returns.
	MaxRangeRows = 10000
	// maxRangeBytes closes a page early, so that a page of large values does
	// not take memory out of proportion. RangeOptions.Bytes may ask for less.
	maxRangeBytes = 4 << 20
)

// RangeOptions say what Range reads.
type RangeOptions struct {
	// Prefix selects the keys that start with it.
	Prefix string
	// From skips keys before it; "" starts at the prefix.
	From string
	// Rev reads the state at this revision; 0 is the newest.
	Rev int64
	// Since is used if Rev is 0: the state may be as old as this revision. If both are 0, it is not
	// older than the call.
	Since int64
	// Limit bounds the rows. MaxRangeRows is the largest limit, and the default.
	Limit int
	// Bytes closes the page as soon as its values have this size together. 4 MiB is the largest size,
	// and the default.
	Bytes int
	// Index reads only the keys that all of these queries find, each once. The first should find
	// the fewest. The indexes must be Ready.
	Index []IndexQuery
	// KeysOnly leaves the values out.
	KeysOnly bool
	// Newest returns the newest keys first, of the current state. There is no next page, and the read
	// costs a step for each key of the range. It cannot be combined with From or Index.
	Newest bool
	// Count makes Range set Page.Remaining.
	Count bool
}

// IndexQuery finds the keys that have one of some values in an index.
type IndexQuery struct {
	Index  *Index
	Values []string
	// Part, if it is not empty, replaces Values: the query finds the keys with a value that contains
	// it, whatever the case of ASCII letters. It reads all values of this index and of no other.
	Part string
}

// Page is the result of Range.
type Page struct {
	// Rev is the revision the page shows. Read the next page at it.
	Rev int64
	// KVs are in the order of their keys, unless RangeOptions.Newest is set.
	KVs []KV
	// More is set when the range has keys after the last of KVs. The next page
	// starts at that key followed by a zero byte.
	More bool
	// Remaining is the number of keys after the page, when More and RangeOptions.Count are set;
	// otherwise it may be 0.
	Remaining int64
}

// prefixEnd returns the smallest string after every string that starts with
// prefix. Keys are UTF-8 text, so 0xff is after all of them.
func prefixEnd(prefix string) string { return prefix + "\xff" }

// Get returns the newest revision of key, and ok false when the key does not exist. The result is
// at least as new as revision atLeast.
func (d *DB) Get(ctx context.Context, key string) (kv KV, ok bool, atLeast int64, err error) {
	return d.GetSince(ctx, key, 0)
}

// GetSince is Get, but the result may be as old as revision since. If since is 0, it is not older
// than the call.
func (d *DB) GetSince(ctx context.Context, key string, since int64) (kv KV, ok bool, atLeast int64, err error) {
	err = d.caughtUp(ctx, since, func() error {
		kv, ok, atLeast, err = d.get(ctx, key)
		return err
	})
	return kv, ok, atLeast, err
}

// GetUnless is Get, but returns only the revision, and reads nothing, if has reports true for it:
// the caller has the value. It calls has if it knows the revision without a read, and again if the
// file was filled meanwhile.
func (d *DB) GetUnless(ctx context.Context, key string, has func(rev int64) bool) (kv KV, ok bool, err error) {
	err = d.caughtUp(ctx, 0, func() (err error) {
		if rev, known := d.live.newest(key); known && has(rev) {
			kv, ok = KV{Key: key, Rev: rev}, true
			return nil
		}
		kv, ok, _, err = d.get(ctx, key)
		return err
	})
	return kv, ok, err
}

func (d *DB) get(ctx context.Context, key string) (kv KV, ok bool, atLeast int64, err error) {
	atLeast = d.revision.Load()
	err = d.read(ctx, func(c *sqlite.Conn) error {
		err := c.Each(func(row []driver.Value) error {
			ok, kv = true, d.kv(key, row[0], row[1], row[2])
			return sqlite.ErrStop
		}, "SELECT r.rev, c.sum, c.value FROM revisions r LEFT JOIN contents c ON c.rev = r.rev WHERE r.key = ? AND r.until IS NULL", key)
		if err == nil && !ok {
			err = d.checkMissing(c, key)
		}
		return err
	})
	if ok {
		d.observe(kv.Rev)
		atLeast = max(atLeast, kv.Rev)
	}
	return kv, ok, atLeast, err
}

// observe notes a revision read from the file. Readers can see a commit a moment before the writer
// has recorded its revision, and must not get ErrFutureRevision when they use that revision.
func (d *DB) observe(rev int64) {
	for cur := d.revision.Load(); rev > cur && !d.revision.CompareAndSwap(cur, rev); {
		cur = d.revision.Load()
	}
}

// GetAt returns key as it was at rev.
func (d *DB) GetAt(ctx context.Context, key string, rev int64) (kv KV, ok bool, err error) {
	if err := d.CatchUp(ctx, rev); err != nil {
		return KV{}, false, err
	}
	if err := d.checkRev(rev); err != nil {
		return KV{}, false, err
	}
	err = d.read(ctx, func(c *sqlite.Conn) error {
		return c.Each(func(row []driver.Value) error {
			ok, kv = true, d.kv(key, row[0], row[1], row[2])
			return sqlite.ErrStop
		}, `SELECT s.rev, c.sum, c.value FROM (
			SELECT rev FROM revisions WHERE key = ?1 AND until IS NULL AND rev <= ?2
			UNION ALL SELECT rev FROM revisions WHERE key = ?1 AND until > ?2 AND rev <= ?2) s
			JOIN contents c ON c.rev = s.rev`, key, rev)
	})
	if err == nil {
		err = d.checkRev(rev)
	}
	return kv, ok, err
}

// checkRev fails if the state at rev cannot be read. Call it again after the read: compaction
// raises the limit before it removes rows.
func (d *DB) checkRev(rev int64) error {
	if rev < d.compacted.Load() {
		return fmt.Errorf("revision %d: %w", rev, ErrCompacted)
	}
	if cur := d.revision.Load(); rev > cur {
		return fmt.Errorf("revision %d, current %d: %w", rev, cur, ErrFutureRevision)
	}
	return nil
}

// The range queries. Contents are joined last, row by row, so that a page reads only the values it
// returns. The state at a revision is the live rows that are not newer than it, merged with the
// rows that were superseded after it.
const (
	rangeLive = `SELECT key, rev FROM revisions INDEXED BY live
		WHERE until IS NULL AND key >= ?1 AND key < ?2 ORDER BY key LIMIT ?3`
	rangeNewest = `SELECT key, rev FROM revisions INDEXED BY live
		WHERE until IS NULL AND key >= ?1 AND key < ?2 ORDER BY rev DESC LIMIT ?3`
	rangeAt = `SELECT key, rev FROM (
		SELECT key, rev FROM revisions INDEXED BY live WHERE until IS NULL AND key >= ?1 AND key < ?2 AND rev <= ?4
		UNION ALL
		SELECT key, rev FROM %s AND key >= ?1 AND key < ?2 AND rev <= ?4
		ORDER BY key) LIMIT ?3`
	withValues = `SELECT s.key, s.rev, c.sum, c.value FROM (%s) s CROSS JOIN contents c ON c.rev = s.rev`
)

// There are two ways to find the rows that were superseded after ?4: byHistory reads the history of
// the range in the order of keys; byChanges collects the changes after ?4 and sorts them.
const (
	byHistory = "revisions INDEXED BY history WHERE until > ?4"
	byChanges = "revisions NOT INDEXED WHERE rev IN (SELECT prev_rev FROM revisions WHERE rev > ?4)"
)

// fewChanges is the largest number of changes for which byChanges is used. The history of five
// minutes may have a hundred times as many. A variable for tests.
var fewChanges int64 = 100

// superseded returns the FROM clause that finds rows superseded after a revision.
func (d *DB) superseded(rev int64) string {
	if d.revision.Load()-rev <= fewChanges {
		return byChanges
	}
	return byHistory
}

// Range reads a page of keys. See ErrCompacted and ErrFutureRevision for the
// revisions that cannot be read.
func (d *DB) Range(ctx context.Context, o RangeOptions) (p Page, err error) {
	since := cmp.Or(o.Rev, o.Since)
	err = d.caughtUp(ctx, since, func() error {
		p, err = d.readRange(ctx, o)
		return err
	})
	return p, err
}

func (d *DB) readRange(ctx context.Context, o RangeOptions) (p Page, err error) {
	from, end := o.Prefix, prefixEnd(o.Prefix)
	if o.From > from {
		from = o.From
	}
	limit := o.Limit
	if limit <= 0 || limit > MaxRangeRows {
		limit = MaxRangeRows
	}
	if o.Rev != 0 {
		if err := d.checkRev(o.Rev); err != nil {
			return Page{}, err
		}
	}
	full := o.Bytes
	if full <= 0 || full > maxRangeBytes {
		full = maxRangeBytes
	}
	p.Rev = o.Rev
	var bytes int
	take := func(row []driver.Value) error {
		if len(p.KVs) == limit || bytes >= full {
			p.More = true
			return sqlite.ErrStop
		}
		key := row[0].(string)
		if len(row) == 2 {
			p.KVs = append(p.KVs, KV{Key: key, Rev: row[1].(int64)})
			return nil
		}
		kv := d.kv(key, row[1], row[2], row[3])
		bytes += len(kv.Value)
		p.KVs = append(p.KVs, kv)
		return nil
	}
	read := d.read
	if o.Rev == 0 {
		read = d.snapshot
	}
	err = read(ctx, func(c *sqlite.Conn) error {
		if o.Rev == 0 {
			var err error
			if p.Rev, _, err = c.First("SELECT value FROM meta WHERE name = 'revision'"); err != nil {
				return err
			}
			d.observe(p.Rev)
		}
		pick := func(keys string) string {
			if o.KeysOnly {
				return keys
			}
			return fmt.Sprintf(withValues, keys)
		}
		var err error
		switch {
		case len(o.Index) > 0:
			err = d.eachIndexed(c, take, indexedRange{prefix: o.Prefix, from: from, end: end, limit: int64(limit) + 1, rev: p.Rev, index: o.Index, keysOnly: o.KeysOnly})
		case o.Newest:
			err = c.Each(take, pick(rangeNewest), from, end, int64(limit)+1)
		case o.Rev == 0:
			err = c.Each(take, pick(rangeLive), from, end, int64(limit)+1)
		default:
			err = c.Each(take, pick(fmt.Sprintf(rangeAt, d.superseded(o.Rev))), from, end, int64(limit)+1, p.Rev)
		}
		if err == nil && len(o.Index) == 0 && !o.Newest {
			p.Remaining, err = d.remaining(c, o, p)
		}
		return err
	})
	if err == nil && o.Rev != 0 {
		err = d.checkRev(o.Rev)
	}
	if err != nil {
		return Page{}, err
	}
	return p, nil
}

// Values reads the values of keys that Range has returned without values, as of revision rev, and
// sets them in kvs. It stops after the value that fills bytes, and returns how many it has read.
func (d *DB) Values(ctx context.Context, rev int64, kvs []KV, bytes int) (n int, err error) {
	err = d.read(ctx, func(c *sqlite.Conn) error {
		for stored := 0; n < len(kvs) && stored < bytes; n++ {
			kv := &kvs[n]
			missing := true
			err := c.Each(func(row []driver.Value) error {
				missing, *kv = false, d.kv(kv.Key, kv.Rev, row[0], row[1])
				return sqlite.ErrStop
			}, "SELECT sum, value FROM contents WHERE rev = ?", kv.Rev)
			if err == nil && missing {
				if err = d.checkRev(rev); err == nil {
					*kv = d.kv(kv.Key, kv.Rev, nil, nil)
				}
			}
			if err != nil {
				return err
			}
			stored += len(kv.Value)
		}
		return nil
	})
	return n, err
}

// livePage is how many keys LivePage returns.
const livePage = 200

// LivePage returns a page of the live keys, with their expiry times, in the order of keys and
// beginning at from, as [truth.Store.Range] does. more is true if more keys follow.
func (d *DB) LivePage(ctx context.Context, from string) (page []truth.Change, more bool, err error) {
	err = d.caughtUp(ctx, 0, func() error {
		page, more = nil, false
		return d.read(ctx, func(c *sqlite.Conn) error {
			return c.Each(func(row []driver.Value) error {
				if len(page) == livePage {
					more = true
					return sqlite.ErrStop
				}
				kv := d.kv(row[0].(string), row[1], row[2], row[3])
				expires, _ := row[4].(int64)
				page = append(page, truth.Change{Key: kv.Key, Rev: kv.Rev, Value: kv.Value, Expires: expires})
				return kv.Err
			}, `SELECT s.key, s.rev, c.sum, c.value, s.expires FROM (SELECT key, rev, expires FROM revisions INDEXED BY live
				WHERE until IS NULL AND key >= ? ORDER BY key LIMIT ?) s LEFT JOIN contents c ON c.rev = s.rev`, from, int64(livePage)+1)
		})
	})
	return page, more, err
}
