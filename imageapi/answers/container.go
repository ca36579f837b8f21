package answers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// ContainerAnswer describes the image that a container runs, as far as it is known.
type ContainerAnswer struct {
	// Runs is the digest that runs; "" if it is not known.
	Runs string
	// Verdict is the verdict on the running image under the reference that the container names; nil if
	// the image is not known to be in that repository. Judged is the digest of the judged image: an
	// index, if the tag leads to one that lists the running image.
	Verdict *Verdict
	Judged  string
	// PolicyVersions are the versions of the Verdict's policies, in their order.
	PolicyVersions []string
	// Outdated is true if the container names a tag and runs something else than the tag leads to
	// now, and Now is what that is. OutdatedUnknown is why that is not known; "" if it is.
	Outdated        bool
	OutdatedUnknown string
	Now             string
}

// Reasons of Unknown for what a container names, where there is no verdict.
const (
	ReasonNotImported = "NotImported" // the state in which its reference is
	ReasonUnreadable  = "Unreadable"  // the server could not read what it stores
)

// VerdictOr is the verdict, or why there is none. err is why there is no answer.
func (a *ContainerAnswer) VerdictOr(err error) Verdict {
	switch {
	case err != nil:
		return Verdict{Verified: verdicts.VerifiedUnknown, Reason: ReasonUnreadable, Message: err.Error()}
	case a.Verdict != nil:
		return *a.Verdict
	}
	return Verdict{Verified: verdicts.VerifiedUnknown, Reason: ReasonNotImported, Message: "the image is not known here under this name"}
}

// WhyOutdatedUnknown is why it is not known whether the container is outdated; "" if it is. err is
// why there is no answer.
func (a *ContainerAnswer) WhyOutdatedUnknown(err error) string {
	if err != nil {
		return err.Error()
	}
	return a.OutdatedUnknown
}

// About returns the known facts about the image that a container names, and about the one that
// runs.
func (a *Answerer) About(cluster, namespace, image, imageID string) (known podimages.Known) {
	ctx := context.Background()
	runs := podimages.Runs(image, imageID)
	answer, err := a.Container(ctx, namespace, image, imageID)
	if known.Digest = answer.Runs; err != nil {
		known.Digest = runs.Digest
	}
	if known.OutdatedUnknown = answer.WhyOutdatedUnknown(err); answer.Outdated {
		known.Now = answer.Now
	}
	v := answer.VerdictOr(err)
	known.Verified, known.Reason, known.Message = v.Verified, v.Reason, v.Message
	if a.Jobs == nil || err == nil && answer.Verdict != nil {
		return known
	}
	if job, err := a.Jobs.Find(ctx, push.OfCluster(cluster), runs.String()); job != nil && err == nil {
		known.NotImported = job.Error
	}
	return known
}

// Container answers about a container of a pod in a namespace. image is the reference in the pod's
// spec, and imageID the image ID in its status. Container checks no rights, because the program
// itself asks.
func (a *Answerer) Container(ctx context.Context, namespace, image, imageID string) (out ContainerAnswer, err error) {
	return a.own(namespace).container(ctx, namespace, image, imageID)
}

func (s *session) container(ctx context.Context, namespace, image, imageID string) (out ContainerAnswer, err error) {
	ref, bad := reference.Parse(image)
	if bad != nil {
		out.Runs, err = s.runs(ctx, image, imageID, ref, nil)
		return out, err
	}
	ref = ref.Pulled()
	var tag *imagev1.ImageTag
	var target *resolved
	if ref.Tag != "" {
		if target, tag, out.OutdatedUnknown, err = s.tagTarget(ctx, ref); err != nil {
			return out, err
		}
	}
	if out.Runs, err = s.runs(ctx, image, imageID, ref, target); err != nil {
		return out, err
	}
	if target != nil {
		if out.Outdated, out.OutdatedUnknown, err = s.isOutdated(ctx, target, tag, out.Runs); err != nil {
			return out, err
		}
		out.Now, ref = target.digest, target.ref
		if out.Runs == "" || !out.Outdated && out.OutdatedUnknown == "" { // it runs that, or is to pull it
			out.Verdict, out.PolicyVersions, err = s.verdictIn(ctx, target.image, ref, tag, namespace)
			out.Judged = target.digest
			return out, err
		}
	}
	if out.Runs == "" {
		return out, nil
	}
	running, err := s.image(ctx, out.Runs)
	if err != nil || running == nil {
		return out, err
	}
	candidates, err := s.standing(ctx, ref)
	if err != nil {
		return out, err
	}
	// What runs is judged by what the container names, wherever the tag leads by now: no move of a tag
	// changes the verdict.
	for _, candidate := range candidates {
		if ref.Tag == "" {
			candidate = candidate.WithDigest(out.Runs)
		}
		out.Judged = running.Name
		if out.Verdict, out.PolicyVersions, err = s.verdictIn(ctx, running, candidate, tag, namespace); out.Verdict != nil || err != nil {
			return out, err
		}
	}
	return out, nil
}

// tagTarget finds where a tag leads, also by a mirror's name; nil if it leads nowhere that is
// known, and then why.
func (s *session) tagTarget(ctx context.Context, ref reference.Reference) (_ *resolved, _ *imagev1.ImageTag, why string, err error) {
	of, tag, err := s.tagOf(ctx, ref)
	switch {
	case err != nil:
		return nil, nil, "", err
	case tag == nil:
		return nil, nil, fmt.Sprintf("%s is not imported, so it is not known where it leads", ref), nil
	}
	target, err := s.targetOf(ctx, of, tag, nil)
	if err == nil && target.digest == "" {
		return nil, tag, target.message, nil
	}
	return target, tag, "", err
}

// isOutdated is [differs] for a digest from a pod's status. If no stored image, history or index
// has the digest, it may be the digest of a config: of the image that the tag leads to, or of one
// that this image lists.
func (s *session) isOutdated(ctx context.Context, leads *resolved, tag *imagev1.ImageTag, runs string) (outdated bool, unknown string, err error) {
	if outdated, unknown = differs(leads, runs); !outdated || tags.Has(tag, runs) {
		return outdated, unknown, nil
	}
	image, err := s.image(ctx, runs)
	if image != nil {
		return true, "", nil
	}
	var indexes []imagev1.Image
	if err == nil {
		indexes, _, err = s.listing(ctx, runs) // one is enough
	}
	lacks := (*unpermitted)(nil)
	switch {
	case errors.As(err, &lacks), errors.Is(err, errBudget):
		return false, err.Error(), nil
	case err != nil:
		return false, "", err
	case len(indexes) > 0:
		return true, "", nil
	}
	return false, fmt.Sprintf("pods tell %s, and no image here has that digest, or a config with it", reference.ShortDigest(runs)), nil
}

// differs reports whether a container that names a tag runs something else than the tag leads
// to. unknown is why that is not known: nothing is known to run, or the tag leads to what may be an
// index that lists it.
func differs(leads *resolved, runs string) (outdated bool, unknown string) {
	switch {
	case runs == "":
		return false, "it is not known what runs"
	case leads.digest == runs:
		return false, ""
	case leads.image == nil:
		return false, leads.message + ", so it is not known whether that lists what runs"
	}
	return !slices.ContainsFunc(leads.image.DockerImageManifests, func(m imagev1.ImageManifest) bool { return m.Digest == runs }), ""
}

// verdictIn is the verdict on an Image for a reference, and the versions of its policies. It is nil
// if the image is not stored, or not known to be in the repository.
func (s *session) verdictIn(ctx context.Context, image *imagev1.Image, ref reference.Reference, tag *imagev1.ImageTag, namespace string) (_ *Verdict, versions []string, _ error) {
	if image == nil {
		return nil, nil, nil
	}
	in := s.in
	if image != s.given || in == nil {
		in = annotation.In(image.Annotations, image.DockerImageReference, image.Name)
	}
	if image == s.given {
		s.in = in
	}
	if !slices.Contains(in, ref.Bare()) {
		return nil, nil, nil
	}
	led, err := s.ledThrough(ctx, image, tag)
	if err != nil {
		return nil, nil, err
	}
	v, j, err := s.verdict(ctx, image, ref, led, namespace)
	for _, p := range j.Covering {
		versions = append(versions, p.Version())
	}
	return v, versions, err
}

// ledThrough returns when a tag led to an image, directly or through an index that lists it,
// according to the tag's history. It looks for the index only if a policy has tags that must not
// move.
func (s *session) ledThrough(ctx context.Context, image *imagev1.Image, tag *imagev1.ImageTag) (Led, error) {
	led := s.ledTo(tag, image.Name)
	set, err := s.Policies.Set(ctx)
	if err != nil || !set.HasImmutableTags() || tags.Has(tag, image.Name) || len(image.DockerImageManifests) > 0 {
		return led, err
	}
	indexes, more, err := s.listing(ctx, image.Name)
	if err != nil {
		return led, err
	}
	if more {
		if indexes, err = s.listingOf(ctx, tag, image.Name); err != nil {
			return led, err
		}
	}
	for i := range indexes {
		if name := indexes[i].Name; tags.Has(tag, name) {
			if led.Moved = tags.Away(tag, name); led.Moved == nil {
				return led, nil // where it was to lead lists the image, too
			}
		}
	}
	return led, nil
}

// listingOf lists the indexes to which a tag has led and that list an image.
func (s *session) listingOf(ctx context.Context, tag *imagev1.ImageTag, digest string) (all []imagev1.Image, err error) {
	led, _ := tags.Since(tag, time.Time{})
	for _, name := range led {
		index, err := s.image(ctx, name)
		if err != nil {
			return nil, err
		}
		if index != nil && slices.ContainsFunc(index.DockerImageManifests, func(m imagev1.ImageManifest) bool { return m.Digest == digest }) {
			all = append(all, *index)
		}
	}
	return all, nil
}

// Leads returns what a reference with a tag or a digest stands for, and the digest that it leads to
// now: "" if its registry no longer has the tag, or the repository is not known to have the digest.
// known is false if it is not known where a tag leads. Leads checks no rights: it serves selectors,
// whose callers may list images.
func (a *Answerer) Leads(ctx context.Context, ref reference.Reference) (of reference.Reference, digest string, known bool, err error) {
	r := a.own("")
	ref = ref.Pulled()
	if ref.Digest != "" {
		m, err := r.digestIn(ctx, ref.Name(), ref.Digest)
		if err != nil || m.image == nil {
			return ref, "", true, err
		}
		return m.ref, m.digest, true, nil
	}
	of, tag, err := r.tagOf(ctx, ref)
	if tag == nil || err != nil {
		return ref, "", false, err
	}
	digest, known = tags.Now(tag)
	return of, digest, known, nil
}

// Judge returns the verdict on a stored Image under a reference with a tag or a digest, for pods of
// a namespace or, with "", for no namespace. An answer about the reference has the same verdict.
func (a *Answerer) Judge(ctx context.Context, image *imagev1.Image, asked reference.Reference, namespace string) (annotation.Verdict, error) {
	s := a.own(namespace)
	var tag *imagev1.ImageTag
	if asked.Digest == "" {
		var err error
		if asked, tag, err = s.tagOf(ctx, asked); err != nil {
			return annotation.Verdict{}, err
		}
	}
	led, err := s.ledThrough(ctx, image, tag)
	if err != nil {
		return annotation.Verdict{}, err
	}
	v, _, err := s.verdict(ctx, image, asked, led, namespace)
	if err != nil {
		return annotation.Verdict{}, err
	}
	return v.held(), nil
}

// held is the verdict as Images hold it.
func (v *Verdict) held() annotation.Verdict {
	return annotation.Verdict{Verified: v.Verified, Reason: v.Reason, Message: v.Message, Policy: strings.Join(v.Policies, ","), Unmet: v.Missing, Spared: v.Spared, Signers: v.Signers, Index: v.Index, Until: v.Until, Attested: v.Attested}
}

// Place returns the Image whose verdict a container has, and the place of the verdict: the
// reference that the container names, and the namespace if its own policies cover that. The Image
// is nil if there is no verdict.
func (a *Answerer) Place(ctx context.Context, namespace, image, imageID string) (judged *imagev1.Image, place string, err error) {
	s := a.own(namespace)
	answer, err := s.container(ctx, namespace, image, imageID)
	if err != nil || answer.Verdict == nil {
		return nil, "", err
	}
	ref, err := reference.Parse(answer.Verdict.Reference)
	if err != nil {
		return nil, "", err
	}
	set, err := a.Policies.Set(ctx)
	if err != nil {
		return nil, "", err
	}
	if _, own := set.InNamespaces(ref)[namespace]; !own {
		namespace = ""
	}
	judged, err = s.image(ctx, answer.Judged)
	return judged, annotation.InNamespace(ref.String(), namespace), err
}
