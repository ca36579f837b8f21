package web

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

const (
	// reloadEvery is how often the files of the credentials are checked.
	reloadEvery = 200 * time.Millisecond
	// settleFor is how long they must stay as they are: a revoked credential is refused within a
	// second.
	settleFor = 300 * time.Millisecond
)

// reloader reads files again when they change.
type reloader struct {
	clock clock.PassiveClock // the real one if nil

	mu    sync.Mutex
	files []*trusted.Followed
}

func (r *reloader) now() time.Time {
	return cmp.Or[clock.PassiveClock](r.clock, clock.RealClock{}).Now()
}

// watchFiles calls load now, and again whenever one of the files has changed. Only the first
// error is returned. Later ones are logged, and what was read before stays in force.
func (r *reloader) watchFiles(load func() error, names ...string) error {
	f := &trusted.Followed{Names: names, Load: load, Settle: settleFor, Failed: func(err error) {
		slog.Error("a changed credential file cannot be used, will retry; its previous content stays in force", "files", names, "err", err)
	}}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files = append(r.files, f)
	return f.Start(r.now())
}

// run checks the files until ctx is done, and calls loaded whenever some were read again.
func (r *reloader) run(ctx context.Context, loaded func()) {
	ticker := time.NewTicker(reloadEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if r.checkFiles() {
				loaded()
			}
		}
	}
}

// checkFiles reads the files that have changed, and those that could not be used the last time. It
// reports whether it could use any.
func (r *reloader) checkFiles() (loaded bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for _, f := range r.files {
		loaded = f.Look(now) || loaded
	}
	return loaded
}
