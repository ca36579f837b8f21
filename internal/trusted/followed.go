package trusted

import (
	"os"
	"slices"
	"time"
)

// Followed are files that are read together, and read again when one changes. It compares their
// sizes and times, which is cheap and works on file systems without notifications. [Poll] compares
// contents.
type Followed struct {
	Names []string
	// Load reads the files. If it fails, what it read before stays in force.
	Load func() error
	// Settle is how long changed files must stay unchanged before they are read: until then they may
	// be half written.
	Settle time.Duration
	// Retry is the time after a failure until unchanged files are read again, as the reason may have
	// passed.
	Retry time.Duration
	// Failed is called with each new reason why changed files cannot be used.
	Failed func(error)

	seen    []os.FileInfo // nil for a file that does not exist
	since   time.Time     // when the files last changed
	changed bool          // the files have changed since the last Load
	failed  error         // the error of the last Load
	tried   time.Time     // the time of the last Load
}

// Start reads the files for the first time.
func (f *Followed) Start(now time.Time) error {
	f.stat(now)
	f.changed = false
	return f.Load()
}

// Look reads the files again if they have changed, or if the last Load failed. It reports whether
// it read them and could use them.
func (f *Followed) Look(now time.Time) bool {
	f.stat(now)
	changed := f.changed && now.Sub(f.since) >= f.Settle
	if !changed && (f.failed == nil || now.Sub(f.tried) < f.Retry) {
		return false
	}
	before := f.failed
	f.changed, f.tried = f.changed && !changed, now
	if f.failed = f.Load(); f.failed != nil && (changed || before == nil || f.failed.Error() != before.Error()) {
		f.Failed(f.failed)
	}
	return f.failed == nil
}

// stat records whether the files have changed, and when. It takes the time from the file system,
// unless that is in the future.
func (f *Followed) stat(now time.Time) {
	seen := make([]os.FileInfo, len(f.Names))
	for i, name := range f.Names {
		if info, err := os.Stat(name); err == nil {
			seen[i] = info
		}
	}
	if f.seen != nil && slices.EqualFunc(f.seen, seen, sameFile) {
		return
	}
	f.since = time.Time{}
	for i, info := range seen {
		at := now // if the file is gone
		if info != nil && info.ModTime().Before(now) {
			at = info.ModTime()
		}
		if (f.seen == nil || !sameFile(f.seen[i], info)) && at.After(f.since) {
			f.since = at
		}
	}
	f.seen, f.changed = seen, true
}

func sameFile(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == b
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.Mode() == b.Mode() && a.ModTime().Equal(b.ModTime())
}
