package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// pushLayer pushes what cosign keeps under a tag that it derives from a digest.
func pushLayer(t *testing.T, registry *registrytest.Registry, repository, digest, suffix string, b *payload.Blob) {
	t.Helper()
	image, err := mutate.Append(mutate.MediaType(empty.Image, types.OCIManifestSchema1), mutate.Addendum{
		Layer: static.NewLayer(b.Payload, types.MediaType(b.MediaType)), Annotations: b.Annotations, MediaType: types.MediaType(b.MediaType),
	})
	if err != nil {
		t.Fatal(err)
	}
	registry.Push(repository+":"+strings.Replace(digest, ":", "-", 1)+suffix, image)
}

// Signatures that cosign writes with COSIGN_REPOSITORY are found if the configuration names that
// repository, and count for the image's own name.
func TestSignaturesInAnotherRepository(t *testing.T) {
	oneCaller(t)
	t.Setenv("HOME", t.TempDir()) // no credentials, no lookaside storage
	const cosignSign, bundle = "https://sigstore.dev/cosign/sign/v1", "application/vnd.dev.sigstore.bundle.v0.3+json"
	key := signaturestest.NewKey(t, signaturestest.P256)
	for _, tc := range []struct {
		name     string
		push     func(images, kept *registrytest.Registry, digest string)
		without  bool // the configuration does not name the repository
		identity string
		demands  string
		want     []string
	}{
		{"a tag", func(images, kept *registrytest.Registry, digest string) {
			pushLayer(t, kept, "signatures", digest, ".sig", key.SimpleSigning(t, digest, images.Host+"/team/app"))
		}, false, "MatchRepository", "", []string{"verified: True", "SignatureVerified"}},
		{"a tag that nothing names", func(images, kept *registrytest.Registry, digest string) {
			pushLayer(t, kept, "signatures", digest, ".sig", key.SimpleSigning(t, digest, images.Host+"/team/app"))
		}, true, "MatchRepository", "", []string{"verified: Unsigned"}},
		{"for the name of the other repository", func(images, kept *registrytest.Registry, digest string) {
			pushLayer(t, kept, "signatures", digest, ".sig", key.SimpleSigning(t, digest, kept.Host+"/signatures"))
		}, false, "MatchRepository", "", []string{"verified: False", "SignedIdentityMismatch"}},
		{"a bundle", func(_, kept *registrytest.Registry, digest string) {
			attachSBOM(t, kept, "signatures", digest, bundle, string(signaturestest.Marshal(t, key.Bundle(t, signaturestest.Statement(digest, cosignSign)))))
		}, false, "DigestOnly", "", []string{"verified: True", "SignatureVerified"}},
		{"an attestation", func(_, kept *registrytest.Registry, digest string) {
			attachSBOM(t, kept, "signatures", digest, bundle, string(signaturestest.Marshal(t, key.Bundle(t, signaturestest.Statement(digest, "https://slsa.dev/provenance/v1")))))
		}, false, "DigestOnly", "    attestations: [{name: built, predicateType: slsaprovenance1}]\n", []string{"verified: True", "AttestationVerified"}},
		{"beside one by somebody else", func(images, kept *registrytest.Registry, digest string) {
			pushLayer(t, images, "team/app", digest, ".sig", signaturestest.NewKey(t, signaturestest.P256).SimpleSigning(t, digest, images.Host+"/team/app"))
			pushLayer(t, kept, "signatures", digest, ".sig", key.SimpleSigning(t, digest, images.Host+"/team/app"))
		}, false, "MatchRepository", "", []string{"verified: True", "NoMatchingKey"}},
		{"nothing", func(_, _ *registrytest.Registry, _ string) {}, false, "MatchRepository", "", []string{"verified: Unsigned"}},
		{"what cannot be read", func(_, kept *registrytest.Registry, _ string) {
			kept.Inject("/v2/signatures/", 0, registrytest.Status(403, "DENIED"))
		}, false, "MatchRepository", "", []string{"verified: Unknown", "/signatures: page 1"}},
		{"what cannot be read is not needed", func(images, kept *registrytest.Registry, digest string) {
			kept.Inject("/v2/signatures/", 0, registrytest.Status(403, "DENIED"))
			pushLayer(t, images, "team/app", digest, ".sig", key.SimpleSigning(t, digest, images.Host+"/team/app"))
		}, false, "MatchRepository", "", []string{"verified: True"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			images, kept := registrytest.New(t), registrytest.New(t)
			digest := pushed(t, images, "team/app:v1", `{"os":"linux","architecture":"arm64"}`, nil)
			tc.push(images, kept, digest)
			args := []string{"verify", "--policy", filepath.Join(t.TempDir(), "policy.yaml"), images.Host + "/team/app:v1"}
			document := signaturestest.Document("demo", `["`+images.Host+`"]`, signaturestest.TrustKey(key, nil), "{matchPolicy: "+tc.identity+"}") + tc.demands
			if err := os.WriteFile(args[2], []byte(document), 0o600); err != nil {
				t.Fatal(err)
			}
			if !tc.without {
				args = append(args, "--config", servertest.WriteConfig(t, fmt.Sprintf("registries:\n- {prefix: %q, signatures: %q}\n", images.Host+"/team", kept.Host+"/signatures")))
			}
			_, stdout, stderr := tidewaiter(t, args...)
			for _, want := range tc.want {
				if !strings.Contains(stdout+stderr, want) {
					t.Errorf("no %q in\n%s%s", want, stdout, stderr)
				}
			}
		})
	}
}

// SBOMs that are kept in another repository are read from there, as packages of the image in its
// own.
func TestSBOMInAnotherRepository(t *testing.T) {
	t.Parallel()
	l := newLooking(t)
	attachSBOM(t, l.b, "signatures", l.digests["new"], "application/vnd.cyclonedx+json", sbomOf("openssl@3.0.11-1"))
	l.run("import", "--config", servertest.WriteConfig(t, fmt.Sprintf("registries:\n- {prefix: %q, signatures: %q}\n", l.a.Host, l.b.Host+"/signatures")), l.a.Host+"/team/app:v1")
	list, err := l.images.List(t.Context(), metav1.ListOptions{FieldSelector: "package=openssl,references=" + l.a.Host + "/team/app:v1"})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != l.digests["new"] {
		t.Fatalf("%+v, %v", list, err)
	}
	if i := slices.IndexFunc(l.b.Requests(), func(r registrytest.Request) bool { return strings.Contains(r.Path, "/v2/signatures/blobs/") }); i < 0 {
		t.Error("the document was not read from the other repository")
	}
}
