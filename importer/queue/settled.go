package queue

import (
	"context"
	"maps"
	"time"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// settled is what a registry's own list said of a repository before a sweep asked for each tag and
// each signature there, and found all of it.
type settled struct {
	sum [32]byte
	at  time.Time // of that sweep
}

// maxSettled is how long a list is believed that nothing has changed. A list is a claim, and it
// lacks what is kept elsewhere: signatures in other repositories, for instance.
const maxSettled = 24 * time.Hour

// isSettled reports whether the registry's own list says what it said before the last sweep that
// asked for all of the repository. The known tags then count as confirmed, and nothing is asked.
// listed is the list, for settle; nil if there is none.
func (h *hostSweep) isSettled(ctx context.Context, repository reference.Reference) (listed *importer.OwnList, is bool) {
	err := h.ask(ctx, func() (err error) {
		listed, err = h.Importer().ListRepository(ctx, repository, h.entry.listing, h.caches)
		return err
	})
	if err != nil && ctx.Err() == nil {
		h.failing.Warn("list of "+repository.Name(), "a sweep asks for each tag, because the registry's own list cannot be read", "repository", repository.Name(), "err", err)
	}
	if err != nil || listed == nil || len(listed.Tags) == 0 {
		return nil, false
	}
	key := sweepKey{h.entry, h.name}
	h.Worker.mu.Lock()
	last, known := h.settled[key][repository]
	delete(h.settled[key], repository)
	h.Worker.mu.Unlock()
	if !known || last.sum != listed.Sum || h.Clock.Since(last.at) >= maxSettled {
		return listed, false
	}
	if is, err = h.Importer().ConfirmListed(ctx, h.Images, repository, listed); err != nil || !is {
		return listed, false
	}
	h.settle(repository, last)
	h.saw(repository, true)
	h.metrics.swept.WithLabelValues("known").Add(float64(len(listed.Tags)))
	leads := map[string]bool{}
	for _, digest := range listed.Tags {
		leads[digest] = true
	}
	maps.DeleteFunc(h.running, func(ref reference.Reference, _ []string) bool { return ref.Bare() == repository && leads[ref.Digest] })
	return listed, true
}

// settle keeps that nothing is left to ask for in a repository.
func (h *hostSweep) settle(repository reference.Reference, s settled) {
	key := sweepKey{h.entry, h.name}
	h.Worker.mu.Lock()
	defer h.Worker.mu.Unlock()
	if h.Worker.settled[key] == nil {
		h.Worker.settled[key] = map[reference.Reference]settled{}
	}
	h.Worker.settled[key][repository] = s
}
