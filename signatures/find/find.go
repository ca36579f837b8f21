package find

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Find searches for the signatures of digest, in the repository that digest names. as is the
// repository that policies name; digest may name a mirror of it. transport sends requests to the
// registry and authenticates. To search many digests, Find lists the repository's tags once, unless
// Listed was called. It relies on the list only if no policy demands the contents of tags, or if
// the list is known to be complete (listed; see importer.Pushed) or has turned out to be. It does
// not use a list that is older than since. It remembers for an hour that a registry has no
// referrers API; see Forget.
//
// signatures have the names that package signatures gives them, type and content, and nothing else.
// They are all signatures within the bounds, in the order in which they were found, each once; the
// caller chooses which to keep. annotations has the other findings: annotation.Attestations,
// Documents, Warnings, Manifests, Unread, Unusable and Cut, as far as they are not empty. warnings
// list, for the user, what was left out. An error means that the registry did not answer. Find
// returns the findings until then with it.
//
// If one source fails, the findings of the others still count. If something was found, or if only
// the referrers API failed temporarily, the error is a *[PartialError], and Unread describes what
// could not be read.
func (f *Finder) Find(ctx context.Context, digest name.Digest, as reference.Reference, transport http.RoundTripper, since time.Time, listed bool) (found []imagev1.ImageSignature, annotations map[string]string, warnings []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	s := &search{
		client: newClient(digest.Context(), transport),
		memory: f.memory, abilities: f.memory.abilitiesOf(digest.Context()), tags: f.memory.tagsOf(digest.Context(), since), since: since,
		digest: digest.DigestStr(),
		seen:   map[string]bool{},
		blobs:  map[string][]byte{},
	}
	if s.pushed = listed; !listed {
		s.demanded, s.attested = f.demands.Demands(as.Bare().WithDigest(digest.DigestStr()))
	}
	if r, err := reference.Parse(digest.Name()); err == nil && !f.lookasides.sigstore(r) {
		s.withoutSigstore = true
		s.warn("sigstore signatures in the registry were not read: registries.d says use-sigstore-attachments: false")
	}
	s.client.hasExtension = s.abilities.announced()
	for _, source := range []func(context.Context) error{s.referrers, s.signatureTag, s.attestationTag, s.extension} {
		failed := source(ctx)
		isSecond := failed != nil && err != nil
		if err = cmp.Or(err, failed); isSecond || ctx.Err() != nil {
			break // the registry fails, not only this source
		}
	}
	if ctx.Err() == nil {
		// Lookaside storage is another server: its failures are no reason to repeat the import.
		if lerr := f.lookaside(ctx, s, digest.Context()); lerr != nil {
			s.notRead("lookaside storage: %v", lerr)
		}
		err = cmp.Or(err, s.readAttestations(ctx))
	}
	if s.client.hasExtension {
		s.abilities.announce()
	}
	switch {
	case err == nil && s.passing != nil:
		err = &PartialError{s.passing}
	case err != nil && ctx.Err() == nil && len(s.found) > 0:
		s.notRead("not all signatures were read: %v", shortened(err))
		err = &PartialError{err}
	}
	return s.found, s.annotations(), s.warnings, err
}

// PartialError says why the search is incomplete. The findings count, and another search soon may
// find more.
type PartialError struct{ Err error }

// Error is part of error.
func (e *PartialError) Error() string { return e.Err.Error() }

// Unwrap returns the failure.
func (e *PartialError) Unwrap() error { return e.Err }

// Partial returns true, for callers that do not import this package: the findings count.
func (e *PartialError) Partial() bool { return true }
