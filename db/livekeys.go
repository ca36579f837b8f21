package db

import (
	"context"
	"database/sql/driver"
	"fmt"
	"hash/maphash"
	"sync"
)

// A page of the index live that is whole but old, as a disk leaves it that has lost a
// write, does not have the keys that were written since, and nothing in it says so: a
// get would say that such an object is gone, and a create put a second one beside it.
// So the process knows which keys are live from the table, and asks the table about a key
// that the index does not have and that should be there.

// maxLiveKeys bounds the keys that are known, to about 40 MB. In a larger database, and
// until the table has been read after a start, checkNeighbours does what it can.
const maxLiveKeys = 1 << 20

// liveKeys are the revisions that live keys are at.
type liveKeys struct {
	seed maphash.Seed

	mu       sync.RWMutex
	revs     map[uint64]int64 // by the key's hash; of two with the same, one is there
	complete bool             // the table has been read to its end
}

func newLiveKeys() *liveKeys {
	return &liveKeys{seed: maphash.MakeSeed(), revs: map[uint64]int64{}}
}

// find returns the revision that key should be at, 0 if it should not be there or is not
// known, and whether all keys are known.
func (l *liveKeys) find(key string) (rev int64, complete bool) {
	hash := maphash.String(l.seed, key)
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.revs[hash], l.complete
}

// commit learns from the events of a commit.
func (l *liveKeys) commit(events []*Event) {
	for _, e := range events {
		if !e.Deleted {
			l.put(e.Key, e.Rev)
			continue
		}
		l.mu.Lock()
		delete(l.revs, maphash.String(l.seed, e.Key))
		l.mu.Unlock()
	}
}

func (l *liveKeys) put(key string, rev int64) {
	hash := maphash.String(l.seed, key)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.revs == nil {
		return
	}
	l.revs[hash] = max(rev, l.revs[hash])
	if len(l.revs) > maxLiveKeys {
		l.revs, l.complete = nil, false
	}
}

// learnLiveKeys reads the table up to the present revision; commits tell of what follows.
func (d *DB) learnLiveKeys(ctx context.Context) error {
	const rows = 1000 // read at a time
	l := d.live
	for from, to := int64(0), d.revision.Load(); ; {
		n := 0
		err := d.read(ctx, func(c *conn) error {
			return c.each(func(row []driver.Value) error {
				rev := row[0].(int64)
				if rev <= from {
					return d.corrupt(fmt.Errorf("revision %d follows %d", rev, from))
				}
				n, from = n+1, rev
				if live := row[2].(int64) != 0; live {
					l.put(row[1].(string), rev)
				}
				return nil
			}, "SELECT rev, key, until IS NULL FROM revisions NOT INDEXED WHERE rev > ? AND rev <= ? ORDER BY rev LIMIT ?", from, to, int64(rows))
		})
		l.mu.Lock()
		full := l.revs == nil
		l.complete = err == nil && n < rows && !full
		l.mu.Unlock()
		if err != nil || n < rows || full {
			return err
		}
	}
}

// indexError says that the index of live keys does not agree with its table.
type indexError struct{ key, detail string }

func (e *indexError) Error() string {
	return fmt.Sprintf("whether %s exists cannot be told: %s", e.key, e.detail)
}

// missingLive asks whether the row of a revision has a key that is live, and the index does
// not have the key. It is one statement, so both are of one moment.
const missingLive = `SELECT 1 FROM revisions NOT INDEXED WHERE rev = ?1 AND key = ?2 AND until IS NULL
	AND NOT EXISTS (SELECT 1 FROM revisions INDEXED BY live WHERE key = ?2 AND until IS NULL)`

// checkMissing fails with *indexError if a key that the index of live keys does not have may
// be missing from the index alone.
func (d *DB) checkMissing(c *conn, key string) error {
	rev, complete := d.live.find(key)
	if rev != 0 {
		switch _, missing, err := c.first(missingLive, rev, key); {
		case err != nil:
			return err
		case missing:
			return &indexError{key, fmt.Sprintf("the table has it at revision %d, and the index of keys has not", rev)}
		}
	}
	if complete {
		return nil
	}
	return c.checkNeighbours(key)
}
