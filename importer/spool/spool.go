// Package spool is a queue of pushes that survives the process. It is kept in the
// file of package db, in tables that db's migrations make.
package spool

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/component-base/metrics"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/importer/push"
	"github.com/tidewaiter/tidewaiter/web/warn"
)

// Spool is a queue of jobs that survives the process, in the database's file:
//
//   - Enqueue returns once the jobs are durable, all of them or none;
//   - a job is done at least once: it is leased to a worker by Claim, and goes
//     back when the worker fails, or says nothing until the lease ends, or dies;
//   - events of one receiver with one key that wait together are one job, and jobs
//     of one key are never leased together;
//   - an event that a sender repeats within 24 hours is taken once;
//   - a failing job waits longer each time, up to a ceiling, and is dead after
//     MaxAttempts: it is kept for a person to look at (List), try again (Retry)
//     or drop (Drop);
//   - each receiver has a quota. Events that wait already do not count twice. Past
//     the quota the receiver's own jobs give way: dead ones first, then those that
//     wait, oldest first. So a receiver that is told too much, or somebody with its
//     secret, takes nothing from the others. This is counted and logged.
//
// The worker interprets events. One goroutine at a time may wait
// in Claim; everything else is safe for concurrent use.
type Spool struct {
	db      *db.DB
	opts    Options
	wake    chan struct{} // holds a token when a job may have become due
	dropped *dropped
	dead    deadJobs
}

// Options tune a Spool; the zero value of each field has a sane default.
type Options struct {
	// Quota bounds the events of one receiver in all its jobs, dead ones included.
	// Default 10,000. The receivers are few: the spool holds at most their number
	// times the quota.
	Quota int64
	// MaxSeen bounds the event IDs remembered; past it the oldest are forgotten
	// before their 24 hours. Default 1,000,000 (about 50 MB).
	MaxSeen int64
	// MaxAttempts is how often a job is leased before it is dead. Default 50,
	// which with the other defaults is about four hours of trying.
	MaxAttempts int64
	// BaseDelay is the wait after the first failure; it doubles with each, up to
	// MaxDelay. Each wait is shortened by up to a half at random, so that jobs
	// which failed together do not come back together. Defaults 1 second and 5
	// minutes.
	BaseDelay, MaxDelay time.Duration
	// Servers are those that have a Shared spool; nil if this process alone claims.
	Servers Servers
	// Logger gets receivers past their quota and dead jobs. Default
	// slog.Default().
	Logger *slog.Logger
	// RegisterMetrics registers what the spool counts; nil to count nothing.
	RegisterMetrics func(...metrics.Registerable)
}

// Bounds of one job.
const (
	seenWindow    = 24 * time.Hour
	maxJobEvents  = 256 // more start another job of the same key
	maxKeyBytes   = 1024
	maxEventBytes = 8192 // of one event, as it is stored
	maxErrorBytes = 1024 // bytes kept of an error
)

// Errors of the spool.
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
	o.MaxSeen = cmp.Or(o.MaxSeen, 1_000_000)
	o.MaxAttempts = cmp.Or(o.MaxAttempts, 50)
	o.BaseDelay = cmp.Or(o.BaseDelay, time.Second)
	o.MaxDelay = cmp.Or(o.MaxDelay, 5*time.Minute)
	if o.Quota < 0 || o.MaxSeen < 0 || o.MaxAttempts < 0 || o.BaseDelay < 0 || o.MaxDelay < o.BaseDelay {
		return fmt.Errorf("spool options must not be negative, nor MaxDelay less than BaseDelay: %+v", *o)
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
	return nil
}

// Open returns the database's spool. Leases of an earlier process end: the data
// directory's lock says that it is gone. Call it once.
func Open(d *db.DB, opts Options) (*Spool, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	s := &Spool{db: d, opts: opts, wake: make(chan struct{}, 1), dropped: newDropped(opts.Logger, opts.RegisterMetrics), dead: deadJobs{warn.Limiter{Logger: opts.Logger}}}
	err := d.Transact(context.Background(), func(t db.Transaction) error {
		_, err := t.Exec("UPDATE spool_jobs SET state = 'waiting', due = ? WHERE state = 'leased'", t.Now())
		return err
	})
	if _, ok := errors.AsType[*datafile.UnavailableError](err); ok {
		opts.Logger.Warn("pushes whose import was interrupted wait for their leases to end", "err", err)
	} else if err != nil {
		return nil, fmt.Errorf("open the spool: %w", err)
	}
	return s, nil
}

const jobColumns = "id, key, source, state, due, enqueued, latest, attempts, leases, error"

func scanJob(row []driver.Value) *push.Job {
	return &push.Job{
		ID: row[0].(int64), Key: row[1].(string), Receiver: row[2].(string), State: push.State(row[3].(string)),
		Due: time.UnixMilli(row[4].(int64)).UTC(), Enqueued: time.UnixMilli(row[5].(int64)).UTC(), Latest: time.UnixMilli(row[6].(int64)).UTC(),
		Attempts: int(row[7].(int64)), Lease: row[8].(int64), Error: row[9].(string),
	}
}

// loadEvents fills in a job's events. unreadable is set if another release stored an
// event that this one cannot read.
func loadEvents(c db.Snapshot, j *push.Job) (unreadable, err error) {
	err = c.Each(func(row []driver.Value) error {
		b, _ := row[0].([]byte)
		e, err := push.Decode(b)
		j.Events, unreadable = append(j.Events, e), errors.Join(unreadable, err)
		return nil
	}, "SELECT payload FROM spool_payloads WHERE job = ? ORDER BY seq", j.ID)
	return unreadable, err
}

// signal says that a job may have become due.
func (s *Spool) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Depth counts the jobs by receiver. It reads as many rows as there are jobs.
func (s *Spool) Depth(ctx context.Context) (map[string]push.Depth, error) {
	depths := map[string]push.Depth{}
	err := s.db.Read(ctx, func(c db.Snapshot) error {
		return c.Each(func(row []driver.Value) error {
			receiver, n, oldest := row[0].(string), row[2].(int64), time.UnixMilli(row[3].(int64)).UTC()
			depth := depths[receiver]
			switch push.State(row[1].(string)) {
			case push.Waiting:
				depth.Waiting = n
			case push.Leased:
				depth.Leased = n
			case push.Dead:
				depth.Dead = n
				oldest = time.Time{}
			}
			if !oldest.IsZero() && (depth.Oldest.IsZero() || oldest.Before(depth.Oldest)) {
				depth.Oldest = oldest
			}
			depths[receiver] = depth
			return nil
		}, "SELECT source, state, count(*), min(enqueued) FROM spool_jobs GROUP BY source, state")
	})
	return depths, err
}
