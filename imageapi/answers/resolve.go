package answers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// resolved is the meaning of a question.
type resolved struct {
	state State
	// reason is a machine-readable reason; see Answer.Reason
	reason, message, suggestion string
	// ref is the whole reference as it is pulled; it is zero if only a digest was given that is not
	// in one repository alone.
	ref reference.Reference
	// tag is the tag that was followed; nil if none was given, or if no history of it is kept.
	tag *imagev1.ImageTag
	// digest is what the reference leads to, and image that Image; nil if it is not stored.
	digest string
	image  *imagev1.Image

	// platforms are the image's platforms, if the question is about another one.
	platforms []PlatformImage

	assumed, others, knownTags []string
	whole                      bool // neither a tag nor a digest was given
}

var (
	hasAlgorithm = regexp.MustCompile(`^sha(256|512):`)
	someDigits   = regexp.MustCompile(`^[0-9a-f]{4,128}$`)
	beginning    = regexp.MustCompile(`^(sha256:[0-9a-f]{4,64}|sha512:[0-9a-f]{4,128})$`)
)

// resolver finds out what references mean.
type resolver struct {
	*source
	// mirrored returns the references that a mirror's name stands for.
	mirrored func(reference.Reference) []reference.Reference
	// policies say which of several names counts, for the pods of a namespace.
	policies  Policies
	namespace string
	// running returns the digests that pods run, whether the images are stored or not; nil if that
	// is not asked.
	running func() []string
}

// resolve finds out what a question means. It fails if that cannot be found out, not if the
// question is wrong.
func (r *resolver) resolve(ctx context.Context, q Question) (*resolved, error) {
	m, err := r.named(ctx, strings.TrimSpace(q.Reference))
	if err == nil && q.Platform != "" && m.image != nil {
		err = r.choose(ctx, m, q.Platform)
	}
	return m, err
}

// named finds out what a text means.
func (r *resolver) named(ctx context.Context, text string) (*resolved, error) {
	if name, digest, ok := strings.Cut(text, "@"); ok {
		return r.digestIn(ctx, name, digest)
	}
	if hasAlgorithm.MatchString(text) {
		return r.byDigest(ctx, text)
	}
	ref, bad := reference.Parse(text)
	isDigits := someDigits.MatchString(text)
	if bad != nil && !isDigits {
		return invalid(bad), nil
	}
	if bad == nil {
		m, err := r.byTag(ctx, text, ref)
		if err != nil {
			return nil, err
		}
		if m != nil {
			m.whole = ref.Tag == ""
			if isDigits { // a name of hex digits may be the beginning of a digest, too
				if other, err := r.byDigest(ctx, text); err == nil && other.image != nil && other.digest != m.digest {
					m.others = append(m.others, other.digest)
				}
			}
			return m, nil
		}
	}
	if isDigits {
		if m, err := r.byDigest(ctx, text); err != nil || m.state != Absent || m.digest != "" || bad != nil {
			return m, err
		}
	}
	return r.absent(ctx, text, ref)
}

// invalid is the meaning of a text that is not a reference.
func invalid(err error) *resolved {
	m := &resolved{state: Invalid, message: err.Error()}
	if bad, ok := errors.AsType[*reference.Error](err); ok {
		m.suggestion = bad.Suggestion
	}
	return m
}

// whole returns a digest or its beginning with its algorithm.
func whole(digest string) string {
	if !strings.Contains(digest, ":") {
		return "sha256:" + digest
	}
	return digest
}

// byDigest finds the image whose digest has a beginning.
func (r *resolver) byDigest(ctx context.Context, text string) (*resolved, error) {
	all, m, err := r.digests(ctx, text)
	if m != nil || err != nil {
		return m, err
	}
	switch len(all) {
	case 0:
		m := &resolved{state: Absent, reason: NoDigest, message: beginsNone(text)}
		if reference.IsDigest(whole(text)) {
			m.digest = whole(text)
			return m, nil
		}
		return r.byRunning(text, m), nil
	case 1:
		return foundDigest(&all[0]), nil
	}
	return ambiguousDigests(text, all), nil
}

// byRunning finds a digest by its beginning among the digests that pods run and that have no stored
// Image. If there is none, it returns m.
func (r *resolver) byRunning(text string, m *resolved) *resolved {
	if r.running == nil || r.rights.listPods != "" {
		return m
	}
	var found []string
	for _, digest := range r.running() {
		if strings.HasPrefix(digest, whole(text)) && !slices.Contains(found, digest) {
			found = append(found, digest)
		}
	}
	switch len(found) {
	case 0:
		return m
	case 1:
		m.digest, m.reason, m.message = found[0], "", "no image that is imported has a digest that begins with "+text+"; "+found[0]+" runs, or a workload needs it"
		return m
	}
	slices.Sort(found)
	return &resolved{state: Ambiguous, reason: SeveralDigests, message: text + " may be several images", others: found[:min(len(found), maxOthers)]}
}

func beginsNone(text string) string {
	if reference.IsDigest(whole(text)) {
		return "no image has the digest " + whole(text)
	}
	return "no image has a digest that begins with " + text
}

// foundDigest is the meaning of a digest. If the image is in one repository alone, the reference is
// there.
func foundDigest(image *imagev1.Image) *resolved {
	m := &resolved{state: Found, digest: image.Name, image: image}
	if in := annotation.In(image.Annotations, image.DockerImageReference, image.Name); len(in) == 1 {
		m.ref = in[0].WithDigest(image.Name)
		m.assumed = append(m.assumed, "the repository "+in[0].Name()+", the only one known to have the image")
	}
	return m
}

func ambiguousDigests(text string, all []imagev1.Image) *resolved {
	m := &resolved{state: Ambiguous, reason: SeveralDigests, message: text + " may be several images"}
	for i := range all[:min(len(all), maxOthers)] {
		m.others = append(m.others, strings.TrimSpace(all[i].Name+" "+all[i].DockerImageReference))
	}
	return m
}

// digests lists the images whose digest has a beginning. m is the answer if the text is not a
// beginning.
func (r *resolver) digests(ctx context.Context, text string) (all []imagev1.Image, m *resolved, err error) {
	digest := whole(text)
	if reference.IsDigest(digest) {
		image, err := r.image(ctx, digest)
		if err != nil || image == nil {
			return nil, nil, err
		}
		return []imagev1.Image{*image}, nil, nil
	}
	if !beginning.MatchString(digest) {
		return nil, &resolved{state: Invalid, message: fmt.Sprintf("%q is neither a digest nor its beginning: at least four lower-case hex digits, as in sha256:9f86", text)}, nil
	}
	all, err = r.beginning(ctx, digest)
	if apierrors.IsBadRequest(err) { // more than a list may have
		return nil, &resolved{state: Ambiguous, reason: SeveralDigests, message: text + " may be many images"}, nil
	}
	return all, nil, err
}

// digestIn finds an image by a repository, and a digest or its beginning. A tag between the two is
// not looked at.
func (r *resolver) digestIn(ctx context.Context, name, digest string) (*resolved, error) {
	ref, err := reference.Parse(name)
	if err != nil {
		return invalid(err), nil
	}
	all, m, err := r.digests(ctx, digest)
	if m != nil || err != nil {
		return m, err
	}
	repositories, err := r.standing(ctx, ref.Bare())
	if err != nil {
		return nil, err
	}
	var elsewhere []string
	var here []imagev1.Image
	var in reference.Reference
	for i := range all {
		known := annotation.In(all[i].Annotations, all[i].DockerImageReference, all[i].Name)
		at := slices.IndexFunc(repositories, func(wanted reference.Reference) bool { return slices.Contains(known, wanted) })
		if at < 0 {
			// Docker Hub was meant only if nothing else has the name.
			if short := slices.IndexFunc(known, func(k reference.Reference) bool { return isShort(name, ref) && isNamed(k, ref) }); short >= 0 {
				here, in = append(here, all[i]), known[short]
				continue
			}
			for _, k := range known {
				elsewhere = append(elsewhere, k.Name())
			}
			continue
		}
		here, in = append(here, all[i]), repositories[at]
	}
	switch len(here) {
	case 1:
		m = foundDigest(&here[0])
		m.ref, m.assumed = in.WithDigest(m.digest), nil
		if in != ref.Bare() {
			m.assumed = append(m.assumed, fmt.Sprintf("%s is %s", name, in.Name()))
		}
		if ref.Tag != "" {
			m.assumed = append(m.assumed, "the tag "+ref.Tag+" is ignored, because a digest is given")
		}
		return m, nil
	case 0:
		m = &resolved{state: Absent, reason: NoDigest, ref: ref.Bare(), message: beginsNone(digest)}
		if whole := whole(digest); reference.IsDigest(whole) {
			m.ref, m.digest = ref.WithDigest(whole), whole
		}
		if len(elsewhere) > 0 {
			slices.Sort(elsewhere)
			elsewhere = slices.Compact(elsewhere)
			m.others = elsewhere[:min(len(elsewhere), maxOthers)]
			what := all[0].Name
			if len(all) > 1 {
				what = "an image with this digest"
			}
			m.message = fmt.Sprintf("%s is not known to be in %s, but in %s", what, ref.Name(), strings.Join(m.others, ", "))
		}
		return m, nil
	}
	return ambiguousDigests(name+"@"+digest, here), nil
}

// isShort reports whether a text names no registry.
func isShort(text string, ref reference.Reference) bool {
	return ref.Host == reference.DockerHub && !reference.NamesRegistry(text)
}

// isNamed reports whether a repository has a name that was given without a registry.
func isNamed(repository, ref reference.Reference) bool {
	path := strings.TrimPrefix(ref.Repository, "library/")
	return repository.Repository == path || repository.Repository == ref.Repository || strings.HasSuffix(repository.Repository, "/"+path) && !strings.Contains(path, "/")
}

// byTag finds a tag, and the image that it leads to; nil if nothing is known about it.
func (r *resolver) byTag(ctx context.Context, text string, ref reference.Reference) (*resolved, error) {
	pulled := ref.Pulled()
	var assumed []string
	if ref.Tag == "" {
		assumed = append(assumed, "the tag "+pulled.Tag)
	}
	of, tag, err := r.tagOf(ctx, pulled)
	if err != nil {
		return nil, err
	}
	if tag != nil {
		if of != pulled {
			assumed = append(assumed, fmt.Sprintf("%s is a mirror of %s", pulled.Name(), of.Name()))
		}
		var others []string
		if isShort(text, pulled) {
			assumed = append(assumed, "the registry "+pulled.Host)
			others, err = r.endingSo(ctx, text, pulled, shortOf(text, pulled)+":"+pulled.Tag)
			if err != nil && !errors.As(err, new(*unpermitted)) {
				// callers who may not list tags may still read this one
				return nil, err
			}
		}
		m, err := r.targetOf(ctx, of, tag, assumed)
		if err == nil {
			m.others = others
		}
		return m, err
	}
	if isShort(text, pulled) {
		all, more, err := r.tagged(ctx, selectors.TagShort, shortOf(text, pulled)+":"+pulled.Tag, maxOthers)
		if err != nil {
			return nil, err
		}
		if len(all) == 1 {
			if followed, ok := tags.Reference(&all[0]); ok {
				return r.targetOf(ctx, followed, &all[0], append(assumed, "the repository "+followed.Name()+", the only one that has this tag"))
			}
		}
		if len(all) > 1 {
			m := &resolved{state: Ambiguous, message: text + " may be tags of several repositories"}
			for i := range all {
				if followed, ok := tags.Reference(&all[i]); ok {
					m.others = append(m.others, followed.String())
				}
			}
			if more {
				m.others = append(m.others, "and more")
			}
			return m, nil
		}
	}
	all, err := r.recorded(ctx, of)
	switch {
	case err != nil || len(all) == 0:
		return nil, err
	case len(all) > 1:
		m := &resolved{state: Ambiguous, ref: of, message: text + " may be several images, because the tag has not been checked since histories are kept"}
		for i := range all {
			m.others = append(m.others, all[i].Name)
		}
		return m, nil
	}
	return &resolved{state: Found, ref: of, digest: all[0].Name, image: &all[0], assumed: append(assumed, "no history of the tag is kept: it is recorded on the image")}, nil
}

// shortOf is the path of a reference whose registry was left out, as it was given: without
// library/.
func shortOf(text string, ref reference.Reference) string {
	if strings.Contains(text, "/") {
		return ref.Repository
	}
	return strings.TrimPrefix(ref.Repository, "library/")
}

// endingSo lists the known tags of other registries whose repository ends as a name that was given
// without a registry does, by a short form of them.
func (r *resolver) endingSo(ctx context.Context, text string, meant reference.Reference, short string) (others []string, err error) {
	all, more, err := r.tagged(ctx, selectors.TagShort, short, maxSimilar)
	if err != nil {
		return nil, err
	}
	name := shortOf(text, meant)
	for i := range all {
		of, ok := tags.Reference(&all[i])
		if ok && of != meant && (of.Repository == name || strings.HasSuffix(of.Repository, "/"+name)) {
			others = append(others, of.String())
		}
	}
	if len(others) >= maxOthers {
		others, more = others[:maxOthers-1], true
	}
	if more && len(others) > 0 {
		others = append(others, "and more")
	}
	return others, nil
}

// tagOf finds the tag of a reference, or of what that is a mirror's name of; nil if nothing is
// known about it.
func (r *resolver) tagOf(ctx context.Context, pulled reference.Reference) (of reference.Reference, tag *imagev1.ImageTag, err error) {
	candidates, err := r.standing(ctx, pulled)
	if err != nil {
		return pulled, nil, err
	}
	for _, candidate := range candidates {
		if tag, err = r.tag(ctx, candidate); tag != nil || err != nil {
			return candidate, tag, err
		}
	}
	return candidates[0], nil, nil
}

// targetOf is the meaning of a tag whose history is known.
func (r *resolver) targetOf(ctx context.Context, ref reference.Reference, tag *imagev1.ImageTag, assumed []string) (*resolved, error) {
	if followed, ok := tags.Reference(tag); ok {
		ref = followed
	}
	m := &resolved{state: Found, ref: ref, tag: tag, assumed: assumed}
	now, known := tags.Now(tag)
	switch m.digest = now; {
	case now != "":
		var err error
		if m.image, err = r.image(ctx, now); err != nil {
			return nil, err
		}
		if m.image == nil {
			m.state, m.message = NotImported, fmt.Sprintf("%s leads to %s, which is not imported", ref, now)
		}
	case known:
		items, before := tag.Status.Items, ""
		if len(items) > 1 {
			before = ", and led to " + items[1].Image + " before"
		}
		m.state, m.message = Gone, fmt.Sprintf("%s is gone from its registry since %s%s", ref, items[0].Created.UTC().Format(time.RFC3339), before)
	default:
		m.state, m.message = Unseen, fmt.Sprintf("no registry has confirmed yet where %s leads", ref)
		if c := tags.Failure(tag); c != nil {
			m.message += ": " + c.Reason + ": " + c.Message
		}
	}
	return m, nil
}

// standing returns the references that a reference may stand for, the first to look for first; it
// is never empty. A mirror's name stands for itself, and then for its sources. If a policy covers
// one of the two, then only that one counts: a policy of the cluster for the mirror's own name, or
// else any policy for a source. So a second name cannot bypass a policy.
func (r *resolver) standing(ctx context.Context, ref reference.Reference) ([]reference.Reference, error) {
	own := []reference.Reference{ref}
	if r.mirrored == nil {
		return own, nil
	}
	sources := r.mirrored(ref)
	if sources = sources[:min(len(sources), maxOthers)]; len(sources) == 0 {
		return own, nil
	}
	set, err := r.policies.Set(ctx)
	if err != nil {
		return nil, err
	}
	if set.Names(ref) && !slices.ContainsFunc(sources, func(source reference.Reference) bool { return slices.Equal(set.For(source), set.For(ref)) }) {
		return own, nil
	}
	covered := slices.DeleteFunc(slices.Clone(sources), func(source reference.Reference) bool {
		return len(signatures.PoliciesFor(source, r.namespace, set)) == 0
	})
	if len(covered) > 0 {
		return covered, nil
	}
	return append(own, sources...), nil
}

// absent is the meaning of a reference about which nothing is known.
func (r *resolver) absent(ctx context.Context, text string, ref reference.Reference) (*resolved, error) {
	pulled := ref.Pulled()
	m := &resolved{state: Absent, ref: pulled, message: "nothing is known about " + pulled.String(), whole: ref.Tag == ""}
	if someDigits.MatchString(text) {
		m.reason, m.message = NoDigest, beginsNone(text)+", and no tag has this name"
	}
	if ref.Tag == "" {
		m.assumed = append(m.assumed, "the tag "+pulled.Tag)
	}
	if isShort(text, pulled) {
		m.assumed = append(m.assumed, "the registry "+pulled.Host)
		others, err := r.endingSo(ctx, text, pulled, path.Base(pulled.Repository))
		if err != nil {
			return nil, err
		}
		m.others = others
	}
	all, more, err := r.tagged(ctx, selectors.TagRepository, pulled.Name(), maxOthers)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if followed, ok := tags.Reference(&all[i]); ok {
			m.knownTags = append(m.knownTags, followed.Tag)
		}
	}
	if more {
		m.knownTags = append(m.knownTags, "…")
	}
	return m, nil
}

// choose goes from an index to its image for a platform.
func (r *resolver) choose(ctx context.Context, m *resolved, platform string) error {
	list, own := platformsOf(m.image), platformOf(m.image)
	switch {
	case len(list) > 0:
	case own == "":
		return nil
	default:
		list = []PlatformImage{{own, m.digest}}
	}
	var all []manifest.Platform
	for _, p := range list {
		all = append(all, manifest.ParsePlatform(p.Platform))
	}
	i := manifest.Choose(all, manifest.ParsePlatform(platform))
	if i < 0 {
		m.isFor(list, platform)
		return nil
	}
	if own != "" {
		return nil
	}
	p, index := list[i], m.digest
	image, err := r.image(ctx, p.Digest)
	if err != nil {
		return err
	}
	m.assumed = append(m.assumed, fmt.Sprintf("%s of the index %s", p.Platform, index))
	m.digest, m.image = p.Digest, image
	if m.ref.Host != "" {
		m.ref = m.ref.WithDigest(p.Digest)
	}
	if image == nil {
		m.state, m.message = NotImported, fmt.Sprintf("the index lists %s for %s, which is not imported", p.Digest, p.Platform)
	}
	return nil
}

// isFor records that the image is for other platforms than the one in the question.
func (m *resolved) isFor(platforms []PlatformImage, asked string) {
	var names []string
	for _, p := range platforms {
		names = append(names, p.Platform)
	}
	m.state, m.reason, m.message = Absent, OtherPlatform, fmt.Sprintf("%s is not for %s, but for %s", cmp.Or(m.ref.String(), m.digest), asked, strings.Join(names, ", "))
	m.image, m.platforms = nil, platforms
}

// platformsOf are the images that an index lists.
func platformsOf(image *imagev1.Image) (all []PlatformImage) {
	for i, p := range manifest.Platforms(image.DockerImageManifests) {
		all = append(all, PlatformImage{p.String(), image.DockerImageManifests[i].Digest})
	}
	return all
}

// platformOf is the platform of an image; empty for an index, and if it is not known.
func platformOf(image *imagev1.Image) string {
	if len(image.DockerImageManifests) > 0 {
		return ""
	}
	return image.Annotations[annotation.Platform]
}
