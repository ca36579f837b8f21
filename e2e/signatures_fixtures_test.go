package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// Signatures that containers/image carries for its own tests, made by others: posted with their
// image, and judged by the server. They are read from the Go module cache; none is in this
// repository.
func TestThirdPartySignatures(t *testing.T) {
	t.Parallel()
	var module struct{ Dir, Error string }
	out, err := exec.Command("go", "mod", "download", "-json", "go.podman.io/image/v5@v5.42.0").Output()
	if json.Unmarshal(out, &module) != nil || module.Dir == "" {
		t.Fatalf("go mod download: %v: %s %s", err, module.Error, out)
	}
	path := func(name string) string { return filepath.Join(module.Dir, "signature", name) }
	read := func(name string) []byte {
		t.Helper()
		b, err := os.ReadFile(path(name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	const rekor = "internal/testdata/rekor.pub"
	key := func(name string) string {
		return fmt.Sprintf("{policyType: PublicKey, publicKey: {keyPath: %s}}", path("fixtures/"+name))
	}
	keyAndRekor := fmt.Sprintf("{policyType: PublicKey, publicKey: {keyPath: %s, rekorKeyPath: %s}}", path("fixtures/cosign2.pub"), path(rekor))
	fulcio := func(mail string) string {
		return fmt.Sprintf("{policyType: FulcioCAWithRekor, fulcioCAWithRekor: {fulcioCAPath: %s, rekorKeyPath: %s, fulcioSubject: {oidcIssuer: 'https://github.com/login/oauth', signedEmail: %s}}}",
			path("fixtures/fulcio_v1.crt.pem"), path(rekor), mail)
	}
	pki := func(subject string) string {
		return fmt.Sprintf("{policyType: PKI, pki: {caRootsPath: %s, caIntermediatesPath: %s, pkiCertificateSubject: {%s}}}",
			path("fixtures/pki_root_crts.pem"), path("fixtures/pki_intermediate_crts.pem"), subject)
	}
	gpg := func(name string) string {
		return fmt.Sprintf("{policyType: GPGKeys, gpgKeys: {keyPath: %s}}", path("fixtures/"+name))
	}
	const (
		anyName, repository = "DigestOnly", "MatchRepository"
		single              = "192.168.64.2:5000/cosign-signed-single-sample"
		atomic              = "fixtures/image.manifest.json"
		cosign              = "fixtures/dir-img-cosign-"
		trusted             = "Trusted=True/SignatureVerified ForImage=True"
	)
	for _, tc := range []struct{ name, trust, match, reference, manifest, signature, want string }{
		{"valid", key("cosign.pub"), repository, single, cosign + "valid/manifest.json", cosign + "valid/signature-1", trusted},
		{"valid by tag", key("cosign.pub"), "MatchRepoDigestOrExact", "192.168.64.2:5000/skopeo-signed", cosign + "valid-with-tag/manifest.json", cosign + "valid-with-tag/signature-1", trusted},
		{"another key", key("cosign2.pub"), repository, single, cosign + "valid/manifest.json", cosign + "valid/signature-1", "Trusted=False/NoMatchingKey ForImage=Unknown"},
		{"modified manifest", key("cosign.pub"), repository, single, cosign + "modified-manifest/manifest.json", cosign + "valid/signature-1", "Trusted=False/DigestMismatch ForImage=False"},
		{"key and Rekor", keyAndRekor, repository, "192.168.64.2:5000/cosign-signed/key-1", cosign + "key-rekor-valid/manifest.json", cosign + "key-rekor-valid/signature-1", trusted},
		{"Fulcio and Rekor", fulcio("mitr@redhat.com"), repository, "192.168.64.2:5000/cosign-signed/fulcio-rekor-1", cosign + "fulcio-rekor-valid/manifest.json", cosign + "fulcio-rekor-valid/signature-1", trusted},
		{"Fulcio, somebody else", fulcio("other@example.com"), repository, "192.168.64.2:5000/cosign-signed/fulcio-rekor-1", cosign + "fulcio-rekor-valid/manifest.json", cosign + "fulcio-rekor-valid/signature-1", "Trusted=False/SubjectMismatch ForImage=True"},
		{"PKI", pki("email: qiwan@redhat.com, hostname: myhost.example.com"), anyName, "192.168.64.2:5000/x", cosign + "pki-valid/manifest.json", cosign + "pki-valid/signature-1", trusted},
		{"PKI, somebody else", pki("email: other@example.com"), anyName, "192.168.64.2:5000/x", cosign + "pki-valid/manifest.json", cosign + "pki-valid/signature-1", "Trusted=False/SubjectMismatch ForImage=True"},
		{"another payload", key("cosign.pub"), repository, single, cosign + "valid/manifest.json", cosign + "other-attachment/signature-1", "Trusted=Unknown/UnsupportedFormat ForImage=Unknown"},
		{"GPG valid", gpg("public-key.gpg"), repository, "docker.io/testing/manifest", atomic, "fixtures/image.signature", trusted},
		{"GPG without optional fields", gpg("public-key.gpg"), repository, "docker.io/testing/manifest", atomic, "fixtures/no-optional-fields.signature", trusted},
		{"GPG corrupt", gpg("public-key.gpg"), repository, "docker.io/testing/manifest", atomic, "fixtures/corrupt.signature", "Trusted=False/InvalidSignature ForImage=Unknown"},
		{"GPG expired", gpg("public-key.gpg"), repository, "docker.io/testing/manifest", atomic, "fixtures/expired.signature", "Trusted=False/KeyExpired ForImage=Unknown Expired=True"},
		{"GPG unknown key", gpg("public-key.gpg"), repository, "docker.io/testing/manifest", atomic, "fixtures/unknown-key.signature", "Trusted=False/NoMatchingKey ForImage=Unknown"},
		{"GPG invalid blob", gpg("public-key.gpg"), repository, "docker.io/testing/manifest", atomic, "fixtures/invalid-blob.signature", "Trusted=False/InvalidSignature ForImage=Unknown"},
		{"GPG invalid reference", gpg("public-key.gpg"), repository, "docker.io/testing/manifest", atomic, "fixtures/invalid-reference.signature", "Trusted=False/SignedIdentityMismatch ForImage=True"},
		{"GPG encrypted", gpg("public-key.gpg"), repository, "docker.io/testing/manifest", atomic, "fixtures/unsigned-encrypted.signature", "Trusted=False/InvalidSignature ForImage=Unknown"},
		{"GPG unsigned", gpg("public-key.gpg"), repository, "docker.io/testing/manifest", atomic, "fixtures/unsigned-literal.signature", "Trusted=False/InvalidSignature ForImage=Unknown"},
		{"GPG subkey", gpg("public-key-with-subkey.gpg"), repository, "docker.io/testing/manifest", atomic, "fixtures/subkey.signature", trusted},
		{"GPG revoked subkey", gpg("public-key-with-revoked-subkey.gpg"), repository, "docker.io/testing/manifest", atomic, "fixtures/subkey-revoked.signature", "Trusted=False/KeyRevoked ForImage=True Revoked=True"},
		{"GPG version 3", gpg("public-key-with-subkey.gpg"), repository, "docker.io/testing/manifest", atomic, "fixtures/subkey.signature-v3", trusted},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := harness.StartServer(t, "--policy", writePolicy(t, fmt.Sprintf(`
apiVersion: config.openshift.io/v1
kind: ClusterImagePolicy
metadata: {name: third-party}
spec:
  scopes: ["192.168.64.2:5000", docker.io]
  policy: {rootOfTrust: %s, signedIdentity: {matchPolicy: %s}}
`, tc.trust, tc.match)))
			manifest := read(tc.manifest)
			sum := sha256.Sum256(manifest)
			digest := "sha256:" + hex.EncodeToString(sum[:])
			image, err := json.Marshal(map[string]any{
				"apiVersion": "image.openshift.io/v1", "kind": "Image", "metadata": map[string]any{"name": digest},
				"dockerImageReference": tc.reference + "@" + digest, "dockerImageManifest": string(manifest),
				"signatures": []any{map[string]any{"metadata": map[string]any{"name": digest + "@third-party"}, "type": "AtomicImageV1", "content": read(tc.signature)}},
			})
			if err != nil {
				t.Fatal(err)
			}
			s.KubectlStdin(t, string(image), "create", "--validate=false", "-f", "-")
			got := strings.TrimPrefix(strings.Join(verdicts(t, s, digest), "\n"), "AtomicImageV1 ")
			if got != tc.want {
				t.Errorf("%s\nwant %s", got, tc.want)
			}
		})
	}
}
