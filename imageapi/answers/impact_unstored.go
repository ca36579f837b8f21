package answers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// maxUnstored bounds how many running images that are not stored a review examines.
const maxUnstored = 10_000

// undecide notes a running image that the act may touch.
func (f *projection) undecide(what string) {
	f.complete = false
	if len(f.undecided) < maxPodsNamed {
		f.undecided[what] = true
	}
}

// doubtImage notes why it is not known whether the act touches an image under one of its names.
func (f *projection) doubtImage(digest string, by *runners, err error) {
	f.doubt("verdict", err)
	if len(by.containers) > 0 {
		f.undecide(digest)
		return
	}
	f.complete = f.complete && by.complete
}

// mayTurn notes that an act may touch pods that may run an image, if it turns the verdict for the
// tag that they name: they have not started, or tell no digest of an image here, and the tag has
// led to the image since they were created. again is the image as it is after the act; nil if it is
// not judged yet.
func (f *projection) mayTurn(ctx context.Context, image, again *imagev1.Image) {
	led := []string{image.Name}
	indexes, more, unlisted := f.before.listing(ctx, image.Name)
	if unlisted == nil && more {
		unlisted = fmt.Errorf("more than %d indexes list %s, and tags that led to the others were not looked at", maxOthers, image.Name)
	}
	for i := range indexes {
		led = append(led, indexes[i].Name)
	}
	is, err := false, error(nil)
	for _, repository := range annotation.In(image.Annotations, image.DockerImageReference, image.Name) {
		if is || err != nil {
			break
		}
		var former map[string][]FormerTag
		if former, err = f.before.led(ctx, repository.Name()); err != nil {
			break
		}
		for _, digest := range led {
			for _, tag := range former[digest] {
				ref, bad := reference.Parse(tag.Reference)
				if bad != nil || is || err != nil || !slices.ContainsFunc(f.namespacesOf(tag.Reference), func(namespace string) bool { return !f.then.same(ref, namespace) }) {
					continue
				}
				if again == nil {
					again = f.verified(ctx, image)
				}
				is, err = f.turnsFor(ctx, image, again, ref, led)
			}
		}
	}
	switch err = cmp.Or(err, unlisted); {
	case err != nil:
		f.doubt(PartRunning, err)
		f.complete = false
	case is:
		f.doubt(PartRunning, ErrNotStarted)
		f.complete = false
	}
}

// turnsFor reports whether a pod that names a tag may run an image, because the tag has led to one
// of its digests, and whether the act turns the verdict on it for the pod's namespace.
func (f *projection) turnsFor(ctx context.Context, image, again *imagev1.Image, ref reference.Reference, digests []string) (bool, error) {
	_, tag, err := f.before.tagOf(ctx, ref)
	if err != nil {
		return false, err
	}
	containers, more, err := f.Containers.Naming(ctx, f.before.spellings(ref), maxContainers)
	if err != nil || more {
		return more, err
	}
	state := Led{Moved: tags.Away(tag, image.Name)}
	turns := map[string]bool{}
	for _, c := range containers {
		since, whole := tags.Since(tag, c.Since.Time)
		if whole && !slices.ContainsFunc(since, func(digest string) bool { return slices.Contains(digests, digest) }) {
			continue
		}
		r, err := f.runner(ctx, c)
		if err != nil {
			return false, err
		}
		if r.runs != "" {
			running, err := f.before.image(ctx, r.runs)
			if err != nil {
				return false, err
			}
			if running != nil || slices.Contains(since, r.runs) || tags.Has(tag, r.runs) {
				continue // it is known what it runs
			}
		}
		namespace := ""
		if slices.Contains(f.namespaces(ref), c.Namespace) {
			namespace = c.Namespace
		}
		if _, known := turns[namespace]; !known {
			was, before, err := f.before.verdict(ctx, image, ref, state, namespace)
			if err != nil {
				return false, err
			}
			is, after, err := f.after.verdict(ctx, again, ref, state, namespace)
			if err != nil {
				return false, err
			}
			turns[namespace] = is.Verified != was.Verified || before.Findings.Worst() != after.Findings.Worst()
		}
		if turns[namespace] {
			return true, nil
		}
	}
	return false, nil
}

// unstored examines running images about which the server does not store the fact that the act
// depends on: the act may touch them all the same. known reports whether the fact is stored for a
// digest.
func (f *projection) unstored(ctx context.Context, known func(ctx context.Context, digest string) (bool, error)) error {
	digests, names := f.Use.Runs()
	began, n := time.Now(), 0 // of a real clock: it measures how long this takes
	look := func(name string, leads func(context.Context, string) (string, error)) error {
		if n > maxUnstored || time.Since(began) > maxImpact {
			f.undecide(name)
			return nil
		}
		digest, err := leads(ctx, name)
		if err != nil {
			return err
		}
		if digest != "" {
			if is, err := known(ctx, digest); is || err != nil {
				return err
			}
		}
		n++
		return f.unstoredOf(ctx, name, digest)
	}
	for _, digest := range digests {
		if err := look(digest, func(_ context.Context, digest string) (string, error) { return digest, nil }); err != nil {
			return err
		}
	}
	for _, name := range names {
		if err := look(name, f.leads); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// leads returns the digest to which a tag leads, "" if it is not known.
func (f *projection) leads(ctx context.Context, name string) (string, error) {
	ref, err := reference.Parse(name)
	if err != nil {
		return "", nil
	}
	_, tag, err := f.before.tagOf(ctx, ref.Pulled())
	digest, _ := tags.Now(tag)
	return digest, err
}

// unstoredOf looks at the pods that run a digest, or name a tag that leads to a digest or to
// nothing that is known.
func (f *projection) unstoredOf(ctx context.Context, name, digest string) error {
	values := []string{name}
	if name == digest {
		values = f.valuesOf(&resolved{digest: digest})
	}
	containers, more, err := f.Containers.Naming(ctx, values, maxContainers)
	if err != nil {
		return err
	}
	type named struct {
		reference.Reference
		namespace string // if its own policies judge the reference, as in the rows of a stored image
	}
	decided, seen, touched := !more, map[string]bool{}, map[named][]runner{}
	ask := func(image, namespace string, c *podimages.Container) {
		of, is := f.mayTouch(ctx, image, namespace)
		if decided = decided && is; of.Host == "" {
			return
		}
		if c == nil {
			decided = false // it is not known which pods these are
			return
		}
		in := named{Reference: of}
		if slices.Contains(f.namespaces(of), namespace) {
			in.namespace = namespace
		}
		touched[in] = append(touched[in], runner{Container: *c, names: []string{of.String()}})
	}
	for i := range containers {
		c := &containers[i]
		seen[c.Cluster+"/"+c.Namespace+"/"+c.Pod] = true
		ask(c.Image, c.Namespace, c)
	}
	switch {
	case name == digest:
		for _, user := range f.Use.Users(digest, nil, maxUsers) {
			decided = decided && seen[user] // of the others it is not known what they name
		}
	case len(containers) == 0:
		for _, namespace := range f.namespacesOf(name) {
			ask(name, namespace, nil)
		}
	}
	if !decided {
		f.undecide(name)
	}
	_, complete := f.Use.Pods(digest, nil)
	for of, by := range touched {
		row := ImpactRow{Image: digest, Reference: of.String(), Namespace: of.namespace, Effect: Unpullable, Before: ImpactSide{State: NotImported}, After: ImpactSide{State: NotImported}}
		f.touch(&imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: digest}}, []ImpactRow{row}, &runners{containers: by, complete: complete && !more})
	}
	return nil
}

// namespacesOf are the namespaces for whose pods a reference may be judged otherwise: "" stands for
// those without policies of their own.
func (f *projection) namespacesOf(name string) []string {
	ref, err := reference.Parse(name)
	if err != nil {
		return []string{""}
	}
	return append(f.namespaces(ref), "")
}

// mayTouch decides what an act does to a namespace's pods that name a reference without a stored
// image. of is the reference that can no longer be pulled. decided is false if this is not known.
func (f *projection) mayTouch(ctx context.Context, image, namespace string) (of reference.Reference, decided bool) {
	ref, err := reference.Parse(image)
	if err != nil || f.spec.content() || f.spec.Package != "" || len(f.spec.Advisories) > 0 {
		return of, false
	}
	candidates, err := f.before.standing(ctx, ref.Pulled())
	if err != nil {
		f.doubt("act", err)
		return of, false
	}
	for _, candidate := range candidates {
		f.then.sees(candidate)
	}
	for _, candidate := range candidates {
		switch {
		case f.spec.LoseRegistry == "":
			if !f.then.same(candidate, namespace) {
				return of, false
			}
		case candidate.Host == f.spec.LoseRegistry:
			return candidate, true
		}
	}
	return of, true
}

// hasLayers reports whether it is stored which layers a digest has that pods run.
func (f *projection) hasLayers(ctx context.Context, digest string) (bool, error) {
	f.before.read = 0 // an image at a time
	image, err := f.before.image(ctx, digest)
	if err != nil || image == nil {
		return false, err
	}
	for _, m := range image.DockerImageManifests {
		if n, complete := f.Use.Pods(m.Digest, nil); n == 0 && complete {
			continue // no pod is on its platform
		}
		if listed, err := f.before.image(ctx, m.Digest); listed == nil || err != nil {
			return false, err
		}
	}
	return true, nil
}
