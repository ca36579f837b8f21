package policy

import (
	"cmp"
	"context"
	"time"

	"k8s.io/utils/clock"
)

// Watcher loads policies again when their files change. It reads the files every Interval and
// compares their content. It does not ask the kernel for changes, for three reasons: the files are
// few and small, a folder mounted from a ConfigMap changes by a renamed link, and the files that
// …Path fields name can be anywhere.
type Watcher struct {
	Path     string
	Interval time.Duration    // 10 seconds if zero
	Clock    clock.WithTicker // the real one if nil
	// OnChange gets each Set that differs from the one before, and the first after an error.
	// OnError gets the reason why the files cannot be used, once for each new reason; then the Set
	// in force stays. Run calls both, one at a time.
	OnChange func(*Set)
	OnError  func(error)
}

// Run watches until ctx is done. current is the Set in force, as loaded from the same path before.
func (w *Watcher) Run(ctx context.Context, current *Set) {
	c, interval := w.Clock, w.Interval
	c = cmp.Or[clock.WithTicker](c, clock.RealClock{})
	if interval <= 0 {
		interval = 10 * time.Second
	}
	ticker := c.NewTicker(interval)
	defer ticker.Stop()
	reported := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		set, err := Load(w.Path)
		switch {
		case err != nil && err.Error() != reported:
			reported = err.Error()
			w.OnError(err)
		case err == nil && (reported != "" || set.Hash() != current.Hash()):
			current, reported = set, ""
			w.OnChange(set)
		}
	}
}
