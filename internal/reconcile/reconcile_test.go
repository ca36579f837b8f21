package reconcile_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/tidewaiter/tidewaiter/internal/reconcile"
)

// task records when each key is reconciled, in seconds since the start.
type task struct {
	began time.Time
	do    func(ctx context.Context, key string) (time.Duration, error)

	mu   sync.Mutex
	done []string
}

func (r *task) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	r.mu.Lock()
	r.done = append(r.done, fmt.Sprintf("%s@%.0f", key, time.Since(r.began).Seconds()))
	r.mu.Unlock()
	if r.do == nil {
		return 0, nil
	}
	return r.do(ctx, key)
}

// run runs a controller in a bubble. expect waits, and compares the keys that were reconciled since
// its last call.
func run(t *testing.T, r *task, o reconcile.Options[string], use func(c *reconcile.Controller[string], expect func(wait time.Duration, want ...string))) {
	r.began = time.Now()
	c := reconcile.New(r, o)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	use(c, func(wait time.Duration, want ...string) {
		t.Helper()
		time.Sleep(wait)
		synctest.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		if !slices.Equal(r.done, want) {
			t.Errorf("reconciled are %q, want %q", r.done, want)
		}
		r.done = nil
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestAKeyThatWaitsIsReconciledOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &task{do: func(context.Context, string) (time.Duration, error) { time.Sleep(10 * time.Second); return 0, nil }}
		run(t, r, reconcile.Options[string]{}, func(c *reconcile.Controller[string], expect func(time.Duration, ...string)) {
			for range 3 {
				c.Add("a")
				c.Add("b")
			}
			expect(5*time.Second, "a@0")
			c.Add("a") // while it is reconciled
			expect(time.Minute, "b@10", "a@20")
		})
	})
}

// TestASignalAddsItsKey: a signal adds its key. A signal while the task does not run counts for its
// next run.
func TestASignalAddsItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signal := make(chan struct{}, 1)
		signal <- struct{}{}
		run(t, &task{}, reconcile.Options[string]{Signals: map[string]<-chan struct{}{"a": signal}}, func(_ *reconcile.Controller[string], expect func(time.Duration, ...string)) {
			expect(0, "a@0")
			signal <- struct{}{}
			expect(0, "a@0")
			expect(time.Hour)
		})
	})
}

func TestAKeyIsReconciledAgainWhenItAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &task{do: func(context.Context, string) (time.Duration, error) { return time.Minute, nil }}
		run(t, r, reconcile.Options[string]{}, func(c *reconcile.Controller[string], expect func(time.Duration, ...string)) {
			c.Add("a")
			expect(150*time.Second, "a@0", "a@60", "a@120")
		})
	})
}

// TestFailures: a failing key is tried again with growing pauses, delays no other key, and does not
// fill the log.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		before := slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		defer slog.SetDefault(before)
		r := &task{}
		var took atomic.Int64
		var works atomic.Bool
		r.do = func(_ context.Context, key string) (time.Duration, error) {
			if key == "b" {
				return 0, nil
			}
			time.Sleep(time.Duration(took.Load()))
			if works.Load() {
				return 0, nil
			}
			return 0, errors.New("full")
		}
		run(t, r, reconcile.Options[string]{Task: "storing", MaxRetry: 3 * time.Second}, func(c *reconcile.Controller[string], expect func(time.Duration, ...string)) {
			c.Add("a")
			c.Add("b")
			expect(10*time.Second, "a@0", "b@0", "a@1", "a@3", "a@6", "a@9")
			took.Store(int64(5 * time.Second)) // it fails after it has run for long
			expect(9*time.Second, "a@12", "a@18")
			works.Store(true)
			expect(time.Hour)
		})
		if text := log.String(); strings.Count(text, "\n") != 2 || strings.Count(text, "task=storing key=a err=full") != 2 || !strings.Contains(text, "again=5 within=1m0s") {
			t.Errorf("the log is %s", text)
		}
	})
}

// TestTheNumberOfKeysIsBounded: the numbers of waiting and of failed keys are bounded. All replaces
// further keys.
func TestTheNumberOfKeysIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var works atomic.Bool
		r := &task{do: func(_ context.Context, key string) (time.Duration, error) {
			if works.Load() {
				return 0, nil
			}
			return 0, errors.New(key)
		}}
		run(t, r, reconcile.Options[string]{Max: 2, All: "all"}, func(c *reconcile.Controller[string], expect func(time.Duration, ...string)) {
			synctest.Wait()
			c.Add("a")
			c.Add("b")
			expect(0, "a@0", "b@0")
			c.Add("c")
			expect(0, "c@0")
			works.Store(true)
			expect(time.Minute, "a@1", "all@1", "b@1")
		})
		c := reconcile.New(r, reconcile.Options[string]{Max: 2, All: "all"})
		for i := range 10 {
			c.Add(fmt.Sprint(i))
		}
		ctx, stop := context.WithCancel(t.Context())
		go func() { time.Sleep(time.Second); stop() }()
		_ = c.Run(ctx)
		if len(r.done) != 3 || !strings.HasPrefix(r.done[2], "all@") {
			t.Errorf("reconciled are %q", r.done)
		}
	})
}

// TestRunAgain: a server that leads again runs its tasks again. A run reconciles the keys that were
// added since the end of the last run, and none from before.
func TestRunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &task{do: func(context.Context, string) (time.Duration, error) { time.Sleep(time.Minute); return time.Minute, nil }}
		c := reconcile.New(r, reconcile.Options[string]{})
		for _, key := range []string{"a", "b"} {
			c.Add(key)
			c.Add(key + key)
			ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
			_ = c.Run(ctx)
			stop()
		}
		var got []string
		for _, done := range r.done {
			got = append(got, strings.Split(done, "@")[0])
		}
		if !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("reconciled are %q", got)
		}
	})
}

// TestWorkers: several workers reconcile several keys at a time, but never the same key.
func TestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &task{do: func(context.Context, string) (time.Duration, error) { time.Sleep(10 * time.Second); return 0, nil }}
		run(t, r, reconcile.Options[string]{Workers: 2}, func(c *reconcile.Controller[string], expect func(time.Duration, ...string)) {
			c.Add("a")
			synctest.Wait()
			c.Add("b")
			c.Add("a")
			expect(time.Minute, "a@0", "b@0", "a@10")
		})
	})
}

// TestKeep: Keep calls follow again after a second, and after errors with growing pauses.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, ends := time.Now(), []error{nil, apierrors.NewResourceExpired("too old"), errors.New("away"), errors.New("away"), nil, nil}
		var got []string
		ctx, stop := context.WithCancel(t.Context())
		reconcile.Keep(ctx, "following", nil, func(context.Context) error {
			got = append(got, fmt.Sprintf("%.0f", time.Since(began).Seconds()))
			if len(got) == len(ends) {
				stop()
			}
			return ends[len(got)-1]
		})
		if want := []string{"0", "1", "2", "3", "5", "6"}; !slices.Equal(got, want) {
			t.Errorf("it began at %q, want %q", got, want)
		}
	})
}
