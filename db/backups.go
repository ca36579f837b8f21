package db

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/trusted"
)

// BackupOptions say where and when backups are made. All are required.
type BackupOptions struct {
	// Dir is the folder for them. It must exist: a missing one may be that of a disk that
	// is not mounted. Nobody else may own it or write it.
	Dir string
	// Every is the time from one backup to the next.
	Every time.Duration
	// Keep is how many are kept, the newest.
	Keep int
}

// backupRetry is the longest wait after a backup that failed.
const backupRetry = 5 * time.Minute

// Names of backups: they sort by time, which is UTC.
const backupLayout = "tidewaiter-20060102T150405Z.db"

var backupName = regexp.MustCompile(`^tidewaiter-\d{8}T\d{6}Z\.db$`)

// backupMetrics are the figures of scheduled backups.
type backupMetrics struct {
	failures prometheus.Counter
	last     atomic.Int64 // Unix seconds of the newest; 0 for none
	bytes    atomic.Int64 // of the newest
}

// KeepBackups makes backups until ctx ends. Each is checked as Restore checks one,
// and then the oldest beyond Keep are removed. The first is made at once, unless the
// folder has one that is not old enough. One that fails is logged, counted and tried
// again. Writers do not wait for any of it.
func (d *DB) KeepBackups(ctx context.Context, o BackupOptions) {
	failing := "" // why the last backup failed
	for {
		wait := d.nextBackup(o)
		if wait > 0 {
			select {
			case <-d.clock.After(wait):
			case <-ctx.Done():
				return
			}
		}
		err := d.backUp(ctx, o)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			if failing != "" {
				failing = ""
				d.log.Warn("scheduled backups succeed again", "dir", o.Dir)
			}
			continue
		}
		d.metrics.backups.failures.Inc()
		if failing != err.Error() {
			failing = err.Error()
			d.log.Warn("a scheduled backup failed and will be tried again", "dir", o.Dir, "err", err)
		}
		select {
		case <-d.clock.After(min(o.Every, backupRetry)):
		case <-ctx.Done():
			return
		}
	}
}

// nextBackup looks at the newest backup, and returns how long to wait for the next.
func (d *DB) nextBackup(o BackupOptions) time.Duration {
	names, _ := d.listBackups(o.Dir) // an error is met again when the backup is written
	if len(names) == 0 {
		return 0
	}
	newest := names[len(names)-1]
	at, err := time.Parse(backupLayout, newest)
	if err != nil { // as 30 February
		return 0
	}
	d.metrics.backups.last.Store(at.Unix())
	d.metrics.backups.bytes.Store(datafile.FileSize(filepath.Join(o.Dir, newest)))
	return o.Every - d.clock.Now().Sub(at)
}

// backUp makes one backup and removes those that are too many.
func (d *DB) backUp(ctx context.Context, o BackupOptions) error {
	if err := checkBackups(o.Dir); err != nil {
		return err
	}
	start := d.clock.Now().UTC()
	file := filepath.Join(o.Dir, start.Format(backupLayout))
	if err := backup(ctx, d.dir, file, func(dir string) error { return Check(ctx, dir) }); err != nil {
		return err
	}
	size := datafile.FileSize(file)
	d.metrics.backups.last.Store(start.Unix())
	d.metrics.backups.bytes.Store(size)
	d.log.Info("backed up and checked", "file", file, "bytes", size)
	names, err := d.listBackups(o.Dir)
	for len(names) > o.Keep {
		err = errors.Join(err, os.Remove(filepath.Join(o.Dir, names[0])))
		names = names[1:]
	}
	return err
}

// checkBackups fails for a folder that is missing, or that another user owns or can write: he
// could remove backups, and have good ones removed as the oldest.
func checkBackups(dir string) error {
	err := trusted.CheckDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: mount the disk that it is on, or make it with mkdir -m 700", err)
	}
	return err
}

// listBackups are the names of the scheduled backups in dir, oldest first. Those that were
// made when the clock was ahead are not among them: they are kept until their time comes.
func (d *DB) listBackups(dir string) (names []string, err error) {
	if err := checkBackups(dir); err != nil {
		return nil, err
	}
	now := d.clock.Now().UTC().Format(backupLayout)
	entries, err := os.ReadDir(dir) // in order
	for _, e := range entries {
		if e.Type().IsRegular() && backupName.MatchString(e.Name()) && e.Name() <= now {
			names = append(names, e.Name())
		}
	}
	return names, err
}
