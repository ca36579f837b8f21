package db

import (
	"context"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/tidewaiter/tidewaiter/db/internal/clockguard"
	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

// maintain removes expired keys and old history, a little at a time, once in every
// Options.MaintenanceInterval.
func (d *DB) maintain() {
	defer d.wg.Done()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	failing, orphans := false, true
	clock := clockguard.Guard{Last: d.lastWrite(ctx)}
	for {
		select {
		case <-d.stop:
			return
		case <-d.clock.After(d.opts.MaintenanceInterval):
		}
		d.space.Warn()
		now, set := clock.Now(d.clock.Now(), time.Now(), d.opts.MaintenanceInterval)
		if set {
			d.log.Warn("the clock was set ahead: nothing expires by the new time until it has been stable for a while", "ahead", clock.Ahead.String(), "until", clockguard.Wait.String())
		}
		err := errors.Join(d.expire(ctx, now), d.compactOld(ctx, now), d.shrink(ctx), d.boundLog())
		if orphans && err == nil {
			err = d.dropOrphans(ctx)
			orphans = err != nil
		}
		if errors.Is(err, ErrClosed) {
			return
		}
		switch {
		case err != nil && !failing:
			d.log.Error("database maintenance failed, will retry", "dir", d.dir, "err", err)
		case err == nil && failing:
			d.log.Info("database maintenance works again", "dir", d.dir)
		}
		failing = err != nil
	}
}

// expireBatch bounds the keys one commit expires.
const expireBatch = 100

// lastWrite is when the newest change was made, the zero time if there is none or it cannot be
// read. A start compares the clock with it.
func (d *DB) lastWrite(ctx context.Context) (at time.Time) {
	_ = d.read(ctx, func(c *sqlite.Conn) error {
		ms, ok, err := c.First("SELECT at FROM revisions ORDER BY rev DESC LIMIT 1")
		if ok {
			at = time.UnixMilli(ms)
		}
		return err
	})
	return at
}

// expire deletes the keys whose time has come, as a client's deletion would.
func (d *DB) expire(ctx context.Context, now time.Time) error {
	for {
		var keys []expiring
		err := d.read(ctx, func(c *sqlite.Conn) error {
			return c.Each(func(row []driver.Value) error {
				keys = append(keys, expiring{row[0].(int64), row[1].(string)})
				return nil
			}, "SELECT rev, key FROM revisions INDEXED BY expiry WHERE until IS NULL AND expires IS NOT NULL AND expires <= ? ORDER BY expires LIMIT ?",
				now.UnixMilli(), int64(expireBatch))
		})
		if err != nil || len(keys) == 0 {
			return err
		}
		expired, err := d.authority.expire(ctx, keys)
		d.metrics.expired.Add(float64(expired))
		if err != nil {
			return err
		}
	}
}

// compactOld removes the history that is older than the window, except what Hold keeps.
func (d *DB) compactOld(ctx context.Context, now time.Time) error {
	window := d.opts.HistoryWindow
	// A change that is dated more than a window ahead was written while the clock was
	// wrong. It must not keep everything after it until that date.
	ahead := now.Add(window)
	last := d.revision.Load()
	held := d.holds.oldest(last)
	err := d.compact(ctx, held, now.Add(-window), ahead)
	if err == nil && held < last {
		err = d.compact(ctx, last, now.Add(-holdWindows*window), ahead)
	}
	return err
}
