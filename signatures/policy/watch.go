package policy

import (
	"cmp"
	"context"
	"time"

	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

// Watcher loads policies again when their files change. It reads the files every Interval and
// compares their content. It does not use the kernel's change notifications, for three reasons: the
// files are few and small, a folder mounted from a ConfigMap changes by a renamed link, and the
// files that …Path fields name can be anywhere. A change takes effect when two reads in a row
// find the same contents. It does not take effect if a file has only the beginning of the contents
// in force, because the file may be half written. Nor does it if a revocation list is older than
// the one in force, because an attacker may have sent an old one.
type Watcher struct {
	Path     string
	Interval time.Duration    // 10 seconds if zero
	Clock    clock.WithTicker // the real one if nil
	Follower Follower
}

// Follower receives the changes that a Watcher finds. Its methods are never called at the same
// time.
type Follower interface {
	// Changed gets each Set that differs from the previous one, and the first Set after an error.
	Changed(ctx context.Context, set *Set)
	// Broken gets each new reason why the files cannot be used; the Set in force then stays.
	Broken(ctx context.Context, err error)
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
	poll := trusted.Poll{InForce: current.contents}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		set, contents, err := loadSet(w.Path)
		outcome := set.Hash()
		if err != nil {
			outcome = "error: " + err.Error()
		}
		if !poll.Settled(contents, outcome) {
			continue
		}
		if cut := poll.Cut(contents); cut != nil {
			err = cut
		}
		if err == nil {
			err = set.olderLists(current)
		}
		if err == nil {
			poll.InForce = contents
		}
		switch {
		case err != nil && err.Error() != reported:
			reported = err.Error()
			w.Follower.Broken(ctx, err)
		case err == nil && (reported != "" || set.Hash() != current.Hash()):
			current, reported = set, ""
			w.Follower.Changed(ctx, set)
		}
	}
}
