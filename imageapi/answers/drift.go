package answers

import (
	"context"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Drift is what pods run that name a tag, if that is not what the tag leads to
// now.
type Drift struct {
	// Tag is where the tag leads; nil if that is not known.
	Tag *imagev1.ImageTag
	// Now is the digest that it leads to; "" if it leads nowhere, or that is not known.
	Now string
	// Outdated counts the pods that are known to run something else.
	Outdated usage.Count
	// Unknown counts the other pods of which that is not known, and Why is why, for some of them.
	Unknown usage.Count
	Why     string
}

// Drift finds out what pods run that name a tag. The program asks, so rights are not looked at.
func (a *Answerer) Drift(ctx context.Context, tag reference.Reference) (Drift, error) {
	return a.own("").drift(ctx, tag, []string{tag.String()})
}

// DriftOf is Drift with the pods that name the tag on a mirror.
func (a *Answerer) DriftOf(ctx context.Context, tag reference.Reference) (Drift, error) {
	return a.own("").drift(ctx, tag, a.spellings(tag))
}

// drift is Drift for the pods that name the tag by one of some names.
func (s *session) drift(ctx context.Context, tag reference.Reference, names []string) (d Drift, failed error) {
	leads, of, why, err := s.tagTarget(ctx, tag)
	if err != nil {
		return d, err
	}
	if d.Why = why; leads != nil {
		d.Tag, d.Now = of, leads.digest
	}
	d.Outdated, d.Unknown = s.Naming.Running(names, func(runs string) (string, usage.State) {
		if _, id, ok := podimages.CutUnsettled(runs); ok {
			var err error
			if runs, err = s.identify(ctx, id, tag, leads); err != nil {
				failed = err
			}
		}
		if leads == nil {
			return runs, usage.Unknown
		}
		switch outdated, unknown := isOutdated(leads, runs); {
		case unknown != "":
			d.Why = unknown
			return runs, usage.Unknown
		case outdated:
			return runs, usage.Outdated
		}
		return runs, usage.Current
	})
	return d, failed
}
