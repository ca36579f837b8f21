package spool_test

import (
	"crypto/sha256"
	"database/sql"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "github.com/mattn/go-sqlite3" // the driver that makes the old file

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/importer/spool"
	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/push"
)

// oldFile makes a data directory of a release with so many migrations, and runs a script in it.
func oldFile(t *testing.T, migrations int, script string, args ...any) (dir string) {
	t.Helper()
	dir = t.TempDir()
	old, err := sql.Open("sqlite3", filepath.Join(dir, datafile.FileName))
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range append(slices.Clone(datafile.Migrations[:migrations]), fmt.Sprintf("PRAGMA user_version = %d", migrations)) {
		if _, err := old.Exec(step); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := old.Exec(script, args...); err != nil {
		t.Fatal(err)
	}
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// formerNotification is a notification as earlier releases stored it among the pushes.
func formerNotification(id string) []byte {
	return fmt.Appendf(nil, `{"action":"tell","host":"notify:ci","repository":"moved/registry.example.com/app:v","digest":%q,"payload":"{\"a\":1}"}`, id)
}

// TestJobsInTables: the jobs of releases that kept them in tables are there as they were, whatever
// their kind and state, with their events in order; deliveries are known again; and what has become
// keys has left the tables.
func TestJobsInTables(t *testing.T) {
	stored := func(e push.Event, trace string) string {
		e.Trace = trace
		return fmt.Sprintf("x'%x'", e.Encode())
	}
	const trace = "00-0102030405060708090a0b0c0d0e0f10-0102030405060708-01"
	now := time.Now().UnixMilli()
	known, forgotten := sha256.Sum256([]byte("hub\x00e1")), sha256.Sum256([]byte("hub\x00e0"))
	for migrations, unread := range map[int]string{7: "", 9: "UPDATE spool_jobs SET unread = 1 WHERE id = 4;"} {
		t.Run(fmt.Sprint(migrations), func(t *testing.T) {
			dir := oldFile(t, migrations, `
				INSERT INTO spool_jobs (id, key, source, state, due, enqueued, latest, payloads, attempts, leases, error) VALUES
					(3, 'registry.example.com/app:v', 'hub', 'waiting', 5, 3, 4, 2, 1, 2, 'refused'),
					(4, 'registry.example.com/run:v', 'cluster/prod', 'dead', 6, 3, 3, 1, 50, 50, 'no route'),
					(5, 'registry.example.com/followed:v', 'image/streams', 'leased', 99999999999999, 3, 3, 1, 2, 2, ''),
					(6, 'registry.example.com/own:v', 'image/registry', 'waiting', 7, 3, 3, 1, 0, 0, ''),
					(7, 'registry.example.com/asked:v', 'image/asked', 'waiting', 8, 3, 3, 1, 0, 0, ''),
					(8, 'notify:ci/moved/registry.example.com/app:v#4711', 'notify/ci', 'waiting', 9, 3, 3, 1, 0, 0, '');
				INSERT INTO spool_payloads (job, payload) VALUES (3, `+stored(from("hub", "app", "", "a"), trace)+`), (4, `+stored(from("", "run", "", "r"), "")+`),
					(5, `+stored(from("", "followed", "", "f"), "")+`), (3, `+stored(from("hub", "app", "", "b"), "")+`), (6, `+stored(from("", "own", "", "o"), "")+`),
					(7, `+stored(from("", "asked", "", "k"), "")+`), (8, `+fmt.Sprintf("x'%x'", formerNotification("4711"))+`);
				INSERT INTO spool_sources VALUES ('hub', 2), ('cluster/prod', 1), ('image/streams', 1), ('image/registry', 1), ('image/asked', 1), ('notify/ci', 1);
				INSERT INTO spool_seen (id, at) VALUES (?, ?), (?, ?);`+unread, forgotten[:16], now-25*time.Hour.Milliseconds(), known[:16], now-time.Hour.Milliseconds())
			for range 2 { // the second finds nothing in the tables
				d, err := db.Open(db.Options{Dir: dir})
				if err != nil {
					t.Fatal(err)
				}
				opened, err := spool.Open(d, spool.Options{Logger: quiet})
				if err != nil {
					t.Fatal(err)
				}
				s := &testSpool{anySpool: opened, t: t}
				all, err := s.List(t.Context(), "", 0, 0)
				s.ok(err)
				var got []string
				for _, j := range all {
					got = append(got, fmt.Sprintf("%d %s %s %d %d %d %d %q %t", j.ID, j.Source, j.State, j.Attempts, j.Lease, j.Enqueued.UnixMilli(), j.Latest.UnixMilli(), j.Error, j.Unread))
				}
				want := []string{
					`3 hub waiting 1 2 3 4 "refused" false`, `4 cluster/prod dead 50 50 3 3 "no route" ` + strconv.FormatBool(unread != ""), `5 image/streams waiting 2 2 3 3 "" false`,
					`6 image/registry waiting 0 0 3 3 "" false`, `7 image/asked waiting 0 0 3 3 "" false`,
				}
				if !slices.Equal(got, want) {
					t.Errorf("jobs:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
				if st := s.stats(); st.Payloads != 6 {
					t.Errorf("%d events count, want 6", st.Payloads)
				}
				s.enqueue(from("hub", "app", "e1", "again")) // was taken an hour ago
				s.ok(d.Read(t.Context(), func(c db.Snapshot) error {
					n, _, err := c.First("SELECT (SELECT count(*) FROM spool_jobs) + (SELECT count(*) FROM spool_payloads) + (SELECT count(*) FROM spool_seen) + (SELECT count(*) FROM spool_sources)")
					if n != 0 {
						t.Errorf("%d rows are left", n)
					}
					return err
				}))
				s.ok(d.Close())
			}
			d := dbtest.OpenOptions(t, db.Options{Dir: dir})
			opened, err := spool.Open(d, spool.Options{Logger: quiet})
			if err != nil {
				t.Fatal(err)
			}
			s := &testSpool{anySpool: opened, t: t}
			events := map[string]string{}
			for _, j := range s.claim(10) {
				events[j.Source.String()] = payloads(j)
				if j.Source == push.OfWebhook("hub") && j.Events[0].Trace != trace {
					t.Errorf("trace %q", j.Events[0].Trace)
				}
			}
			if len(events) != 4 || events["hub"] != "a b" || events["image/streams"] != "f" || events["image/registry"] != "o" || events["image/asked"] != "k" {
				t.Errorf("claimed %v", events)
			}
			sent, err := opened.Outbox.ClaimNow(10, time.Minute)
			if err != nil || len(sent) != 1 || sent[0].Source != "ci" || sent[0].Key != "ci/moved/registry.example.com/app:v#4711" || sent[0].Enqueued.UnixMilli() != 3 || sent[0].Events[0].Payload != `{"a":1}` {
				t.Errorf("notifications %+v, %v", sent, err)
			}
			s.enqueue(from("hub", "app", "e0", "late"), from("hub", "app", "e2", "new"))
			if st := s.stats(); st.Payloads != 8 {
				t.Errorf("%d events, want those of a delivery that is forgotten and of a new one, too", st.Payloads)
			}
		})
	}
}

// TestSpoolOfAnOlderRelease opens a file with jobs that one bound for all sources
// held for: the jobs are there, and count for their sources.
func TestSpoolOfAnOlderRelease(t *testing.T) {
	dir := oldFile(t, 3, `
		INSERT INTO spool_jobs (key, source, state, due, enqueued, latest, payloads) VALUES
			('a', 'one', 'waiting', 1, 1, 1, 2), ('b', 'one', 'dead', 2, 2, 2, 1), ('c', 'two', 'leased', 3, 3, 3, 1);
		INSERT INTO spool_payloads (job, payload) VALUES (1, x'61'), (1, x'62'), (2, x'63'), (3, x'64');`)
	d := dbtest.OpenOptions(t, db.Options{Dir: dir})
	opened, err := spool.Open(d, spool.Options{Quota: 3, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	s := &testSpool{anySpool: opened, t: t}
	if st := s.stats(); st.Payloads != 4 || st.Waiting != 2 || st.Dead != 1 || st.ByReceiver[push.OfWebhook("one")].Waiting != 1 {
		t.Fatalf("after the migration: %+v", st)
	}
	s.enqueue(from("one", "d", "", "p")) // past the quota: the dead job gives way
	if got := s.keys("one", ""); !slices.Equal(got, []string{"a", "d"}) {
		t.Errorf("jobs: %v, want a and d", got)
	}
	s.enqueue(from("two", "e", "", "p"))
	if st := s.stats(); st.Payloads != 5 {
		t.Errorf("%d payloads, want 5", st.Payloads)
	}
	// What no release of ours wrote is not given to a worker, and is there to be looked at.
	if jobs := s.claim(10); len(jobs) != 2 || shortKey(jobs[0]) != "d" || shortKey(jobs[1]) != "e" {
		t.Errorf("claimed %v, want d and e", jobs)
	}
	dead, err := s.List(t.Context(), job.Dead, 0, 0)
	if err != nil || len(dead) != 2 || !strings.Contains(dead[0].Error, "stored event") {
		t.Errorf("dead: %v, %v; want the two whose events cannot be read", dead, err)
	}
}
