package spool_test

import (
	"database/sql"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	_ "github.com/mattn/go-sqlite3" // the driver that makes the old file

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/importer/push"
	"github.com/tidewaiter/tidewaiter/importer/spool"
)

// TestSpoolOfAnOlderRelease opens a file with jobs that one bound for all sources
// held for: the jobs are there, and count for their sources.
func TestSpoolOfAnOlderRelease(t *testing.T) {
	dir := t.TempDir()
	old, err := sql.Open("sqlite3", filepath.Join(dir, datafile.FileName))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"0001_objects.sql", "0002_spool.sql", "0003_index_by_revision.sql"} {
		step, err := os.ReadFile(filepath.Join("..", "..", "db", "datafile", "migrations", name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := old.Exec(string(step)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := old.Exec(`PRAGMA user_version = 3;
		INSERT INTO spool_jobs (key, source, state, due, enqueued, latest, payloads) VALUES
			('a', 'one', 'waiting', 1, 1, 1, 2), ('b', 'one', 'dead', 2, 2, 2, 1), ('c', 'two', 'leased', 3, 3, 3, 1);
		INSERT INTO spool_payloads (job, payload) VALUES (1, x'61'), (1, x'62'), (2, x'63'), (3, x'64');`); err != nil {
		t.Fatal(err)
	}
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	d := dbtest.OpenOptions(t, db.Options{Dir: dir})
	opened, err := spool.Open(d, spool.Options{Quota: 3, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	s := &testSpool{anySpool: opened, t: t}
	if st := s.stats(); st.Payloads != 4 || st.Waiting != 2 || st.Dead != 1 || st.ByReceiver["one"].Waiting != 1 {
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
	dead, err := s.List(t.Context(), push.Dead, 0, 0)
	if err != nil || len(dead) != 2 || !strings.Contains(dead[0].Error, "stored event") {
		t.Errorf("dead: %v, %v; want the two whose events cannot be read", dead, err)
	}
}
