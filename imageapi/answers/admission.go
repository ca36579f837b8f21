package answers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/admit"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// Jobs are the imports that are queued.
type Jobs interface {
	// Find returns the job of a receiver with a key, nil if there is none.
	Find(ctx context.Context, source push.Source, key string) (*push.Job, error)
}

// maxAwaited is how often an import may fail while a pod waits for it. The queue keeps trying after
// that.
const maxAwaited = 3

// Admit answers the question of admission: may a pod in a namespace of a cluster run an image? It
// returns the verdict of an answer about the reference, with further facts for admission. ref is
// the zero Reference for a text that is not a reference. Admit checks no rights, because the
// program itself asks. An error means that the store or the policies cannot be read.
//
// The verdict is Unknown only if a registry or the store cannot be read. A failure that users can
// cause who may push or create pods counts as not met: the image does not exist, it was not
// imported in time, or it cannot be read.
func (a *Answerer) Admit(ctx context.Context, cluster, namespace string, ref reference.Reference) (j admit.Judgement, err error) {
	set, err := a.Policies.Set(ctx)
	if err != nil {
		return j, err
	}
	if ref == (reference.Reference{}) {
		for _, p := range set.Policies() {
			if p.Namespace == "" || p.Namespace == namespace {
				j.Findings = append(j.Findings, unverified(p, "the reference cannot be parsed, so it is unknown which policies cover it"))
			}
		}
		return j, nil
	}
	s := a.own(namespace)
	m, in, err := s.pulled(ctx, ref.Pulled())
	if err != nil {
		return j, fmt.Errorf("looking up %s: %w", ref.Pulled(), err)
	}
	by := signatures.PoliciesFor(m.ref, namespace, set)
	if j.Digest = m.digest; len(by) == 0 {
		return j, nil
	}
	if !in {
		missing, err := a.imported(ctx, cluster, m.ref)
		if err != nil {
			return j, err
		}
		missing.judgement(&j, by, "Unknown: "+missing.because(cmp.Or(m.message, "it has not been imported yet")))
		return j, nil
	}
	if kind := m.image.Annotations[annotation.ArtifactType]; kind != "" {
		for _, p := range by {
			j.Findings = append(j.Findings, unverified(p, "Unknown: it is not an image but an artifact of type "+kind+", and no signature of it is kept"))
		}
		return j, nil
	}
	led := s.ledTo(m.tag, m.image.Name)
	_, judged, err := s.verdict(ctx, m.image, m.ref, led, namespace)
	if err != nil {
		return j, err
	}
	j.Findings = judged.Findings
	if len(judged.Stale) > 0 { // first ask the registry where the tag leads
		missing, err := a.imported(ctx, cluster, m.ref)
		if err != nil {
			return j, err
		}
		missing.judgement(&j, judged.Stale, "Unknown: "+missing.because(judged.TooOld))
	}
	return j, nil
}

// pulled finds what a pod pulls that names a reference with a tag or a digest. in is true if its
// Image is stored, and known to be in the repository. A tag whose
// history is not known leads nowhere, also if it is recorded on an image: a registry must be asked.
func (s *session) pulled(ctx context.Context, ref reference.Reference) (m *resolved, in bool, err error) {
	candidates, err := s.standing(ctx, ref)
	if err != nil {
		return nil, false, err
	}
	m = &resolved{ref: candidates[0], digest: ref.Digest}
	if ref.Digest != "" {
		m.image, err = s.image(ctx, ref.Digest)
	} else {
		var of reference.Reference
		of, m.tag, err = s.tagOf(ctx, ref)
		candidates = []reference.Reference{of}
		if err == nil && m.tag != nil {
			m, err = s.targetOf(ctx, of, m.tag, nil)
		}
	}
	if err != nil || m.image == nil {
		return m, false, err
	}
	repositories := annotation.In(m.image.Annotations, m.image.DockerImageReference, m.image.Name)
	at := slices.IndexFunc(candidates, func(c reference.Reference) bool { return slices.Contains(repositories, c.Bare()) })
	if at < 0 {
		return m, false, nil
	}
	m.ref = candidates[at]
	return m, true, nil
}

// importing is what is known about the import of an image.
type importing struct {
	of reference.Reference
	// failed is why it failed last; "" if it has not. unread is true if that was because the
	// registry could not be read.
	failed  string
	unread  bool
	givenUp bool
}

func (a *Answerer) imported(ctx context.Context, cluster string, ref reference.Reference) (i importing, err error) {
	i.of = ref
	queued, err := a.Jobs.Find(ctx, push.OfCluster(cluster), ref.String())
	if err != nil {
		return i, fmt.Errorf("reading the queue: %w", err)
	}
	if queued != nil {
		i.failed, i.unread = queued.Error, queued.Unread
		i.givenUp = queued.State == job.Dead || queued.State == job.Waiting && queued.Attempts >= maxAwaited
	}
	return i, nil
}

// because adds to a reason why the import failed.
func (i importing) because(why string) string {
	if i.failed == "" {
		return why
	}
	return strings.TrimPrefix(why+"; it could not be imported: "+i.failed, "; ")
}

// judgement adds to a judgement that policies cannot tell before the import.
func (i importing) judgement(j *admit.Judgement, by []*policy.Policy, reason string) {
	j.Pending, j.Missing, j.GivenUp = true, i.of, i.givenUp
	for _, p := range by {
		finding := unverified(p, reason)
		if i.failed != "" && i.unread {
			finding = unknownTo(p, reason)
		}
		j.Findings = j.Findings.And(finding)
	}
}
