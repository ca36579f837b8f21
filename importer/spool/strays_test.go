package spool_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/importer/spool"
	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/notification"
	"github.com/tidewaiter/tidewaiter/internal/push"
)

// storeStray stores a notification among the pushes, as earlier releases did.
func storeStray(t *testing.T, d *db.DB, id int, state job.State, holder string) {
	t.Helper()
	value := fmt.Appendf(nil, `{"key":"notify:ci/moved/registry.example.com/app:v#%d","receiver":"notify/ci","state":%q,"due":%d,"enqueued":3,"latest":3,"attempts":2,"leases":5,"holder":%q,"error":"away","events":[%s]}`,
		id, state, start.Add(time.Hour).UnixMilli(), holder, formerNotification(fmt.Sprint(id)))
	if _, err := d.Put(t.Context(), fmt.Sprintf("%sjobs/%016d", spool.Prefix, id), 0, value, db.PutOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A notification that an earlier release has stored among the pushes, before or while this one
// runs, goes to the outbox as it is; one that such a server is sending stays until that has ended.
func TestFormerNotificationsAreMoved(t *testing.T) {
	store := dbtest.NewTruth()
	own := &servers{self: "new", owned: map[string]bool{}, gone: map[string]bool{}}
	s := openShared(t, store, spool.Options{Servers: own})
	d := s.anySpool.(*spool.Pushes)
	outbox := func() (got []string) {
		all, err := d.Outbox.List(t.Context(), "", 0, 0)
		s.ok(err)
		for _, j := range all {
			got = append(got, fmt.Sprintf("%s %s %d %d %q %d", j.Key, j.State, j.Attempts, j.Lease, j.Error, j.Enqueued.UnixMilli()))
		}
		return got
	}
	other := dbtest.Open(t, func(o *db.Options) { o.Truth = store })
	s.ok(other.Filled(t.Context()))
	storeStray(t, other, 1, job.Waiting, "")
	storeStray(t, other, 2, job.Dead, "")
	storeStray(t, other, 3, job.Leased, "old")
	if jobs := claimed(s, 10); len(jobs) != 0 {
		t.Errorf("claimed %v", jobs)
	}
	want := []string{`ci/moved/registry.example.com/app:v#1 waiting 2 5 "away" 3`, `ci/moved/registry.example.com/app:v#2 dead 2 5 "away" 3`}
	if got := outbox(); !slices.Equal(got, want) {
		t.Errorf("moved are %q, want %q", got, want)
	}
	own.set(func() { own.gone["old"] = true })
	claimed(s, 10)
	want = append(want, `ci/moved/registry.example.com/app:v#3 waiting 2 5 "away" 3`)
	if got := outbox(); !slices.Equal(got, want) {
		t.Errorf("when the old server is gone: %q, want %q", got, want)
	}
	if all, err := d.List(t.Context(), "", 0, 0); err != nil || len(all) != 0 {
		t.Errorf("left among the pushes: %v, %v", all, err)
	}
}

// A full queue of pushes leaves the notifications alone, and the other way round: each has its own
// bound, and its own memory of IDs.
func TestQueuesAreBoundedByThemselves(t *testing.T) {
	d := dbtest.Open(t)
	s, err := spool.Open(d, spool.Options{Quota: 3, MaxSeen: 5, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	notice := func(n int) notification.Notification {
		return notification.Notification{To: "ci", ID: fmt.Sprint(n), Kind: "tag.moved", Subject: "registry.example.com/app:v", Payload: "{}"}
	}
	fill := func(n int) {
		t.Helper()
		if err := errors.Join(s.Enqueue(t.Context(), []push.Event{from("notify", fmt.Sprint("k", n), fmt.Sprint(n), "p")}), s.Outbox.Enqueue(t.Context(), []notification.Notification{notice(n)})); err != nil {
			t.Fatal(err)
		}
	}
	counts := func() string {
		t.Helper()
		pushes, err := s.Counted(t.Context())
		notifications, more := s.Outbox.Counted(t.Context())
		if err := errors.Join(err, more); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(pushes, notifications)
	}
	for n := range 3 {
		fill(n)
	}
	if got := counts(); got != "3 3" {
		t.Fatalf("full queues have %s", got)
	}
	pushes, err := s.ClaimNow(3, time.Hour)
	if err != nil || len(pushes) != 3 {
		t.Fatal(pushes, err)
	}
	if err := s.Enqueue(t.Context(), []push.Event{from("notify", "more", "", "p")}); !errors.Is(err, spool.ErrFull) {
		t.Errorf("past the quota of pushes: %v", err)
	}
	if err := s.Outbox.Enqueue(t.Context(), []notification.Notification{notice(3)}); err != nil || counts() != "3 3" {
		t.Errorf("a notification while the pushes are full: %v, %s", err, counts())
	}
	sending, err := s.Outbox.ClaimNow(3, time.Hour)
	if err != nil || len(sending) != 3 || sending[0].ID < job.FirstNotification || pushes[0].ID >= job.FirstNotification {
		t.Fatal(sending, err)
	}
	if err := s.Outbox.Enqueue(t.Context(), []notification.Notification{notice(4)}); !errors.Is(err, spool.ErrFull) {
		t.Errorf("past the quota of notifications: %v", err)
	}
	if err := s.Done(t.Context(), pushes[0]); err != nil {
		t.Fatal(err)
	}
	// Many pushes do not displace the memory of notifications.
	for n := range 20 {
		if err := s.Enqueue(t.Context(), []push.Event{from("other", "k", fmt.Sprint("o", n), "p")}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(s.Outbox.Done(t.Context(), sending[0]), s.Outbox.Enqueue(t.Context(), []notification.Notification{notice(2)})); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Outbox.Counted(t.Context()); err != nil || n != 2 {
		t.Errorf("%d notifications, %v: one is there twice", n, err)
	}
}

// takeoverDir, in the environment, makes this test binary a server that takes over the jobs of an
// earlier release.
const takeoverDir = "TIDEWAITER_TEST_TAKEOVER_CHILD"

func init() {
	if dir := os.Getenv(takeoverDir); dir != "" {
		fmt.Fprintln(os.Stderr, takeoverChild(dir))
		os.Exit(1)
	}
}

// takeoverChild writes "rows" whenever rows have left the tables, and "moved" whenever
// notifications have come to the outbox.
func takeoverChild(dir string) error {
	d, err := db.Open(db.Options{Dir: dir})
	if err != nil {
		return err
	}
	report := func(word string, count func() int64) {
		for last := count(); ; time.Sleep(100 * time.Microsecond) {
			if n := count(); n != last {
				last = n
				fmt.Println(word)
			}
		}
	}
	go report("rows", func() (n int64) {
		_ = d.Read(context.Background(), func(c db.Snapshot) (err error) {
			n, _, err = c.First("SELECT count(*) FROM spool_jobs")
			return err
		})
		return n
	})
	s, err := spool.Open(d, spool.Options{Logger: quiet})
	if err != nil {
		return err
	}
	go report("moved", func() int64 {
		depth, _ := s.Outbox.Depth(context.Background())
		return depth["ci"].Waiting
	})
	for {
		if _, err := s.Claim(context.Background(), 1, time.Minute, func(string) (int, time.Time) { return 0, time.Time{} }); err != nil {
			return err
		}
	}
}

// TestTakeoverSurvivesKill kills the server while it makes keys of the jobs in tables, and while it
// moves notifications to the outbox, several times each. In the end each job is there once.
func TestTakeoverSurvivesKill(t *testing.T) {
	if testing.Short() {
		t.Skip("kills 6 processes")
	}
	const each = 1500
	var script strings.Builder
	for i := range each {
		fmt.Fprintf(&script, "INSERT INTO spool_jobs (id, key, source, state, due, enqueued, latest, payloads) VALUES (%d, 'registry.example.com/app:%d', 'hub', 'waiting', 5, 3, 4, 1), (%d, 'notify:ci/moved/registry.example.com/app:v#%d', 'notify/ci', 'waiting', 5, 3, 4, 1);\n", 2*i+1, i, 2*i+2, i)
		fmt.Fprintf(&script, "INSERT INTO spool_payloads (job, payload) VALUES (%d, x'%x'), (%d, x'%x');\n", 2*i+1, from("hub", fmt.Sprint("app:", i), "", "p").Encode(), 2*i+2, formerNotification(fmt.Sprint(i)))
	}
	dir := oldFile(t, 9, "BEGIN;\n"+script.String()+"COMMIT;")
	inRows, inMoves := 0, 0
	for _, word := range []string{"rows", "rows", "rows", "moved", "moved", "moved"} {
		killAt(t, dir, word)
		d, err := db.Open(db.Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		var rows int64
		if err := d.Read(t.Context(), func(c db.Snapshot) (err error) {
			rows, _, err = c.First("SELECT count(*) FROM spool_jobs")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		moved, _, err := d.Totals(t.Context(), "/tidewaiter.dev/outbox/jobs/")
		if err = errors.Join(err, d.Close()); err != nil {
			t.Fatal(err)
		}
		if rows > 0 && rows < 2*each {
			inRows++
		}
		if moved > 0 && moved < each {
			inMoves++
		}
	}
	if inRows == 0 || inMoves == 0 {
		t.Errorf("%d kills among the rows and %d among the moves: none was in the middle", inRows, inMoves)
	}
	s, err := spool.Open(dbtest.OpenOptions(t, db.Options{Dir: dir}), spool.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	pushes, notifications := map[string]int{}, map[string]int{}
	for n := 1; n > 0; {
		jobs, err := s.ClaimNow(500, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		sending, err := s.Outbox.ClaimNow(500, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range jobs {
			pushes[j.Key]++
		}
		for _, j := range sending {
			notifications[j.Key]++
		}
		n = len(jobs) + len(sending)
	}
	for what, all := range map[string]map[string]int{"pushes": pushes, "notifications": notifications} {
		for key, n := range all {
			if n != 1 {
				t.Errorf("%s is there %d times", key, n)
			}
		}
		if len(all) != each {
			t.Errorf("%d %s are left, want %d", len(all), what, each)
		}
	}
	t.Logf("%d kills among the rows, %d among the moves", inRows, inMoves)
}

// killAt runs a process that takes over, and kills it when it writes a word.
func killAt(t *testing.T, dir, word string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), takeoverDir+"="+dir)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	found := false
	for lines := bufio.NewScanner(out); !found && lines.Scan(); {
		found = lines.Text() == word
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // killed: always an error
	if !found {
		t.Fatalf("it has not written %q: %s", word, &stderr)
	}
}
