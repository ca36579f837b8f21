package db

import (
	"context"
	"database/sql/driver"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/internal/clockguard"
	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

// Tx is tx for tests outside the package.
type Tx = tx

// ExpectsWrite is expectsWrite.
func (d *DB) ExpectsWrite() bool { return d.expectsWrite() }

// Write is write.
func (d *DB) Write(ctx context.Context, fn func(*Tx) error) error { return d.write(ctx, fn) }

// PutTx is put.
func (t *Tx) PutTx(key string, expect int64, value []byte) (int64, error) {
	return t.put(key, expect, value, 0, nil)
}

// ExecSQL runs any SQL on the writing connection.
func (t *Tx) ExecSQL(sql string) error {
	_, err := t.c.Raw.ExecContext(context.Background(), sql, nil)
	return err
}

// QueryInt reads one integer.
func (d *DB) QueryInt(sql string, args ...any) (n int64, err error) {
	err = d.read(context.Background(), func(c *sqlite.Conn) error {
		n, _, err = c.First(sql, args...)
		return err
	})
	return n, err
}

// Migrate runs migration steps on a file.
func Migrate(path string, steps []string) error {
	c, err := sqlite.Open(path)
	if err != nil {
		return err
	}
	defer c.Close()
	return datafile.Migrate(c, path, steps)
}

// UnpackIndexed is unpackIndexed, packed again.
func UnpackIndexed(b []byte) ([]byte, error) {
	v, err := unpackIndexed(b)
	return v.pack(), err
}

// SetWALLimit sets walLimit until undo is called.
func SetWALLimit(bytes int64) (undo func()) {
	old := walLimit
	walLimit = bytes
	return func() { walLimit = old }
}

// PutIndexed creates a key with one index entry.
func (t *Tx) PutIndexed(key string, value []byte, e IndexEntry) error {
	_, err := t.put(key, 0, value, 0, []IndexEntry{e})
	return err
}

// QueryText reads one text.
func (d *DB) QueryText(sql string, args ...any) (s string, err error) {
	err = d.read(context.Background(), func(c *sqlite.Conn) error {
		return c.Each(func(row []driver.Value) error { s, _ = row[0].(string); return nil }, sql, args...)
	})
	return s, err
}

// SetFewMatches sets fewMatches until undo is called.
func SetFewMatches(n int64) (undo func()) {
	old := fewMatches
	fewMatches = func(_, _ int64) int64 { return n }
	return func() { fewMatches = old }
}

// SetEntries sets entriesRows and entriesBytes until undo is called.
func SetEntries(rows, bytes int64) (undo func()) {
	oldRows, oldBytes := entriesRows, entriesBytes
	entriesRows, entriesBytes = rows, bytes
	return func() { entriesRows, entriesBytes = oldRows, oldBytes }
}

// WriteEntries is writeEntries, once. It returns how many entries were written.
func (d *DB) WriteEntries(t testing.TB) (written int64) {
	t.Helper()
	err := d.write(context.Background(), func(tx *tx) error {
		before, _, err := tx.c.First("SELECT count(*) FROM index_entries")
		if err == nil {
			err = tx.writeEntries()
		}
		if err == nil {
			written, _, err = tx.c.First("SELECT count(*) FROM index_entries")
		}
		written -= before
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return written
}

// SetFewChanges sets fewChanges until undo is called.
func SetFewChanges(n int64) (undo func()) {
	old := fewChanges
	fewChanges = n
	return func() { fewChanges = old }
}

// Checksum is checksum.
var Checksum = datafile.Checksum

// Remaining is remaining.
func (d *DB) Remaining(o RangeOptions, p Page) (n int64, err error) {
	err = d.read(context.Background(), func(c *sqlite.Conn) error {
		n, err = d.remaining(c, o, p)
		return err
	})
	return n, err
}

// BeginEpoch is datafile.BeginEpoch on a file.
func BeginEpoch(path string, last int64, now time.Time) (int64, error) {
	c, err := sqlite.Open(path)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	return datafile.BeginEpoch(c, path, last, now)
}

// NewSteady returns the method Now of a clock guard that has last seen this time.
func NewSteady(last time.Time) func(clock, own time.Time, least time.Duration) time.Time {
	s := &clockguard.Guard{Last: last}
	return func(clock, own time.Time, least time.Duration) time.Time {
		now, _ := s.Now(clock, own, least)
		return now
	}
}

// SetRevision sets the newest revision in memory.
func (d *DB) SetRevision(rev int64) { d.revision.Store(rev) }

// HoldReaders takes every reading connection until release is called.
func (d *DB) HoldReaders() (release func()) {
	var held []*sqlite.Conn
	for range cap(d.readers) {
		held = append(held, <-d.readers)
	}
	return func() {
		for _, c := range held {
			d.readers <- c
		}
	}
}

// CommitAlone makes databases that are opened before undo commit each write alone.
func CommitAlone() (undo func()) {
	old := maxBatch
	maxBatch = 1
	return func() { maxBatch = old }
}

// CopyLogInCommits makes databases that are opened before undo copy the log within commits, as
// SQLite does by default.
func CopyLogInCommits() (undo func()) {
	pages, pragmas := checkpointPages, datafile.WriterPragmas
	checkpointPages = math.MaxInt64
	datafile.WriterPragmas = slices.DeleteFunc(slices.Clone(pragmas), func(p string) bool { return strings.HasPrefix(p, "wal_autocheckpoint") })
	return func() { checkpointPages, datafile.WriterPragmas = pages, pragmas }
}

// HoldCheckpoints prevents checkpoints until release is called.
func (d *DB) HoldCheckpoints() (release func()) {
	d.checkpointing.Lock()
	return d.checkpointing.Unlock
}

// ReplayAlone makes each watcher read from the file itself what the changelog has dropped.
func (d *DB) ReplayAlone() { d.replay.MaxBytes = 0 }

// LiveKey returns what liveKeys has in memory for a key.
func (d *DB) LiveKey(key string) (rev int64, complete bool) { return d.live.find(key) }

// AwaitLiveKeys waits until liveKeys has all keys.
func (d *DB) AwaitLiveKeys(t testing.TB) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, complete := d.live.find(""); complete {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the keys were not read from the table")
		}
	}
}

// ForgetLiveKeys empties liveKeys, as before the table was read.
func (d *DB) ForgetLiveKeys(t testing.TB) {
	t.Helper()
	d.AwaitLiveKeys(t)
	d.live.mu.Lock()
	defer d.live.mu.Unlock()
	clear(d.live.revs)
	d.live.complete = false
}

// LearnLiveKeys reads the table.
func (d *DB) LearnLiveKeys(t testing.TB) {
	t.Helper()
	if err := d.learnLiveKeys(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// ErrFailedOnPurpose is the error of FailAfter.
var ErrFailedOnPurpose = errors.New("failed on purpose")

// FailAfter writes a key in a transaction that fails.
func (d *DB) FailAfter(ctx context.Context, key, value string, indexes []*Index) error {
	return d.write(ctx, func(t *tx) error {
		var entries []IndexEntry
		for _, ix := range indexes {
			entries = append(entries, IndexEntry{Index: ix, Value: value})
		}
		if _, err := t.put(key, 0, []byte(value), 0, entries); err != nil {
			return err
		}
		return ErrFailedOnPurpose
	})
}

// TailRows is how many rows have their entries in memory.
func (d *DB) TailRows() int {
	d.tail.mu.Lock()
	defer d.tail.mu.Unlock()
	return len(d.tail.rows)
}

// DropTail has all rows searched in the file.
func (d *DB) DropTail() { d.tail = nil }
