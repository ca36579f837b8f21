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
	// Unknown counts the pods for which it is not known whether they are outdated. Why has the reason
	// for some of them.
	Unknown usage.Count
	Why     string
	// Runs are what these pods run, by what [usage.Tagged] has for it.
	Runs map[string]usage.Run
}

// Drift compares the digests that pods run with the tag that they name. It checks no rights,
// because the program itself asks.
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
	d.Runs = map[string]usage.Run{}
	d.Outdated, d.Unknown = s.Naming.Running(names, func(one usage.Tagged) usage.Run {
		run, asked := d.Runs[one.Digest]
		if asked {
			return run
		}
		run = usage.Run{Digest: one.Digest, State: usage.Unknown}
		var err error
		if _, id, ok := podimages.CutUnsettled(one.Digest); ok {
			run.Digest, err = s.identify(ctx, id, tag, leads)
		} else if one.Digest != "" {
			run.Digest, err = s.told(ctx, one.Digest, tag, leads)
		}
		if err != nil {
			failed = err
		}
		if leads != nil {
			outdated, unknown, err := s.isOutdated(ctx, leads, of, run.Digest)
			switch {
			case err != nil:
				failed = err
			case unknown != "":
				d.Why = unknown
			case outdated:
				run.State = usage.Outdated
			default:
				run.State = usage.Current
			}
		}
		d.Runs[one.Digest] = run
		return run
	})
	return d, failed
}
