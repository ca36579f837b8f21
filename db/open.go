package db

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/internal/changelog"
	"github.com/tidewaiter/tidewaiter/db/internal/space"
	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

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
		if !errors.As(err, &unavailable) || !space.New(opts.Dir, opts.Reserve, opts.Quota, opts.Logger).Release() {
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
		entriesDue:     make(chan struct{}, 1),
		stop:           make(chan struct{}),
		writerDone:     make(chan struct{}),
	}
	d.diagnosis.path, d.diagnosis.log, d.diagnosis.copy = d.path, d.log, opts.Truth != nil
	d.metrics = newMetrics(d)
	d.space = space.New(opts.Dir, opts.Reserve, opts.Quota, opts.Logger)
	defer func() {
		if err != nil {
			err = d.translate(err)
			d.closeReaders()
			if d.revisionFile != nil {
				d.revisionFile.Close()
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
	d.changes = changelog.New(d.revision.Load(), opts.ChangelogBytes, func(e *changelog.Event) { since(d.metrics.lag, e.Published) })
	d.replay = changelog.NewReplay(opts.ChangelogBytes)

	checkpointer, err := sqlite.Open(d.path)
	if err != nil {
		return nil, err
	}
	d.space.Begin()
	d.authority = local{d}
	if opts.Truth != nil {
		m := newMirror(d, opts.Truth)
		if err := m.checkOwn(writer); err != nil {
			return nil, err
		}
		// If the machine loses power, the file may lose its last commits, but the store still has them.
		// https://sqlite.org/pragma.html#pragma_synchronous
		if err := writer.Run("PRAGMA synchronous=NORMAL"); err != nil {
			return nil, err
		}
		d.authority = m
		d.wg.Add(1)
		defer func() { go m.run() }()
	} else if err := refuseMirror(writer, d.path); err != nil {
		return nil, err
	}
	d.wg.Add(4)
	go d.entriesLoop()
	go d.commitLoop(writer)
	go d.checkpointLoop(checkpointer)
	go d.maintain()
	d.wg.Go(func() {
		if err := d.learnLiveKeys(context.Background()); err != nil && !errors.Is(err, ErrClosed) {
			d.log.Error("the keys could not be read from the table: damage to their index may be noticed later", "file", d.path, "err", err)
		}
	})
	return d, nil
}

// prepareFile migrates the schema, declares the views and reads the current revisions.
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
	for name, dst := range map[string]*atomic.Int64{"revision": &d.revision, "compacted": &d.compacted, "indexed": &d.indexedTo} {
		n, err := datafile.ReadMeta(c, d.path, name)
		if err != nil {
			return err
		}
		dst.Store(n)
	}
	unindexed, _, err := c.First("SELECT sum(length(indexed)) FROM revisions WHERE rev > ?", d.indexedTo.Load())
	if err != nil {
		return err
	}
	d.unindexed.Store(unindexed)
	if d.opts.Truth == nil {
		d.tail = &tail{from: d.revision.Load()}
	}
	d.revisionFile.Set(d.revision.Load())
	return nil
}

// noticeLoss opens the revision file, and begins a new epoch if the database is behind it.
func (d *DB) noticeLoss(c *sqlite.Conn) error {
	have, err := datafile.ReadMeta(c, d.path, "revision")
	if err != nil {
		return err
	}
	var last int64
	if d.revisionFile, last, err = datafile.OpenRevisionFile(d.dir, d.log); err != nil || last <= have || d.opts.Truth != nil {
		return err
	}
	rev, err := datafile.BeginEpoch(c, d.path, last, d.clock.Now())
	if err != nil {
		return err
	}
	d.log.Error("the database has lost commits: its log (-wal) was moved away or truncated, or the file was replaced by an older one. "+
		"If you have the log, stop the server and put it back; otherwise restore a backup if it has more. Clients have to list again",
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

// Close ends the writer after the running commits, closes watchers and the file, and releases the
// data directory.
func (d *DB) Close() error {
	d.stopOnce.Do(func() {
		close(d.stop)
		d.changes.Close(ErrClosed)
		d.wg.Wait()
		d.closeReaders()
		d.closeErr = errors.Join(d.closeErr, d.revisionFile.Close(), d.lock.Close())
		if d.opts.Truth != nil {
			d.closeErr = errors.Join(d.closeErr, d.opts.Truth.Close())
		}
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
			if d.changes == nil { // Open failed half-way
				return
			}
			(<-d.readers).Close()
		}
	}
}
