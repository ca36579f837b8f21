package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Loss is a registry that has nothing in most repositories in which it had images: it may have lost
// its storage. Sweeps then mark nothing there as gone, and all that is known stays as it was seen
// last, until most of these repositories have images again, or a webhook reports their deletion.
type Loss struct {
	Registry string `json:"registry"`
	// Repositories counts those that had images and have none, and Of all that had images.
	Repositories int `json:"repositories"`
	Of           int `json:"of"`
	// Since is when a sweep noticed.
	Since time.Time `json:"since"`
	// Seen is when a sweep last found most of them; nil if that was before this server started.
	Seen *time.Time `json:"seen,omitempty"`
}

func (l *Loss) String() string {
	seen := ""
	if l.Seen != nil {
		seen = ", not seen since " + l.Seen.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("%s has nothing in %d of %d repositories in which it had images%s: it may have lost its storage, or it no longer shows them to these credentials; sweeps mark nothing there as gone until that is settled", l.Registry, l.Repositories, l.Of, seen)
}

const (
	// minLost is how many repositories must be empty: fewer are deleted by people all the time.
	minLost = 3
	// maxSampled is how many references are asked for before a repository counts as empty.
	maxSampled = 3
)

// errEmptied ends the sweep of a repository that has nothing left of what is known of it.
var errEmptied = errors.New("the repository is empty now")

// seenOf is what one sweep of a registry has seen of repositories of which something is known. It
// holds at most the repositories that are swept, and the images that pods run.
type seenOf struct {
	mu      sync.Mutex
	shown   map[reference.Reference]bool // have something
	emptied []reference.Reference        // have nothing
	gone    []reference.Reference        // images that pods run, and the registry does not have
	failed  bool                         // of some it is not known
}

// saw records whether the registry has something by a reference.
func (h *hostSweep) saw(ref reference.Reference, isThere bool) {
	h.seen.mu.Lock()
	defer h.seen.mu.Unlock()
	if !isThere {
		h.seen.gone = append(h.seen.gone, ref)
		return
	}
	if h.seen.shown == nil {
		h.seen.shown = map[reference.Reference]bool{}
	}
	h.seen.shown[ref.Bare()] = true
}

// missed records that something of the registry is not known.
func (h *hostSweep) missed() {
	h.seen.mu.Lock()
	defer h.seen.mu.Unlock()
	h.seen.failed = true
}

// isEmptied reports whether a repository of which the registry lists no tag had images and has none
// of them. A list is a claim, so some of the images are asked for.
func (h *hostSweep) isEmptied(ctx context.Context, repository reference.Reference) (bool, error) {
	known, err := h.sample(ctx, repository)
	if err != nil || len(known) == 0 {
		return false, err
	}
	for _, ref := range known {
		var digest string
		err := h.ask(ctx, func() (err error) {
			digest, err = h.Importer().Resolve(ctx, ref)
			return err
		})
		if err != nil || digest != "" {
			return false, err
		}
	}
	h.seen.mu.Lock()
	defer h.seen.mu.Unlock()
	h.seen.emptied = append(h.seen.emptied, repository)
	return true, nil
}

// sample returns some references in a repository that are known, and not known to be gone.
func (w *Worker) sample(ctx context.Context, repository reference.Reference) (some []reference.Reference, err error) {
	errEnough := errors.New("enough")
	add := func(ref reference.Reference) error {
		if some = append(some, ref); len(some) >= maxSampled {
			return errEnough
		}
		return nil
	}
	if w.Finder != nil {
		err = w.Finder.FindImages(ctx, repository, func(image *imagev1.Image) error {
			own := repository.WithDigest(image.Name)
			if _, gone := annotation.Missing(image.Annotations)[own]; gone {
				return nil
			}
			return add(own)
		})
	}
	if err == nil {
		err = importer.EachUnlisted(ctx, w.Images, repository, func(reference.Reference) bool { return false }, func(tag reference.Reference, _ string) error { return add(tag) })
	}
	if errors.Is(err, errEnough) {
		err = nil
	}
	return some, err
}

// conclude decides about what this sweep did not find: if that is most of what the registry had,
// the registry may have lost its storage, and nothing is marked. Otherwise it is gone.
func (h *hostSweep) conclude(ctx context.Context) {
	if h.leaves() || ctx.Err() != nil {
		return // the next sweep asks again
	}
	empty := map[reference.Reference]bool{}
	for _, ref := range slices.Concat(h.seen.emptied, h.seen.gone) {
		if !h.seen.shown[ref.Bare()] {
			empty[ref.Bare()] = true
		}
	}
	h.recordLoss(ctx, len(empty) >= minLost && len(empty) > len(h.seen.shown), len(empty), len(empty)+len(h.seen.shown))
	isHeld := h.isLost() // perhaps by another entry, or by an earlier sweep that could ask for all
	for _, ref := range h.seen.gone {
		if isHeld && empty[ref.Bare()] {
			continue
		}
		if err := h.markGone(ctx, ref.Digest, ref); err != nil && ctx.Err() == nil {
			h.failing.Warn(ref.String(), "a sweep could not record that an image is gone", "reference", ref.String(), "err", err)
		}
	}
	for _, repository := range h.seen.emptied {
		if isHeld && empty[repository] {
			continue
		}
		if h.leaves() {
			return
		}
		h.end(ctx, repository, h.summarize(ctx, repository, func(ctx context.Context) error {
			return h.ask(ctx, func() error {
				return h.goneRepository(ctx, repository, &askedOf{references: map[reference.Reference]bool{}})
			})
		}))
	}
}

// recordLoss keeps whether the registry may have lost its storage, and says so once. A sweep that
// could not ask for all does not end that.
func (h *hostSweep) recordLoss(ctx context.Context, isLost bool, empty, of int) {
	key, now := sweepKey{h.entry, h.name}, h.Clock.Now()
	w := h.Worker
	w.mu.Lock()
	before := w.losses[key]
	var loss *Loss
	switch {
	case isLost:
		loss = &Loss{Registry: h.name, Repositories: empty, Of: of, Since: now}
		if before != nil {
			loss.Since, loss.Seen = before.Since, before.Seen
		} else if seen, ok := w.shown[key]; ok {
			loss.Seen = &seen
		}
		w.losses[key] = loss
	case !h.seen.failed:
		delete(w.losses, key)
		if of > 0 {
			w.shown[key] = now
		}
	}
	w.mu.Unlock()
	w.countLosses()
	switch {
	case isLost && before == nil:
		h.Logger.Error("A registry may have lost its storage", "registry", h.name, "repositories", empty, "of", of)
		h.notify(ctx, Notice{Reason: NoticeRegistryEmptied, Warning: true, Reference: h.name, Message: loss.String()})
	case !isLost && before != nil && !h.seen.failed:
		h.Logger.Info("A registry no longer lacks most of its repositories", "registry", h.name, "repositories", empty, "of", of)
	}
}

// isLost reports whether the registry may have lost its storage, by any entry.
func (h *hostSweep) isLost() bool {
	return slices.ContainsFunc(h.Losses(), func(l Loss) bool { return l.Registry == h.name })
}

// importFollowed is sweepFollowed, but leaves a tag as it is that a registry does not have after it
// may have lost its storage.
func (h *hostSweep) importFollowed(ctx context.Context, ref reference.Reference) error {
	if h.isLost() {
		if digest, err := h.Importer().Resolve(ctx, ref); err != nil || digest == "" {
			return err
		}
	}
	return h.sweepFollowed(ctx, ref)
}

// forgetLosses forgets what is known of entries that are not in force.
func (w *Worker) forgetLosses(plan *sweepPlan) {
	w.mu.Lock()
	maps.DeleteFunc(w.losses, func(key sweepKey, _ *Loss) bool { return !slices.Contains(plan.entries, key.entry) })
	maps.DeleteFunc(w.shown, func(key sweepKey, _ time.Time) bool { return !slices.Contains(plan.entries, key.entry) })
	maps.DeleteFunc(w.recalled, func(key sweepKey, _ bool) bool { return !slices.Contains(plan.entries, key.entry) })
	maps.DeleteFunc(w.settled, func(key sweepKey, _ map[reference.Reference]settled) bool {
		return !slices.Contains(plan.entries, key.entry)
	})
	w.mu.Unlock()
	w.countLosses()
}

func (w *Worker) countLosses() { w.metrics.lost.Set(float64(len(w.Losses()))) }

// Losses returns the registries that may have lost their storage, among those that this Worker
// sweeps, each once, by name.
func (w *Worker) Losses() (all []Loss) {
	w.mu.Lock()
	defer w.mu.Unlock()
	worst := map[string]Loss{}
	for key, loss := range w.losses {
		if had, ok := worst[key.host]; w.owns(key.host) && (!ok || loss.Repositories > had.Repositories) {
			worst[key.host] = *loss
		}
	}
	return slices.SortedFunc(maps.Values(worst), func(a, b Loss) int { return cmp.Compare(a.Registry, b.Registry) })
}

// summaryKey is the key of a *summary in a context.
type summaryKey struct{}

// summary collects Notices of references that are gone.
type summary struct {
	mu    sync.Mutex
	first []Notice // at most maxNamed
	n     int
}

// summarize calls f, and says in one Notice what it finds to be gone of a repository, if that is
// much. Warnings are passed on.
func (w *Worker) summarize(ctx context.Context, repository reference.Reference, f func(context.Context) error) error {
	s := &summary{}
	err := f(context.WithValue(ctx, summaryKey{}, s))
	if s.n > maxNamed {
		w.notify(ctx, Notice{Reason: NoticeGoneFromRegistry, Reference: repository.Name(), Message: fmt.Sprintf("%s is empty or deleted: %d references are no longer in the registry", repository.Name(), s.n)})
		return err
	}
	for _, n := range s.first {
		w.notify(ctx, n)
	}
	return err
}

// take reports whether the summary says what a Notice does.
func (s *summary) take(n Notice) bool {
	if n.Warning || n.Reason != NoticeGoneFromRegistry {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n++; s.n <= maxNamed {
		s.first = append(s.first, n)
	}
	return true
}
