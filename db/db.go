package db

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/internal/changelog"
	"github.com/tidewaiter/tidewaiter/db/internal/space"
	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
	"github.com/tidewaiter/tidewaiter/db/truth"
)

// Clock tells the time; k8s.io/utils/clock.Clock and its fakes satisfy it.
type Clock interface {
	Now() time.Time
	After(time.Duration) <-chan time.Time
}

type realClock struct{}

func (realClock) Now() time.Time                         { return time.Now() }
func (realClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// Options of Open. Only Dir is required.
type Options struct {
	// Dir is the data directory; it is created with mode 0700.
	Dir string
	// Clock is the source of time for expiry and history. Default: the system's.
	Clock Clock
	// HistoryWindow is how long superseded revisions are kept for watches,
	// continue tokens and lists at an older revision; see also Hold. Default 5 minutes.
	HistoryWindow time.Duration
	// MaintenanceInterval is the pause between two rounds of expiry and
	// compaction. Default 1 second.
	MaintenanceInterval time.Duration
	// Readers is the number of read connections. Default: twice the CPUs, 4 to 16.
	Readers int
	// ChangelogBytes bounds the recent events that are kept in memory for watchers. Older events are
	// read from the file. The events read last stay in memory, too, within a second bound of the same
	// size. Default 8 MiB.
	ChangelogBytes int64
	// Views are the SQL views kept in the file for people and tools, see View.
	Views []datafile.View
	// MaxPageCount limits the file to that many pages of 4 KiB (SQLite's
	// max_page_count); 0 means no limit. Writes past it fail with *UnavailableError.
	MaxPageCount int64
	// Reserve is the size in bytes of the file "reserve", at most a quarter of the file system. When
	// the disk is full, deletions use its space. 0 means no reserve.
	Reserve int64
	// Quota bounds the bytes of the pages in use. Above it only deletions and small updates are
	// written; a commit may exceed it by its own size. 0 means no limit.
	Quota int64
	// Truth is the store that the database is a copy of, see mirror, or nil. Close closes it.
	Truth truth.Store
	// Logger receives what an administrator should know. Default slog.Default().
	Logger *slog.Logger
}

func (o *Options) setDefaults() {
	o.Clock = cmp.Or[Clock](o.Clock, realClock{})
	o.HistoryWindow = cmp.Or(o.HistoryWindow, 5*time.Minute)
	o.MaintenanceInterval = cmp.Or(o.MaintenanceInterval, time.Second)
	o.Readers = cmp.Or(o.Readers, min(max(2*runtime.GOMAXPROCS(0), 4), 16))
	o.ChangelogBytes = cmp.Or(o.ChangelogBytes, 8<<20)
	o.Logger = cmp.Or(o.Logger, slog.Default())
}

// DB is an open database. Its methods may be called from any goroutine.
type DB struct {
	opts         Options
	dir          string
	path         string
	log          *slog.Logger
	clock        Clock
	lock         *datafile.Ownership
	revisionFile *datafile.RevisionFile

	readers   chan *sqlite.Conn
	queue     chan *request
	announced announcements
	changes   *changelog.Log
	replay    *changelog.Replay
	holds
	pages *pageCounts
	live  *liveKeys

	authority authority
	damaged   chan *DamagedError // values that the mirror must fetch again; nil without a mirror
	revision  atomic.Int64       // last committed revision
	compacted atomic.Int64       // oldest revision that can be listed

	declareMu sync.Mutex
	declared  map[string][]*Index // by prefix
	functions sync.Map            // of *declaration, by prefix

	diagnosis diagnosis
	metrics   *metrics
	space     *space.Guard
	failing   atomic.Pointer[datafile.UnavailableError] // the last commit failed; see WriteFault

	checkpoint    chan struct{} // the log has grown, see checkpointLoop
	checkpointing sync.Mutex    // SQLite refuses a second checkpoint at a time
	logBound      int64         // used by maintain, see boundLog

	indexedTo      atomic.Int64  // index_entries is complete up to this revision
	unindexed      atomic.Int64  // bytes of the entries of later revisions
	tail           *tail         // the entries of later revisions; nil for a copy of a store
	entriesDue     chan struct{} // signalled when manyUnindexed
	betweenCommits chan func()   // run by the writer
	stop           chan struct{} // closed by Close
	writerDone     chan struct{} // closed after the last commit
	stopOnce       sync.Once
	wg             sync.WaitGroup
	closeErr       error
}

// Revision returns the last committed revision.
func (d *DB) Revision() int64 { return d.revision.Load() }

// CompactedRevision returns the oldest revision that can still be listed or watched from. It is 0
// if nothing has been compacted.
func (d *DB) CompactedRevision() int64 { return d.compacted.Load() }

// read runs fn with a read connection. fn must use it for a bounded time: one or two statements
// over a bounded number of rows. Queries end when ctx is done: otherwise a cycle in a damaged or
// crafted B-tree would keep one running for ever.
func (d *DB) read(ctx context.Context, fn func(*sqlite.Conn) error) error {
	var c *sqlite.Conn
	select {
	case c = <-d.readers:
	default:
		select {
		case c = <-d.readers:
		case <-ctx.Done():
			return ctx.Err()
		case <-d.stop:
			return ErrClosed
		}
	}
	defer func() { d.readers <- c }()
	select {
	case <-d.stop:
		return ErrClosed
	default:
	}
	defer since(d.metrics.read, time.Now())
	c.Ctx = ctx
	err := fn(c)
	c.Ctx = nil
	return d.translate(err)
}

// snapshot runs fn inside a read transaction, in which every statement sees
// the same state of the file.
func (d *DB) snapshot(ctx context.Context, fn func(*sqlite.Conn) error) error {
	return d.read(ctx, func(c *sqlite.Conn) error {
		if _, err := c.Exec("BEGIN"); err != nil {
			return err
		}
		err := fn(c)
		if err == nil {
			_, err = c.Exec("COMMIT")
		}
		if !c.Raw.AutoCommit() {
			// After damage SQLite refuses COMMIT, and the connection would keep its old snapshot.
			_, rerr := c.Exec("ROLLBACK")
			err = errors.Join(err, rerr)
		}
		return err
	})
}

// Path is the database's file.
func (d *DB) Path() string { return d.path }

// tx is the running transaction, an argument of the closures passed to write.
type tx struct {
	db *DB
	c  *sqlite.Conn
	// now is the time of everything in the transaction, in Unix milliseconds.
	now  int64
	base int64 // last revision before the transaction
	rev  int64 // last revision assigned
	// indexedTo is the revision up to which index_entries is complete.
	indexedTo int64
	unindexed int64 // bytes of entries that are left to writeEntries
	bytes     int64
	events    []*changelog.Event
	deltas    []delta
	after     []func() // run once the commit is durable

	logPages int64 // pages of the log after the last commit
	logged   int64 // pages logged since the last request for a checkpoint
}

// delta is the change a write makes to its directory's totals.
type delta struct {
	dir            string
	objects, bytes int64
}

// metrics are the metrics that DB counts itself. Collect reads the others on each scrape.
type metrics struct {
	commit, batch, read, lag prometheus.Histogram
	commitFailures           prometheus.Counter
	compactedRevisions       prometheus.Counter
	expired                  prometheus.Counter
	damaged                  prometheus.Counter
	barrier                  prometheus.Histogram // nil without a store of several servers
	gauges                   []gauge
}

// gauge is a metric that is read on each scrape.
type gauge struct {
	desc  *prometheus.Desc
	value func() float64
}

func since(h prometheus.Histogram, start time.Time) { h.Observe(time.Since(start).Seconds()) }
