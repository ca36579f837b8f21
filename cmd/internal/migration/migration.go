// Package migration moves all objects of a server to an etcd that several servers share, and back.
package migration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/backup"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/etcd"
	"github.com/tidewaiter/tidewaiter/db/migrate"
	"github.com/tidewaiter/tidewaiter/db/truth"
	"github.com/tidewaiter/tidewaiter/importer/spool"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/table"
	"github.com/tidewaiter/tidewaiter/internal/version"
)

// etcdAnswers is how long etcd may take to answer at the beginning.
const etcdAnswers = 10 * time.Second

// Migration is a move of all objects.
type Migration struct {
	// DataDir is the data directory to read, or to make.
	DataDir string
	Etcd    etcd.Options
	// Out receives a report of the results and the next steps.
	Out io.Writer
}

// open returns the store after it has answered. If write is set, open claims the prefix.
func (m *Migration) open(ctx context.Context, write bool) (*etcd.Store, error) {
	store, err := etcd.New(m.Etcd)
	if err != nil {
		return nil, err
	}
	store.Compress(true) // no server is running
	asking, cancel := context.WithTimeout(ctx, etcdAnswers)
	defer cancel()
	if _, err = store.Identity(asking); err != nil {
		err = fmt.Errorf("etcd does not answer: %w", err)
	} else if write {
		err = store.Claim(ctx, version.Build())
	} else {
		err = store.Readable(asking)
	}
	if refused, ok := errors.AsType[*etcd.ClaimError](err); ok {
		err = cli.WithHint(err, "%s", refused.Hint)
	}
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return store, nil
}

// still is a maintenance interval so long that nothing expires or is compacted while a database is
// compared with a store.
const still = 1000 * time.Hour

// ToEtcd copies the contents of a data directory to etcd. No server may have it open. An
// interrupted copy can be repeated.
func (m *Migration) ToEtcd(ctx context.Context) (err error) {
	store, err := m.open(ctx, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return m.to(ctx, store)
}

// to is ToEtcd to a store.
func (m *Migration) to(ctx context.Context, store truth.Store) error {
	if err := datafile.CheckOwn(ctx, m.DataDir); err != nil {
		return err
	}
	owned, err := datafile.Lock(m.DataDir)
	if err != nil {
		return err
	}
	defer owned.Close()
	tmp, err := os.MkdirTemp("", "tidewaiter-migrate-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := backup.Make(ctx, m.DataDir, filepath.Join(tmp, datafile.FileName)); err != nil {
		return err
	}
	source, err := db.Open(db.Options{Dir: tmp, MaintenanceInterval: still})
	if err != nil {
		return err
	}
	defer source.Close()
	// Jobs that an earlier release kept in tables become keys, which are copied with the others.
	jobs, spooled, err := pushes(ctx, source)
	if err != nil {
		return err
	}
	var far *migrate.FarBehindError
	if err := migrate.Raise(ctx, store, source.Revision(), spool.Prefix+"raise"); errors.As(err, &far) {
		return cli.WithHint(err, "restore etcd from a snapshot: etcdctl snapshot save S, and etcdutl snapshot restore S --bump-revision %d --mark-compacted", far.Above)
	} else if err != nil {
		return err
	}
	_, written, err := migrate.Copy(ctx, source, store)
	if errors.Is(err, migrate.ErrDiffers) {
		return cli.WithHint(fmt.Errorf("etcd has something else below %s: %w", m.Etcd.Prefix, err), "give an empty --etcd-prefix, and stop all servers that use it")
	} else if err != nil {
		return cli.WithHint(err, "run it again: it continues after the keys that are written")
	}
	keys, err := migrate.Verify(ctx, source, store)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(m.Out, "%s the same in etcd as in %s (%d written now), and %s there; next: copy %s to all machines, and start their servers with --pki-dir, --etcd-servers and new data directories\n",
		table.Clause(keys-spooled, "object", "are"), m.DataDir, written, table.Clause(jobs, "push", "wait"), filepath.Join(m.DataDir, "pki"))
	return err
}

// pushes returns how many jobs a database's spool has, and how many keys the jobs take.
func pushes(ctx context.Context, d *db.DB) (jobs, keys int, err error) {
	s, err := spool.Open(d, spool.Options{})
	if err != nil {
		return 0, 0, err
	}
	depths, err := s.Depth(ctx)
	if err != nil {
		return 0, 0, err
	}
	for _, of := range depths {
		jobs += int(of.Waiting + of.Leased + of.Dead)
	}
	n, _, err := d.Totals(ctx, spool.Prefix)
	return jobs, int(n), err
}

// FromEtcd makes the data directory an independent database with the contents of etcd. The
// directory may be a copy of etcd already. No server may have it open.
func (m *Migration) FromEtcd(ctx context.Context) error {
	store, err := m.open(ctx, false)
	if err != nil {
		return err
	}
	return m.from(ctx, store)
}

// from is FromEtcd of a store, which it closes. The last step is one transaction. If a run was
// interrupted before it, the next run continues; if after it, the next run compares the contents.
func (m *Migration) from(ctx context.Context, store truth.Store) error {
	was, written, err := datafile.Detached(ctx, m.DataDir)
	var keys, jobs int
	switch {
	case err != nil:
	case written:
		err = cli.WithHint(fmt.Errorf("%s was filled from etcd before, and has been written since", m.DataDir), "use another --data-dir, or start a server with this one")
	case was:
		keys, jobs, err = m.compare(ctx, store)
	default:
		if keys, jobs, err = m.fill(ctx, store); err != nil {
			return err
		}
		if err := datafile.Detach(m.DataDir, time.Now()); err != nil {
			return err
		}
		return m.report(keys, jobs)
	}
	if err = errors.Join(err, store.Close()); err != nil {
		return err
	}
	return m.report(keys, jobs)
}

// compare compares a data directory that an earlier run has filled with the store.
func (m *Migration) compare(ctx context.Context, store truth.Store) (keys, jobs int, err error) {
	d, err := db.Open(db.Options{Dir: m.DataDir, MaintenanceInterval: still})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return m.verify(ctx, d, store)
}

// verify compares a data directory with etcd, and returns how many objects and jobs both have.
func (m *Migration) verify(ctx context.Context, d *db.DB, store truth.Store) (objects, jobs int, err error) {
	keys, err := migrate.Verify(ctx, d, store)
	if errors.Is(err, migrate.ErrDiffers) {
		err = cli.WithHint(err, "a server has written meanwhile: stop all servers, and run it again")
	}
	if err != nil {
		return 0, 0, err
	}
	jobs, spooled, err := pushes(ctx, d)
	return keys - spooled, jobs, err
}

// report prints what was moved from etcd.
func (m *Migration) report(keys, jobs int) error {
	_, err := fmt.Fprintf(m.Out, "%s the same in %s as in etcd, and %s there; next: copy the directory of --pki-dir to %s, and tidewaiter serve --data-dir %s\n",
		table.Clause(keys, "object", "are"), m.DataDir, table.Clause(jobs, "push", "wait"), filepath.Join(m.DataDir, "pki"), m.DataDir)
	return err
}

// fill makes the data directory a copy of the store, and compares the two.
func (m *Migration) fill(ctx context.Context, store truth.Store) (keys, jobs int, err error) {
	d, err := db.Open(db.Options{Dir: m.DataDir, Truth: store, MaintenanceInterval: still})
	if err != nil {
		return 0, 0, errors.Join(err, store.Close())
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if err := d.Filled(ctx); err != nil {
		return 0, 0, err
	}
	return m.verify(ctx, d, store)
}
