package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

// Options say where and when backups are made. All are required.
type Options struct {
	// Dir is the folder for backups. It must exist, because a missing folder may mean that a disk is
	// not mounted. No other user may own it or write to it.
	Dir string
	// Every is the time from one backup to the next.
	Every time.Duration
	// Keep is how many backups are kept; the newest stay.
	Keep int
}

// retry is the longest pause after a backup that failed.
const retry = 5 * time.Minute

// Names of backups: they sort by time, which is UTC.
const layout = "tidewaiter-20060102T150405Z.db"

var named = regexp.MustCompile(`^tidewaiter-\d{8}T\d{6}Z\.db$`)

// Clock is the source of time; a *db.DB is one.
type Clock interface {
	Now() time.Time
	After(time.Duration) <-chan time.Time
}

// Schedule makes backups of an open database at intervals.
type Schedule struct {
	clock Clock
	dir   string // the database's
	log   *slog.Logger

	failures prometheus.Counter
	last     atomic.Int64 // Unix seconds of the newest; 0 for none
	bytes    atomic.Int64 // of the newest
	figures  []prometheus.Collector
}

// NewSchedule returns the Schedule of a data directory. It makes no backup before Keep is called.
// It is a prometheus.Collector.
func NewSchedule(clock Clock, dir string, log *slog.Logger) *Schedule {
	s := &Schedule{clock: clock, dir: dir, log: log}
	s.failures = prometheus.NewCounter(prometheus.CounterOpts{Name: "tidewaiter_db_backup_failures_total", Help: "Scheduled backups that failed."})
	figure := func(name, help string, value *atomic.Int64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tidewaiter_db_backup_" + name, Help: help}, func() float64 { return float64(value.Load()) })
	}
	s.figures = []prometheus.Collector{
		s.failures,
		figure("last_success_timestamp_seconds", "Unix time of the newest scheduled backup; 0 for none.", &s.last),
		figure("bytes", "Size of the newest scheduled backup.", &s.bytes),
	}
	return s
}

// Describe implements prometheus.Collector.
func (s *Schedule) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range s.figures {
		f.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (s *Schedule) Collect(ch chan<- prometheus.Metric) {
	for _, f := range s.figures {
		f.Collect(ch)
	}
}

// Keep makes backups until ctx ends. It checks each as Restore does, and then removes the oldest
// beyond Options.Keep. It makes the first one at once, unless the folder has a recent one. It logs,
// counts and retries a backup that fails. Writers do not wait for backups.
func (s *Schedule) Keep(ctx context.Context, o Options) {
	failing := "" // why the last backup failed
	for {
		wait := s.nextBackup(o)
		if wait > 0 {
			select {
			case <-s.clock.After(wait):
			case <-ctx.Done():
				return
			}
		}
		err := s.backUp(ctx, o)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			if failing != "" {
				failing = ""
				s.log.Warn("scheduled backups succeed again", "dir", o.Dir)
			}
			continue
		}
		s.failures.Inc()
		if failing != err.Error() {
			failing = err.Error()
			s.log.Warn("a scheduled backup failed, will retry", "dir", o.Dir, "err", err)
		}
		select {
		case <-s.clock.After(min(o.Every, retry)):
		case <-ctx.Done():
			return
		}
	}
}

// nextBackup returns how long to wait for the next backup, given the newest one.
func (s *Schedule) nextBackup(o Options) time.Duration {
	names, _ := s.listBackups(o.Dir) // writing the backup will report an error
	if len(names) == 0 {
		return 0
	}
	newest := names[len(names)-1]
	at, err := time.Parse(layout, newest)
	if err != nil { // an impossible date, such as 30 February
		return 0
	}
	s.last.Store(at.Unix())
	s.bytes.Store(datafile.FileSize(filepath.Join(o.Dir, newest)))
	return o.Every - s.clock.Now().Sub(at)
}

// backUp makes one backup and removes the oldest if there are too many.
func (s *Schedule) backUp(ctx context.Context, o Options) error {
	if err := checkBackups(o.Dir); err != nil {
		return err
	}
	start := s.clock.Now().UTC()
	file := filepath.Join(o.Dir, start.Format(layout))
	if err := makeFile(ctx, s.dir, file, func(dir string) error { return datafile.Check(ctx, dir) }); err != nil {
		return err
	}
	size := datafile.FileSize(file)
	s.last.Store(start.Unix())
	s.bytes.Store(size)
	s.log.Info("backed up and checked", "file", file, "bytes", size)
	names, err := s.listBackups(o.Dir)
	for len(names) > o.Keep {
		err = errors.Join(err, os.Remove(filepath.Join(o.Dir, names[0])))
		names = names[1:]
	}
	return err
}

// checkBackups fails for a folder that is missing, or that another user owns or can write: such a
// user could remove backups, or make Keep remove good ones as the oldest.
func checkBackups(dir string) error {
	err := trusted.CheckDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: mount its disk, or create it with mkdir -m 700", err)
	}
	return err
}

// listBackups returns the names of the scheduled backups in dir, oldest first. It leaves out
// backups with a time in the future, made while the clock was ahead: these stay until their time
// comes.
func (s *Schedule) listBackups(dir string) (names []string, err error) {
	if err := checkBackups(dir); err != nil {
		return nil, err
	}
	now := s.clock.Now().UTC().Format(layout)
	entries, err := os.ReadDir(dir) // in order
	for _, e := range entries {
		if e.Type().IsRegular() && named.MatchString(e.Name()) && e.Name() <= now {
			names = append(names, e.Name())
		}
	}
	return names, err
}
