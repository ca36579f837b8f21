package db

import (
	"context"
	"errors"
	"fmt"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/sqlite"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Clock tells the time; k8s.io/utils/clock.Clock and its fakes satisfy it.
type Clock interface {
	Now() time.Time
	After(time.Duration) <-chan time.Time
}

type realClock struct{}

func (realClock) Now() time.Time                         { return time.Now() }
func (realClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// Options of Open. The zero value of every field but Dir has a sane default.
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
	// FeedBytes bounds the recent events that are kept in memory for watchers. Older
	// events are read from the file; those read last are kept, too, within a second bound
	// of the same size. Default 8 MiB.
	FeedBytes int64
	// Views are the SQL views kept in the file for people and tools, see View.
	Views []datafile.View
	// MaxPageCount limits the file to that many pages of 4 KiB (SQLite's
	// max_page_count); 0 means no limit. Writes past it fail with *UnavailableError.
	MaxPageCount int64
	// Reserve is how many bytes of the disk a file of that name holds, to be used for
	// deletions when the disk is full; at most a quarter of the file system. 0 is none.
	Reserve int64
	// Quota bounds the bytes of the pages in use. Past it only deletions and small
	// updates are written; a commit may pass it by its own size. 0 means no limit.
	Quota int64
	// Logger receives what an administrator should know. Default slog.Default().
	Logger *slog.Logger
}

func (o *Options) setDefaults() {
	if o.Clock == nil {
		o.Clock = realClock{}
	}
	if o.HistoryWindow == 0 {
		o.HistoryWindow = 5 * time.Minute
	}
	if o.MaintenanceInterval == 0 {
		o.MaintenanceInterval = time.Second
	}
	if o.Readers == 0 {
		o.Readers = min(max(2*runtime.GOMAXPROCS(0), 4), 16)
	}
	if o.FeedBytes == 0 {
		o.FeedBytes = 8 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// DB is an open database. Its methods may be called from any goroutine.
type DB struct {
	opts  Options
	dir   string
	path  string
	log   *slog.Logger
	clock Clock
	lock  *datafile.Ownership
	mark  *datafile.Mark

	readers   chan *sqlite.Conn
	queue     chan *request
	announced announcements
	feed      *feed
	replay    *replay
	holds     holds
	pages     *pageCounts
	live      *liveKeys

	revision  atomic.Int64 // last committed revision
	compacted atomic.Int64 // oldest revision that can be listed

	declareMu sync.Mutex
	declared  map[string][]*Index // by prefix

	diagnosis diagnosis
	metrics   *metrics
	space     *space
	failing   atomic.Pointer[datafile.UnavailableError] // the last commit failed; see WriteFault

	checkpoint    chan struct{} // the log has grown, see checkpointLoop
	checkpointing sync.Mutex    // SQLite refuses a second checkpoint at a time
	logBound      int64         // used by maintain, see boundLog

	betweenCommits chan func()   // run by the writer
	stop           chan struct{} // closed by Close
	writerDone     chan struct{} // closed after the last commit
	stopOnce       sync.Once
	wg             sync.WaitGroup
	closeErr       error
}

// Open takes the data directory, creates or migrates the database in it and
// starts its writer. A directory that another process owns gives *LockedError,
// a database of a newer release *NewerSchemaError, a damaged one *CorruptError, one
// with a schema that this program does not make *ForeignError, and one that another
// user could have written *trusted.Error.
func Open(opts Options) (*DB, error) {
	opts.setDefaults()
	if opts.Dir == "" {
		return nil, errors.New("open database: no data directory given")
	}
	for {
		d, err := open(opts)
		var unavailable *datafile.UnavailableError
		if !errors.As(err, &unavailable) || !newSpace(opts).release() {
			return d, err
		}
		// Try again with space from the reserve: SQLite needs some even to read.
	}
}

func open(opts Options) (_ *DB, err error) {
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	if err := datafile.CheckTrusted(opts.Dir); err != nil {
		return nil, err
	}
	owned, err := datafile.Lock(opts.Dir)
	if err != nil {
		return nil, err
	}
	d := &DB{
		opts:     opts,
		dir:      opts.Dir,
		path:     filepath.Join(opts.Dir, datafile.FileName),
		log:      opts.Logger,
		clock:    opts.Clock,
		lock:     owned,
		queue:    make(chan *request, maxBatch),
		pages:    newPageCounts(),
		live:     newLiveKeys(),
		declared: map[string][]*Index{},

		checkpoint:     make(chan struct{}, 1),
		logBound:       walLimit,
		betweenCommits: make(chan func()),
		stop:           make(chan struct{}),
		writerDone:     make(chan struct{}),
	}
	d.metrics = newMetrics(d)
	d.space = newSpace(opts)
	defer func() {
		if err != nil {
			err = d.translate(err)
			d.closeReaders()
			if d.mark != nil {
				d.mark.Close()
			}
			owned.Close()
		}
	}()

	if err := datafile.RemovePartials(opts.Dir); err != nil {
		return nil, err
	}
	if err := datafile.CreatePrivate(d.path); err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	if err := datafile.CheckLog(d.path); err != nil {
		return nil, err
	}
	if err := datafile.CheckSchema(context.Background(), d.path); err != nil {
		return nil, datafile.NameFile(d.path, err)
	}
	writer, err := datafile.OpenWriter(d.path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			writer.Close()
		}
	}()
	if err := d.prepareFile(writer); err != nil {
		return nil, err
	}
	if err := d.openReaders(); err != nil {
		return nil, err
	}
	d.feed = newFeed(d.revision.Load(), opts.FeedBytes)
	d.replay = newReplay(opts.FeedBytes)

	checkpointer, err := sqlite.Open(d.path)
	if err != nil {
		return nil, err
	}
	if d.space.size > 0 {
		d.space.regain()
	}
	d.wg.Add(3)
	go d.commitLoop(writer)
	go d.checkpointLoop(checkpointer)
	go d.maintain()
	d.wg.Go(func() {
		if err := d.learnLiveKeys(context.Background()); err != nil && !errors.Is(err, ErrClosed) {
			d.log.Error("which keys are there could not be read from the table: damage to their index may be noticed later", "file", d.path, "err", err)
		}
	})
	return d, nil
}

// prepareFile migrates the schema, declares the views and reads where the
// store stands.
func (d *DB) prepareFile(c *sqlite.Conn) error {
	if err := datafile.Migrate(c, d.path, datafile.Migrations); err != nil {
		return err
	}
	if d.opts.MaxPageCount > 0 {
		if err := c.Run(fmt.Sprintf("PRAGMA max_page_count=%d", d.opts.MaxPageCount)); err != nil {
			return err
		}
	}
	if err := datafile.DeclareViews(c, d.opts.Views); err != nil {
		return err
	}
	if err := d.noticeLoss(c); err != nil {
		return err
	}
	for name, dst := range map[string]*atomic.Int64{"revision": &d.revision, "compacted": &d.compacted} {
		n, err := datafile.ReadMeta(c, d.path, name)
		if err != nil {
			return err
		}
		dst.Store(n)
	}
	d.mark.Set(d.revision.Load())
	return nil
}

// noticeLoss opens the mark, and begins a new life if the database is behind it.
func (d *DB) noticeLoss(c *sqlite.Conn) error {
	have, err := datafile.ReadMeta(c, d.path, "revision")
	if err != nil {
		return err
	}
	var last int64
	if d.mark, last, err = datafile.OpenMark(d.dir, d.log); err != nil || last <= have {
		return err
	}
	rev, err := datafile.BeginLife(c, d.path, last, d.clock.Now())
	if err != nil {
		return err
	}
	d.log.Error("the database has lost commits: its log (-wal) was moved away or cut, or an older file was put in its place. "+
		"If you have the log, stop the server and put it back; else restore a backup if that has more. Clients are told to start again",
		"file", d.path, "lost", last-have, "from", have+1, "to", last, "goes on at", rev)
	return nil
}

func (d *DB) openReaders() error {
	d.readers = make(chan *sqlite.Conn, d.opts.Readers)
	for range d.opts.Readers {
		c, err := sqlite.Open(d.path, datafile.ReaderPragmas...)
		if err != nil {
			return err
		}
		d.readers <- c
	}
	return nil
}

// Close ends the writer after the commits under way, closes watchers and the
// file, and gives the data directory up.
func (d *DB) Close() error {
	d.stopOnce.Do(func() {
		close(d.stop)
		d.feed.close()
		d.wg.Wait()
		d.closeReaders()
		d.closeErr = errors.Join(d.closeErr, d.mark.Close(), d.lock.Close())
	})
	return d.closeErr
}

// closeReaders waits for every reader in use.
func (d *DB) closeReaders() {
	for range cap(d.readers) {
		select {
		case c := <-d.readers:
			c.Close()
		default:
			if d.feed == nil { // Open failed half-way
				return
			}
			(<-d.readers).Close()
		}
	}
}

// Revision returns the last committed revision.
func (d *DB) Revision() int64 { return d.revision.Load() }

// CompactedRevision returns the oldest revision that can still be listed or
// watched from; 0 when everything can.
func (d *DB) CompactedRevision() int64 { return d.compacted.Load() }

// read runs fn with a read connection. fn keeps it for a bounded time: a
// statement or two over a bounded number of rows. When ctx is done its queries
// end, whatever they read: a damaged or crafted tree may have no end.
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
			// After damage SQLite refuses a COMMIT, and the connection would stay in the past.
			_, rerr := c.Exec("ROLLBACK")
			err = errors.Join(err, rerr)
		}
		return err
	})
}

// Path is the database's file.
func (d *DB) Path() string { return d.path }
