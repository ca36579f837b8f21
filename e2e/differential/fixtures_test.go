//go:build containers_image_openpgp

package differential

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.podman.io/image/v5/signature"
)

// carried is what containers/image carries for its own tests. It is read from the Go module cache.
type carried struct {
	read       func(name string) []byte
	roots      map[string]root
	rules      map[string]rule
	signatures []struct{ signature, manifest, repository string }
}

func fixtures(t *testing.T) carried {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "go.podman.io/image/v5").Output()
	if err != nil {
		t.Fatal(err)
	}
	path := func(name string) string { return filepath.Join(strings.TrimSpace(string(out)), "signature", name) }
	c := carried{roots: map[string]root{}, rules: rules(t), read: func(name string) []byte {
		b, err := os.ReadFile(path(name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}}
	const rekor = "internal/testdata/rekor.pub"
	sigstore := func(m signature.PolicyReferenceMatch, options ...signature.PRSigstoreSignedOption) (signature.PolicyRequirement, error) {
		return signature.NewPRSigstoreSigned(append(options, signature.PRSigstoreSignedWithSignedIdentity(m))...)
	}
	for _, name := range []string{"public-key.gpg", "public-key-1.gpg", "public-key-2.gpg", "public-key-with-subkey.gpg", "public-key-with-revoked-subkey.gpg"} {
		file := path("fixtures/" + name)
		c.roots[name] = root{
			ours: fmt.Sprintf("{policyType: GPGKeys, gpgKeys: {keyPath: %s}}", file),
			theirs: func(m signature.PolicyReferenceMatch) (signature.PolicyRequirement, error) {
				return signature.NewPRSignedByKeyPath(signature.SBKeyTypeGPGKeys, file, m)
			},
		}
	}
	for _, name := range []string{"cosign.pub", "cosign2.pub"} {
		file := path("fixtures/" + name)
		c.roots[name] = root{
			ours: fmt.Sprintf("{policyType: PublicKey, publicKey: {keyPath: %s}}", file),
			theirs: func(m signature.PolicyReferenceMatch) (signature.PolicyRequirement, error) {
				return sigstore(m, signature.PRSigstoreSignedWithKeyPath(file))
			},
		}
		c.roots[name+" and Rekor"] = root{
			ours: fmt.Sprintf("{policyType: PublicKey, publicKey: {keyPath: %s, rekorKeyPath: %s}}", file, path(rekor)),
			theirs: func(m signature.PolicyReferenceMatch) (signature.PolicyRequirement, error) {
				return sigstore(m, signature.PRSigstoreSignedWithKeyPath(file), signature.PRSigstoreSignedWithRekorPublicKeyPath(path(rekor)))
			},
		}
	}
	for _, mail := range []string{"mitr@redhat.com", "other@example.com"} {
		const issuer = "https://github.com/login/oauth"
		c.roots["Fulcio "+mail] = root{
			ours: fmt.Sprintf("{policyType: FulcioCAWithRekor, fulcioCAWithRekor: {fulcioCAPath: %s, rekorKeyPath: %s, fulcioSubject: {oidcIssuer: %q, signedEmail: %s}}}",
				path("fixtures/fulcio_v1.crt.pem"), path(rekor), issuer, mail),
			theirs: func(m signature.PolicyReferenceMatch) (signature.PolicyRequirement, error) {
				fulcio, err := signature.NewPRSigstoreSignedFulcio(signature.PRSigstoreSignedFulcioWithCAPath(path("fixtures/fulcio_v1.crt.pem")),
					signature.PRSigstoreSignedFulcioWithOIDCIssuer(issuer), signature.PRSigstoreSignedFulcioWithSubjectEmail(mail))
				if err != nil {
					return nil, err
				}
				return sigstore(m, signature.PRSigstoreSignedWithFulcio(fulcio), signature.PRSigstoreSignedWithRekorPublicKeyPath(path(rekor)))
			},
		}
	}
	for _, mail := range []string{"qiwan@redhat.com", "other@example.com"} {
		c.roots["PKI "+mail] = root{
			ours: fmt.Sprintf("{policyType: PKI, pki: {caRootsPath: %s, caIntermediatesPath: %s, pkiCertificateSubject: {email: %s, hostname: myhost.example.com}}}",
				path("fixtures/pki_root_crts.pem"), path("fixtures/pki_intermediate_crts.pem"), mail),
			theirs: func(m signature.PolicyReferenceMatch) (signature.PolicyRequirement, error) {
				pki, err := signature.NewPRSigstoreSignedPKI(signature.PRSigstoreSignedPKIWithCARootsPath(path("fixtures/pki_root_crts.pem")),
					signature.PRSigstoreSignedPKIWithCAIntermediatesPath(path("fixtures/pki_intermediate_crts.pem")),
					signature.PRSigstoreSignedPKIWithSubjectEmail(mail), signature.PRSigstoreSignedPKIWithSubjectHostname("myhost.example.com"))
				if err != nil {
					return nil, err
				}
				return sigstore(m, signature.PRSigstoreSignedWithPKI(pki))
			},
		}
	}
	add := func(signature, manifest, repository string) {
		c.signatures = append(c.signatures, struct{ signature, manifest, repository string }{"fixtures/" + signature, "fixtures/" + manifest, repository})
	}
	entries, err := os.ReadDir(path("fixtures"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); ext == ".signature" || ext == ".signature-v3" {
			add(e.Name(), "image.manifest.json", "docker.io/testing/manifest")
		}
	}
	for dir, repository := range map[string]string{
		"dir-img-cosign-valid": "192.168.64.2:5000/cosign-signed-single-sample", "dir-img-cosign-valid-2": "192.168.64.2:5000/cosign-signed-single-sample",
		"dir-img-cosign-valid-with-tag": "192.168.64.2:5000/skopeo-signed", "dir-img-cosign-key-rekor-valid": "192.168.64.2:5000/cosign-signed/key-1",
		"dir-img-cosign-fulcio-rekor-valid": "192.168.64.2:5000/cosign-signed/fulcio-rekor-1", "dir-img-cosign-pki-valid": "192.168.64.2:5000/cosign-signed/pki",
		"dir-img-cosign-other-attachment": "192.168.64.2:5000/cosign-signed-single-sample",
	} {
		for _, manifest := range []string{dir, "dir-img-cosign-valid", "dir-img-cosign-modified-manifest"} {
			if _, err := os.Stat(path("fixtures/" + manifest + "/manifest.json")); err != nil {
				continue // a link to another's, which modules do not hold
			}
			files, err := filepath.Glob(path("fixtures/" + dir + "/signature-*"))
			if err != nil || len(files) == 0 {
				t.Fatalf("%s has no signatures: %v", dir, err)
			}
			for _, file := range files {
				add(dir+"/"+filepath.Base(file), manifest+"/manifest.json", repository)
			}
		}
	}
	return c
}
