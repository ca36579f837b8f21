package find

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	imagemanifest "github.com/tidewaiter/tidewaiter/imageapi/manifest"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/verdicts"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// Bounds on one search.
const (
	MaxManifest     = imagemanifest.MaxManifestSize // bytes of a manifest, an index or a page of referrers
	MaxSignature    = verdicts.MaxContent           // bytes of a signature, payload, bundle or envelope
	MaxLooked       = 64                            // signatures and referrers looked at
	MaxFound        = 16 << 20                      // bytes of signatures returned
	MaxAttestations = 64                            // attestations listed
	MaxAttestation  = 512 << 10                     // bytes of an attestation that is read
	MaxRead         = 16                            // attestations read
	maxPages        = 16                            // pages of referrers
	maxWarnings     = 32
	maxWarningBytes = 256
)

// Options configures a Finder.
type Options struct {
	// RegistriesDirs are folders of registries.d files, see containers-registries.d(5). If two folders have a file of the
	// same name, the first one's is read. Empty: DefaultRegistriesDirs(). To use none, name a folder that does not exist.
	RegistriesDirs []string
	// Storage is the folder with the signatures of those images that none of the files mentions. Empty: DefaultStorage().
	Storage string
	// Lookaside makes requests to lookaside storage, and decides where a redirect may lead. Nil: storage behind a URL is not
	// asked. It is not used for registries, which are asked with the transport given to Find.
	Lookaside http.RoundTripper
	// Demands tells whether policies demand signatures, or attestations, of an image, which is a repository with a digest. A
	// tag that would hold what is demanded is asked for, whatever the list of tags says: proxies list the tags that they
	// have, not those that exist. Nil: both are demanded of all images.
	Demands func(image reference.Reference) (signatures, attestations bool)
	// Timeout bounds one search; zero: a minute.
	Timeout time.Duration
	// Clock is for tests; nil is the real one.
	Clock clock.PassiveClock
}

// Finder searches registries. It is safe for concurrent use.
type Finder struct {
	lookasides *lookasides
	transport  http.RoundTripper
	demands    func(image reference.Reference) (signatures, attestations bool)
	timeout    time.Duration
	memory     *memory
}

// New reads the registries.d files and makes a Finder.
func New(o Options) (*Finder, error) {
	f := &Finder{transport: o.Lookaside, timeout: o.Timeout, demands: o.Demands}
	if f.demands == nil {
		f.demands = func(reference.Reference) (bool, bool) { return true, true }
	}
	if f.timeout <= 0 {
		f.timeout = time.Minute
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	f.memory = newMemory(o.Clock)
	dirs := o.RegistriesDirs
	if len(dirs) == 0 {
		dirs = DefaultRegistriesDirs()
	}
	storage := o.Storage
	if storage == "" {
		storage = DefaultStorage()
	}
	var err error
	f.lookasides, err = loadLookasides(dirs, storage)
	return f, err
}

// Attestation is a typed link to something that is attached to an image but is not a signature of it.
type Attestation struct {
	// Type says what kind of thing it is: an in-toto predicate type (https://slsa.dev/provenance/v1,
	// https://spdx.dev/Document, …) or, where there is none, the artifact's media type.
	Type string `json:"type"`
	// Digest is the digest of the manifest that holds it, in the image's repository.
	Digest string `json:"digest"`
	// Layer is the digest of the blob, when the manifest holds several attestations.
	Layer string `json:"layer,omitempty"`
	// MediaType is the blob's media type, if known.
	MediaType string `json:"mediaType,omitempty"`
	// Size is the blob's size in bytes, if known.
	Size int64 `json:"size,omitempty"`
	// LeftOut says why it was listed only, although it may be one that can be judged.
	LeftOut string `json:"leftOut,omitempty"`
}

// Find searches for the signatures of digest, which names the image in the registry to search. as is the repository by which
// policies know the image: the registry may be a mirror of it. transport talks to the registry and authenticates. For many
// digests the tags of the repository are listed once, but only where no policy demands what tags hold, or where the list
// is known to be whole (listed; see importer.Pushed). A list that was read before since does not count. After a registry was found to have no referrers API, this is believed for an hour; see
// Forget.
//
// signatures are named as package signatures names them, and have type and content and nothing else. They come in the order
// in which they were found, each once, and are all that are within the bounds: whoever judges them chooses which to keep.
// annotations are what else is known of the repository: annotation.Attestations, Warnings, Manifests, Unread, Unusable and Cut, those for
// which there is something to say. warnings say, for people, what had to be left out. An error means that the registry could
// not be asked. What was found until then is returned with it.
func (f *Finder) Find(ctx context.Context, digest name.Digest, as reference.Reference, transport http.RoundTripper, since time.Time, listed bool) (found []imagev1.ImageSignature, annotations map[string]string, warnings []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	s := &search{
		client: newClient(digest.Context(), transport),
		memory: f.memory, abilities: f.memory.abilitiesOf(digest.Context()), tags: f.memory.tagsOf(digest.Context()), since: since,
		digest: digest.DigestStr(),
		seen:   map[string]bool{},
		blobs:  map[string][]byte{},
	}
	if s.pushed = listed; !listed {
		s.demanded, s.attested = f.demands(as.Bare().WithDigest(digest.DigestStr()))
	}
	if r, err := reference.Parse(digest.Name()); err == nil && !f.lookasides.sigstore(r) {
		s.withoutSigstore = true
		s.warn("sigstore signatures in the registry were not read: registries.d says use-sigstore-attachments: false")
	}
	s.client.hasExtension = s.abilities.announced()
	for _, source := range []func(context.Context) error{s.referrers, s.cosignTags, s.extension} {
		if err = source(ctx); err != nil {
			break
		}
	}
	if err == nil {
		// Lookaside storage is another server: its faults are not a reason to import the image again and again.
		if lerr := f.lookaside(ctx, s, digest.Context()); lerr != nil {
			s.notRead("lookaside storage: %v", lerr)
		}
		err = s.readAttestations(ctx)
	}
	if s.client.hasExtension {
		s.abilities.announce()
	}
	annotations, aerr := s.annotations()
	if err == nil {
		err = aerr
	}
	return s.found, annotations, s.warnings, err
}

// Forget forgets what is remembered of a repository's registry and of the repository's tags, because somebody told of a
// change there.
func (f *Finder) Forget(repository name.Repository) { f.memory.forget(repository) }

// search is the state of one Find.
type search struct {
	client    *client
	digest    string
	memory    *memory
	abilities *abilities
	tags      *tagList
	since     time.Time
	counted   bool // by tags
	pushed    bool // listed, of Find
	// What policies demand that the list of tags may not have: signatures and attestations.
	demanded, attested bool
	withoutSigstore    bool // sigstore signatures in the registry are not read

	found        []imagev1.ImageSignature
	attestations []Attestation
	unlisted     bool // MaxAttestations was met
	unreadLayers []attestationLayer
	warnings     []string
	seen         map[string]bool   // content digests of found
	blobs        map[string][]byte // by digest; cosign signs the same payload again and again
	looked       int
	dropped      bool     // more than MaxLooked were offered
	bytes        int      // of found
	unread       string   // why not everything could be read
	unusable     string   // what may be a signature and cannot be used
	isCut        bool     // not everything was looked at
	manifests    []string // digests of the manifests that hold found
}

// firstTime returns 1 on its first call, then 0.
func (s *search) firstTime() int {
	if s.counted {
		return 0
	}
	s.counted = true
	return 1
}

// countCandidate counts one more candidate and tells whether it may be looked at.
func (s *search) countCandidate() bool {
	if s.looked >= MaxLooked {
		if !s.dropped {
			s.dropped = true
			s.cut("more than %d signatures and referrers; the rest was not looked at", MaxLooked)
		}
		return false
	}
	s.looked++
	return true
}

func (s *search) add(typ string, content []byte) {
	if len(content) == 0 || len(content) > MaxSignature {
		say := s.notUsable
		if typ == signatures.TypeAttestation {
			say = s.warn
		}
		say("a %s signature of %d bytes was left out; 1 to %d are kept", typ, len(content), MaxSignature)
		return
	}
	sum := sha256.Sum256(content)
	key := typ + hex.EncodeToString(sum[:])
	if s.seen[key] {
		return
	}
	s.seen[key] = true
	if s.bytes += len(content); s.bytes > MaxFound {
		s.cut("a signature of %d bytes was left out: all together have more than %d", len(content), MaxFound)
		return
	}
	s.found = append(s.found, imagev1.ImageSignature{
		ObjectMeta: metav1.ObjectMeta{Name: signatures.Name(s.digest, content)},
		Type:       typ,
		Content:    content,
	})
}

// holding notes that a manifest holds signatures, if more signatures were found now than before.
func (s *search) holding(m *manifest, before int) {
	if len(s.found) > before && !slices.Contains(s.manifests, m.digest) {
		s.manifests = append(s.manifests, m.digest)
	}
}

// notUsable warns that something may be a signature and cannot be used. Whoever may push to the repository can bring that
// about.
func (s *search) notUsable(format string, args ...any) {
	s.warn(format, args...)
	if s.unusable == "" {
		s.unusable = clip(fmt.Sprintf(format, args...))
	}
}

// cut is notUsable where not everything was looked at.
func (s *search) cut(format string, args ...any) {
	s.isCut = true
	s.notUsable(format, args...)
}

// notRead warns that there may be signatures which were not read, since the registry, or whatever answers in its place, did
// not show them.
func (s *search) notRead(format string, args ...any) {
	s.warn(format, args...)
	if s.unread == "" {
		s.unread = clip(fmt.Sprintf(format, args...))
	}
}

func (s *search) warn(format string, args ...any) {
	if len(s.warnings) < maxWarnings {
		s.warnings = append(s.warnings, clip(fmt.Sprintf(format, args...)))
	}
}

func (s *search) annotations() (map[string]string, error) {
	values := map[string]string{}
	if len(s.attestations) > 0 {
		b, err := json.Marshal(s.attestations)
		if err != nil {
			return nil, err
		}
		values[signatures.AnnotationAttestations] = string(b)
	}
	if s.unread != "" {
		values[annotation.Unread] = s.unread
	}
	if s.unusable != "" {
		values[annotation.Unusable] = s.unusable
	}
	if s.isCut {
		values[annotation.Cut] = "true"
	}
	if len(s.manifests) > 0 {
		b, err := json.Marshal(s.manifests)
		if err != nil {
			return nil, err
		}
		values[annotation.Manifests] = string(b)
	}
	if len(s.warnings) > 0 {
		b, err := json.Marshal(s.warnings)
		if err != nil {
			return nil, err
		}
		values[signatures.AnnotationWarnings] = string(b)
	}
	return values, nil
}
