package warn

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// buffer is a bytes.Buffer that timers write to while a test reads.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// logged sends slog to a buffer until the test ends.
func logged(t *testing.T) *buffer {
	out := &buffer{}
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelWarn})))
	t.Cleanup(func() { slog.SetDefault(before) })
	return out
}

func TestAFloodIsAFewLines(t *testing.T) {
	out := logged(t)
	synctest.Test(t, func(t *testing.T) {
		var l Limiter
		path := strings.Repeat("/x", 100_000)
		for i := range 100_000 {
			l.Warn(fmt.Sprint("address", i%1000), "a login failed", "address", fmt.Sprint("address", i%1000), "path", path)
		}
		if n := strings.Count(out.String(), "\n"); n != MaxKeys {
			t.Errorf("%d lines at once, want %d", n, MaxKeys)
		}
		time.Sleep(window)
		synctest.Wait()
		if n := strings.Count(out.String(), "\n"); n != 2*MaxKeys+1 {
			t.Errorf("%d lines, want %d", n, 2*MaxKeys+1)
		}
		if len(out.String()) > 100<<10 {
			t.Errorf("%d bytes", len(out.String()))
		}
		for _, want := range []string{"address=address7 ", "again=99 within=1m0s", "others=98000 within=1m0s"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("the log lacks %q", want)
			}
		}
	})
}

func TestOneIsToldAtOnceAndAgainLater(t *testing.T) {
	out := logged(t)
	synctest.Test(t, func(t *testing.T) {
		var l Limiter
		for range 3 {
			l.Warn("a", "a job is dead", "err", errors.New("no such image"))
			time.Sleep(window)
			synctest.Wait()
		}
	})
	if got := out.String(); strings.Count(got, `level=WARN msg="a job is dead" err="no such image"`) != 3 || strings.Contains(got, "again") {
		t.Errorf("logged:\n%s", got)
	}
}
