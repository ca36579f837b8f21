package db

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/internal/changelog"
)

// MaxKeySize bounds a key, in bytes. Kubernetes' names and namespaces are at
// most 253 bytes each.
const MaxKeySize = 1024

// PutOptions are the optional parts of a Put.
type PutOptions struct {
	// TTL is the time after which the key is removed; 0 means never.
	TTL time.Duration
	// Index are the entries of this revision in the indexes declared for it.
	Index []IndexEntry
}

// Put writes value under key if the key is at revision expect (0: does not exist) and returns the
// new revision, or ErrConflict. The database keeps value, so the caller must not change it.
func (d *DB) Put(ctx context.Context, key string, expect int64, value []byte, opts PutOptions) (rev int64, err error) {
	if err := checkKey(key); err != nil {
		return 0, err
	}
	return d.authority.put(ctx, key, expect, value, opts)
}

// Write is one write of PutAll, with the arguments of Put.
type Write struct {
	Key    string
	Expect int64
	Value  []byte
	TTL    time.Duration
}

// PutAll does several writes, each as Put does. A database that is not a copy does all or none, in
// one commit. A copy of a store does several at a time, and the last one after all others; if
// PutAll fails, some writes may have happened.
func (d *DB) PutAll(ctx context.Context, writes []Write) error {
	if len(writes) == 0 {
		return nil
	}
	return d.authority.putAll(ctx, writes)
}

// PutEach does several independent writes, each as Put does, and returns the error of each. A
// database that is not a copy does them in one commit.
func (d *DB) PutEach(ctx context.Context, writes []Write) []error {
	errs := make([]error, len(writes))
	if len(writes) > 0 {
		d.authority.putEach(ctx, writes, errs)
	}
	return errs
}

// Delete removes key if it is at revision expect and returns the revision of
// the deletion, or ErrConflict.
func (d *DB) Delete(ctx context.Context, key string, expect int64) (rev int64, err error) {
	if err := checkKey(key); err != nil {
		return 0, err
	}
	return d.authority.delete(ctx, key, expect)
}

// expiring is a key whose time to live has passed, and its revision.
type expiring struct {
	rev int64
	key string
}

// authority accepts or refuses writes, and decides when the file may be read.
type authority interface {
	put(ctx context.Context, key string, expect int64, value []byte, opts PutOptions) (rev int64, err error)
	putAll(ctx context.Context, writes []Write) error
	putEach(ctx context.Context, writes []Write, errs []error)
	delete(ctx context.Context, key string, expect int64) (rev int64, err error)
	// expire deletes the keys that are still at their revisions, and returns how many it deleted.
	expire(ctx context.Context, keys []expiring) (expired int, err error)
	// catchUp waits until the file has revision since or, with 0, every change that was acknowledged
	// before the call. A read after it is valid if catchUp, called again with 1, returns the same
	// fills.
	catchUp(ctx context.Context, since int64) (fills int64, err error)
}

// local is the authority of a database that is not a copy: its commits are final.
type local struct{ *DB }

func (d local) put(ctx context.Context, key string, expect int64, value []byte, opts PutOptions) (rev int64, err error) {
	err = d.writeWhole(ctx, func(t *tx) error {
		var expires int64
		if opts.TTL > 0 {
			expires = t.now + opts.TTL.Milliseconds()
		}
		rev, err = t.put(key, expect, value, expires, opts.Index)
		return err
	})
	if ie, ok := err.(*indexError); ok {
		err = d.corrupt(ie)
	}
	return rev, err
}

func (d local) putAll(ctx context.Context, writes []Write) error {
	return d.write(ctx, func(t *tx) error {
		for _, w := range writes {
			if err := t.do(w); err != nil {
				return err
			}
		}
		return nil
	})
}

func (d local) putEach(ctx context.Context, writes []Write, errs []error) {
	if err := d.write(ctx, func(t *tx) error {
		for i, w := range writes {
			if errs[i] = t.do(w); errs[i] != nil && !errors.Is(errs[i], ErrConflict) { // a conflict has no effect
				return errs[i]
			}
		}
		return nil
	}); err != nil {
		for i := range errs {
			errs[i] = err
		}
	}
}

func (t *tx) do(w Write) error {
	if err := checkKey(w.Key); err != nil {
		return err
	}
	var expires int64
	if w.TTL > 0 {
		expires = t.now + w.TTL.Milliseconds()
	}
	_, err := t.put(w.Key, w.Expect, w.Value, expires, nil)
	return err
}

func (d local) delete(ctx context.Context, key string, expect int64) (rev int64, err error) {
	err = d.writeWhole(ctx, func(t *tx) error {
		rev, err = t.delete(key, expect)
		return err
	})
	return rev, err
}

func (d local) expire(ctx context.Context, keys []expiring) (expired int, err error) {
	err = d.write(ctx, func(t *tx) error {
		expired = 0
		for _, k := range keys {
			switch _, err := t.delete(k.key, k.rev); {
			case err == nil:
				expired++
			case !errors.Is(err, ErrConflict): // a conflict: the key was written again
				return err
			}
		}
		return nil
	})
	return expired, err
}

func (local) catchUp(context.Context, int64) (int64, error) { return 0, nil }

// CatchUp waits until the database has revision since or, with 0, every change that was
// acknowledged before the call. A database that is not a copy always has them.
func (d *DB) CatchUp(ctx context.Context, since int64) error {
	_, err := d.authority.catchUp(ctx, since)
	return err
}

// caughtUp runs read after CatchUp(since), and again if the file was refilled meanwhile.
func (d *DB) caughtUp(ctx context.Context, since int64, read func() error) error {
	for {
		before, err := d.authority.catchUp(ctx, since)
		if err != nil {
			return err
		}
		err = read()
		after, aerr := d.authority.catchUp(ctx, 1)
		if aerr != nil {
			return aerr
		}
		if before == after {
			return err
		}
	}
}

func checkKey(key string) error {
	if key == "" || len(key) > MaxKeySize {
		return fmt.Errorf("key of %d bytes: a key has 1 to %d", len(key), MaxKeySize)
	}
	return nil
}

func (t *tx) put(key string, expect int64, value []byte, expiry int64, index []IndexEntry) (int64, error) {
	return t.putSum(key, expect, value, datafile.Checksum(key, value), expiry, index)
}

// putSum is put with the checksum to store.
func (t *tx) putSum(key string, expect int64, value []byte, sum, expiry int64, index []IndexEntry) (int64, error) {
	if err := t.mayPut(key, expect, len(value)); err != nil {
		return 0, err
	}
	rev := t.rev + 1
	create, oldSize := rev, int64(0)
	objects := int64(1)
	if expect != 0 {
		var err error
		if create, oldSize, err = t.supersede(key, expect, rev); err != nil {
			return 0, err
		}
		objects = 0
	} else if err := t.db.checkMissing(t.c, key); err != nil {
		return 0, err
	}
	entries := indexed(index)
	var expires, packed any
	if expiry > 0 {
		expires = expiry
	}
	if entries != nil {
		packed = entries.pack()
	}
	n, err := t.c.Exec(`INSERT INTO revisions (rev, key, create_rev, prev_rev, at, size, expires, indexed)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) WHERE until IS NULL DO NOTHING`,
		rev, key, create, expect, t.now, int64(len(value)), expires, packed)
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, ErrConflict
	}
	if value == nil {
		value = []byte{}
	}
	if _, err := t.c.Exec("INSERT INTO contents VALUES (?, ?, ?)", rev, sum, value); err != nil {
		return 0, err
	}
	if b, ok := packed.([]byte); ok && rev > t.indexedTo {
		t.unindexed += int64(len(b)) // writeEntries copies them later
		if t.db.tail != nil {
			t.db.tail.add(rev, b)
		}
	} else {
		for _, e := range entries {
			if err := t.addEntry(rev, e); err != nil {
				return 0, err
			}
		}
	}
	e := &changelog.Event{Key: key, Rev: rev, PrevRev: expect, Value: value}
	if sum == datafile.UnreadableSum(key, value) {
		e.Value, e.Err = nil, &DamagedError{Path: t.db.path, Key: key, Rev: rev, Copy: true, InStore: true}
	}
	t.record(e, objects, int64(len(value))-oldSize)
	return rev, nil
}

func (t *tx) delete(key string, expect int64) (int64, error) {
	if err := t.mayDelete(); err != nil {
		return 0, err
	}
	rev := t.rev + 1
	create, oldSize, err := t.supersede(key, expect, rev)
	if err != nil {
		return 0, err
	}
	if _, err := t.c.Exec(`INSERT INTO revisions (rev, key, create_rev, prev_rev, until, at, size) VALUES (?1, ?2, ?3, ?4, ?1, ?5, 0)`,
		rev, key, create, expect, t.now); err != nil {
		return 0, err
	}
	t.record(&changelog.Event{Key: key, Rev: rev, PrevRev: expect, Deleted: true}, -1, -oldSize)
	return rev, nil
}

// supersede ends revision expect of key at rev.
func (t *tx) supersede(key string, expect, rev int64) (create, size int64, err error) {
	err = t.c.Each(func(row []driver.Value) error {
		create, _ = row[0].(int64)
		size, _ = row[1].(int64)
		return nil
	}, "UPDATE revisions SET until = ? WHERE rev = ? AND key = ? AND until IS NULL RETURNING create_rev, size", rev, expect, key)
	if err == nil && create == 0 {
		err = ErrConflict
	}
	return create, size, err
}

func (t *tx) record(e *changelog.Event, objects, bytes int64) {
	t.rev = e.Rev
	t.bytes += int64(len(e.Value))
	t.events = append(t.events, e)
	t.deltas = append(t.deltas, delta{dir: directory(e.Key), objects: objects, bytes: bytes})
}

// directory returns the key up to and with its last slash.
func directory(key string) string { return key[:strings.LastIndexByte(key, '/')+1] }
