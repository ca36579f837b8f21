package answers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/tags"
)

// ContainerAnswer describes the image that a container runs, as far as it is known.
type ContainerAnswer struct {
	// Verdict is that for the very reference that the container names; nil if the image is not
	// known to be in that repository.
	Verdict *Verdict
	// Outdated is true if the container names a tag and runs something else than the tag leads to
	// now, and Now is what that is. Known is false if that cannot be found out.
	Outdated, Known bool
	Now             string
}

// Container answers about a container of a pod in a namespace: image is the reference as the pod
// has it, and runs the digest that runs, empty if that is not known. The program asks, so rights
// are not looked at.
func (a *Answerer) Container(ctx context.Context, namespace, image, runs string) (out ContainerAnswer, err error) {
	ref, bad := reference.Parse(image)
	if bad != nil {
		return out, nil
	}
	ref = ref.Pulled()
	runs = cmp.Or(runs, ref.Digest)
	s := &session{Answerer: a, resolver: resolver{source: &source{images: a.Images, tags: a.Tags}, mirrored: a.Mirrored}}
	if ref.Tag != "" {
		target, err := s.tagTarget(ctx, ref)
		if err != nil {
			return out, err
		}
		if target != nil {
			out.Outdated, out.Known = isOutdated(target.digest, target.image, runs)
			out.Now = target.digest
			if out.Known && !out.Outdated {
				out.Verdict, err = s.verdictIn(ctx, target.image, target.ref, target.tag, namespace)
				return out, err
			}
			ref = target.ref
		}
	}
	if runs == "" {
		return out, nil
	}
	running, err := s.image(ctx, runs)
	if err != nil || running == nil {
		return out, err
	}
	for _, candidate := range append([]reference.Reference{ref}, s.sourcesOf(ref)...) {
		if ref.Tag == "" || out.Outdated || out.Now != "" {
			// the tag leads elsewhere, so the digest is what runs
			candidate = candidate.WithDigest(runs)
		}
		if out.Verdict, err = s.verdictIn(ctx, running, candidate, nil, namespace); out.Verdict != nil || err != nil {
			return out, err
		}
	}
	return out, nil
}

// tagTarget finds where a tag leads, also by a mirror's name; nil if its history is not known.
func (s *session) tagTarget(ctx context.Context, ref reference.Reference) (*resolved, error) {
	of, tag, err := s.tagOf(ctx, ref)
	if now, _ := tags.Now(tag); now == "" || err != nil {
		return nil, err
	}
	return s.targetOf(ctx, of, tag, nil)
}

// verdictIn is the verdict on an Image for a reference; nil if the image is not stored, or not
// known to be in the repository.
func (s *session) verdictIn(ctx context.Context, image *imagev1.Image, ref reference.Reference, tag *imagev1.ImageTag, namespace string) (*Verdict, error) {
	if image == nil || !slices.Contains(annotation.In(image.Annotations, image.DockerImageReference, image.Name), ref.Bare()) {
		return nil, nil
	}
	return s.verdict(ctx, image, ref, checkedAt(tag), namespace)
}

// Pull is what a pod pulls, as far as is known.
type Pull struct {
	// Reference is what the pod names, or what that is a mirror's name of, with a tag or a digest.
	Reference reference.Reference
	// Digest is what it leads to; if it is empty, Why says why, unless nothing is known.
	Digest, Why string
	// Checked is when a registry last confirmed where the tag leads; zero if that is not known, or
	// no tag is named.
	Checked time.Time
	// Image is nil if it is not stored, or not known to be in the repository.
	Image *imagev1.Image
	// Indexes finds indexes that vouch for the image.
	Indexes func(key string) ([]*imagev1.Image, error)
}

// Pull says what a pod pulls that names a reference. The program asks, so rights are not looked at.
func (a *Answerer) Pull(ctx context.Context, ref reference.Reference) (Pull, error) {
	ref = ref.Pulled()
	s := &session{Answerer: a, resolver: resolver{source: &source{images: a.Images, tags: a.Tags}, mirrored: a.Mirrored}}
	p := Pull{Reference: ref, Digest: ref.Digest}
	candidates := append([]reference.Reference{ref}, s.sourcesOf(ref)...)
	if ref.Digest == "" {
		of, tag, err := s.tagOf(ctx, ref)
		if err != nil {
			return p, err
		}
		if tag != nil {
			now, known := tags.Now(tag)
			p.Reference, p.Digest, p.Checked, candidates = of, now, checkedAt(tag), []reference.Reference{of}
			switch failure := tags.Failure(tag); {
			case now != "":
			case known:
				p.Why = fmt.Sprintf("the registry no longer has this tag, as found at %s", tag.Status.Items[0].Created.UTC().Format(time.RFC3339))
			case failure != nil:
				p.Why = failure.Message
			}
		}
	}
	if p.Digest == "" {
		return p, nil
	}
	image, err := s.image(ctx, p.Digest)
	if err != nil || image == nil {
		return p, err
	}
	in := annotation.In(image.Annotations, image.DockerImageReference, image.Name)
	if at := slices.IndexFunc(candidates, func(c reference.Reference) bool { return slices.Contains(in, c.Bare()) }); at >= 0 {
		p.Reference, p.Image = candidates[at], image
		p.Indexes = func(key string) ([]*imagev1.Image, error) { return s.verifiedIndexes(ctx, key, image.Name) }
	}
	return p, nil
}

// Leads returns what a reference with a tag or a digest stands for, and the digest that it leads to
// now: "" if its registry no longer has the tag, or the repository is not known to have the digest.
// known is false if nobody has seen where a tag leads. It is for selectors, whose callers may list
// images; rights are not looked at.
func (a *Answerer) Leads(ctx context.Context, ref reference.Reference) (of reference.Reference, digest string, known bool, err error) {
	r := resolver{source: &source{images: a.Images, tags: a.Tags}, mirrored: a.Mirrored}
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

// Judge returns the verdict on a stored Image for a reference with a tag or a
// digest, for pods of a namespace, or, with "", of none. It is that of an answer about the
// reference.
func (a *Answerer) Judge(ctx context.Context, image *imagev1.Image, asked reference.Reference, namespace string) (annotation.Verdict, error) {
	s := &session{Answerer: a, resolver: resolver{source: &source{images: a.Images, tags: a.Tags}, mirrored: a.Mirrored}}
	var tag *imagev1.ImageTag
	if asked.Digest == "" {
		var err error
		if asked, tag, err = s.tagOf(ctx, asked); err != nil {
			return annotation.Verdict{}, err
		}
	}
	v, err := s.verdict(ctx, image, asked, checkedAt(tag), namespace)
	if err != nil {
		return annotation.Verdict{}, err
	}
	return annotation.Verdict{Verified: v.Verified, Reason: v.Reason, Message: v.Message, Policy: strings.Join(v.Policies, ","), Unmet: v.Missing, Signers: v.Signers, Index: v.Index, Until: v.Until, Attested: v.Attested}, nil
}
