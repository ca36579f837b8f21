package web

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"time"
)

// reloadEvery is how often the files of the credentials are checked, by their names, sizes
// and times. That works where there are no notifications.
const reloadEvery = 200 * time.Millisecond

// reloader reads files again when they change.
type reloader struct {
	mu    sync.Mutex
	files []*followed
}

// followed are files that are read together.
type followed struct {
	load  func() error
	names []string
	seen  []os.FileInfo // nil for a file that does not exist
	// failed is why the files could not be used when they were last read, nil if they could. They
	// are then read again at every look, since the reason may be one that passes.
	failed error
}

// watchFiles calls load now, and again whenever one of the files has changed. Only the first
// error is returned. Later ones are logged, and what was read before stays in force.
func (r *reloader) watchFiles(load func() error, names ...string) error {
	f := &followed{load: load, names: names, seen: make([]os.FileInfo, len(names))}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files = append(r.files, f)
	f.changed()
	return load()
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
	for _, f := range r.files {
		changed := f.changed()
		if !changed && f.failed == nil {
			continue
		}
		before := f.failed
		if f.failed = f.load(); f.failed == nil {
			loaded = true
		} else if changed || before == nil || f.failed.Error() != before.Error() {
			slog.Error("a changed credential file cannot be used, will retry; its previous content stays in force", "files", f.names, "err", f.failed)
		}
	}
	return loaded
}

// changed reports whether a file has changed since the last call.
func (f *followed) changed() bool {
	changed := false
	for i, name := range f.names {
		now, err := os.Stat(name)
		if err != nil {
			now = nil
		}
		before := f.seen[i]
		if (now == nil) != (before == nil) || now != nil && (!os.SameFile(now, before) || now.Size() != before.Size() || now.Mode() != before.Mode() || !now.ModTime().Equal(before.ModTime())) {
			changed = true
		}
		f.seen[i] = now
	}
	return changed
}
