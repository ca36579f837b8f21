package spool_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/importer/spool"
	"github.com/tidewaiter/tidewaiter/internal/push"
)

// Numbers of TestSurvivesKill.
const (
	killPushes = 5000
	kills      = 20
	killKeys   = 700 // fewer keys than pushes, so that jobs coalesce
	killWindow = 64  // pushes under way at a time
)

// childDir, in the environment, makes this test binary a server that is
// there to be killed.
const childDir = "TIDEWAITER_TEST_SPOOL_CHILD"

func init() {
	if dir := os.Getenv(childDir); dir != "" {
		if err := child(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// child enqueues each number that it reads and answers with it once it is
// durable, while a worker does the jobs. A push is done when its object exists;
// doing it again is a conflict, as importing a digest twice is.
func child(dir string) error {
	d, err := db.Open(db.Options{Dir: dir})
	if err != nil {
		return err
	}
	s, err := spool.Open(d, spool.Options{})
	if err != nil {
		return err
	}
	ctx := context.Background()
	failed := make(chan error, 1)
	fail := func(err error) {
		select {
		case failed <- err:
		default:
		}
	}
	go func() { fail(childWorker(ctx, d, s)) }()

	var out sync.Mutex
	pushes := make(chan int)
	for range 32 {
		go func() {
			for n := range pushes {
				if err := s.Enqueue(ctx, []push.Event{killEvent(n)}); err != nil {
					fail(err)
					return
				}
				out.Lock()
				fmt.Println(n)
				out.Unlock()
			}
		}()
	}
	go func() {
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			n, err := strconv.Atoi(in.Text())
			if err != nil {
				fail(err)
				return
			}
			pushes <- n
		}
		fail(io.ErrUnexpectedEOF)
	}()
	return <-failed
}

func killEvent(n int) push.Event {
	return from("test", fmt.Sprint("repo:", n%killKeys), strconv.Itoa(n), strconv.Itoa(n))
}

func childWorker(ctx context.Context, d *db.DB, s *spool.Pushes) error {
	for {
		jobs, err := s.Claim(ctx, 64, time.Minute, nil)
		if err != nil {
			return err
		}
		errs := make(chan error, len(jobs))
		for _, j := range jobs {
			go func() { errs <- doPushes(ctx, d, s, j) }()
		}
		for range jobs {
			if err := <-errs; err != nil {
				return err
			}
		}
	}
}

// doPushes does a job as the importer would: what is there is left as it is.
func doPushes(ctx context.Context, d *db.DB, s *spool.Pushes, j *push.Job) error {
	for _, e := range j.Events {
		p := payload(e)
		if _, err := d.Put(ctx, "/pushes/"+p, 0, []byte(p), db.PutOptions{}); err != nil && !errors.Is(err, db.ErrConflict) {
			return err
		}
	}
	return s.Done(ctx, j)
}

// TestSurvivesKill sends 5,000 pushes to a process that is killed with
// SIGKILL 20 times on the way. A push that was not acknowledged is sent again
// under its ID, as registries do. In the end every push was done and none twice.
func TestSurvivesKill(t *testing.T) {
	if testing.Short() {
		t.Skip("kills 20 processes")
	}
	dir := t.TempDir()
	acked := make([]bool, killPushes)
	total, killed, resent := 0, 0, 0
	for total < killPushes {
		// The last process is not killed: it gets to the end.
		want := killPushes
		if killed < kills {
			want = min(total+killPushes/(kills+1)-rand.IntN(60), killPushes)
		}
		n, r := runSpoolChild(t, dir, acked, want-total, killed < kills)
		total, resent = total+n, resent+r
		if killed < kills {
			killed++
		}
	}
	if killed != kills {
		t.Fatalf("only %d kills", killed)
	}

	d := dbtest.OpenOptions(t, db.Options{Dir: dir})
	s, err := spool.Open(d, spool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	// What was acknowledged and not done yet is in the spool: do it.
	left := 0
	for {
		jobs, err := s.ClaimNow(100, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if len(jobs) == 0 {
			break
		}
		for _, j := range jobs {
			left += len(j.Events)
			if err := doPushes(t.Context(), d, s, j); err != nil {
				t.Fatal(err)
			}
		}
	}
	if st := (&testSpool{anySpool: s, t: t}).stats(); st.Waiting+st.Leased+st.Dead+st.Payloads != 0 {
		t.Errorf("the spool is not empty: %+v", st)
	}
	// None is missing, and none was done twice in effect: doPushes writes an object only once.
	for n := range killPushes {
		kv, ok, _, err := d.Get(t.Context(), "/pushes/"+strconv.Itoa(n))
		if err != nil || !ok || string(kv.Value) != strconv.Itoa(n) {
			t.Fatalf("push %d: %v, %v, %q", n, ok, err, kv.Value)
		}
	}
	t.Logf("%d pushes, %d kills, %d sent again, %d left to the end", killPushes, killed, resent, left)
}

// runSpoolChild runs a process until it acknowledged want more pushes, and kills
// it at a random instant after. It returns how many pushes were acknowledged, and
// how many were sent and not.
func runSpoolChild(t *testing.T, dir string, acked []bool, want int, kill bool) (got, unanswered int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	sent := 0
	sender := make(chan struct{})
	todo := make([]int, 0, len(acked))
	for n, done := range acked {
		if !done {
			todo = append(todo, n)
		}
	}
	window := make(chan struct{}, killWindow)
	go func() {
		defer close(sender)
		for _, n := range todo {
			window <- struct{}{}
			if _, err := fmt.Fprintln(in, n); err != nil {
				return // killed
			}
			sent++
		}
	}()
	lines := bufio.NewReader(out)
	killed := false
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			break // a number that was cut short is not an answer
		}
		n, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil || acked[n] {
			t.Fatalf("answer %q (%v); the process says: %s", line, err, &stderr)
		}
		acked[n] = true
		got++
		<-window
		if got == want && !killed {
			killed = true
			time.AfterFunc(time.Duration(rand.IntN(2000))*time.Microsecond, func() { _ = cmd.Process.Kill() })
			if !kill {
				break // all are acknowledged
			}
		}
	}
	_ = in.Close()
	_ = cmd.Wait() // killed: always an error
	for draining := true; draining; {
		select {
		case <-window: // the sender may wait for a place
		case <-sender:
			draining = false
		}
	}
	if got < want {
		t.Fatalf("the process ended by itself after %d of %d answers: %s", got, want, &stderr)
	}
	return got, sent - got
}
