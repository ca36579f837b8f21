package importer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	imagev1 "github.com/openshift/api/image/v1"
	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/lru"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/importer/pull"
)

// Importer imports images. Make one with New and keep it.
type Importer struct {
	*pull.Client
	platforms []string
	verify    bool
	finder    SignatureFinder
	searches  *searches

	signaturesAge time.Duration
	progress      func(Event)

	layerRoom *semaphore.Weighted // of Limits.LayerBytes

	packages  PackageStore        // nil keeps none
	documents *semaphore.Weighted // bytes of documents
	unlisted  *lru.Cache          // indexes whose own SBOMs could not be read, as repository@digest
}

// New checks the options. It does not touch the network.
func New(o Options) (*Importer, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	o.Limits = o.Limits.WithDefaults(o.Layers == LayersVerify)
	c, err := pull.New(pull.Options{
		Keychain: o.Keychain, Registries: o.Registries, Files: o.Files, Insecure: o.Insecure,
		AllowedNetworks: o.AllowedNetworks, RootCAs: o.RootCAs, UserAgent: o.UserAgent, Limits: o.Limits, Others: o.Others, Clock: o.Clock,
	})
	if err != nil {
		return nil, err
	}
	im := &Importer{
		Client:    c,
		platforms: o.Platforms,
		verify:    o.Layers == LayersVerify,
		finder:    o.Signatures,
		searches:  &searches{last: lru.New(maxSearches)},

		signaturesAge: o.SignaturesAge,

		progress:  o.Progress,
		layerRoom: semaphore.NewWeighted(o.Limits.LayerBytes),
		documents: semaphore.NewWeighted(documentRoom),
		unlisted:  lru.New(maxSearches),
	}
	if im.progress == nil {
		im.progress = func(Event) {}
	}
	return im, nil
}

// With returns an Importer that uses the credentials of keychain and, for registries that keychain
// has none for, those of im. The two share all bounds. Sessions that were opened with the
// keychain's credentials are not shared: they end with the returned Importer, which needs no Close.
func (im *Importer) With(keychain authn.Keychain) *Importer {
	with := *im
	with.Client = im.Client.With(keychain)
	return &with
}

// Result is the result of one import.
type Result struct {
	// Reference is the canonical form of the imported reference.
	Reference string
	// Digest is the digest that Reference leads to: the name of Images[0].
	Digest string
	// Images are the Image that the reference leads to and, if that is an index, its children in
	// the order of the index, nested ones after their parent, each digest once.
	Images []ImageResult
	// Skipped are children of an index that were not imported.
	Skipped []Skipped
	// Warnings are for people.
	Warnings []string
	// Mirror is the repository that was read in place of the reference's own; empty if none was.
	Mirror string
}

// ImageResult is one Image of an import.
type ImageResult struct {
	// Image is the Image as it is stored. Its manifest and config make it large: drop it when it is
	// not needed.
	Image *imagev1.Image
	// Platform is os/architecture[/variant][:os.version]; empty for an index.
	Platform string
	Action   Action
}

// Skipped is a child of an index that was not imported.
type Skipped struct {
	Digest, Platform string
	// Reason is one of the Skipped… constants.
	Reason string
}

// Why a child of an index is not imported.
const (
	SkippedAttestation = "attestation"            // BuildKit's provenance or SBOM of a sibling
	SkippedArtifact    = "not an image"           // some other artifact
	SkippedPlatform    = "platform not requested" // see Options.Platforms
	SkippedMissing     = "not in the registry"    // the index is sparse, as a partial mirror's are
	SkippedDigest      = "unsupported digest algorithm"
	SkippedNoManifest  = "not a manifest" // the registry has other bytes by this digest
)

// Import reads what a reference leads to and stores it in images. The error's tree has an
// *[pull.Error] if the registry failed, a *[reference.Error] if the reference is wrong, and else
// the error of images.
//
// With an error the Result, if there is one, says what was done: one child of an index may fail
// while the others are stored. Import can be repeated after any error; it does nothing twice.
func (im *Importer) Import(ctx context.Context, ref reference.Reference, images Images) (*Result, error) {
	ref, err := pulled(ref)
	if err != nil {
		return nil, err
	}
	ctx, done := im.InJob(ctx)
	defer done()
	tagged, ok := images.(Tagged)
	if !ok || ref.Tag == "" {
		asked := im.Clock.Now()
		result, seen := im.importNow(ctx, ref, images)
		if seen.digest != "" && seen.err == nil && len(result.Images) > 0 && result.Images[0].Action != Created {
			im.confirm(ctx, images, ref, seen.digest, asked)
		}
		return result, seen.err
	}
	var result *Result
	var seen tagAnswer
	_, err = im.recordTag(ctx, ref, tagged, func() tagAnswer {
		result, seen = im.importNow(ctx, ref, images)
		return seen
	})
	if err == nil {
		return result, seen.err
	}
	return result, errors.Join(seen.err, err)
}

// importNow imports what ref leads to now. The error is in the sight. The Result may be nil.
func (im *Importer) importNow(ctx context.Context, ref reference.Reference, images Images) (*Result, tagAnswer) {
	run := &run{Importer: im, ref: ref, images: images, nodes: map[string]*visit{}}
	head := ref.Digest == "" && !isNewPush(ctx, images)
	if ref.Digest != "" {
		switch image, err := images.Get(ctx, ref.Digest, metav1.GetOptions{}); {
		case err == nil:
			head = isIn(image, ref)
		case !apierrors.IsNotFound(err):
			return nil, tagAnswer{err: fmt.Errorf("looking up image %s: %w", ref.Digest, err)}
		}
	}
	var root node
	if err := im.Reach(ctx, ref, func(s *pull.Session) (err error) {
		run.session = s
		root, err = findRoot(ctx, s, ref, head)
		return err
	}); err != nil {
		return nil, tagAnswer{absent: pull.ReasonOf(err) == pull.NotFound, err: err}
	}
	result, err := run.from(ctx, root)
	if !run.manifestRead {
		return result, tagAnswer{err: err}
	}
	return result, tagAnswer{digest: root.digest, err: err}
}

// from imports what the run's reference leads to.
func (r *run) from(ctx context.Context, root node) (*Result, error) {
	r.emit(Event{Kind: EventResolved, Digest: root.digest})
	out, err := r.importNode(ctx, root)
	if errors.Is(err, errNotWanted) { // impossible, as only children are chosen
		err = fmt.Errorf("importing %s: %w", r.ref, err)
	}
	if late := pull.Overdue(ctx, err); late != err {
		err = pull.Describe(r.ref, late)
	}
	if pull.ReasonOf(err) == pull.Unauthorized {
		r.Forget(r.session.Source)
	}
	if out == nil {
		return nil, err
	}
	result := &Result{Reference: r.ref.String(), Digest: out.digest}
	if r.session.IsMirrorOf(r.ref) {
		result.Mirror = r.session.Source.Reference.Name()
	}
	out.walk(func(o *outcome) {
		result.Images = append(result.Images, o.images...)
		result.Skipped = append(result.Skipped, o.skipped...)
		result.Warnings = append(result.Warnings, o.warnings...)
	})
	return result, err
}

// pulled returns the reference that the registry is asked for: without the tag if there is a
// digest. An error is a
// *[reference.Error].
func pulled(ref reference.Reference) (reference.Reference, error) {
	if ref = ref.Pulled(); ref.Host == "" {
		return ref, &reference.Error{Input: ref.String(), Problem: "it does not name a registry"}
	}
	return ref, nil
}

// findRoot finds the digest that ref leads to. A mirror has the same tags and digests as its
// source. It sends a HEAD for an image that may be known, and reads any other at once.
func findRoot(ctx context.Context, s *pull.Session, ref reference.Reference, head bool) (n node, err error) {
	n.reference = ref
	if head {
		n.digest, _, err = fetchHead(ctx, s, ref.Identifier())
	}
	if err != nil {
		return node{}, err
	}
	if ref.Digest != "" && n.digest != "" {
		if algorithm(n.digest) == algorithm(ref.Digest) && n.digest != ref.Digest {
			return node{}, &pull.Error{Reason: pull.DigestMismatch, Message: "the registry reports it as " + n.digest}
		}
		n.digest = ref.Digest // even if the registry names it by another algorithm
	}
	if n.digest == "" {
		// The registry does not say in a HEAD, or need not be asked: read the manifest at once.
		n.known, err = fetchManifest(ctx, s, ref.Identifier(), ref.Digest)
		if n.unread = asUnread(err); n.unread != nil {
			n.digest = n.unread.Digest
		} else if err != nil {
			return node{}, err
		} else {
			n.digest = cmp.Or(ref.Digest, n.known.Digest)
		}
	}
	return n, nil
}

func algorithm(digest string) string {
	name, _, _ := strings.Cut(digest, ":")
	return name
}

func (r *run) emit(e Event) {
	e.Reference = r.ref.String()
	r.progress(e)
}
