package answers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// valuesOf are the values of the field "image" of the pods that use an image, as they are stored.
func (a *Answerer) valuesOf(m *resolved) (all []string) {
	if m.digest == "" {
		return nil
	}
	for _, key := range a.Use.Keys(m.digest, m.image) {
		all = append(all, podimages.Value(key))
	}
	return all
}

// Selects returns the values of the field "image" by which the pods are selected, as they are
// stored, that name or run what a text means: a repository stands for all its images; a tag for the
// pods that name it, whatever they run, and for those that use the image to which it leads; a
// digest or its beginning for those that use the image. naming leaves the pods that name a tag. The
// program asks, so rights are not looked at.
func (a *Answerer) Selects(ctx context.Context, text string, naming bool) ([]string, error) {
	s := a.own("")
	m, err := s.named(ctx, strings.TrimSpace(text))
	switch {
	case err != nil:
		return nil, err
	case m.state == Invalid, m.state == Ambiguous:
		return nil, errors.New(strings.Join(append([]string{m.message}, m.others...), "; "))
	}
	var names []reference.Reference
	if ref, err := reference.Parse(text); err == nil && ref.Digest == "" && m.ref.Tag != "" {
		names = append(s.NamesOf(m.ref), ref.Pulled())
	}
	var values []string
	for _, ref := range names {
		if m.whole {
			values = append(values, ref.Name())
		} else {
			values = append(values, ref.String())
		}
	}
	if !m.whole && !(naming && len(names) > 0) {
		values = append(values, s.valuesOf(m)...)
		if m.digest != "" {
			values = append(values, m.digest) // pods may begin to use it
		}
	}
	slices.Sort(values)
	return slices.Compact(values), nil
}

// NamesOf returns a reference and its names on mirrors: pods may have any of them.
func (a *Answerer) NamesOf(ref reference.Reference) []reference.Reference {
	names := []reference.Reference{ref}
	if a.Registries != nil {
		names = append(names, a.Registries.Mirrors(ref)...)
	}
	return names
}

// spellings are NamesOf as texts.
func (a *Answerer) spellings(ref reference.Reference) (all []string) {
	for _, name := range a.NamesOf(ref) {
		all = append(all, name.String())
	}
	return all
}

// Sources returns the references that a mirror's name may stand for.
func (a *Answerer) Sources(ref reference.Reference) []reference.Reference {
	if a.Registries == nil {
		return nil
	}
	return a.Registries.Sources(ref)
}

// identify returns the digest of the image that a container runs, from the ID that the runtime
// reports: the digest of a manifest or of a config. ref is the reference in the pod's spec, and
// leads what it leads to now, or nil if that is not known. If several images have the config,
// identify prefers these. It returns "" if no known image has the ID.
func (s *session) identify(ctx context.Context, id string, ref reference.Reference, leads *resolved) (string, error) {
	image, err := s.image(ctx, id)
	if err != nil {
		return "", err
	}
	if image != nil {
		return id, nil
	}
	return s.withConfig(ctx, id, ref, leads)
}

// withConfig is identify for the digest of a config.
func (s *session) withConfig(ctx context.Context, config string, ref reference.Reference, leads *resolved) (string, error) {
	all, err := s.list(ctx, maxOthers, fields.OneTermEqualSelector(selectors.Config, config))
	if err != nil || len(all) == 0 {
		return "", err
	}
	if leads != nil {
		for i := range all {
			if isCurrent(leads, all[i].Name) {
				return all[i].Name, nil
			}
		}
	}
	at := slices.IndexFunc(all, func(image imagev1.Image) bool {
		return slices.Contains(annotation.In(image.Annotations, image.DockerImageReference, image.Name), ref.Bare())
	})
	return all[max(at, 0)].Name, nil
}

// isCurrent reports whether a container that runs a digest is known to run what its tag leads to.
func isCurrent(leads *resolved, runs string) bool {
	outdated, unknown := differs(leads, runs)
	return !outdated && unknown == ""
}

// told returns what a container runs if the runtime reports a digest in the repository that the
// container names: the digest of a manifest or, with some runtimes, of a config.
func (s *session) told(ctx context.Context, digest string, ref reference.Reference, leads *resolved) (string, error) {
	if leads != nil && isCurrent(leads, digest) {
		return digest, nil
	}
	image, err := s.withConfig(ctx, digest, ref, leads)
	if lacks := (*unpermitted)(nil); errors.As(err, &lacks) || errors.Is(err, errBudget) {
		err = nil // callers who may not list images get the digest that the runtime reports
	}
	return cmp.Or(image, digest), err
}

// runs returns the digest of what a container runs, as far as that is known.
func (s *session) runs(ctx context.Context, image, imageID string, ref reference.Reference, leads *resolved) (digest string, err error) {
	id := podimages.ID(image, imageID)
	if manifest := podimages.Manifest(image, imageID); manifest != "" {
		id = manifest
		digest, err = s.told(ctx, id, ref, leads)
	} else if id != "" {
		digest, err = s.identify(ctx, id, ref, leads)
	}
	if err != nil {
		return "", fmt.Errorf("which image has the ID %s: %w", id, err)
	}
	return digest, nil
}

// maxJudgedNames bounds the references for which PodsNaming judges one image: a hundred take about
// five milliseconds.
const maxJudgedNames = 100

// naming is what a container's reference means: whether a place is among it, and the policies of
// namespaces for it.
type naming struct {
	here bool
	own  map[string][]*policy.Policy
}

// PodsNaming counts the pods that run an image, name it in a place, a repository or a tag, and have
// a verdict for what they name: the pods of a namespace, or, with "", those that have no policies
// of their own for it. complete is false if there may be more. The program asks, so rights are not
// looked at. It judges each reference once for all pods to which the same policies apply, none that
// means another place, and at most maxJudgedNames.
func (a *Answerer) PodsNaming(ctx context.Context, image *imagev1.Image, place reference.Reference, namespace, verified string) (n int, complete bool, err error) {
	set, err := a.Policies.Set(ctx)
	if err != nil {
		return 0, false, err
	}
	own := set.InNamespaces(place)
	containers, more, err := a.Containers.Naming(ctx, a.valuesOf(&resolved{digest: image.Name, image: image}), maxContainers)
	if err != nil {
		return 0, false, err
	}
	here := func(ref reference.Reference) bool {
		return ref.Bare() == place.Bare() && (place.Tag == "" || ref.Tag == place.Tag)
	}
	var in []reference.Reference // where the image is, once that is read
	pods, named, counts := map[string]bool{}, map[string]naming{}, map[[3]string]bool{}
	for _, c := range containers {
		if _, its := own[c.Namespace]; namespace == "" && its || namespace != "" && namespace != c.Namespace {
			continue
		}
		of, ok := named[c.Image]
		if !ok {
			if ref, err := reference.Parse(c.Image); err == nil {
				ref = ref.Pulled()
				of = naming{slices.ContainsFunc(append(a.Sources(ref), ref), here), set.InNamespaces(ref)}
			}
			named[c.Image] = of
		}
		if !of.here {
			continue
		}
		key := [3]string{"", c.Image, c.ImageID}
		if _, its := of.own[c.Namespace]; its {
			key[0] = c.Namespace
		}
		is, ok := counts[key]
		if !ok {
			if len(counts) == maxJudgedNames {
				more = true
				continue
			}
			s := a.own(c.Namespace)
			s.given, s.in = image, in
			answer, err := s.container(ctx, c.Namespace, c.Image, c.ImageID)
			if err != nil {
				return 0, false, err
			}
			in = s.in
			if answer.Judged == image.Name && answer.Verdict != nil && answer.Verdict.Verified == verified {
				name, err := reference.Parse(answer.Verdict.Reference)
				is = err == nil && here(name)
			}
			counts[key] = is
		}
		if is {
			pods[c.Cluster+"/"+c.Namespace+"/"+c.Pod] = true
		}
	}
	_, complete = a.Use.Pods(image.Name, image)
	return len(pods), complete && !more, nil
}
