// Package migration moves all that a server has to an etcd that several servers share, and back.
package migration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/tidewaiter/tidewaiter/cmd/internal/cli"
	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/backup"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/etcd"
	"github.com/tidewaiter/tidewaiter/db/migrate"
	"github.com/tidewaiter/tidewaiter/importer/push"
	"github.com/tidewaiter/tidewaiter/importer/spool"
)

// etcdAnswers is how long etcd may take to answer at the beginning.
const etcdAnswers = 10 * time.Second

// Migration is a move of all objects.
type Migration struct {
	// DataDir is the data directory to read, or to make.
	DataDir string
	Etcd    etcd.Options
	// Out receives a report of what was done and what to do next.
	Out io.Writer
}

// open returns the store, once it has answered.
func (m *Migration) open(ctx context.Context) (*etcd.Store, error) {
	store, err := etcd.New(m.Etcd)
	if err != nil {
		return nil, err
	}
	store.Compress(true) // no server is at work
	asking, cancel := context.WithTimeout(ctx, etcdAnswers)
	defer cancel()
	if _, err := store.Identity(asking); err != nil {
		return nil, errors.Join(fmt.Errorf("etcd does not answer: %w", err), store.Close())
	}
	return store, nil
}

// still has nothing expire or be compacted while two databases are compared.
const still = 1000 * time.Hour

// ToEtcd copies the contents of a data directory, which no server has, to etcd. An interrupted copy
// can be repeated.
func (m *Migration) ToEtcd(ctx context.Context) (err error) {
	store, err := m.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
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
	var far *migrate.FarBehindError
	if err := migrate.Raise(ctx, store, source.Revision(), spool.SharedPrefix+"raise"); errors.As(err, &far) {
		return cli.WithHint(err, "make etcd of a snapshot: etcdctl snapshot save S, and etcdutl snapshot restore S --bump-revision %d --mark-compacted", far.Above)
	} else if err != nil {
		return err
	}
	_, written, err := migrate.Copy(ctx, source, store, spool.SharedPrefix)
	if errors.Is(err, migrate.ErrDiffers) {
		return cli.WithHint(fmt.Errorf("etcd has something else below %s: %w", m.Etcd.Prefix, err), "give an empty --etcd-prefix, and stop all servers that use it")
	} else if err != nil {
		return cli.WithHint(err, "run it again: what is written stays")
	}
	keys, err := migrate.Verify(ctx, source, store, spool.SharedPrefix)
	if err != nil {
		return err
	}
	moved, err := m.spoolToEtcd(ctx, source)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(m.Out, "%d objects are the same in etcd as in %s (%d were written now), and %d pushes wait there; next: copy %s to all machines, and start their servers with --pki-dir, --etcd-servers and new data directories\n",
		keys, m.DataDir, written, moved, filepath.Join(m.DataDir, "pki"))
	return err
}

// spoolToEtcd copies the pushes that wait.
func (m *Migration) spoolToEtcd(ctx context.Context, source *db.DB) (jobs int, err error) {
	from, err := spool.Open(source, spool.Options{})
	if err != nil {
		return 0, err
	}
	if first, err := from.List(ctx, "", 0, 1); err != nil || len(first) == 0 {
		return 0, err
	}
	store, err := etcd.New(m.Etcd)
	if err != nil {
		return 0, err
	}
	tmp, err := os.MkdirTemp("", "tidewaiter-migrate-")
	if err != nil {
		return 0, errors.Join(err, store.Close())
	}
	defer os.RemoveAll(tmp)
	copied, err := db.Open(db.Options{Dir: tmp, Truth: store, MaintenanceInterval: still})
	if err != nil {
		return 0, errors.Join(err, store.Close())
	}
	defer copied.Close()
	to, err := spool.OpenShared(copied, spool.Options{})
	if err != nil {
		return 0, err
	}
	return moveJobs(ctx, from, to)
}

// moveJobs puts the events of a spool's jobs into another, and returns how many jobs there were.
func moveJobs(ctx context.Context, from interface {
	Events(context.Context, func([]push.Event) error) error
}, to interface {
	Enqueue(context.Context, []push.Event) error
}) (jobs int, err error) {
	err = from.Events(ctx, func(events []push.Event) error { jobs++; return to.Enqueue(ctx, events) })
	return jobs, err
}

// FromEtcd makes the data directory a database of what etcd has. It may be a copy of etcd already,
// which no server has open.
func (m *Migration) FromEtcd(ctx context.Context) error {
	store, err := m.open(ctx)
	if err != nil {
		return err
	}
	keys, jobs, err := m.fill(ctx, store)
	if err != nil {
		return err
	}
	if err := datafile.Detach(m.DataDir, time.Now()); err != nil {
		return err
	}
	d, err := db.Open(db.Options{Dir: m.DataDir, MaintenanceInterval: still})
	if err != nil {
		return err
	}
	// The messages between servers there are of no use here.
	err = errors.Join(removeBelow(ctx, d, spool.SharedPrefix), d.Close())
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(m.Out, "%d objects are the same in %s as in etcd, and %d pushes wait there; next: copy the directory of --pki-dir to %s, and tidewaiter serve --data-dir %s\n",
		keys, m.DataDir, jobs, filepath.Join(m.DataDir, "pki"), m.DataDir)
	return err
}

// fill makes the data directory a copy, and compares it.
func (m *Migration) fill(ctx context.Context, store *etcd.Store) (keys, jobs int, err error) {
	d, err := db.Open(db.Options{Dir: m.DataDir, Truth: store, MaintenanceInterval: still})
	if err != nil {
		return 0, 0, errors.Join(err, store.Close())
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if err := d.Filled(ctx); err != nil {
		return 0, 0, err
	}
	if keys, err = migrate.Verify(ctx, d, store, ""); err != nil {
		return 0, 0, cli.WithHint(err, "stop all servers: something was written meanwhile")
	}
	from, err := spool.OpenShared(d, spool.Options{})
	if err != nil {
		return 0, 0, err
	}
	to, err := spool.Open(d, spool.Options{})
	if err != nil {
		return 0, 0, err
	}
	jobs, err = moveJobs(ctx, from, to)
	return keys, jobs, err
}

// removeBelow deletes the keys below a prefix.
func removeBelow(ctx context.Context, d *db.DB, prefix string) error {
	for {
		p, err := d.Range(ctx, db.RangeOptions{Prefix: prefix, KeysOnly: true, Limit: 500})
		if err != nil || len(p.KVs) == 0 {
			return err
		}
		for _, kv := range p.KVs {
			if _, err := d.Delete(ctx, kv.Key, kv.Rev); err != nil {
				return err
			}
		}
	}
}
