package spool

import (
	"context"
	"crypto/sha256"
	"database/sql/driver"
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
// ErrFull, *UnavailableError or another error of DB.
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
		if err := forgetSeen(t, s.opts.MaxSeen, len(requests)); err != nil {
			return err
		}
		added := int64(0)
		for _, r := range requests {
			if fresh, err := see(t, r); err != nil {
				return err
			} else if !fresh {
				continue
			}
			n, err := addPayload(t, r)
			if err != nil {
				return err
			}
			added += n
		}
		if added == 0 {
			return nil
		}
		t.After(s.signal)
		return makeRoom(t, s.opts.MaxPayloads)
	})
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

// addPayload adds to the newest job that waits for the key, or makes one. It
// returns 0 when the payload waits already.
func addPayload(t db.Transaction, r Request) (int64, error) {
	var job int64
	err := t.Each(func(row []driver.Value) error {
		if row[1].(int64) < maxJobPayloads {
			job = row[0].(int64)
		}
		return nil
	}, "SELECT id, payloads FROM spool_jobs WHERE key = ? AND state = 'waiting' ORDER BY id DESC LIMIT 1", r.Key)
	if err != nil {
		return 0, err
	}
	if job == 0 {
		job, _, err = t.First(`INSERT INTO spool_jobs (key, source, state, due, enqueued, latest, payloads)
			VALUES (?1, ?2, 'waiting', ?3, ?3, ?3, 0) RETURNING id`, r.Key, r.Source, t.Now())
		if err != nil {
			return 0, err
		}
	}
	n, err := t.Exec("INSERT INTO spool_payloads (job, payload) VALUES (?, ?) ON CONFLICT DO NOTHING", job, r.Payload)
	if err != nil {
		return 0, err
	}
	_, err = t.Exec("UPDATE spool_jobs SET payloads = payloads + ?, latest = ? WHERE id = ?", n, t.Now(), job)
	return n, err
}

// makeRoom drops the jobs dead for longest until the bound is kept, or fails
// with ErrFull, which takes back what the caller wrote.
func makeRoom(t db.Transaction, bound int64) error {
	for {
		n, _, err := t.First("SELECT value FROM meta WHERE name = 'spooled'")
		if err != nil || n <= bound {
			return err
		}
		job, ok, err := t.First("SELECT id FROM spool_jobs WHERE state = 'dead' ORDER BY due, id LIMIT 1")
		if err != nil {
			return err
		}
		if !ok {
			return ErrFull
		}
		if err := removeJob(t, job); err != nil {
			return err
		}
	}
}

func removeJob(t db.Transaction, id int64) error {
	if _, err := t.Exec("DELETE FROM spool_payloads WHERE job = ?", id); err != nil {
		return err
	}
	_, err := t.Exec("DELETE FROM spool_jobs WHERE id = ?", id)
	return err
}
