package server

import (
	"context"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/importer/checks"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// newAnswerer returns what answers questions about references over the storage of images, and has
// that storage ask it, too.
func (s *Server) newAnswerer(images map[string]rest.Storage, packages answers.Packages, followed *clusters.Clusters) (*answers.Answerer, error) {
	configured, err := s.Config.MirrorOf(s.Options.Isolated)
	if err != nil {
		return nil, err
	}
	mirrored := configured
	if s.pushes != nil {
		s.pushes.mirrorOf.Store(&configured)
		mirrored = func(ref reference.Reference) []reference.Reference { return (*s.pushes.mirrorOf.Load())(ref) }
	}
	use := imageregistry.UseOf(images)
	s.Verification.Inventory.Pods = func(image *imagev1.Image) int {
		pods, _ := use.Pods(image.Name, image)
		return pods
	}
	answerer := &answers.Answerer{
		Images: images["images"].(answers.Objects), Tags: images["imagetags"].(answers.Objects),
		Packages:   packages,
		Policies:   judge{s.Verification.policiesInForce, s.Options.Clock},
		Use:        use,
		Containers: containersOf{followed},
		Naming:     s.Usage,
		Authorizer: s.authorizer,
		Mirrored:   mirrored,
		Confirmed:  s.confirmed,
		Clock:      s.Options.Clock,
		Acts:       acts{s.Verification.policiesInForce, s.Options.Clock},
	}
	imageregistry.Ask(images, answerer)
	return answerer, nil
}

// confirmed is part of [answers.Answerer]. A time that cannot be read is unknown.
func (s *Server) confirmed(ctx context.Context, ref reference.Reference, digest string) (at time.Time) {
	if found, err := s.checks.At(ctx, []checks.Asked{{Reference: ref.String(), Digest: digest}}); err == nil {
		at = found[0]
	}
	return at
}

// judge judges by the policies in force.
type judge struct {
	policies func(context.Context) (*policy.Set, error)
	clock    clock.PassiveClock
}

// Judge is part of [answers.Policies].
func (j judge) Judge(ctx context.Context, image *imagev1.Image, asked reference.Reference, namespace string, indexes func(string) ([]*imagev1.Image, error)) (v annotation.Verdict, covering []string, err error) {
	set, err := j.policies(ctx)
	if err != nil {
		return v, nil, err
	}
	by := signatures.PoliciesFor(asked, namespace, set)
	if len(by) == 0 {
		return signatures.AskAnyway(image, asked), nil, nil
	}
	for _, p := range by {
		covering = append(covering, p.ID())
	}
	return signatures.Ask(image, asked, namespace, set, j.clock.Now(), indexes), covering, nil
}

// Stale is part of [answers.Policies].
func (j judge) Stale(ctx context.Context, asked reference.Reference, namespace string, checked time.Time) (policies []string, why string, err error) {
	set, err := j.policies(ctx)
	if err != nil {
		return nil, "", err
	}
	of, why := signatures.TooOld(signatures.PoliciesFor(asked, namespace, set), asked, checked, j.clock.Now())
	for _, p := range of {
		policies = append(policies, p.ID())
	}
	return policies, why, nil
}

// containersOf lists what pods of the followed clusters run.
type containersOf struct{ clusters *clusters.Clusters }

// Naming is part of [answers.Containers].
func (c containersOf) Naming(ctx context.Context, image string, most int) (all []answers.Container, more bool, err error) {
	pods, more, err := c.clusters.Naming(ctx, image, most)
	for i := range pods {
		spec := &pods[i].Spec
		for _, container := range spec.Containers {
			all = append(all, answers.Container{
				Cluster: spec.Cluster, Namespace: spec.Namespace, Pod: spec.Name, Image: container.Image,
				Digest: clusters.Runs(&container).Digest, Since: spec.Since,
			})
		}
	}
	return all, more, err
}
