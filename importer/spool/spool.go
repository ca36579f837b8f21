// Package spool has queues that survive the process: one of pushes, and one of notifications. Their
// jobs are keys of package db, so that one server and several that share a store have the same
// queues.
package spool

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/meter"
	"github.com/tidewaiter/tidewaiter/internal/warn"
)

// Queue is a queue of jobs that survives the process:
//
//   - Enqueue returns once the jobs are durable;
//   - a job is done at least once: it is leased to a worker by Claim, and goes back when the worker
//     fails, or says nothing until the lease ends, or dies;
//   - events of one receiver with one key that wait together are one job, and jobs of one key are
//     never leased together;
//   - an event that a sender repeats within 24 hours is taken once;
//   - a failing job waits longer each time, up to a ceiling, and is dead after MaxAttempts: it is
//     kept for a person to look at (List), try again (Retry) or drop (Drop);
//   - each receiver has a quota. Events that wait already do not count twice. Past the quota the
//     receiver's own jobs give way: dead ones first, then those that wait, oldest first. So a
//     receiver with too many events, or with a leaked secret, takes nothing from the others.
//     This is counted and logged.
//
// Servers whose databases are copies of one store share the queue:
//
//   - each server has the same jobs, and any may do them, but those of one registry are done by one
//     server at a time (Options.Servers), so that the requests to a registry stay within its bounds.
//     A server begins when it knows all jobs that the former one has begun and these have ended. It
//     takes over the jobs of a server that is gone;
//   - if two servers receive events about one tag, or one delivery, at the same time, there may be
//     two jobs for it. The second has no effect;
//   - if two servers receive pushes at the same time, a receiver may exceed its quota by the last of
//     them, until the next one.
//
// Every process knows all jobs, without their events, and the IDs of deliveries: some 20 MB at the
// bounds. The worker interprets events. One goroutine at a time may wait in Claim; everything else
// is safe for concurrent use.
type Queue[S job.Source, E any] struct {
	db      *db.DB
	kind    kind[S, E]
	stored  *keys
	opts    Options
	dropped *dropped[S]
	dead    warn.Limiter
	holder  string        // names this process in leases
	wake    chan struct{} // holds a token when a job may have become due
	seed    maphash.Seed
	moves   atomic.Int64 // how often registries may have changed hands
	turns   turns[S]

	mu          sync.Mutex
	watcher     *db.Watcher // nil until the keys have been read; what follows is as of where it is
	jobs        map[int64]*entry[S, E]
	strays      map[int64]*entry[S, E] // jobs of another kind, which are none of jobs
	index[S, E]                        // of jobs
	seen        map[[16]byte]*delivery
	order       []*delivery // oldest first; some may be forgotten already
	lastID      int64       // the highest ID that was ever given
	reserved    map[S]int64
	leaving     map[int64]bool // jobs that are giving way
	// settled are the registries of this server whose former owners' leases it knows, with the number
	// of moves at that time.
	settled map[string]int64
}

// keys are the prefixes of a queue's keys.
type keys struct{ all, jobs, seen string }

func keysBelow(prefix string) keys { return keys{prefix, prefix + "jobs/", prefix + "seen/"} }

// job is the key of a job.
func (k *keys) job(id int64) string {
	digits := strconv.FormatInt(id, 10)
	return k.jobs + "0000000000000000"[min(len(digits), 16):] + digits
}

// delivery is the key of the IDs of a delivery.
func (k *keys) delivery(at int64, ids []byte) string {
	return k.seen + fmt.Sprintf("%013d-%s", at, hex.EncodeToString(ids[:16]))
}

const (
	// maxJobBytes bounds the events of a job: etcd takes 1.5 MiB.
	maxJobBytes = 1 << 20
	// maxSettled bounds Queue.settled. A registry that is forgotten costs a question to the store.
	maxSettled = 1024
)

// record is a job as it is stored. Times are Unix milliseconds.
type record[S job.Source] struct {
	Key      string            `json:"key"`
	Source   S                 `json:"receiver"`
	State    job.State         `json:"state"`
	Due      int64             `json:"due"`
	Enqueued int64             `json:"enqueued"`
	Latest   int64             `json:"latest"`
	Attempts int               `json:"attempts,omitempty"`
	Leases   int64             `json:"leases,omitempty"`
	Holder   string            `json:"holder,omitempty"`
	Lasts    int64             `json:"lasts,omitempty"` // how long the lease, or the wait, lasts from when it was written, in milliseconds
	Error    string            `json:"error,omitempty"`
	Unread   bool              `json:"unread,omitempty"`
	Failed   int64             `json:"failed,omitempty"` // when the last attempt failed
	Events   []json.RawMessage `json:"events"`
}

// entry is the indexed part of a stored job.
type entry[S job.Source, E any] struct {
	job.Job[S, E]
	rev    int64
	holder string
	waits  time.Duration // how long it was to wait when that was written
	events []uint64      // their hashes
	size   int           // of the events
}

// delivery is the IDs of events that came together, as it is stored.
type delivery struct {
	At  int64  `json:"at"`
	IDs []byte `json:"ids"` // 16 bytes each

	key  string
	rev  int64
	gone bool
}

func (d *delivery) each(do func(id [16]byte)) {
	for ids := d.IDs; len(ids) >= 16; ids = ids[16:] {
		do([16]byte(ids))
	}
}

// newQueue returns a queue of a kind.
func newQueue[S job.Source, E any](d *db.DB, k kind[S, E], dropped *dropped[S], opts Options) *Queue[S, E] {
	s := &Queue[S, E]{
		db: d, kind: k, stored: k.keys(), opts: opts, dropped: dropped, dead: warn.Limiter{Logger: opts.Logger},
		holder: opts.Servers.Self(), wake: make(chan struct{}, 1), seed: maphash.MakeSeed(),
		reserved: map[S]int64{}, leaving: map[int64]bool{}, settled: map[string]int64{},
	}
	opts.Servers.OnChange(func() {
		s.moves.Add(1)
		select {
		case s.wake <- struct{}{}:
		default:
		}
	})
	return s
}

// Options tune the queues; the zero value of each field has a sane default.
type Options struct {
	// Quota bounds the events of one receiver in all its jobs of a queue, dead ones included.
	// Default 10,000. The receivers are few: a queue holds at most their number
	// times the quota.
	Quota int64
	// MaxSeen bounds the event IDs that a queue remembers; past it the oldest are forgotten
	// before their 24 hours. Default 200,000, and 50,000 of notifications: they are in memory.
	MaxSeen int64
	// MaxAttempts is how often a job is leased before it is dead. Default 50,
	// which with the other defaults is about four hours of trying.
	MaxAttempts int64
	// BaseDelay is the wait after the first failure; it doubles with each, up to
	// MaxDelay. Each wait is shortened by up to a half at random, so that jobs
	// which failed together do not come back together. Defaults 1 second and 5
	// minutes.
	BaseDelay, MaxDelay time.Duration
	// Servers are those that share the queues; nil if this process alone claims.
	Servers Servers
	// Logger gets receivers past their quota and dead jobs. Default
	// slog.Default().
	Logger *slog.Logger
	// Registerer gets the metrics; may be nil.
	Registerer meter.Registerer
}

// Bounds of one job.
const (
	seenWindow    = 24 * time.Hour
	maxJobEvents  = 256 // more start another job of the same key
	maxKeyBytes   = 1024
	maxEventBytes = 8192 // of one event, as it is stored
	maxErrorBytes = 1024 // bytes kept of an error
)

// Errors of a queue.
var (
	// ErrFull: the receiver is past its quota, and all its jobs are being done at this
	// moment, or the delivery alone is past it. Nothing was written; the sender tries
	// again.
	ErrFull = errors.New("the spool has no room left for this receiver")
	// ErrLeaseLost: the job is no longer leased to the caller. Another worker has
	// it, will have it, or is done with it.
	ErrLeaseLost = errors.New("the lease of the job has ended")
)

// complete sets the defaults, and checks the rest.
func (o *Options) complete() error {
	o.Quota = cmp.Or(o.Quota, 10_000)
	o.MaxSeen = cmp.Or(o.MaxSeen, 200_000)
	o.MaxAttempts = cmp.Or(o.MaxAttempts, 50)
	o.BaseDelay = cmp.Or(o.BaseDelay, time.Second)
	o.MaxDelay = cmp.Or(o.MaxDelay, 5*time.Minute)
	if o.Quota < 0 || o.MaxSeen < 0 || o.MaxAttempts < 0 || o.BaseDelay < 0 || o.MaxDelay < o.BaseDelay {
		return fmt.Errorf("spool options must not be negative, nor MaxDelay less than BaseDelay: %+v", *o)
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
	return nil
}

// Servers are those that share a spool.
type Servers interface {
	// Self names this process in the leases of jobs. An earlier process has another name.
	Self() string
	// Lives reports whether a process may still be at its jobs.
	Lives(name string) bool
	// Owns reports whether this process does the jobs of a registry, or of a receiver of
	// notifications.
	Owns(host string) bool
	// OnChange has f called when Lives or Owns may answer otherwise than before. f returns at once.
	OnChange(f func())
}

// alone is the only process that does jobs.
type alone string

func (a alone) Self() string    { return string(a) }
func (alone) Lives(string) bool { return false }
func (alone) Owns(string) bool  { return true }
func (alone) OnChange(func())   {}

// refresh reads changes from the store, including all acknowledged writes of this server. The
// caller holds mu.
func (s *Queue[S, E]) refresh(ctx context.Context) error {
	for {
		if s.watcher == nil {
			if err := s.load(ctx); err != nil {
				return err
			}
		}
		events, err := s.watcher.Poll(ctx)
		if errors.Is(err, db.ErrCompacted) {
			s.watcher.Stop()
			s.watcher = nil
			continue
		}
		if err != nil || len(events) == 0 {
			return err
		}
		for _, e := range events {
			s.apply(e.Key, e.Rev, e.Value, e.Deleted)
		}
	}
}

// load reads all keys.
func (s *Queue[S, E]) load(ctx context.Context) error {
	s.jobs, s.strays, s.index, s.seen, s.order = map[int64]*entry[S, E]{}, map[int64]*entry[S, E]{}, newIndex[S, E](), map[[16]byte]*delivery{}, nil
	s.lastID = s.kind.firstID() - 1
	w, err := s.db.RangeAndWatch(ctx, s.stored.all, func(kv db.KV) { s.apply(kv.Key, kv.Rev, kv.Value, false) })
	if err == nil {
		w.Notify(s.wake)
		s.watcher = w
	}
	return err
}

// apply makes a change known.
func (s *Queue[S, E]) apply(key string, rev int64, value []byte, deleted bool) {
	if name, ok := strings.CutPrefix(key, s.stored.jobs); ok {
		id, err := strconv.ParseInt(name, 10, 64)
		if err != nil || id < s.kind.firstID() || s.stored.job(id) != key {
			return // not a key of ours
		}
		if old := s.jobs[id]; old != nil {
			s.index.remove(old)
			delete(s.jobs, id)
		}
		delete(s.strays, id)
		s.lastID = max(s.lastID, id)
		if deleted {
			return
		}
		if e := s.entryOf(id, rev, value); s.kind.isStray(e.Source) {
			s.strays[id] = e
		} else {
			s.jobs[id] = e
			s.index.add(e)
		}
		return
	}
	if !strings.HasPrefix(key, s.stored.seen) {
		return
	}
	d := &delivery{}
	if deleted {
		for _, have := range s.order { // the oldest goes first
			if have.key == key {
				have.gone = true
				have.each(func(id [16]byte) {
					if s.seen[id] == have {
						delete(s.seen, id)
					}
				})
				break
			}
		}
		for len(s.order) > 0 && s.order[0].gone {
			s.order = s.order[1:]
		}
	} else if json.Unmarshal(value, d) == nil {
		d.key, d.rev = key, rev
		s.order = append(s.order, d)
		d.each(func(id [16]byte) { s.seen[id] = d })
	}
}

// entryOf returns the entry of a stored job. One that cannot be read is dead.
func (s *Queue[S, E]) entryOf(id, rev int64, value []byte) *entry[S, E] {
	e := &entry[S, E]{rev: rev}
	e.ID = id
	var r record[S]
	if err := json.Unmarshal(value, &r); err != nil {
		e.State, e.Error = job.Dead, "the stored job cannot be read: drop it"
		return e
	}
	e.Key, e.Source, e.State, e.Attempts, e.Lease, e.Error, e.Unread, e.holder = r.Key, r.Source, r.State, r.Attempts, r.Leases, r.Error, r.Unread, r.Holder
	e.Due, e.Enqueued, e.Latest = time.UnixMilli(r.Due).UTC(), time.UnixMilli(r.Enqueued).UTC(), time.UnixMilli(r.Latest).UTC()
	if r.Failed > 0 {
		e.Failed = time.UnixMilli(r.Failed).UTC()
	}
	// The clocks of two servers may differ.
	switch {
	case r.State == job.Leased && r.Holder != s.holder && r.Lasts > 0:
		// A lease of another one ends by this server's clock: as long after it was seen here as it
		// lasts.
		e.Due = time.UnixMilli(s.now() + r.Lasts).UTC()
	case r.State == job.Waiting:
		// Nor does a job wait here for longer than the server meant that wrote it.
		e.waits = time.Duration(r.Lasts) * time.Millisecond
		e.Due = time.UnixMilli(min(r.Due, s.now()+r.Lasts)).UTC()
	}
	for _, event := range r.Events {
		e.events = append(e.events, maphash.Bytes(s.seed, event))
		e.size += len(event)
	}
	return e
}

// known runs fn with the present entries.
func (s *Queue[S, E]) known(ctx context.Context, fn func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refresh(ctx); err != nil {
		return err
	}
	return fn()
}

// errGone: a job is not as it was known to be.
var errGone = errors.New("the job has changed")

// read reads a job as an entry has it.
func (s *Queue[S, E]) read(ctx context.Context, e *entry[S, E]) (r record[S], err error) {
	kv, ok, _, err := s.db.GetSince(ctx, s.stored.job(e.ID), e.rev)
	switch {
	case err != nil:
		return r, err
	case !ok || kv.Rev != e.rev:
		return r, errGone
	case kv.Err != nil:
		return r, kv.Err
	}
	return r, json.Unmarshal(kv.Value, &r)
}

// write is what stores a job whose revision is rev, 0 for a new one.
func (s *Queue[S, E]) write(id, rev int64, r record[S]) (db.Write, error) {
	value, err := json.Marshal(r)
	return db.Write{Key: s.stored.job(id), Expect: rev, Value: value}, err
}

// put stores a job. It fails with errGone if its revision is not rev.
func (s *Queue[S, E]) put(ctx context.Context, id, rev int64, r record[S]) error {
	w, err := s.write(id, rev, r)
	if err != nil {
		return err
	}
	_, err = s.db.Put(ctx, w.Key, w.Expect, w.Value, db.PutOptions{})
	return gone(err)
}

// remove removes a job at a revision, as put.
func (s *Queue[S, E]) remove(ctx context.Context, e *entry[S, E]) error {
	_, err := s.db.Delete(ctx, s.stored.job(e.ID), e.rev)
	return gone(err)
}

func gone(err error) error {
	if errors.Is(err, db.ErrConflict) {
		return errGone
	}
	return err
}

// change edits the job that find returns, or removes it if edit is nil. If another process changes
// the job in between, change tries again. It calls find with the present index.
func (s *Queue[S, E]) change(ctx context.Context, find func() (*entry[S, E], error), edit func(*record[S])) error {
	for {
		var e *entry[S, E]
		err := s.known(ctx, func() (err error) {
			e, err = find()
			return err
		})
		if err == nil && edit == nil {
			err = s.remove(ctx, e)
		} else if err == nil {
			var r record[S]
			if r, err = s.read(ctx, e); err == nil {
				edit(&r)
				err = s.put(ctx, e.ID, e.rev, r)
			}
		}
		if !errors.Is(err, errGone) || ctx.Err() != nil {
			return err
		}
	}
}

// now is the time in Unix milliseconds.
func (s *Queue[S, E]) now() int64 { return s.db.Now().UnixMilli() }
