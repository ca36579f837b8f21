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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/room"
)

// Importer imports images. Make one with New and keep it.
type Importer struct {
	*pull.Client
	platforms []manifest.Platform
	verify    bool
	finder    SignatureFinder
	searches  *searches

	signaturesAge time.Duration
	progress      func(Event)

	windows *room.Memory // for decoding layers: Limits.WindowBytes, half of it for one registry

	packages  PackageStore // nil keeps none
	documents *room.Memory // for documents: documentMemory, half of it for one registry
	unlisted  *lru.Cache   // indexes whose own SBOMs could not be read, as repository@digest
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
		Client:   c,
		verify:   o.Layers == LayersVerify,
		finder:   o.Signatures,
		searches: &searches{last: lru.New(maxSearches)},

		signaturesAge: o.SignaturesAge,

		progress:  o.Progress,
		windows:   room.NewMemory(o.Limits.WindowBytes, shareOf(o.Limits.WindowBytes), c.Clock),
		documents: room.NewMemory(documentMemory, shareOf(documentMemory), c.Clock),
		unlisted:  lru.New(maxSearches),
	}
	for _, p := range o.Platforms {
		im.platforms = append(im.platforms, manifest.ParsePlatform(p))
	}
	if im.progress == nil {
		im.progress = func(Event) {}
	}
	return im, nil
}

// shareOf is how much of a shared memory one registry may hold, so that a slow registry does not
// stop the others.
func shareOf(size int64) int64 { return max(1, size/2) }

// maxGivenWay is the longest pause before the next attempt of a read that lost its memory to
// another.
const maxGivenWay = 16 * time.Second

// untilKept repeats read, with growing pauses, while it returns room.ErrGaveWay. before counts the
// calls that have returned that.
func untilKept(ctx context.Context, clock clock.Clock, read func(before int) error) error {
	for wait, before := time.Second, 0; ; wait, before = min(2*wait, maxGivenWay), before+1 {
		err := read(before)
		if !errors.Is(err, room.ErrGaveWay) {
			return err
		}
		timer := clock.NewTimer(wait)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}

// With returns an Importer that uses the credentials of keychain, and those of im for registries
// that keychain does not know. The two share all bounds. Sessions that were opened with the
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
	// Warnings are messages to show to the user.
	Warnings []string
	// Mirror is the mirror's repository from which the image was read; empty if it was read from the
	// reference's own.
	Mirror string
	// Gone are the Images that the import marked because the registry no longer has them: the image
	// to which the tag led before, and the images that it lists.
	Gone []string
	// Again, if not nil, is why another import soon may find more signatures than this one. The Images
	// show what could not be read. [Unsearched] returns true for it.
	Again error
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
// An error may come with a Result, which shows what was done: one child of an index may fail while
// the others are stored. Import can be repeated after any error; it does not repeat what is done.
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
		result, seen := im.importNow(ctx, ref, images, false, prefetchedTag{})
		if seen.digest != "" && seen.err == nil && len(result.Images) > 0 && result.Images[0].Action != Created {
			im.confirm(ctx, images, ref, seen.digest, asked)
		}
		return result, seen.err
	}
	var result *Result
	var seen tagAnswer
	led, _, err := im.recordTag(ctx, ref, tagged, func(before prefetchedTag) tagAnswer {
		result, seen = im.importNow(ctx, ref, images, before.digest == "", before)
		return seen
	})
	if err != nil {
		return result, errors.Join(seen.err, err)
	}
	if moved := seen.digest != "" && seen.digest != led; led == "" || ref.Digest != "" || !moved && !seen.absent {
		return result, seen.err
	}
	if result == nil {
		result = &Result{Reference: ref.String()}
	}
	if result.Gone, err = im.Abandoned(ctx, tagged, ref.Bare(), []string{led}); err != nil {
		result.Warnings = append(result.Warnings, fmt.Sprintf("%s led to %s, and whether the registry still has that is not known: %v", ref, led, err))
	}
	return result, seen.err
}

// importNow imports what ref leads to now. isNew is true for a tag that led nowhere before. The
// error is in the tagAnswer. The Result may be nil.
func (im *Importer) importNow(ctx context.Context, ref reference.Reference, images Images, isNew bool, before prefetchedTag) (*Result, tagAnswer) {
	run := &run{Importer: im, ref: ref, images: images, nodes: map[string]*visit{}}
	head := ref.Digest == "" && !isNew && !isNewPush(ctx, images)
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
	if root.before = before.digest != "" && root.digest == before.digest; root.before {
		root.foreseen = before.stored
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
		result.Again = cmp.Or(result.Again, o.again)
	})
	return result, err
}

// pulled returns the reference to request from the registry: without the tag if there is a digest.
// An error is a *[reference.Error].
func pulled(ref reference.Reference) (reference.Reference, error) {
	if ref = ref.Pulled(); ref.Host == "" {
		return ref, &reference.Error{Input: ref.String(), Problem: "it does not name a registry"}
	}
	return ref, nil
}

// findRoot finds the digest that ref leads to. A mirror has the same tags and digests as its
// source. It sends a HEAD for an image that may be known, and reads any other at once. Docker Hub
// always gets a HEAD first, because it counts each GET of a manifest as a pull and many tags lead
// to one digest.
func findRoot(ctx context.Context, s *pull.Session, ref reference.Reference, head bool) (n node, err error) {
	n.reference = ref
	denied := false
	if head || ref.Digest == "" && pull.IsDockerHub(s.Repository.RegistryStr()) {
		n.digest, _, denied, err = fetchHead(ctx, s, ref.Identifier())
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
		// The HEAD had no digest, or was not needed: read the manifest at once.
		n.known, err = fetchManifest(ctx, s, ref.Identifier(), ref.Digest)
		if n.unread = asUnread(err); n.unread != nil {
			n.digest = n.unread.Digest
		} else if err != nil {
			return node{}, err
		} else {
			n.digest = n.known.name
		}
		if denied {
			noteDenied(ctx, s, ref.Identifier())
		}
	}
	s.Saw(ref.Identifier())
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
