package spool

import (
	"context"
	"crypto/sha256"
	"database/sql/driver"
	"encoding/json"
	"fmt"

	"github.com/tidewaiter/tidewaiter/db"
)

// Request is one payload to enqueue.
type Request struct {
	// Key says what the work is on; payloads of one key are done together.
	Key string
	// Source and EventID name the event, for 24 hours: a second request with both
	// the same is acknowledged and not enqueued. An empty EventID is never a repeat.
	Source, EventID string
	// Payload is what the worker gets, up to 8 KiB. A payload that waits for its
	// key already is not added again.
	Payload []byte
}

// Enqueue makes the requests durable, all of them or none. It fails with
// ErrFull, *db.UnavailableError or another error of DB. Jobs that give way to a
// source's quota are dropped without an error.
func (s *Spool) Enqueue(ctx context.Context, requests []Request) error {
	for _, r := range requests {
		if r.Key == "" || len(r.Key) > maxKeyBytes {
			return fmt.Errorf("spool key of %d bytes: a key has 1 to %d", len(r.Key), maxKeyBytes)
		}
		if len(r.Payload) == 0 || len(r.Payload) > maxPayloadBytes {
			return fmt.Errorf("spool payload of %d bytes: a payload has 1 to %d", len(r.Payload), maxPayloadBytes)
		}
	}
	return s.db.Transact(ctx, func(t db.Transaction) error {
		if err := t.MayGrow(); err != nil {
			return err
		}
		if err := forgetSeen(t, s.opts.MaxSeen, len(requests)); err != nil {
			return err
		}
		added := map[string]*addition{} // by source
		for _, r := range requests {
			if fresh, err := see(t, r); err != nil {
				return err
			} else if !fresh {
				continue
			}
			job, n, err := addPayload(t, r)
			if err != nil {
				return err
			}
			if n > 0 {
				if added[r.Source] == nil {
					added[r.Source] = &addition{}
				}
				added[r.Source].payloads += n
				added[r.Source].jobs = append(added[r.Source].jobs, job)
			}
		}
		for source, a := range added {
			dropped, err := s.makeRoom(t, source, a)
			if err != nil {
				return err
			}
			if dropped > 0 {
				t.After(func() { s.dropped.add(source, dropped, s.db.Now()) })
			}
		}
		if len(added) > 0 {
			t.After(s.signal)
		}
		return nil
	})
}

// addition is what one call of Enqueue added for a source.
type addition struct {
	payloads int64
	jobs     []int64
}

// see remembers the event and reports whether it is new.
func see(t db.Transaction, r Request) (bool, error) {
	if r.EventID == "" {
		return true, nil
	}
	sum := sha256.Sum256([]byte(r.Source + "\x00" + r.EventID))
	id := sum[:16]
	for {
		n, err := t.Exec("INSERT INTO spool_seen (id, at) VALUES (?, ?) ON CONFLICT DO NOTHING", id, t.Now())
		if err != nil || n == 1 {
			return n == 1, err
		}
		// Seen, but perhaps too long ago and not forgotten yet.
		n, err = t.Exec("DELETE FROM spool_seen WHERE id = ? AND at <= ?", id, t.Now()-seenWindow.Milliseconds())
		if err != nil || n == 0 {
			return false, err
		}
	}
}

// forgetSeen removes some of the oldest events, more than are about to be added:
// the table shrinks back to its bounds without ever taking long.
func forgetSeen(t db.Transaction, bound int64, adding int) error {
	last, ok, err := t.First("SELECT max(seq) FROM spool_seen")
	if err != nil || !ok {
		return err
	}
	_, err = t.Exec(`DELETE FROM spool_seen WHERE seq IN (
		SELECT seq FROM (SELECT seq, at FROM spool_seen ORDER BY seq LIMIT ?) WHERE seq <= ? OR at <= ?)`,
		int64(2*adding+16), last-bound+int64(adding), t.Now()-seenWindow.Milliseconds())
	return err
}

// addPayload adds to the newest job of the source that waits for the key, or makes
// one. n is 0 when the payload waits already.
func addPayload(t db.Transaction, r Request) (job, n int64, err error) {
	err = t.Each(func(row []driver.Value) error {
		if row[1].(int64) < maxJobPayloads {
			job = row[0].(int64)
		}
		return nil
	}, "SELECT id, payloads FROM spool_jobs WHERE key = ? AND state = 'waiting' AND source = ? ORDER BY id DESC LIMIT 1", r.Key, r.Source)
	if err != nil {
		return 0, 0, err
	}
	if job == 0 {
		job, _, err = t.First(`INSERT INTO spool_jobs (key, source, state, due, enqueued, latest, payloads)
			VALUES (?1, ?2, 'waiting', ?3, ?3, ?3, 0) RETURNING id`, r.Key, r.Source, t.Now())
		if err != nil {
			return 0, 0, err
		}
	}
	n, err = t.Exec("INSERT INTO spool_payloads (job, payload) VALUES (?, ?) ON CONFLICT DO NOTHING", job, r.Payload)
	if err != nil {
		return 0, 0, err
	}
	_, err = t.Exec("UPDATE spool_jobs SET payloads = payloads + ?, latest = ? WHERE id = ?", n, t.Now(), job)
	return job, n, err
}

// makeRoom counts what was added for the source, and brings the source back to its
// quota: its dead jobs are removed, then those that wait, the one that has not
// been asked for the longest first, but none that was just added to: its sender is
// told that it was taken. makeRoom returns the payloads that waited and were
// removed. When only jobs that are being done are left it fails with ErrFull,
// which takes back what the caller wrote.
func (s *Spool) makeRoom(t db.Transaction, source string, added *addition) (dropped int64, err error) {
	keep, err := json.Marshal(added.jobs)
	if err != nil {
		return 0, err
	}
	have, _, err := t.First(`INSERT INTO spool_sources VALUES (?1, ?2)
		ON CONFLICT (source) DO UPDATE SET payloads = payloads + ?2 RETURNING payloads`, source, added.payloads)
	for err == nil && have > s.opts.Quota {
		var id, payloads int64
		waited := false
		err = t.Each(func(row []driver.Value) error {
			id, payloads, waited = row[0].(int64), row[1].(int64), row[2] == string(Waiting)
			return nil
		}, `SELECT id, payloads, state FROM spool_jobs WHERE source = ? AND state <> 'leased'
			AND id NOT IN (SELECT value FROM json_each(?)) ORDER BY state, latest, id LIMIT 1`, source, string(keep)) // "dead" is before "waiting"
		if err != nil {
			break
		}
		if id == 0 {
			return 0, ErrFull
		}
		if _, err = remove(t, "id = ?", id); err != nil {
			break
		}
		have -= payloads
		if waited {
			dropped += payloads
		}
	}
	return dropped, err
}

// remove removes the jobs that the condition holds for, and returns how many.
func remove(t db.Transaction, condition string, args ...any) (n int64, err error) {
	type removed struct {
		id, payloads int64
		source       string
	}
	var jobs []removed
	err = t.Each(func(row []driver.Value) error {
		jobs = append(jobs, removed{row[0].(int64), row[1].(int64), row[2].(string)})
		return nil
	}, "DELETE FROM spool_jobs WHERE "+condition+" RETURNING id, payloads, source", args...)
	for _, j := range jobs {
		if err == nil {
			_, err = t.Exec("DELETE FROM spool_payloads WHERE job = ?", j.id)
		}
		if err == nil {
			_, err = t.Exec("UPDATE spool_sources SET payloads = payloads - ? WHERE source = ?", j.payloads, j.source)
		}
	}
	return int64(len(jobs)), err
}
