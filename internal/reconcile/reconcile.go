// Package reconcile runs background tasks. Each task has a work queue of keys (client-go's), and a
// [Reconciler] that brings the object of a key up to date:
//
//   - [Controller.Add], or a signal, wakes the task. A key that waits already is not added again,
//     and a key that is added while it is reconciled is reconciled once more after that;
//   - [Controller.Run] starts it, and the end of Run's context stops it;
//   - a key that failed is tried again with growing pauses, while others go on;
//   - the number of keys is bounded: further keys are replaced by one that stands for all;
//   - the log has a line about each key that fails, at most once a minute.
package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/internal/warn"
)

// Reconciler does the work of a task.
type Reconciler[K comparable] interface {
	// Reconcile brings the object of a key up to date. If it returns a time, it is called again for
	// the key after that time.
	Reconcile(ctx context.Context, key K) (again time.Duration, err error)
}

// Options of a Controller. Task is required.
type Options[K comparable] struct {
	// Task describes the task in the log, as in "counting pods".
	Task string
	// Max bounds the keys that wait, and the keys that failed. Instead of further keys, All is added,
	// for which Reconcile must handle every key. The default is no bound, for tasks with few keys.
	Max int
	All K
	// Signals add their key whenever they are signalled while the task runs.
	Signals map[K]<-chan struct{}
	// Workers is how many keys are reconciled at a time. Default 1.
	Workers int
	// Retry is the pause after the first failure of a key. It doubles with each failure, up to
	// MaxRetry. If a Reconcile ran for longer than MaxRetry before it failed, its failure counts as
	// the first. The defaults are a second and a minute.
	Retry, MaxRetry time.Duration
	// Clock is for tests; nil is the real one.
	Clock clock.WithTicker
}

// Signal wakes a task, which may not have been made yet: see [Options.Signals]. It is safe for
// concurrent use.
type Signal chan struct{}

// NewSignal returns a Signal.
func NewSignal() Signal { return make(Signal, 1) }

// Send wakes the task. It does not wait: signals that the task has not received yet count as one.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Controller runs a task. It is safe for concurrent use.
type Controller[K comparable] struct {
	reconciler Reconciler[K]
	o          Options[K]
	warnings   warn.Limiter

	mu     sync.Mutex
	queue  workqueue.TypedInterface[K] // of the Run under way, or of the next one
	failed map[K]int                   // how often each key failed in a row; at most Max, and All
}

// New returns a Controller. Keys can be added before it runs.
func New[K comparable](r Reconciler[K], o Options[K]) *Controller[K] {
	o.Max = cmp.Or(o.Max, math.MaxInt)
	o.Workers = cmp.Or(o.Workers, 1)
	o.Retry = cmp.Or(o.Retry, time.Second)
	o.MaxRetry = max(o.Retry, cmp.Or(o.MaxRetry, time.Minute))
	o.Clock = cmp.Or[clock.WithTicker](o.Clock, clock.RealClock{})
	return &Controller[K]{reconciler: r, o: o, queue: workqueue.NewTyped[K](), failed: map[K]int{}}
}

// Add queues a key. It does not wait.
func (c *Controller[K]) Add(key K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queue.Len() >= c.o.Max {
		key = c.o.All
	}
	c.queue.Add(key)
}

// Run reconciles keys until ctx is done, and returns nil. Only one Run of a Controller may run at a
// time. Keys that wait at its end are dropped; keys that are added later wait for the next Run.
func (c *Controller[K]) Run(ctx context.Context) error {
	c.mu.Lock()
	queue := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[K]{Clock: c.o.Clock, Queue: c.queue})
	c.mu.Unlock()
	var workers sync.WaitGroup
	for range c.o.Workers {
		workers.Go(func() {
			for key, ended := queue.Get(); !ended && ctx.Err() == nil; key, ended = queue.Get() {
				if next, again := c.reconcile(ctx, key); again > 0 {
					queue.AddAfter(next, again)
				}
				queue.Done(key)
			}
		})
	}
	for key, signal := range c.o.Signals {
		workers.Go(func() {
			for {
				select {
				case <-signal:
					c.Add(key)
				case <-ctx.Done():
					return
				}
			}
		})
	}
	<-ctx.Done()
	queue.ShutDown()
	workers.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = workqueue.NewTyped[K]()
	clear(c.failed)
	return nil
}

// reconcile reconciles a key. It returns the key to reconcile next, and when; zero for never.
func (c *Controller[K]) reconcile(ctx context.Context, key K) (K, time.Duration) {
	begun := c.o.Clock.Now()
	again, err := c.reconciler.Reconcile(ctx, key)
	c.mu.Lock()
	defer c.mu.Unlock()
	failures, failed := c.failed[key]
	switch {
	case ctx.Err() != nil:
		return key, 0
	case err == nil:
		delete(c.failed, key)
		return key, again
	case !failed && len(c.failed) >= c.o.Max:
		key = c.o.All
		failures = c.failed[key]
	case c.o.Clock.Since(begun) > c.o.MaxRetry:
		failures = 0
	}
	c.warnings.Warn(fmt.Sprint(key), "A background task failed, will retry", "task", c.o.Task, "key", key, "err", err)
	c.failed[key] = failures + 1
	return key, min(c.o.Retry<<min(failures, 20), c.o.MaxRetry)
}

// Keep calls follow until ctx is done: again a second after it has returned, and with growing
// pauses after errors. follow may, for example, run a watch; a watch that is too old does not count
// as an error. A nil clock is the real one.
func Keep(ctx context.Context, task string, c clock.WithTicker, follow func(ctx context.Context) error) {
	keeper := New(follower(follow), Options[struct{}]{Task: task, Clock: c})
	keeper.Add(struct{}{})
	_ = keeper.Run(ctx)
}

type follower func(ctx context.Context) error

// Reconcile implements [Reconciler].
func (f follower) Reconcile(ctx context.Context, _ struct{}) (time.Duration, error) {
	err := f(ctx)
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		err = nil
	}
	return time.Second, err
}
