package db

import (
	"context"
	"database/sql/driver"
	"fmt"
	"github.com/tidewaiter/tidewaiter/db/sqlite"
	"hash/maphash"
	"sync"
)

// A disk that loses a write leaves the page of before, which is whole. Such a page of the
// index live lacks the keys that were written since, and nothing in it says so: a get
// would find no object, and a create would put a second one beside it. So the process
// learns the live keys from the table, and asks the table about a key that the index
// lacks and that should be there.

// maxLiveKeys bounds the keys that are known, to about 40 MB. In a larger database, and
// at a start until the table has been read, checkNeighbours does what it can.
const maxLiveKeys = 1 << 20

// liveKeys holds the revision of each live key.
type liveKeys struct {
	seed maphash.Seed

	mu       sync.RWMutex
	revs     map[uint64]int64 // by hash of the key; of two keys with one hash, one is there
	complete bool             // the table has been read to its end
}

func newLiveKeys() *liveKeys {
	return &liveKeys{seed: maphash.MakeSeed(), revs: map[uint64]int64{}}
}

// find returns the revision that key should be at, or 0 if the key should not be there or
// is not known. complete is set when all keys are known.
func (l *liveKeys) find(key string) (rev int64, complete bool) {
	hash := maphash.String(l.seed, key)
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.revs[hash], l.complete
}

// commit takes over the changes of a commit.
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
		err := d.read(ctx, func(c *sqlite.Conn) error {
			return c.Each(func(row []driver.Value) error {
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

// missingLive finds a live key in the row of a revision, if the index lacks the key. It is
// one statement, so both are of one moment.
const missingLive = `SELECT 1 FROM revisions NOT INDEXED WHERE rev = ?1 AND key = ?2 AND until IS NULL
	AND NOT EXISTS (SELECT 1 FROM revisions INDEXED BY live WHERE key = ?2 AND until IS NULL)`

// checkMissing fails with *indexError if a key that the index of live keys does not have may
// be missing from the index alone.
func (d *DB) checkMissing(c *sqlite.Conn, key string) error {
	rev, complete := d.live.find(key)
	if rev != 0 {
		switch _, missing, err := c.First(missingLive, rev, key); {
		case err != nil:
			return err
		case missing:
			return &indexError{key, fmt.Sprintf("the table has it at revision %d, and the index of keys has not", rev)}
		}
	}
	if complete {
		return nil
	}
	return checkNeighbours(c, key)
}
