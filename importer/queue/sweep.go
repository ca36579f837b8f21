package queue

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/hostlimit"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/runner"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Validate reports what is wrong with the options.
func (o SweepOptions) Validate() error {
	_, err := o.parse()
	return err
}

// ReplaceSweep takes over other options, and sweeps at once.
func (w *Worker) ReplaceSweep(o SweepOptions) error {
	plan, err := o.parse()
	if err != nil {
		return err
	}
	w.plan.Store(plan)
	select {
	case w.replaced <- struct{}{}:
	default: // it is not known yet of the one before
	}
	return nil
}

// sweepEvery sweeps until ctx is done.
func (w *Worker) sweepEvery(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for ctx.Err() == nil {
		w.follow(ctx, w.plan.Load(), &running)
	}
}

// follow sweeps by a plan until there is another one or ctx is done. Each entry has its own times.
// A registry whose sweep takes longer than the time to the next one of the same entry is left out
// of that, and delays no other.
func (w *Worker) follow(ctx context.Context, plan *sweepPlan, running *sync.WaitGroup) {
	w.forgetLosses(plan)
	times := schedule{plan: plan}
	again := true
	for {
		now := w.Clock.Now()
		due, next := times.due(now)
		for _, entry := range plan.entries {
			if isDue := slices.Contains(due, entry); isDue || !again {
				running.Go(func() { w.sweep(ctx, entry, isDue) })
			}
		}
		timer := w.Clock.NewTimer(next.Sub(now))
		again = true
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		case <-w.moved:
			again = false
		case <-w.replaced:
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// schedule has the times of a plan's entries.
type schedule struct {
	plan *sweepPlan
	at   []time.Time
}

// due returns the entries whose time has come, and when the next one is due. All are due at first.
// An entry that missed several times is due once.
func (s *schedule) due(now time.Time) (due []*sweepEntry, next time.Time) {
	if s.at == nil {
		s.at = slices.Repeat([]time.Time{now}, len(s.plan.entries))
	}
	for i, entry := range s.plan.entries {
		if late := now.Sub(s.at[i]); late >= 0 {
			due = append(due, entry)
			s.at[i] = s.at[i].Add((late/entry.every + 1) * entry.every)
		}
		if i == 0 || s.at[i].Before(next) {
			next = s.at[i]
		}
	}
	return due, next
}

const (
	// maxSweptHosts is how many registries are swept at a time.
	maxSweptHosts = 128
	// maxRefusals is how often a sweep sends a request again to a registry that demands a pause each
	// time.
	maxRefusals = 5
)

// sweep sweeps the repositories of an entry, and if that is the base also what tags of image
// streams want imported regularly, and what pods run: of the registries that this Worker owns, or,
// if not again, of those that it has come to own. Registries are swept beside each other, under
// limits of the sweep's own: pushes go first, and have theirs. Two sweeps of one registry take
// turns.
func (w *Worker) sweep(ctx context.Context, entry *sweepEntry, again bool) {
	start := w.Clock.Now()
	s := &sweeper{
		Worker: w, entry: entry, limiter: hostlimit.New(w.Concurrency, max(1, w.HostConcurrency/2), w.Clock), wanted: map[string]bool{},
		waiting: map[string]*hostSweep{}, ended: make(chan struct{}), until: start.Add(entry.every),
	}
	w.forgetBegun(entry, again)
	w.countLosses()
	ctx = importer.WithCause(ctx, "sweep")
	for _, repository := range entry.repositories {
		if s.wants(repository.Host) {
			h := s.host(repository.Host)
			h.repositories = append(h.repositories, repository)
		}
	}
	for _, pattern := range entry.patterns {
		if s.wants(pattern.host) {
			h := s.host(pattern.host)
			h.patterns = append(h.patterns, pattern)
		}
	}
	var scheduled, running int
	if entry.isBase {
		var err error
		if scheduled, err = s.readScheduled(ctx); err != nil && ctx.Err() == nil {
			w.Logger.Error("A sweep cannot read what image streams follow", "err", err)
		}
		if running, err = s.readRunning(ctx); err != nil && ctx.Err() == nil {
			w.Logger.Error("A sweep cannot read what pods run", "err", err)
		}
	}
	s.hosts(ctx)
	if of := s.of.Load(); of+int64(scheduled+running) > 0 {
		w.Logger.Info("Swept", "repositories", s.done.Load(), "of", of, "scheduled", scheduled, "running", running, "duration", w.Clock.Since(start))
	}
}

// forgetBegun has registries of an entry swept that were before: all of them again, or those that
// are another's now, should they come back. It forgets entries that are not in force.
func (w *Worker) forgetBegun(entry *sweepEntry, again bool) {
	plan := w.plan.Load()
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.begun, func(key sweepKey, _ bool) bool {
		return key.entry == entry && (again || !w.owns(key.host)) || !slices.Contains(plan.entries, key.entry)
	})
}

func (w *Worker) owns(host string) bool { return w.Owners == nil || w.Owners.Owns(host) }

type sweeper struct {
	*Worker
	entry   *sweepEntry
	limiter *hostlimit.Limiter
	wanted  map[string]bool       // registries, and whether this sweep asks them
	waiting map[string]*hostSweep // by registry
	until   time.Time             // a registry that asks to be left alone for longer is left
	done    atomic.Int64          // repositories
	of      atomic.Int64          // repositories, also those that a sweep did not come to

	mu    sync.Mutex
	ended chan struct{} // closed when a request has ended
}

// hostSweep is what a sweep asks of one registry.
type hostSweep struct {
	*sweeper
	name                   string
	repositories, followed []reference.Reference
	patterns               []sweepPattern
	found, vanished        []reference.Reference // by patterns, in the order of byName
	// images that pods run, with clusters whose pull secrets may be used
	running map[reference.Reference][]string
	// it does not answer now, or asks to be left alone for too long
	left   atomic.Bool
	seen   seenOf
	caches map[string]bool // projects of Harbor that cache other registries; see ListRepository
}

// wants reports whether this sweep asks a registry.
func (s *sweeper) wants(host string) bool {
	want, decided := s.wanted[host]
	if !decided {
		s.Worker.mu.Lock()
		defer s.Worker.mu.Unlock()
		key := sweepKey{s.entry, host}
		if want = s.owns(host) && !s.begun[key]; want {
			s.begun[key] = true
		}
		s.wanted[host] = want
	}
	return want
}

// host returns what waits for a registry.
func (s *sweeper) host(name string) *hostSweep {
	h := s.waiting[name]
	if h == nil {
		h = &hostSweep{sweeper: s, name: name, running: map[reference.Reference][]string{}, caches: map[string]bool{}}
		s.waiting[name] = h
	}
	return h
}

// hosts sweeps all registries for which something waits, except those that an earlier sweep is at.
func (s *sweeper) hosts(ctx context.Context) {
	var group errgroup.Group
	group.SetLimit(maxSweptHosts)
	// Those with repositories come first: an administrator named them.
	for _, h := range slices.SortedFunc(maps.Values(s.waiting), func(a, b *hostSweep) int {
		return cmp.Or(cmp.Compare(len(b.repositories)+len(b.patterns), len(a.repositories)+len(a.patterns)), cmp.Compare(a.name, b.name))
	}) {
		key := sweepKey{s.entry, h.name}
		if _, under := s.sweeping.LoadOrStore(key, true); under {
			s.failing.Warn(h.name, "a sweep is still busy with a registry, so the next sweep skips it", "registry", h.name)
			continue
		}
		group.Go(func() error {
			defer s.sweeping.Delete(key)
			unlock, err := s.turns.Lock(ctx, h.name)
			if err != nil {
				return nil // the server stops
			}
			defer unlock()
			_ = runner.Guard(s.Logger, func() error { h.sweep(ctx); return nil })
			return nil
		})
	}
	_ = group.Wait() // no function returns an error
	clear(s.waiting)
}

// sweep sweeps the repositories of a registry, and what is followed there. It ends when the
// registry does not answer.
func (h *hostSweep) sweep(ctx context.Context) {
	if len(h.patterns) > 0 {
		h.find(ctx)
		defer h.remember()
	}
	h.of.Add(int64(len(h.repositories)))
	for _, repository := range h.repositories {
		if h.leaves() {
			return
		}
		h.end(ctx, repository, h.repository(ctx, repository))
	}
	h.each(ctx, maps.Keys(h.running), "a sweep could not check an image that pods run", func(ctx context.Context, ref reference.Reference) error {
		gone, err := h.checkRunning(ctx, ref, h.running[ref])
		switch {
		case errors.Is(err, errNotStored):
			return nil
		case err != nil:
			h.missed()
		default:
			h.saw(ref, !gone)
		}
		return err
	})
	h.conclude(ctx)
	h.each(ctx, slices.Values(h.followed), "a sweep could not import what an image stream follows", h.importFollowed)
}

// end counts a repository that was swept, or says why it was not. conclude decides
// about one that is empty now.
func (h *hostSweep) end(ctx context.Context, repository reference.Reference, err error) {
	switch {
	case errors.Is(err, errEmptied):
	case err == nil:
		h.done.Add(1)
		h.vanished = slices.DeleteFunc(h.vanished, func(r reference.Reference) bool { return r == repository })
	case ctx.Err() == nil:
		h.missed()
		h.failing.Warn(repository.Name(), "a sweep stopped before the end of a repository", "repository", repository.Name(), "err", err)
	}
}

// each calls f with references of the registry, several at a time, until the registry is left.
// failed says what a failure means.
func (h *hostSweep) each(ctx context.Context, all iter.Seq[reference.Reference], failed string, f func(context.Context, reference.Reference) error) {
	var group errgroup.Group
	group.SetLimit(h.HostConcurrency)
	for ref := range all {
		if h.leaves() || ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			err := h.ask(ctx, func() error { return f(ctx, ref) })
			if err != nil && !errors.Is(err, errLeft) && ctx.Err() == nil {
				h.failing.Warn(ref.String(), failed, "reference", ref.String(), "err", err)
			}
			return nil
		})
	}
	_ = group.Wait() // no function returns an error
}

// leaves reports whether the registry is left: until the next sweep, or to another server.
func (h *hostSweep) leaves() bool { return h.left.Load() || !h.owns(h.name) }

// errLeft ends the requests to a registry that this sweep skips.
var errLeft = errors.New("the registry does not answer, asks for a pause beyond the next sweep, or is another server's to sweep")

// ask calls f when its registry may be asked, and again if that asks to be left alone for a while.
func (h *hostSweep) ask(ctx context.Context, f func() error) error {
	for refusals := 1; ; refusals++ {
		if err := h.enter(ctx); err != nil {
			return err
		}
		err := runner.Guard(h.Logger, f)
		h.leave(err)
		if pull.ReasonOf(err) != pull.RateLimited || importer.Unsearched(err) || refusals == maxRefusals || h.leaves() {
			return err
		}
	}
}

// enter waits until the registry may be asked once more.
func (h *hostSweep) enter(ctx context.Context) error {
	for {
		h.mu.Lock()
		if h.leaves() {
			h.mu.Unlock()
			return errLeft
		}
		n, again := h.limiter.Available(h.name)
		if n > 0 {
			h.limiter.Start(h.name)
		}
		ended := h.ended
		h.mu.Unlock()
		if n > 0 {
			return nil
		}
		var probe <-chan time.Time
		if !again.IsZero() {
			probe = h.Clock.After(again.Sub(h.Clock.Now()))
		}
		select {
		case <-ended:
		case <-probe:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// leave ends what enter began.
func (h *hostSweep) leave(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if again := h.limiter.Done(h.name, err); isSilent(err) || again.After(h.until) {
		h.left.Store(true)
	}
	close(h.ended)
	h.ended = make(chan struct{})
}

// repository imports every tag of a repository, and asks about the other known references. If an
// image cannot be imported, it continues with the next one; if the registry does not answer, it
// gives up.
func (h *hostSweep) repository(ctx context.Context, repository reference.Reference) error {
	began := h.Clock.Now()
	listed, isSettled := h.isSettled(ctx, repository)
	if isSettled {
		return nil
	}
	var tags, warnings []string
	err := h.ask(ctx, func() (err error) {
		tags, warnings, err = h.Importer().Tags(ctx, repository)
		return err
	})
	if err != nil && pull.ReasonOf(err) != pull.NotFound && !pull.IsHidden(err) { // it may show what it does not list
		return err
	}
	for _, text := range warnings {
		h.failing.Warn(repository.Name(), "a sweep skips tags", "repository", repository.Name(), "warning", text)
	}
	images := importer.NewPrefetcher(h.Images, h.Clock)
	for _, tag := range tags {
		images.Expect(repository.WithTag(tag))
	}
	asked := &askedOf{references: map[reference.Reference]bool{}}
	if len(tags) == 0 && !pull.IsHidden(err) {
		if emptied, err := h.isEmptied(ctx, repository); emptied || err != nil {
			return cmp.Or(err, errEmptied)
		}
	} else if len(tags) > 0 {
		h.saw(repository, true)
	}
	var group errgroup.Group
	group.SetLimit(h.HostConcurrency)
	var failed, incomplete atomic.Bool
	var mu sync.Mutex
	var unsearched []string // tags whose signatures could not be read for now
	sweep := func(tag string) error {
		result := ""
		err := h.ask(ctx, func() (err error) {
			result, err = h.sweepTag(ctx, repository.WithTag(tag), images, asked)
			return err
		})
		if result != "" {
			h.metrics.swept.WithLabelValues(result).Inc()
		}
		isLater := runner.Temporary(err) && importer.Unsearched(err)
		if err == nil {
			return nil
		}
		incomplete.Store(true)
		switch {
		case ctx.Err() != nil || runner.Temporary(err) && !isLater || errors.Is(err, errLeft):
			failed.Store(true)
			return err
		case isLater:
			mu.Lock()
			defer mu.Unlock()
			unsearched = append(unsearched, tag)
		}
		h.failing.Warn(repository.Name(), "a sweep could not import a tag", "repository", repository.Name(), "tag", tag, "err", err)
		return nil
	}
	ctx = importer.WithBrief(ctx)
	references := make([]reference.Reference, len(tags))
	for i, tag := range tags {
		references[i] = repository.WithTag(tag)
	}
	var foreseeing sync.WaitGroup
	defer foreseeing.Wait()
	for i, tag := range tags {
		if failed.Load() {
			break
		}
		if ask := images.Foresee(ctx, references[i], references[i+1:]); ask != nil {
			foreseeing.Go(ask)
		}
		group.Go(func() error { return sweep(tag) })
	}
	err = group.Wait()
	for _, tag := range slices.Clone(unsearched) { // once more; then the next sweep asks
		if err == nil {
			err = sweep(tag)
		}
	}
	_ = images.Flush(ctx) // of the server's own store, which accepts checks
	if err != nil {
		return err
	}
	maps.DeleteFunc(h.running, func(ref reference.Reference, _ []string) bool { return asked.has(ref) })
	err = h.ask(ctx, func() error { return h.goneRepository(ctx, repository, asked) })
	if err == nil && listed != nil && !incomplete.Load() {
		h.settle(repository, settled{listed.Sum, began})
	}
	return err
}

// sweepTag imports a tag and reports it if it is new. The registry has then been asked about the
// tag, and about the digest that it leads to.
func (w *Worker) sweepTag(ctx context.Context, ref reference.Reference, images importer.Images, asked *askedOf) (result string, err error) {
	imported, err := w.importPresent(ctx, w.Importer(), ref, images)
	switch {
	case pull.ReasonOf(err) == pull.NotAnImage, pull.ReasonOf(err) == pull.NotFound:
		// a chart, say, or deleted since
		return "known", nil
	case imported == nil:
		return "failed", err
	}
	asked.add(ref)
	asked.add(ref.Bare().WithDigest(imported.Digest))
	if w.notifyFound(ctx, imported, ref, "Found by a sweep: "+ref.String()) {
		return "imported", err
	}
	return "known", err
}

// readScheduled reads the references that tags of image streams want imported regularly, except
// those in repositories that are swept. It sweeps only if they become too many.
func (s *sweeper) readScheduled(ctx context.Context) (scheduled int, err error) {
	if s.Streams == nil {
		return 0, nil
	}
	read, swept := map[reference.Reference]bool{}, map[reference.Reference]bool{}
	for _, e := range s.Worker.plan.Load().entries {
		for _, repository := range e.repositories {
			swept[repository] = swept[repository] || e.every <= s.entry.every
		}
	}
	err = s.Streams.Scheduled(ctx, func(ref reference.Reference) error {
		if read[ref] || swept[ref.Bare()] || !s.wants(ref.Host) {
			return ctx.Err()
		}
		read[ref] = true
		scheduled++
		h := s.host(ref.Host)
		h.followed = append(h.followed, ref)
		if len(read) == maxScheduled {
			s.hosts(ctx)
			clear(read)
		}
		return ctx.Err()
	})
	return scheduled, err
}

// maxClusters bounds the clusters whose pull secrets are used for one image.
const maxClusters = 4

// readRunning reads which images pods run. It sweeps if they become too many.
func (s *sweeper) readRunning(ctx context.Context) (running int, err error) {
	if s.Running == nil {
		return 0, nil
	}
	read := 0
	err = s.Running.EachRunning(ctx, func(cluster string, image reference.Reference) error {
		if !s.wants(image.Host) {
			return ctx.Err()
		}
		image = image.Bare().WithDigest(image.Digest)
		h := s.host(image.Host)
		clusters, had := h.running[image]
		if cluster != "" && len(clusters) < maxClusters && !slices.Contains(clusters, cluster) {
			clusters = append(clusters, cluster)
		}
		h.running[image] = clusters
		if !had {
			running, read = running+1, read+1
		}
		if read == maxScheduled {
			s.hosts(ctx)
			read = 0
		}
		return ctx.Err()
	})
	return running, err
}

// isSilent reports whether a registry does not answer now.
func isSilent(err error) bool {
	return pull.ReasonOf(err) == pull.Unreachable || pull.ReasonOf(err) == pull.Timeout
}
