package trusted

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Changed files are read once they have settled, and again after a failure.
func TestFollowed(t *testing.T) {
	dir := t.TempDir()
	file, absent := filepath.Join(dir, "file"), filepath.Join(dir, "absent")
	now := time.Now().Add(time.Hour) // ahead of the file system, unless a step says otherwise
	write := func(path, text string, at time.Time) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	var loads int
	var fault error
	var reported []error
	f := &Followed{
		Names: []string{file, absent}, Settle: time.Second, Retry: 3 * time.Second,
		Load:   func() error { loads++; return fault },
		Failed: func(err error) { reported = append(reported, err) },
	}
	look := func(what string, after time.Duration, loaded bool, wantLoads, wantReported int) {
		t.Helper()
		now = now.Add(after)
		if f.Look(now) != loaded || loads != wantLoads || len(reported) != wantReported {
			t.Errorf("%s: read %d times, want %d; %d reasons, want %d", what, loads, wantLoads, len(reported), wantReported)
		}
	}
	write(file, "1", now)
	if err := f.Start(now); err != nil || loads != 1 {
		t.Fatal(err, loads)
	}
	look("unchanged", time.Minute, false, 1, 0)
	write(file, "2", now)
	look("just written", 0, false, 1, 0)
	write(file, "2, and more", now.Add(900*time.Millisecond))
	look("still being written", time.Second, false, 1, 0)
	look("settled", 900*time.Millisecond, true, 2, 0)
	look("read already", time.Minute, false, 2, 0)
	write(file, "3", now.Add(-time.Hour))
	look("written long ago", 0, true, 3, 0)
	write(file, "4", now.Add(time.Hour))
	look("of a clock ahead", 0, false, 3, 0)
	look("of a clock ahead, settled", time.Second, true, 4, 0)
	write(absent, "5", now)
	look("another file", time.Second, true, 5, 0)
	if err := os.Remove(absent); err != nil {
		t.Fatal(err)
	}
	fault = errors.New("it is gone")
	look("a file that is gone", 0, false, 5, 0)
	look("settled", time.Second, false, 6, 1)
	look("a failure", 2*time.Second, false, 6, 1)
	look("a failure, tried again", time.Second, false, 7, 1)
	fault = errors.New("there are no descriptors left")
	look("another reason", 3*time.Second, false, 8, 2)
	fault = nil
	look("it passed", 3*time.Second, true, 9, 2)
	look("read already", time.Minute, false, 9, 2)
}
