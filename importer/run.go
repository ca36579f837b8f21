package importer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/v1/types"
	imagev1 "github.com/openshift/api/image/v1"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/record"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

type run struct {
	*Importer
	ref     reference.Reference
	session *pull.Session
	images  Images
	// reread makes the run read again even what is known to be in the repository.
	reread bool
	// manifestRead is true once the manifest was read in the reference's repository, or is known to be
	// there. Until then only the registry's answer to a HEAD shows it.
	manifestRead bool

	mu    sync.Mutex
	nodes map[string]*visit // by digest
}

// visit is the import of one digest. A digest that is listed several times is imported once, by the
// first to come; the others wait for its outcome.
type visit struct {
	done chan struct{}
	out  *outcome
	err  error
}

// node is one manifest to import: the one that the reference leads to, or a child.
type node struct {
	// reference is recorded on the Image, and named in errors.
	reference reference.Reference
	digest    string
	depth     int
	// child is the index's entry; nil at the root.
	child *manifest.Descriptor
	// known is the manifest if it was read already; unread is set if it could not be parsed.
	known  *fetched
	unread *unread
	// session is the session with the node's repository; nil for the run's own.
	session *pull.Session
	// stored is the stored Image of the digest, whichever repository it was read from; nil if none is
	// known.
	stored *imagev1.Image
	// before is true if the tag led to the digest, or to the index that lists it, before this import.
	before bool
	// foreseen is what the server has of the image, if before; nil if that is not known.
	foreseen *record.Result
	// search is what was found beside the image; nil if that was not looked for yet.
	search *search
	// answer is the server's, if nothing is new of the image; otherwise nil.
	answer *record.Result
}

// outcome is the result of importing a node.
type outcome struct {
	digest   string
	size     int64         // of the manifest; 0 if it is not known
	images   []ImageResult // at most one
	skipped  []Skipped
	warnings []string
	again    error // see Result.Again
	// children are the outcomes of an index's children. They may be shared.
	children []*outcome
}

// walk calls visit with o and everything below it, each once.
func (o *outcome) walk(visit func(*outcome)) {
	seen := map[*outcome]bool{}
	var descend func(*outcome)
	descend = func(o *outcome) {
		if o == nil || seen[o] {
			return
		}
		seen[o] = true
		visit(o)
		for _, child := range o.children {
			descend(child)
		}
	}
	descend(o)
}

// hasImages reports whether o, or an outcome below it, has a stored Image.
func (o *outcome) hasImages() bool {
	found := false
	o.walk(func(o *outcome) { found = found || len(o.images) > 0 })
	return found
}

// errNotWanted: the platform of a child turned out not to be wanted.
var errNotWanted = errors.New(SkippedPlatform)

// importNode imports a manifest and, if that is an index, its children.
func (r *run) importNode(ctx context.Context, n node) (*outcome, error) {
	r.mu.Lock()
	v := r.nodes[n.digest]
	first := v == nil
	if first {
		v = &visit{done: make(chan struct{})}
		r.nodes[n.digest] = v
	}
	r.mu.Unlock()
	if first {
		defer close(v.done)
		v.out, v.err = r.importOnce(ctx, n)
		return v.out, v.err
	}
	select {
	case <-v.done:
		return v.out, v.err
	case <-ctx.Done():
		return nil, pull.Describe(n.reference, context.Cause(ctx))
	}
}

// importOnce holds a lock on the digest, so that imports of several references to it read it once.
func (r *run) importOnce(ctx context.Context, n node) (*outcome, error) {
	if err := pull.JobOf(ctx).Manifest(); err != nil {
		return nil, pull.Describe(n.reference, err)
	}
	unlock, err := r.Client.Lock(ctx, "digest "+r.session.Repository.Name()+"@"+n.digest)
	if err != nil {
		return nil, pull.Describe(n.reference, err)
	}
	defer unlock()
	n.session = r.session
	if n.answer, err = r.askKnown(ctx, &n); err != nil {
		return nil, err
	} else if n.answer != nil {
		return r.importKnown(ctx, n)
	}
	if n.stored, err = r.find(ctx, n); err != nil {
		return nil, fmt.Errorf("looking up image %s: %w", n.digest, err)
	}
	if !r.isKnown(n) {
		return r.importFound(ctx, n, nil)
	}
	return r.importFound(ctx, n, n.stored)
}

// isKnown reports whether the Image of a node was read in the node's repository before. Otherwise
// it must be read there: a registry can name any digest, and with it an image of others.
func (r *run) isKnown(n node) bool {
	return !r.reread && n.stored != nil && isIn(n.stored, n.reference)
}

func isIn(image *imagev1.Image, ref reference.Reference) bool {
	return annotation.WasIn(image.Annotations, image.DockerImageReference, ref.Bare())
}

// importFound imports a node. found is what need not be read again, or nil: see isKnown.
func (r *run) importFound(ctx context.Context, n node, found *imagev1.Image) (*outcome, error) {
	m, err := r.manifest(ctx, &n, found)
	if n.child == nil {
		r.manifestRead = err == nil || asUnread(err) != nil
	}
	if u := asUnread(err); u != nil {
		return r.importUnread(ctx, n, found, u)
	} else if err != nil {
		return nil, pull.Describe(n.reference, err)
	}
	switch m.Kind {
	case manifest.KindIndex:
		return r.importIndex(ctx, n, found, m)
	case manifest.KindImage, manifest.KindSchema1:
		return r.importImage(ctx, n, found, m)
	}
	return nil, pull.Describe(n.reference, &pull.Error{Reason: pull.NotAnImage, Message: artifact(m.Manifest)})
}

// find returns the stored Image, nil if there is none. It skips the read if the [Prefetcher]
// assumes a new image: if that image is stored after all, its creation fails, and store merges the
// two. It does read if layers are to be verified, because they are verified once.
func (r *run) find(ctx context.Context, n node) (*imagev1.Image, error) {
	if prefetcher, ok := r.images.(*Prefetcher); ok && n.child == nil && !r.verify && prefetcher.isNew(r.ref, n.digest) {
		return nil, nil
	}
	found, err := r.images.Get(ctx, n.digest, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return found, err
}

// artifact names the kind of an artifact for people.
func artifact(m *manifest.Manifest) string {
	kind := m.ArtifactType
	if kind == "" && m.Config != nil {
		kind = m.Config.MediaType
	}
	// Artifacts of cosign and other tools have an image's config: their layers show their kind.
	if kind == "" || kind == string(types.OCIConfigJSON) || kind == string(types.DockerConfigJSON) {
		for _, layer := range m.Layers {
			if kind = layer.MediaType; kind != "" {
				return "it is an artifact that holds " + pull.Clean(kind)
			}
		}
	}
	return "it is an artifact of type " + pull.Clean(kind)
}

// manifest returns the stored manifest, or reads it from the registry. A child that the index's
// mirror lacks is read from the next source that has it, with its config and layers.
func (r *run) manifest(ctx context.Context, n *node, found *imagev1.Image) (*fetched, error) {
	if found != nil && found.DockerImageManifest != "" {
		raw := []byte(found.DockerImageManifest)
		m, err := manifest.Parse(raw, found.DockerImageManifestMediaType)
		if err != nil {
			return nil, fmt.Errorf("the stored manifest: %w", err)
		}
		return &fetched{m, raw, n.digest}, nil
	}
	if n.unread != nil {
		return nil, n.unread
	}
	if n.known != nil {
		return n.known, nil
	}
	m, err := fetchManifest(ctx, n.session, n.digest, n.digest)
	if err == nil || asUnread(err) != nil || n.child == nil {
		return m, err
	}
	var left *unread
	err = r.ReachOn(ctx, n.reference, r.session.Source, err, func(s *pull.Session) (err error) {
		m, err = fetchManifest(ctx, s, n.digest, n.digest)
		if left = asUnread(err); err == nil || left != nil {
			n.session, err = s, nil
		}
		return err
	})
	if err == nil && left != nil {
		err = left
	}
	return m, err
}

// importImage imports an image for one platform.
func (r *run) importImage(ctx context.Context, n node, found *imagev1.Image, m *fetched) (*outcome, error) {
	fresh := r.newImage(n, m)
	out := &outcome{digest: n.digest, size: int64(len(m.raw))}
	platform := ""
	if m.Kind == manifest.KindSchema1 {
		fresh.Annotations[annotation.Limited] = annotation.LimitedSchema1
		out.warnings = append(out.warnings, fmt.Sprintf("%s: Docker schema 1 has no config: its platform and the sizes of its layers are not known", n.reference))
		if r.verify {
			out.warnings = append(out.warnings, fmt.Sprintf("%s: Docker schema 1 has no diff IDs: its layers cannot be verified", n.reference))
		}
	} else {
		config, read, err := r.content(ctx, n, found, m, fresh)
		if err != nil {
			return nil, pull.Describe(n.reference, err)
		}
		platform = pull.Clean(config.Platform.Exact())
		if n.child != nil && !r.wants(listed(n.child, config.Platform), false) {
			return nil, errNotWanted
		}
		switch {
		case !r.toVerify(found):
		case !read:
			out.warnings = append(out.warnings, fmt.Sprintf("%s: its config cannot be read: its layers cannot be verified", n.reference))
		default:
			verified := func(digest string) {
				r.emit(Event{Kind: EventVerified, Digest: digest, Platform: platform})
			}
			if err := r.verifyLayers(ctx, n.session, m.Manifest, config, verified); err != nil {
				return nil, pull.Describe(n.reference, err)
			}
			fresh.Annotations[annotation.Layers] = annotation.LayersVerified
		}
	}
	if found == nil {
		r.emit(Event{Kind: EventFetched, Digest: n.digest, Platform: platform})
	}
	err := r.store(ctx, n, fresh, platform, out)
	if left, unread := manifest.LeftOutOf(fresh); unread == nil {
		tell := func(what string, part *manifest.LeftOutPart) {
			if part != nil {
				out.warnings = append(out.warnings, fmt.Sprintf("%s: its %s of %d bytes is left out: %s", n.reference, what, part.Size, pull.Clean(part.Reason)))
			}
		}
		tell("manifest", left.Manifest)
		tell("config", left.Config)
	}
	return out, err
}

// importIndex imports the children of an index and then the index.
func (r *run) importIndex(ctx context.Context, n node, found *imagev1.Image, m *fetched) (*outcome, error) {
	if len(m.Children) > maxChildren {
		return nil, pull.Describe(n.reference, &pull.Error{Reason: pull.TooLarge, Message: fmt.Sprintf("the index has %d entries, at most %d are read", len(m.Children), maxChildren)})
	}
	if n.depth == maxDepth {
		return nil, pull.Describe(n.reference, &pull.Error{Reason: pull.TooLarge, Message: fmt.Sprintf("indexes are nested more than %d deep", maxDepth)})
	}
	if found == nil {
		r.emit(Event{Kind: EventFetched, Digest: n.digest})
	}
	children, err := r.importChildren(ctx, n, m.Manifest)
	out := &outcome{digest: n.digest, size: int64(len(m.raw)), children: children}
	if warning := wrongSizes(n, m.Manifest, children); warning != "" {
		out.warnings = append(out.warnings, warning)
	}
	if err == nil && !out.hasImages() {
		err = pull.Describe(n.reference, noChild(out))
	}
	if err != nil && !Unsearched(err) {
		return out, err // an index that is stored has all its children: see Images
	}
	err = distinct([]error{err, r.store(ctx, n, r.newImage(n, m), "", out)})
	ref := n.reference.Bare().WithDigest(n.digest)
	if _, failed := r.unlisted.Get(ref.String()); r.packages != nil && r.finder != nil && (found == nil || failed || r.hasUnderived(ctx, n, m.Manifest)) {
		r.unlisted.Remove(ref.String())
		if listed := r.keepListed(ctx, n, m.Manifest, out); listed != nil {
			r.unlisted.Add(ref.String(), nil)
			err = errors.Join(err, &searchError{pull.Describe(n.reference, listed)})
		}
	}
	return out, err
}

// wrongSizes returns a warning about entries of an index whose size differs from the manifest's, ""
// if there are none. containerd does not pull such an entry, podman does.
func wrongSizes(n node, index *manifest.Manifest, children []*outcome) string {
	sizes := map[string]int64{}
	for _, child := range children {
		if child != nil && child.size > 0 {
			sizes[child.digest] = child.size
		}
	}
	wrong, first := 0, ""
	for _, d := range index.Children {
		if size, known := sizes[d.Digest]; known && size != d.Size {
			if wrong++; wrong == 1 {
				first = fmt.Sprintf("%s has %d bytes, and the index says %d", d.Digest, size, d.Size)
			}
		}
	}
	if wrong == 0 {
		return ""
	}
	return fmt.Sprintf("%s: %s a wrong size, so some programs do not pull it: %s", n.reference, table.Clause(wrong, "entry", "have"), first)
}

// noChild returns why an index led to no image.
func noChild(index *outcome) error {
	var platforms []string
	missing := false
	index.walk(func(o *outcome) {
		for _, s := range o.skipped {
			if s.Reason == SkippedPlatform && s.Platform != "" {
				platforms = append(platforms, s.Platform)
			}
			missing = missing || s.Reason == SkippedMissing
		}
	})
	switch {
	case len(platforms) > 0:
		return &pull.Error{Reason: pull.NotFound, Message: "the index has no image for the requested platforms, only for " + pull.Clean(strings.Join(platforms, ", "))}
	case missing:
		return &pull.Error{Reason: pull.Incomplete, Message: "the registry has none of the images that the index lists"}
	}
	return &pull.Error{Reason: pull.NotAnImage, Message: "the index does not list an image"}
}

// importChildren imports the children of an index, some at a time. One failure does not stop the
// others.
func (r *run) importChildren(ctx context.Context, parent node, index *manifest.Manifest) ([]*outcome, error) {
	outcomes := make([]*outcome, len(index.Children))
	errs := make([]error, len(index.Children))
	seen, images := map[string]bool{}, map[string]bool{}
	for _, child := range index.ImageChildren() {
		images[child.Digest] = true
	}
	var group errgroup.Group
	group.SetLimit(r.Limits.Concurrency)
	for i, child := range index.Children {
		if seen[child.Digest] {
			continue
		}
		seen[child.Digest] = true
		if reason := r.skip(child, images[child.Digest]); reason != "" {
			outcomes[i] = r.skipped(child, reason)
			continue
		}
		group.Go(func() error {
			n := node{reference: r.ref.WithDigest(child.Digest), digest: child.Digest, depth: parent.depth + 1, child: &child, before: parent.before}
			outcomes[i], errs[i] = r.importNode(ctx, n)
			if reason := childReason(n, errs[i]); reason != "" && !outcomes[i].hasImages() {
				outcomes[i], errs[i] = r.skipped(child, reason), nil
			}
			return nil
		})
	}
	_ = group.Wait() // no function returns an error
	return outcomes, distinct(errs)
}

// distinct joins errors. An error that occurs several times, also within joined errors, is in the
// result once.
func distinct(errs []error) error {
	var all []error
	seen := map[string]bool{}
	for len(errs) > 0 {
		err := errs[0]
		errs = errs[1:]
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			errs = append(slices.Clone(joined.Unwrap()), errs...)
		} else if err != nil && !seen[err.Error()] {
			seen[err.Error()] = true
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}

// skip returns why a child is skipped without reading it, or "".
func (r *run) skip(child manifest.Descriptor, isImage bool) string {
	switch {
	case child.IsAttestation():
		return SkippedAttestation
	case !isImage:
		return SkippedArtifact
	case !reference.IsDigest(child.Digest):
		return SkippedDigest
	case child.Platform != nil && !r.wants(child.Platform, child.Platform.OSVersion == ""):
		return SkippedPlatform
	}
	return ""
}

// childReason returns why a child that was read is skipped. It is "" if the child was imported or
// failed. Errors of the child's own children are failures.
func childReason(n node, err error) string {
	if errors.Is(err, errNotWanted) {
		return SkippedPlatform
	}
	var e *pull.Error
	if !errors.As(err, &e) || e.Reference != n.reference.String() {
		return ""
	}
	switch e.Reason {
	case pull.NotAnImage:
		return SkippedArtifact
	case pull.NotFound, pull.Incomplete:
		return SkippedMissing
	case pull.InvalidImage:
		if errors.Is(err, manifest.ErrNoManifest) {
			return SkippedNoManifest
		}
	}
	return ""
}

func (r *run) skipped(child manifest.Descriptor, reason string) *outcome {
	s := Skipped{Digest: child.Digest, Reason: reason}
	if child.Platform != nil {
		s.Platform = pull.Clean(child.Platform.Exact())
	}
	r.emit(Event{Kind: EventSkipped, Digest: s.Digest, Platform: s.Platform, Detail: reason})
	return &outcome{skipped: []Skipped{s}}
}

// wants reports whether a platform is among Options.Platforms. anyVersion ignores the OS version,
// which is not known yet.
func (r *run) wants(p *manifest.Platform, anyVersion bool) bool {
	if len(r.platforms) == 0 {
		return true
	}
	return slices.ContainsFunc(r.platforms, func(wanted manifest.Platform) bool {
		return p.Is(wanted) && (wanted.OSVersion == "" || anyVersion || strings.HasPrefix(p.OSVersion+".", wanted.OSVersion+"."))
	})
}

// listed returns the platform by which runtimes choose an entry of an index: its own, with the OS
// version of the config if it has none, or else the config's. Configs often lack the variant.
func listed(entry *manifest.Descriptor, config manifest.Platform) *manifest.Platform {
	if entry.Platform == nil {
		return &config
	}
	p := *entry.Platform
	p.OSVersion = cmp.Or(p.OSVersion, config.OSVersion)
	return &p
}

// newImage returns what an import knows of an image, except its config.
func (r *run) newImage(n node, m *fetched) *imagev1.Image {
	annotations := map[string]string{}
	annotation.SetKnown(annotations, []reference.Reference{n.reference})
	return &imagev1.Image{
		ObjectMeta:                   metav1.ObjectMeta{Name: n.digest, Annotations: annotations},
		DockerImageReference:         r.ref.WithDigest(n.digest).String(),
		DockerImageManifest:          string(m.raw),
		DockerImageManifestMediaType: m.MediaType,
	}
}

// store looks for signatures and writes the Image, unless the server has answered that nothing is
// new. If the signatures could not be read, it writes the Image without them and returns the error.
func (r *run) store(ctx context.Context, n node, fresh *imagev1.Image, platform string, out *outcome) error {
	if n.answer == nil && n.search == nil && r.finder != nil && !r.isSearched(ctx, n, n.stored) {
		n.search = r.look(ctx, n)
	}
	var searchErr error
	if s := n.search; s != nil {
		out.warnings = append(out.warnings, s.warnings...)
		if s.err != nil {
			searchErr = &searchError{pull.Describe(n.reference, s.err)}
		}
		if partial, ok := errors.AsType[partialError](s.err); ok && partial.Partial() {
			out.again, searchErr = searchAgain(n.reference, s.err), nil
		}
	}
	image, action := &imagev1.Image{}, Unchanged
	if n.answer != nil {
		image.ObjectMeta = *n.answer.Metadata
	} else {
		if n.search != nil {
			setSearch(fresh, n.reference.Bare(), n.search.signatures, n.search.annotations, searchErr)
		}
		err := manifest.Fit(fresh)
		if err != nil {
			return errors.Join(pull.Describe(n.reference, err), searchErr)
		}
		if image, action, err = r.storeImage(ctx, r.images, n.stored, fresh, n.reference.Bare(), n.search != nil); err != nil {
			return errors.Join(record.Storing(n.digest, err), searchErr)
		}
		if prefetcher, ok := r.images.(*Prefetcher); ok && n.stored == nil && action != Created {
			prefetcher.isKnown(r.ref)
		}
	}
	read := n.search.isWhole()
	var documents []annotation.Document
	if n.search != nil {
		documents = documentsOf(n.search.annotations)
	}
	if r.packages != nil && (len(documents) > 0 || read && hadDocuments(n.stored, n.reference.Bare().String())) {
		if err := r.keepPackages(ctx, n, documents, "", read, out); err != nil {
			searchErr, read = errors.Join(searchErr, &searchError{pull.Describe(n.reference, err)}), false
		}
	}
	if read {
		r.searches.done(n.reference.Bare().WithDigest(n.digest), n.search.began, image, n.search.told)
	}
	out.images = append(out.images, ImageResult{Image: image, Platform: platform, Action: action})
	r.emit(Event{Kind: EventStored, Digest: n.digest, Platform: platform, Action: action})
	return searchErr
}

// importUnread stores an Image whose manifest is left out. If it is an index, its
// children are not imported with it: they are not known.
func (r *run) importUnread(ctx context.Context, n node, found *imagev1.Image, u *unread) (*outcome, error) {
	fresh := r.newImage(n, &fetched{Manifest: &manifest.Manifest{MediaType: u.mediaType}})
	manifest.LeftOut{Manifest: &u.LeftOutPart}.Set(fresh)
	out := &outcome{digest: n.digest, size: u.Size, warnings: []string{fmt.Sprintf("%s: its manifest is left out: %s", n.reference, pull.Clean(u.Error()))}}
	platform := ""
	if n.child != nil && n.child.Platform != nil {
		platform = pull.Clean(n.child.Platform.Exact())
	}
	if found == nil {
		r.emit(Event{Kind: EventFetched, Digest: n.digest, Platform: platform})
	}
	err := r.store(ctx, n, fresh, platform, out)
	return out, err
}
