package find

import (
	"context"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// Find searches for the signatures of digest, which names the image in the registry to search. as
// is the repository by which policies know the image: the registry may be a mirror of it. transport
// talks to the registry and authenticates. For many digests the tags of the repository are listed
// once, but only where no policy demands what tags hold, or where the list is known to be whole
// (listed; see importer.Pushed). A list that was read before since does not count. After a registry
// was found to have no referrers API, this is believed for an hour; see Forget.
//
// signatures are named as package signatures names them, and have type and content and nothing
// else. They come in the order in which they were found, each once, and are all that are within the
// bounds: their judge chooses which to keep. annotations are what else is known of the repository:
// annotation.Attestations, Documents, Warnings, Manifests, Unread, Unusable and Cut, those for
// which there is something to say. warnings say, for people, what had to be left out. An error
// means that the registry could not be asked. The findings until then are returned with it.
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
		// Lookaside storage is another server: its faults are not a reason to import the image
		// again and again.
		if lerr := f.lookaside(ctx, s, digest.Context()); lerr != nil {
			s.notRead("lookaside storage: %v", lerr)
		}
		err = s.readAttestations(ctx)
	}
	if s.client.hasExtension {
		s.abilities.announce()
	}
	return s.found, s.annotations(), s.warnings, err
}
