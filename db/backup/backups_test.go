package backup_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/backup"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// everyLook is a context whose Err calls look. A backup calls Err repeatedly while it copies.
type everyLook struct {
	context.Context
	look func()
}

func (c everyLook) Err() error {
	c.look()
	return c.Context.Err()
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// TestBackupToStreamLeavesNothing: while a database is copied for a stream, no directory has a file
// that would remain if the process were killed.
func TestBackupToStreamLeavesNothing(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	d := dbtest.Open(t, quiet)
	for _, key := range []string{"/a/1", "/a/2", "/a/3"} {
		put(t, d, key, 0, strings.Repeat("x", 5_000_000))
	}
	dir := filepath.Dir(d.Path())
	before := names(t, dir)
	looks := 0
	check := func() {
		looks++
		if got := names(t, temp); len(got) > 0 {
			t.Errorf("in the folder for temporary files: %v", got)
		}
		if got := names(t, dir); !slices.Equal(got, before) {
			t.Errorf("in the data directory: %v, before %v", got, before)
		}
	}
	streamed := 0
	err := backup.Stream(everyLook{t.Context(), check}, dir, writerFunc(func(p []byte) (int, error) {
		check()
		streamed += len(p)
		return len(p), nil
	}))
	if err != nil || streamed < 15_000_000 || looks < 4 {
		t.Errorf("streamed %d bytes with %d looks, %v", streamed, looks, err)
	}
}

// TestBackupHasItsNameWhenItIsWhole: a backup gets its name only after it is complete.
func TestBackupHasItsNameWhenItIsWhole(t *testing.T) {
	d := dbtest.Open(t, quiet)
	put(t, d, "/a/1", 0, strings.Repeat("x", 9_000_000))
	folder := t.TempDir()
	file := filepath.Join(folder, "monday.db")
	looks := 0
	err := backup.Make(everyLook{t.Context(), func() {
		looks++
		if _, err := os.Lstat(file); err == nil {
			t.Error("an incomplete backup has its name")
		}
	}}, filepath.Dir(d.Path()), file)
	if err != nil || looks < 2 {
		t.Fatalf("%d looks, %v", looks, err)
	}
	if got := names(t, folder); !slices.Equal(got, []string{"monday.db"}) {
		t.Errorf("left: %v", got)
	}
	// A cancelled backup leaves nothing, either.
	ctx, cancel := context.WithCancel(t.Context())
	if err := backup.Make(everyLook{ctx, cancel}, filepath.Dir(d.Path()), filepath.Join(folder, "tuesday.db")); !errors.Is(err, context.Canceled) {
		t.Errorf("a backup that was cancelled: %v", err)
	}
	if got := names(t, folder); !slices.Equal(got, []string{"monday.db"}) {
		t.Errorf("left: %v", got)
	}
}

// With backupChild in the environment, this test binary makes a backup that a test kills: it prints
// a line when it copies, and then waits.
const backupChild = "TIDEWAITER_TEST_BACKUP_CHILD"

func init() {
	if dir := os.Getenv(backupChild); dir != "" {
		_ = backup.Make(everyLook{context.Background(), func() {
			_, _ = os.Stdout.WriteString("copying\n")
			select {}
		}}, dir, filepath.Join(os.Getenv("TIDEWAITER_TEST_BACKUP_FOLDER"), "killed.db"))
		os.Exit(1)
	}
}

// TestKilledBackupIsCleanedUp: the folder that a killed backup leaves does not have the name of a
// backup. The next backup removes it, but not the folder of a running backup.
func TestKilledBackupIsCleanedUp(t *testing.T) {
	d := dbtest.Open(t, quiet)
	put(t, d, "/a/1", 0, "v")
	dir, folder := filepath.Dir(d.Path()), t.TempDir()
	copying := func() *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), backupChild+"="+dir, "TIDEWAITER_TEST_BACKUP_FOLDER="+folder)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err == nil {
			_, err = io.ReadFull(out, make([]byte, len("copying")))
		}
		if err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	kill := func(cmd *exec.Cmd) {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	kill(copying())
	if got := names(t, folder); len(got) != 1 || got[0] == "killed.db" {
		t.Fatalf("a backup that was killed left %v", got)
	}
	other := copying()
	defer kill(other)
	under := names(t, folder)
	if len(under) != 1 {
		t.Fatalf("the next backup left %v", under)
	}
	if err := backup.Make(t.Context(), dir, filepath.Join(folder, "whole.db")); err != nil {
		t.Fatal(err)
	}
	if got := names(t, folder); !slices.Equal(got, append(under, "whole.db")) {
		t.Errorf("left: %v, want the running backup and the complete one", got)
	}
}

// scheduled runs a Schedule until the test ends.
func scheduled(t *testing.T, d *db.DB, log *slog.Logger, o backup.Options) *backup.Schedule {
	t.Helper()
	s := backup.NewSchedule(d, filepath.Dir(d.Path()), log)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.Keep(ctx, o) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return s
}

// TestScheduledBackups makes one a day, keeps three, and leaves other files alone.
func TestScheduledBackups(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	d := dbtest.Open(t, quiet, func(o *db.Options) { o.Clock = clock; o.MaintenanceInterval = 10_000 * time.Hour })
	put(t, d, "/a/1", 0, "v")
	folder := t.TempDir()
	made := scheduled(t, d, quietLogger, backup.Options{Dir: folder, Every: 24 * time.Hour, Keep: 3})
	dbtest.AwaitWaiters(t, clock, 2) // maintenance, and the next backup
	if got := names(t, folder); !slices.Equal(got, []string{"tidewaiter-20260102T030405Z.db"}) {
		t.Fatalf("the first: %v", got)
	}
	if err := os.WriteFile(filepath.Join(folder, "mine.db"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		clock.Step(24 * time.Hour)
		dbtest.AwaitWaiters(t, clock, 2)
	}
	want := []string{"mine.db", "tidewaiter-20260104T030405Z.db", "tidewaiter-20260105T030405Z.db", "tidewaiter-20260106T030405Z.db"}
	if got := names(t, folder); !slices.Equal(got, want) {
		t.Errorf("after four days: %v, want %v", got, want)
	}
	if got := gauge(t, made, "backup_last_success_timestamp_seconds"); got != float64(clock.Now().Unix()) {
		t.Errorf("the last success was at %v, want %v", got, clock.Now().Unix())
	}
	if got := gauge(t, made, "backup_bytes"); got < 4096 {
		t.Errorf("the last has %v bytes", got)
	}
	restored := t.TempDir()
	if err := backup.Restore(t.Context(), filepath.Join(folder, want[3]), restored); err != nil {
		t.Fatal(err)
	}
	r := dbtest.OpenOptions(t, db.Options{Dir: restored, Logger: quietLogger})
	if _, ok, _, err := r.Get(t.Context(), "/a/1"); err != nil || !ok {
		t.Errorf("from a restored backup: found %v, %v", ok, err)
	}
}

// TestRestartMakesNoExtraBackup: after a restart, the time of the next backup counts from the
// newest one in the folder.
func TestRestartMakesNoExtraBackup(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC))
	d := dbtest.Open(t, quiet, func(o *db.Options) { o.Clock = clock; o.MaintenanceInterval = 10_000 * time.Hour })
	folder := t.TempDir()
	old := "tidewaiter-20260102T020000Z.db"
	if err := os.WriteFile(filepath.Join(folder, old), []byte("as it was"), 0o600); err != nil {
		t.Fatal(err)
	}
	scheduled(t, d, quietLogger, backup.Options{Dir: folder, Every: 2 * time.Hour, Keep: 2})
	dbtest.AwaitWaiters(t, clock, 2)
	if got := names(t, folder); !slices.Equal(got, []string{old}) {
		t.Errorf("at the start: %v", got)
	}
	clock.Step(time.Hour)
	dbtest.AwaitWaiters(t, clock, 2)
	if got := names(t, folder); !slices.Equal(got, []string{old, "tidewaiter-20260102T040000Z.db"}) {
		t.Errorf("an hour later: %v", got)
	}
}

// TestBackupFolderIsChecked: no backup is made in a missing folder, because its disk may not be
// mounted, or in one that others can write. Each failure is counted, and its message says what to
// do. Soon after the cause is removed, a backup is made.
func TestBackupFolderIsChecked(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC))
	var log lockedBuffer
	d, err := db.Open(db.Options{Dir: t.TempDir(), Clock: clock, MaintenanceInterval: 10_000 * time.Hour, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	folder := filepath.Join(t.TempDir(), "disk", "backups")
	made := scheduled(t, d, slog.New(slog.NewTextHandler(&log, nil)), backup.Options{Dir: folder, Every: time.Hour, Keep: 1})
	dbtest.AwaitWaiters(t, clock, 2)
	if _, err := os.Stat(filepath.Dir(folder)); err == nil || !strings.Contains(log.String(), "mount its disk") {
		t.Errorf("without the folder: %v; log:\n%s", err, log.String())
	}
	// A file that others put there does not count as a recent backup.
	if err := errors.Join(os.MkdirAll(folder, 0o700), os.Chmod(folder, 0o777), os.WriteFile(filepath.Join(folder, "tidewaiter-20260102T030000Z.db"), nil, 0o666)); err != nil {
		t.Fatal(err)
	}
	before := names(t, folder)
	clock.Step(5 * time.Minute)
	dbtest.AwaitWaiters(t, clock, 2)
	if got := names(t, folder); !slices.Equal(got, before) || !strings.Contains(log.String(), "every user can write it") || gauge(t, made, "backup_failures_total") != 2 {
		t.Errorf("in a folder that all may write: %v, %v failures; log:\n%s", got, gauge(t, made, "backup_failures_total"), log.String())
	}
	if err := errors.Join(os.Chmod(folder, 0o755), os.Remove(filepath.Join(folder, before[0]))); err != nil {
		t.Fatal(err)
	}
	clock.Step(5 * time.Minute)
	dbtest.AwaitWaiters(t, clock, 2)
	if got := names(t, folder); !slices.Equal(got, []string{"tidewaiter-20260102T031000Z.db"}) {
		t.Errorf("after it was corrected: %v", got)
	}
}

// TestBackupsOfAClockThatWasAhead: a backup with a time in the future causes neither a backup at
// every look nor the removal of the new ones instead of the oldest.
func TestBackupsOfAClockThatWasAhead(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC))
	d := dbtest.Open(t, quiet, func(o *db.Options) { o.Clock = clock; o.MaintenanceInterval = 10_000 * time.Hour })
	folder := t.TempDir()
	ahead := "tidewaiter-20260102T063000Z.db"
	if err := os.WriteFile(filepath.Join(folder, ahead), []byte("as it was"), 0o600); err != nil {
		t.Fatal(err)
	}
	made := scheduled(t, d, quietLogger, backup.Options{Dir: folder, Every: time.Hour, Keep: 2})
	for hours, want := range [][]string{
		{"tidewaiter-20260102T030000Z.db", ahead},
		{"tidewaiter-20260102T030000Z.db", "tidewaiter-20260102T040000Z.db", ahead},
		{"tidewaiter-20260102T040000Z.db", "tidewaiter-20260102T050000Z.db", ahead},
		{"tidewaiter-20260102T050000Z.db", "tidewaiter-20260102T060000Z.db", ahead},
		{ahead, "tidewaiter-20260102T070000Z.db"},
	} {
		dbtest.AwaitWaiters(t, clock, 2)
		if got := names(t, folder); !slices.Equal(got, want) {
			t.Errorf("after %d hours: %v, want %v", hours, got, want)
		}
		clock.Step(time.Hour)
	}
	dbtest.AwaitWaiters(t, clock, 2)
	if got := gauge(t, made, "backup_failures_total"); got != 0 {
		t.Errorf("%v failures", got)
	}
}

// TestDamageIsNotBackedUp: a backup that fails its check does not get a name and does not displace
// a good one. The failure is counted and logged, and the next attempt comes soon.
func TestDamageIsNotBackedUp(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC))
	var log lockedBuffer
	d, err := db.Open(db.Options{Dir: t.TempDir(), Clock: clock, MaintenanceInterval: 10_000 * time.Hour, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	put(t, d, "/a/1", 0, "v")
	folder := t.TempDir()
	scheduled(t, d, slog.New(slog.NewTextHandler(&log, nil)), backup.Options{Dir: folder, Every: time.Hour, Keep: 1})
	dbtest.AwaitWaiters(t, clock, 2)
	good := names(t, folder)
	dbtest.Damage(t, d, "/a/1")
	clock.Step(time.Hour)
	dbtest.AwaitWaiters(t, clock, 2)
	if got := names(t, folder); !slices.Equal(got, good) {
		t.Errorf("after damage: %v, want %v", got, good)
	}
	if s := log.String(); !strings.Contains(s, "level=WARN msg=\"a scheduled backup failed") || !strings.Contains(s, "/a/1") {
		t.Errorf("the log does not say it:\n%s", s)
	}
	clock.Step(5 * time.Minute)
	dbtest.AwaitWaiters(t, clock, 2)
	if n := strings.Count(log.String(), "a scheduled backup failed"); n != 2 {
		t.Errorf("%d failures after five minutes, want 2", n)
	}
}

// TestFailingBackupsAreLoggedOnce: while backups fail for the same reason, the log has one line,
// and another when they succeed again.
func TestFailingBackupsAreLoggedOnce(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC))
	d := dbtest.Open(t, quiet, func(o *db.Options) { o.Clock = clock; o.MaintenanceInterval = 10_000 * time.Hour })
	var log lockedBuffer
	folder := filepath.Join(t.TempDir(), "disk")
	made := scheduled(t, d, slog.New(slog.NewTextHandler(&log, nil)), backup.Options{Dir: folder, Every: time.Hour, Keep: 1})
	said := func(failed, ended int) {
		t.Helper()
		dbtest.AwaitWaiters(t, clock, 2)
		if got := [2]int{strings.Count(log.String(), "a scheduled backup failed"), strings.Count(log.String(), "scheduled backups succeed again")}; got != [2]int{failed, ended} {
			t.Errorf("the log has %v lines of failures and ends, want %v:\n%s", got, [2]int{failed, ended}, &log)
		}
	}
	said(1, 0)
	for range 3 {
		clock.Step(5 * time.Minute)
		said(1, 0)
	}
	if got := gauge(t, made, "backup_failures_total"); got != 4 {
		t.Errorf("%v failures, want 4", got)
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	clock.Step(5 * time.Minute)
	said(1, 1)
	clock.Step(time.Hour)
	said(1, 1)
}
