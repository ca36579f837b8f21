package policy_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// A policy that is accepted can be used: it has a name, scopes and one root of trust. Every refusal
// names the place of the fault.
func FuzzParse(f *testing.F) {
	key := signaturestest.NewKey(f, signaturestest.P256)
	d := signaturestest.NewDeployment(f)
	for _, trust := range []string{
		signaturestest.TrustKey(key, d.RekorKey(f)), d.TrustFulcio(f, "signedURI: https://x"),
		"{policyType: PKI, pki: {caRootsData: " + signaturestest.B64(signaturestest.CertPEM(f, d.Root)) + ", pkiCertificateSubject: {email: a@b}}}",
		signaturestest.TrustGPG(signaturestest.NewGPG(f, "x", d.Root.NotBefore, 0).Public(f)),
	} {
		f.Add([]byte(signaturestest.Document("x", `["*.example.com", localhost:5000/a]`, trust, "{matchPolicy: RemapIdentity, remapIdentity: {prefix: a.b, signedPrefix: c.d}}")))
	}
	f.Add([]byte("a: &a [*a, *a]\n---\n? [x]\n: y\n--- !!binary aGk=\n...\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		policies, err := policy.Parse(data, "")
		if err != nil && !strings.Contains(err.Error(), "document ") {
			t.Fatalf("no place in %v", err)
		}
		for _, p := range policies {
			if p.Name == "" || len(p.Scopes) == 0 || (p.Sigstore == nil) == (p.GPG == nil) || p.Hash() == "" {
				t.Fatalf("%+v", p)
			}
		}
		// The hash depends on the meaning: the same bytes, read again, have the same hash.
		again, _ := policy.Parse(data, "")
		if !slices.EqualFunc(policies, again, func(a, b *policy.Policy) bool { return a.Hash() == b.Hash() }) {
			t.Fatal("another hash for the same document")
		}
	})
}

// A reference's scopes begin with itself, and its repository is among them.
func FuzzScopes(f *testing.F) {
	for _, s := range []string{"busybox", "index.docker.io/library/x:1", "a.b:5000/c/d@sha256:" + hex64, "localhost/x", "[::1]:5000/x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := reference.Parse(s)
		if err != nil {
			return
		}
		if scopes := policy.Scopes(r); scopes[0] != r.String() || !slices.Contains(scopes, r.Name()) || !slices.Contains(scopes, r.Host) {
			t.Fatalf("%q: %q", s, scopes)
		}
	})
}
