package answers

import (
	"context"
	"fmt"
	"slices"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// drifted fills in how what a container runs compares with where its tag led since a time.
func (s *session) drifted(ctx context.Context, a *Answer, q Question, since metav1.Time) {
	ref, bad := reference.Parse(q.Reference)
	if bad != nil || ref.Digest != "" {
		return
	}
	ref = ref.Pulled()
	_, tag, why, err := s.tagTarget(ctx, ref)
	if err != nil {
		a.unknown(PartDrift, err)
		why = whyNot(err)
	}
	if err != nil || tag == nil || tag.Status == nil || len(tag.Status.Items) == 0 {
		a.Drift = []TagDrift{{Since: since, Outdated: BaseUnknown, Message: why}}
		return
	}
	items := tag.Status.Items[:min(len(tag.Status.Items), maxDrift)]
	if first := items[len(items)-1].Created; since.Before(&first) {
		a.Drift = append(a.Drift, TagDrift{Since: since, Outdated: BaseUnknown, Message: fmt.Sprintf("it is not known where %s led before %s", ref, first.UTC().Format(time.RFC3339))})
	}
	for i, item := range slices.Backward(items) {
		if i > 0 && !since.Before(&items[i-1].Created) {
			continue // it no longer led there
		}
		one := TagDrift{Since: item.Created, Digest: item.Image}
		if one.Since.Before(&since) {
			one.Since = since
		}
		outdated, why, err := s.ranOutdated(ctx, tag, ref, q.Runs, item.Image)
		if err != nil {
			a.unknown(PartDrift, err)
			why = whyNot(err)
		}
		switch one.Message = why; {
		case why != "":
			one.Outdated = BaseUnknown
		case outdated:
			one.Outdated = BaseOutdated
		default:
			one.Outdated = BaseCurrent
		}
		a.Drift = append(a.Drift, one)
	}
}

// ranOutdated reports whether a digest that a container ran differs from what its tag led to then.
// unknown is why that is not known.
func (s *session) ranOutdated(ctx context.Context, tag *imagev1.ImageTag, ref reference.Reference, runs, led string) (outdated bool, unknown string, err error) {
	target := &resolved{digest: led}
	switch {
	case led == "":
		return false, fmt.Sprintf("the registry did not have %s", ref), nil
	case led == runs:
		return false, "", nil
	}
	if target.image, err = s.image(ctx, led); err != nil {
		return false, "", err
	}
	if target.image == nil {
		target.message = fmt.Sprintf("%s led to %s, which is not imported", ref, led)
	}
	if runs, err = s.told(ctx, runs, ref, target); err != nil {
		return false, "", err
	}
	return s.isOutdated(ctx, target, tag, runs)
}
