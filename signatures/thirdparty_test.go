package signatures_test

import (
	"testing"

	"github.com/sigstore/sigstore-go/pkg/testing/data"

	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// Bundles and trusted roots of real deployments, from sigstore-go's test data.
func TestThirdPartyBundles(t *testing.T) {
	trust := func(root string) string {
		b, err := data.TrustedRoot(t, root).MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		return "{policyType: TrustedRoot, trustedRoot: {trustedRootData: " + signaturestest.B64(b) +
			", fulcioSubject: {oidcIssuer: 'https://token.actions.githubusercontent.com', signedURI: 'https://github.com/sigstore/x'}}}"
	}
	for _, tc := range []struct {
		name, bundle, root, digest string
		want                       string
	}{
		// The log entry, the SCT and the certificate are valid, but the certificate has a kind of name
		// that no policy can demand.
		{"a certificate with another kind of name", "othername.sigstore.json", "scaffolding.json", "sha256:bc103b4a84971ef6459b294a2b98568a2bfb72cded09d4acd1e16366a401f95b", "False SubjectMismatch / True"},
		{"for another image", "othername.sigstore.json", "scaffolding.json", digest, "False SubjectMismatch / False"},
		{"another deployment", "othername.sigstore.json", "public-good.json", digest, "False NoMatchingKey / Unknown"},
		{"provenance of the public sigstore", "sigstore.js@2.0.0-provenance.sigstore.json", "public-good.json", digest, "Unknown UnsupportedFormat / Unknown"},
		{"two signatures", "dsse-2sigs.sigstore.json", "public-good.json", digest, "False InvalidSignature / Unknown"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			content, err := data.Bundle(t, tc.bundle).MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			v := signatures.Verify(signatures.Signature{Type: signatures.TypeBundle, Content: content},
				signatures.Image{Digest: tc.digest, Reference: repository + "@" + tc.digest}, signaturestest.Set(t, trust(tc.root), digestOnly), now)
			wellFormed(t, v)
			want(t, v, tc.want)
		})
	}
}
