package spool

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"fmt"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/push"
)

// Earlier releases kept jobs in the tables spool_jobs and spool_payloads, and IDs of deliveries in
// spool_seen. The tables stay, empty.

const (
	// adoptJobs and adoptIDs bound the rows that one commit makes keys of, forgetIDs those that it
	// removes.
	adoptJobs, adoptIDs, forgetIDs = 100, 1000, 10_000
	// adoptSpan bounds the time between the IDs of one key. All of them are forgotten together with
	// the first.
	adoptSpan = 10 * 60 * 1000 // milliseconds
)

// adopt turns the rows of a former release's tables into keys. One commit adds a key and removes
// its row, so an interrupted adopt can be repeated.
func adopt(d *db.DB, maxSeen int64) error {
	left := false
	if err := d.Read(context.Background(), func(c db.Snapshot) (err error) {
		_, left, err = c.First("SELECT 1 FROM (SELECT id FROM spool_jobs UNION ALL SELECT seq FROM spool_seen) LIMIT 1")
		return err
	}); err != nil || !left {
		return err
	}
	for _, some := range []func(db.Transaction) (rows int, err error){
		adoptSomeJobs,
		func(t db.Transaction) (int, error) { return forgetSomeIDs(t, maxSeen) },
		adoptSomeIDs,
	} {
		for rows := 1; rows > 0; {
			if err := d.Transact(context.Background(), func(t db.Transaction) (err error) {
				rows, err = some(t)
				return err
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// adoptSomeJobs makes keys of the first jobs. Those that are leased wait: their worker is gone.
func adoptSomeJobs(t db.Transaction) (rows int, err error) {
	type row struct {
		id int64
		record[push.Source]
	}
	var jobs []row
	if err := t.Each(func(values []driver.Value) error {
		j := row{values[0].(int64), record[push.Source]{
			Key: values[1].(string), Source: push.ParseSource(values[2].(string)), State: job.State(values[3].(string)), Due: values[4].(int64), Enqueued: values[5].(int64), Latest: values[6].(int64),
			Attempts: int(values[7].(int64)), Leases: values[8].(int64), Error: values[9].(string), Unread: values[10].(int64) != 0,
		}}
		if j.State == job.Leased {
			j.State, j.Due = job.Waiting, t.Now()
		}
		j.Lasts = max(j.Due-t.Now(), 0)
		jobs = append(jobs, j)
		return nil
	}, "SELECT id, key, source, state, due, enqueued, latest, attempts, leases, error, unread FROM spool_jobs ORDER BY id LIMIT ?", int64(adoptJobs)); err != nil {
		return 0, err
	}
	for _, j := range jobs {
		if err := t.Each(func(row []driver.Value) error {
			event, _ := row[0].([]byte)
			if !json.Valid(event) { // it cannot be read: the job will be dead, for users to look at
				event, _ = json.Marshal(string(event))
			}
			j.Events = append(j.Events, event)
			return nil
		}, "SELECT payload FROM spool_payloads WHERE job = ? ORDER BY seq", j.id); err != nil {
			return 0, err
		}
		value, err := json.Marshal(j.record)
		if err != nil {
			return 0, err
		}
		if err := t.Put(pushKeys.job(j.id), value, 0); err != nil {
			return 0, fmt.Errorf("job %d: %w", j.id, err)
		}
		for _, sql := range []string{"DELETE FROM spool_payloads WHERE job = ?", "DELETE FROM spool_jobs WHERE id = ?"} {
			if _, err := t.Exec(sql, j.id); err != nil {
				return 0, err
			}
		}
	}
	if len(jobs) == 0 {
		_, err = t.Exec("DELETE FROM spool_sources")
	}
	return len(jobs), err
}

// forgetSomeIDs removes IDs that are too old or too many.
func forgetSomeIDs(t db.Transaction, bound int64) (rows int, err error) {
	n, err := t.Exec(`DELETE FROM spool_seen WHERE seq IN (SELECT seq FROM spool_seen
		WHERE at <= ? OR seq <= (SELECT max(seq) FROM spool_seen) - ? LIMIT ?)`, t.Now()-seenWindow.Milliseconds(), bound, int64(forgetIDs))
	return int(n), err
}

// adoptSomeIDs makes a key of the first IDs.
func adoptSomeIDs(t db.Transaction) (rows int, err error) {
	var d delivery
	var last int64
	full := false
	if err := t.Each(func(row []driver.Value) error {
		id, _ := row[1].([]byte)
		at := row[2].(int64)
		if rows == 0 {
			d.At = at
		}
		if full = full || at < d.At || at-d.At > adoptSpan; full {
			return nil
		}
		last = row[0].(int64)
		rows++
		if len(id) == 16 {
			d.IDs = append(d.IDs, id...)
		}
		return nil
	}, "SELECT seq, id, at FROM spool_seen ORDER BY seq LIMIT ?", int64(adoptIDs)); err != nil || rows == 0 {
		return 0, err
	}
	if _, err := t.Exec("DELETE FROM spool_seen WHERE seq <= ?", last); err != nil || len(d.IDs) == 0 {
		return rows, err
	}
	value, err := json.Marshal(d)
	if err != nil {
		return 0, err
	}
	return rows, t.Put(pushKeys.delivery(d.At, d.IDs), value, d.At+seenWindow.Milliseconds())
}
