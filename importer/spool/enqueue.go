package spool

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql/driver"
	"encoding/json"
	"fmt"

	"go.opentelemetry.io/otel/propagation"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/importer/push"
)

// Enqueue makes the events durable, all of them or none. An event whose (Receiver, ID)
// was taken in the last 24 hours is acknowledged and left out. An event that waits for
// its key already is not added again. Enqueue fails with ErrFull, *db.UnavailableError or
// another error of DB. Jobs that give way to a receiver's quota are dropped without an
// error.
func (s *Spool) Enqueue(ctx context.Context, events []push.Event) error {
	items, err := itemsOf(ctx, events)
	if err != nil {
		return err
	}
	return s.db.Transact(ctx, func(t db.Transaction) error {
		if err := t.MayGrow(); err != nil {
			return err
		}
		if err := forgetSeen(t, s.opts.MaxSeen, len(items)); err != nil {
			return err
		}
		added := map[string]*addition{} // by receiver
		for _, i := range items {
			if isNew, err := remember(t, i.Receiver, i.ID); err != nil {
				return err
			} else if !isNew {
				continue
			}
			job, n, err := addItem(t, i)
			if err != nil {
				return err
			}
			if n > 0 {
				if added[i.Receiver] == nil {
					added[i.Receiver] = &addition{}
				}
				added[i.Receiver].events += n
				added[i.Receiver].jobs = append(added[i.Receiver].jobs, job)
			}
		}
		for receiver, a := range added {
			dropped, err := s.makeRoom(t, receiver, a)
			if err != nil {
				return err
			}
			if dropped > 0 {
				t.After(func() { s.dropped.add(receiver, dropped, s.db.Now()) })
			}
		}
		if len(added) > 0 {
			t.After(s.signal)
		}
		return nil
	})
}

// item is an event as it is written.
type item struct {
	push.Event
	key    string
	stored []byte
	traced []byte // with the trace, for the first event of a job
}

// itemsOf checks the size of events. They belong to the trace of ctx, unless they have one already.
func itemsOf(ctx context.Context, events []push.Event) ([]item, error) {
	trace := propagation.MapCarrier{}
	if oteltrace.SpanContextFromContext(ctx).IsSampled() {
		propagation.TraceContext{}.Inject(ctx, trace)
	}
	items := make([]item, len(events))
	for i, e := range events {
		in := cmp.Or(e.Trace, trace.Get("traceparent"))
		e.Trace = ""
		items[i] = item{Event: e, key: e.Key(), stored: e.Encode()}
		items[i].traced = items[i].stored
		if e.Trace = in; in != "" {
			items[i].traced = e.Encode()
		}
		if n := len(items[i].key); n > maxKeyBytes {
			return nil, fmt.Errorf("spool key of %d bytes: a key has at most %d", n, maxKeyBytes)
		}
		if n := len(items[i].traced); n > maxEventBytes {
			return nil, fmt.Errorf("event of %d bytes: an event has at most %d", n, maxEventBytes)
		}
	}
	return items, nil
}

// seenID is the stored form of a delivery's ID.
func seenID(receiver, eventID string) (id [16]byte) {
	sum := sha256.Sum256([]byte(receiver + "\x00" + eventID))
	copy(id[:], sum[:])
	return id
}

// addition has the events and jobs that one call of Enqueue added for a receiver.
type addition struct {
	events int64
	jobs   []int64
}

// remember notes the ID of an event and reports whether it is new.
func remember(t db.Transaction, receiver, eventID string) (bool, error) {
	if eventID == "" {
		return true, nil
	}
	sum := seenID(receiver, eventID)
	id := sum[:]
	for {
		n, err := t.Exec("INSERT INTO spool_seen (id, at) VALUES (?, ?) ON CONFLICT DO NOTHING", id, t.Now())
		if err != nil || n == 1 {
			return n == 1, err
		}
		// It was seen, but perhaps too long ago and not forgotten yet.
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

// addItem adds to the newest job of the receiver that waits for the key, or makes
// one. n is 0 when the same event waits already.
func addItem(t db.Transaction, i item) (job, n int64, err error) {
	err = t.Each(func(row []driver.Value) error {
		if row[1].(int64) < maxJobEvents {
			job = row[0].(int64)
		}
		return nil
	}, "SELECT id, payloads FROM spool_jobs WHERE key = ? AND state = 'waiting' AND source = ? ORDER BY id DESC LIMIT 1", i.key, i.Receiver)
	if err != nil {
		return 0, 0, err
	}
	stored := i.stored
	if job == 0 {
		stored = i.traced
		job, _, err = t.First(`INSERT INTO spool_jobs (key, source, state, due, enqueued, latest, payloads)
			VALUES (?1, ?2, 'waiting', ?3, ?3, ?3, 0) RETURNING id`, i.key, i.Receiver, t.Now())
		if err != nil {
			return 0, 0, err
		}
	}
	n, err = t.Exec("INSERT INTO spool_payloads (job, payload) VALUES (?, ?) ON CONFLICT DO NOTHING", job, stored)
	if err != nil {
		return 0, 0, err
	}
	_, err = t.Exec("UPDATE spool_jobs SET payloads = payloads + ?, latest = ? WHERE id = ?", n, t.Now(), job)
	return job, n, err
}

// makeRoom counts the events that were added for the receiver, and brings it back to its
// quota. It removes the receiver's dead jobs first, then those that wait, beginning with
// the least recently notified. It keeps the jobs that were just added to: their
// sender learns that they were accepted. makeRoom returns how many waiting events it
// removed. When only jobs are left that are being done, it fails with ErrFull, which
// takes back the caller's writes.
func (s *Spool) makeRoom(t db.Transaction, receiver string, added *addition) (dropped int64, err error) {
	keep, err := json.Marshal(added.jobs)
	if err != nil {
		return 0, err
	}
	have, _, err := t.First(`INSERT INTO spool_sources VALUES (?1, ?2)
		ON CONFLICT (source) DO UPDATE SET payloads = payloads + ?2 RETURNING payloads`, receiver, added.events)
	for err == nil && have > s.opts.Quota {
		var id, events int64
		waited := false
		// By its state, "dead" is before "waiting".
		err = t.Each(func(row []driver.Value) error {
			id, events, waited = row[0].(int64), row[1].(int64), row[2] == string(push.Waiting)
			return nil
		}, `SELECT id, payloads, state FROM spool_jobs WHERE source = ? AND state <> 'leased'
			AND id NOT IN (SELECT value FROM json_each(?)) ORDER BY state, latest, id LIMIT 1`, receiver, string(keep))
		if err != nil {
			break
		}
		if id == 0 {
			return 0, ErrFull
		}
		if _, err = remove(t, "id = ?", id); err != nil {
			break
		}
		have -= events
		if waited {
			dropped += events
		}
	}
	return dropped, err
}

// remove removes the jobs that the condition holds for, and returns how many.
func remove(t db.Transaction, condition string, args ...any) (n int64, err error) {
	type removed struct {
		id, events int64
		receiver   string
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
			_, err = t.Exec("UPDATE spool_sources SET payloads = payloads - ? WHERE source = ?", j.events, j.receiver)
		}
	}
	return int64(len(jobs)), err
}
