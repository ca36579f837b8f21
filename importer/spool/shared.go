package spool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/importer/push"
	"github.com/tidewaiter/tidewaiter/web/warn"
)

// Shared is a Spool for servers that share their objects. It keeps its promises, with jobs that are
// keys of the database:
//
//   - Enqueue returns once every job is where the objects are, whatever becomes of the server. If
//     it fails, a part of the events may be there;
//   - each server has the same jobs, and any may do them, but those of one registry are done by one
//     server at a time (Options.Servers), so that what a registry is asked stays within its bounds.
//     It begins when it knows all that the former one has begun and when that has ended, and takes
//     over the jobs of a server that is gone;
//   - while two servers are told of one tag, or of one delivery, there may be two jobs for it. The
//     second has no effect.
//   - while two servers are told of pushes at the same time, a receiver may be past its quota by
//     the last of them, until the next one.
//
// Every server knows all jobs, without their events, and the IDs of deliveries: some 20 MB at the
// bounds.
type Shared struct {
	db      *db.DB
	opts    Options
	dropped *dropped
	dead    deadJobs
	holder  string        // names this process in leases
	wake    chan struct{} // holds a token when a job may have become due
	seed    maphash.Seed
	moves   atomic.Int64 // how often registries may have changed hands

	mu       sync.Mutex
	watcher  *db.Watcher // nil until the keys have been read; what follows is as of where it is
	jobs     map[int64]*entry
	keys     map[string][]*entry // the same, by what they are about
	events   map[string]int64    // of all jobs, by receiver
	seen     map[[16]byte]*delivery
	order    []*delivery // oldest first; some may be forgotten already
	lastID   int64       // the highest ID that was ever given
	reserved map[string]int64
	leaving  map[int64]bool // jobs that are giving way
	// settled are registries of this server of which it knows what their former owners have leased,
	// with the moves as of then.
	settled map[string]int64
}

// The keys of a Shared spool.
const (
	// SharedPrefix begins the keys of a Shared spool.
	SharedPrefix = "/tidewaiter.dev/spool/"
	jobPrefix    = SharedPrefix + "jobs/"
	seenPrefix   = SharedPrefix + "seen/"
)

func jobKey(id int64) string { return fmt.Sprintf("%s%016d", jobPrefix, id) }

const (
	// sharedMaxSeen is the default of Options.MaxSeen: the IDs are in memory.
	sharedMaxSeen = 200_000
	// maxJobBytes bounds the events of a job: etcd takes 1.5 MiB.
	maxJobBytes = 1 << 20
	// maxSettled bounds Shared.settled. A registry that is forgotten costs a question to the store.
	maxSettled = 1024
)

// record is a job as it is stored. Times are Unix milliseconds.
type record struct {
	Key      string            `json:"key"`
	Receiver string            `json:"receiver"`
	State    push.State        `json:"state"`
	Due      int64             `json:"due"`
	Enqueued int64             `json:"enqueued"`
	Latest   int64             `json:"latest"`
	Attempts int               `json:"attempts,omitempty"`
	Leases   int64             `json:"leases,omitempty"`
	Holder   string            `json:"holder,omitempty"`
	Error    string            `json:"error,omitempty"`
	Events   []json.RawMessage `json:"events"`
}

// entry is the indexed part of a stored job.
type entry struct {
	push.Job
	rev    int64
	holder string
	events []uint64 // their hashes
	size   int      // of the events
}

// lane is the registry of the job.
func (e *entry) lane() string {
	host, _, _ := strings.Cut(e.Key, "/")
	return host
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

// OpenShared returns the spool of all servers that have the database's objects. Call it once.
func OpenShared(d *db.DB, opts Options) (*Shared, error) {
	opts.MaxSeen = cmp.Or(opts.MaxSeen, sharedMaxSeen)
	if err := opts.complete(); err != nil {
		return nil, err
	}
	if opts.Servers == nil {
		opts.Servers = alone(uuid.NewUUID())
	}
	s := &Shared{
		db: d, opts: opts, dropped: newDropped(opts.Logger, opts.RegisterMetrics), dead: deadJobs{warn.Limiter{Logger: opts.Logger}},
		holder: opts.Servers.Self(), wake: make(chan struct{}, 1), seed: maphash.MakeSeed(),
		reserved: map[string]int64{}, leaving: map[int64]bool{}, settled: map[string]int64{},
	}
	opts.Servers.OnChange(func() {
		s.moves.Add(1)
		select {
		case s.wake <- struct{}{}:
		default:
		}
	})
	return s, nil
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

// refresh learns what has changed. mu is held. Own writes that were answered are among it.
func (s *Shared) refresh(ctx context.Context) error {
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
func (s *Shared) load(ctx context.Context) error {
	s.jobs, s.keys, s.events, s.seen, s.order = map[int64]*entry{}, map[string][]*entry{}, map[string]int64{}, map[[16]byte]*delivery{}, nil
	w, err := s.db.RangeAndWatch(ctx, SharedPrefix, func(kv db.KV) { s.apply(kv.Key, kv.Rev, kv.Value, false) })
	if err == nil {
		w.Notify(s.wake)
		s.watcher = w
	}
	return err
}

// apply makes a change known.
func (s *Shared) apply(key string, rev int64, value []byte, deleted bool) {
	if name, ok := strings.CutPrefix(key, jobPrefix); ok {
		id, err := strconv.ParseInt(name, 10, 64)
		if err != nil || id < 1 || jobKey(id) != key {
			return // not a key of ours
		}
		if old := s.jobs[id]; old != nil {
			if s.events[old.Receiver] -= int64(len(old.events)); s.events[old.Receiver] == 0 {
				delete(s.events, old.Receiver)
			}
			if s.keys[old.Key] = slices.DeleteFunc(s.keys[old.Key], func(e *entry) bool { return e == old }); len(s.keys[old.Key]) == 0 {
				delete(s.keys, old.Key)
			}
			delete(s.jobs, id)
		}
		s.lastID = max(s.lastID, id)
		if !deleted {
			e := s.entryOf(id, rev, value)
			s.jobs[id] = e
			s.keys[e.Key] = append(s.keys[e.Key], e)
			s.events[e.Receiver] += int64(len(e.events))
		}
		return
	}
	if !strings.HasPrefix(key, seenPrefix) {
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
func (s *Shared) entryOf(id, rev int64, value []byte) *entry {
	e := &entry{rev: rev}
	e.ID = id
	var r record
	if err := json.Unmarshal(value, &r); err != nil {
		e.State, e.Error = push.Dead, "the stored job cannot be read: drop it"
		return e
	}
	e.Key, e.Receiver, e.State, e.Attempts, e.Lease, e.Error, e.holder = r.Key, r.Receiver, r.State, r.Attempts, r.Leases, r.Error, r.Holder
	e.Due, e.Enqueued, e.Latest = time.UnixMilli(r.Due).UTC(), time.UnixMilli(r.Enqueued).UTC(), time.UnixMilli(r.Latest).UTC()
	for _, event := range r.Events {
		e.events = append(e.events, maphash.Bytes(s.seed, event))
		e.size += len(event)
	}
	return e
}

// known runs fn with the present entries.
func (s *Shared) known(ctx context.Context, fn func() error) error {
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
func (s *Shared) read(ctx context.Context, e *entry) (r record, err error) {
	kv, ok, _, err := s.db.GetSince(ctx, jobKey(e.ID), e.rev)
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

// put stores a job at the revision rev, 0 for a new one. It fails with errGone if it is not at
// that.
func (s *Shared) put(ctx context.Context, id, rev int64, r record) error {
	value, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return gone(s.db.Put(ctx, jobKey(id), rev, value, db.PutOptions{}))
}

// remove removes a job at a revision, as put.
func (s *Shared) remove(ctx context.Context, e *entry) error {
	return gone(s.db.Delete(ctx, jobKey(e.ID), e.rev))
}

func gone(_ int64, err error) error {
	if errors.Is(err, db.ErrConflict) {
		return errGone
	}
	return err
}

// change edits a job that find returns, or removes it if edit is nil, until nobody else has changed
// it in between. find is called with what is known.
func (s *Shared) change(ctx context.Context, find func() (*entry, error), edit func(*record)) error {
	for {
		var e *entry
		err := s.known(ctx, func() (err error) {
			e, err = find()
			return err
		})
		if err == nil && edit == nil {
			err = s.remove(ctx, e)
		} else if err == nil {
			var r record
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
func (s *Shared) now() int64 { return s.db.Now().UnixMilli() }
