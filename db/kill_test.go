package db_test

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
)

var killsFlag = flag.Int("kills", 50, "how often TestKill kills the process")

// killEnv has the data directory for the process that TestKill starts from this test binary and
// kills.
const killEnv = "TIDEWAITER_TEST_KILL_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(killEnv); dir != "" {
		writeUntilKilled(dir)
	}
	os.Exit(m.Run())
}

// killWriters is the number of concurrent writers. Each writes its own keys.
const killWriters = 8

// writeUntilKilled writes and deletes, and prints a line for each acknowledged
// change: key, the revision it superseded, its own, and P or D.
func writeUntilKilled(dir string) {
	d, err := db.Open(db.Options{Dir: dir, HistoryWindow: 300 * time.Millisecond, MaintenanceInterval: 5 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println("open", d.Revision())
	for w := range killWriters {
		go func() {
			rnd := rand.New(rand.NewPCG(rand.Uint64(), 0))
			for {
				key := fmt.Sprintf("/w%d/k%02d", w, rnd.IntN(20))
				kv, ok, _, err := d.Get(context.Background(), key)
				if err != nil {
					fmt.Println("error", err)
					os.Exit(1)
				}
				var rev int64
				op := "P"
				if ok && rnd.IntN(3) == 0 {
					op = "D"
					rev, err = d.Delete(context.Background(), key, kv.Rev)
				} else {
					rev, err = d.Put(context.Background(), key, kv.Rev, killValue(key, rnd.IntN(30<<10)), db.PutOptions{})
				}
				if err != nil {
					fmt.Println("error", err)
					os.Exit(1)
				}
				// One write call, so that a line is never partial.
				os.Stdout.WriteString(fmt.Sprintf("ack %s %d %d %s\n", key, kv.Rev, rev, op))
			}
		}()
	}
	select {}
}

// killValue returns a value that shows whether it is complete.
func killValue(key string, size int) []byte {
	head := fmt.Sprintf("%s %d ", key, size)
	return append([]byte(head), strings.Repeat("x", size)...)
}

func checkKillValue(kv db.KV) error {
	key, rest, _ := strings.Cut(string(kv.Value), " ")
	size, body, _ := strings.Cut(rest, " ")
	if n, err := strconv.Atoi(size); err != nil || key != kv.Key || n != len(body) || strings.Trim(body, "x") != "" {
		return fmt.Errorf("%s at revision %d is damaged: %.60q…", kv.Key, kv.Rev, kv.Value)
	}
	return nil
}

// TestKill kills a writing process with SIGKILL at random moments. After each kill the file must be
// intact and have every acknowledged write and deletion, no partial one, and no revision lower than
// an acknowledged one.
func TestKill(t *testing.T) {
	kills := *killsFlag
	if testing.Short() {
		kills = 5
	}
	dir := t.TempDir()
	acked := map[string]ack{} // by key, the newest
	var highest, total int64
	for i := range kills {
		n := killOnce(t, dir, acked, &highest, i%4 == 0)
		total += n
		d, err := db.Open(db.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatalf("kill %d: open: %v", i, err)
		}
		if rev := d.Revision(); rev < highest {
			t.Errorf("kill %d: revision %d, acknowledged %d", i, rev, highest)
		}
		checkAcked(t, d, acked)
		highest = max(highest, d.Revision())
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if err := datafile.Check(t.Context(), dir); err != nil {
			t.Fatalf("kill %d: %v", i, err)
		}
		if t.Failed() {
			t.Fatalf("kill %d", i)
		}
	}
	t.Logf("%d kills, %d acknowledged changes", kills, total)
	if total < int64(kills)/2 {
		t.Errorf("only %d changes were acknowledged in %d runs: the test shows nothing", total, kills)
	}
}

type ack struct {
	rev     int64
	deleted bool
}

// killOnce runs the writer for a moment, counted from its start or from its first acknowledged
// change, and returns how many changes it acknowledged.
func killOnce(t *testing.T, dir string, acked map[string]ack, highest *int64, early bool) (n int64) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), killEnv+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killer := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	defer killer.Stop()
	kill := func() { killer.Reset(time.Duration(1+rand.IntN(120)) * time.Millisecond) }
	in := bufio.NewReader(out)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			break // killed; a line cut short was not acknowledged
		}
		f := strings.Fields(line)
		switch f[0] {
		case "open":
			if rev, _ := strconv.ParseInt(f[1], 10, 64); rev < *highest {
				t.Errorf("opened at revision %d, acknowledged %d", rev, *highest)
			}
			if early {
				kill()
			}
		case "ack":
			if n == 0 && !early {
				kill()
			}
			rev, _ := strconv.ParseInt(f[3], 10, 64)
			// A writer's keys are its own, but lines of several may cross.
			if rev > acked[f[1]].rev {
				acked[f[1]] = ack{rev: rev, deleted: f[4] == "D"}
			}
			*highest = max(*highest, rev)
			n++
		default:
			t.Fatalf("writer: %s", line)
		}
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Fatalf("writer ended with %v, want it killed", err)
	}
	return n
}

// checkAcked compares what is stored with what was acknowledged. A key may be newer than its last
// acknowledgement: the process may have died between the commit and the acknowledgement.
func checkAcked(t *testing.T, d *db.DB, acked map[string]ack) {
	t.Helper()
	page, err := d.Range(t.Context(), db.RangeOptions{Prefix: "/"})
	if err != nil {
		t.Fatal(err)
	}
	if page.More {
		t.Fatal("the keys do not fit a page")
	}
	stored := map[string]int64{}
	for _, kv := range page.KVs {
		stored[kv.Key] = kv.Rev
		if err := checkKillValue(kv); err != nil {
			t.Error(err)
		}
		if a := acked[kv.Key]; kv.Rev < a.rev {
			t.Errorf("%s is at revision %d, acknowledged %d", kv.Key, kv.Rev, a.rev)
		}
	}
	for key, a := range acked {
		if _, ok := stored[key]; ok || a.deleted {
			continue
		}
		// The key is gone: the history must have a later deletion.
		n, err := d.QueryInt("SELECT count(*) FROM revisions WHERE key = ? AND until = rev AND rev > ?", key, a.rev)
		if err != nil || n == 0 {
			t.Errorf("acknowledged write of %s at revision %d is lost (%v)", key, a.rev, err)
		}
		acked[key] = ack{rev: a.rev, deleted: true}
	}
}
