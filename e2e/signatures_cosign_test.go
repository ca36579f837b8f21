package e2e

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tidewaiter/e2e/harness"
	"tidewaiter/e2e/images"
	"tidewaiter/e2e/registry"
)

// cosign is the real signing tool, with a folder of keys that it can use without services on the internet.
type cosign struct {
	t   *testing.T
	dir string
}

func newCosign(t *testing.T) *cosign {
	c := &cosign{t: t, dir: t.TempDir()}
	c.run("signing-config", "create", "--with-default-services=false", "--out", "signing-config.json")
	c.run("trusted-root", "create", "--with-default-services=false", "--out", "trusted-root.json")
	return c
}

func (c *cosign) run(args ...string) string {
	c.t.Helper()
	return harness.MustRun(c.t, c.command(args...))
}

func (c *cosign) command(args ...string) harness.Command {
	return harness.Command{
		Path: harness.Tool(c.t, "cosign"), Args: args, Dir: c.dir,
		Env: []string{"COSIGN_PASSWORD=", "HOME=" + c.dir, "DOCKER_CONFIG=" + c.dir},
	}
}

// keyKinds make a private key of every kind that cosign signs images with.
var keyKinds = map[string]func() (crypto.PrivateKey, error){
	"p256":    func() (crypto.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) },
	"p384":    func() (crypto.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P384(), rand.Reader) },
	"p521":    func() (crypto.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P521(), rand.Reader) },
	"rsa2048": func() (crypto.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) },
	"rsa4096": func() (crypto.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 4096) },
	"ed25519": func() (crypto.PrivateKey, error) { _, k, err := ed25519.GenerateKey(rand.Reader); return k, err },
}

// key makes NAME.key and NAME.pub.
func (c *cosign) key(name, kind string) {
	c.t.Helper()
	private, err := keyKinds[kind]()
	if err != nil {
		c.t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		c.t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	if err := os.WriteFile(filepath.Join(c.dir, name+".pem"), text, 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.run("import-key-pair", "--yes", "--key", name+".pem", "--output-key-prefix", name)
}

// sign signs in one of the two formats: "legacy" is the .sig tag, "bundle" a sigstore bundle as a referrer.
func (c *cosign) sign(format, key, ref string, more ...string) {
	c.t.Helper()
	c.run(c.signArgs(format, key, ref, more...)...)
}

func (c *cosign) signArgs(format, key, ref string, more ...string) []string {
	args := []string{"sign", "--yes", "--key", key + ".key", "--allow-http-registry"}
	if format == "legacy" {
		args = append(args, "--tlog-upload=false", "--use-signing-config=false", "--new-bundle-format=false")
	} else {
		args = append(args, "--signing-config", "signing-config.json", "--trusted-root", "trusted-root.json")
	}
	return append(append(args, more...), ref)
}

// policyOf is a policy document that trusts a key for a scope.
func (c *cosign) policyOf(name, scope, key, matchPolicy string) string {
	return fmt.Sprintf(`---
apiVersion: config.openshift.io/v1
kind: ClusterImagePolicy
metadata: {name: %s}
spec:
  scopes: ["%s"]
  policy:
    rootOfTrust: {policyType: PublicKey, publicKey: {keyPath: %s}}
    signedIdentity: {matchPolicy: %s}
`, name, scope, filepath.Join(c.dir, key+".pub"), matchPolicy)
}

// verdicts are what an Image says of its signatures: "type Trusted=… ForImage=…", in order.
func verdicts(t *testing.T, s *harness.Server, digest string) []string {
	t.Helper()
	var image struct {
		Signatures []struct {
			Type       string
			Conditions []struct{ Type, Status, Reason string }
		}
	}
	if err := json.Unmarshal([]byte(s.Kubectl(t, "get", "image", digest, "-o", "json")), &image); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, signature := range image.Signatures {
		text := signature.Type
		for i, c := range signature.Conditions {
			text += fmt.Sprintf(" %s=%s", c.Type, c.Status)
			if i == 0 {
				text += "/" + c.Reason
			}
		}
		out = append(out, text)
	}
	return out
}

func expectVerdicts(t *testing.T, s *harness.Server, digest string, want ...string) {
	t.Helper()
	if got := verdicts(t, s, digest); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s has\n\t%s\nwant\n\t%s", digest, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

const (
	legacyTrusted = "SigstoreSimpleSigningV1 Trusted=True/SignatureVerified ForImage=True"
	bundleTrusted = "SigstoreBundleV03 Trusted=True/SignatureVerified ForImage=True"
)

// Every kind of key and both formats, signed by the real cosign in real registries.
func TestCosignKeys(t *testing.T) {
	for _, kind := range registry.Kinds(t) {
		t.Run(string(kind), func(t *testing.T) {
			r := registry.Start(t, kind)
			c := newCosign(t)
			var policies string
			for key := range keyKinds {
				c.key(key, key)
				policies += c.policyOf("legacy-"+key, r.Host+"/legacy/"+key, key, "MatchRepository")
				policies += c.policyOf("bundle-"+key, r.Host+"/bundle/"+key, key, "DigestOnly")
			}
			s := harness.StartServer(t, "--policy", writePolicy(t, policies))
			// An image of its own for each: the registry is one and an Image is known by its digest.
			all := images.Numbered(t, 2*len(keyKinds))
			for key := range keyKinds {
				for _, format := range []string{"legacy", "bundle"} {
					image := all[0]
					all = all[1:]
					t.Run(key+"/"+format, func(t *testing.T) {
						c := &cosign{t: t, dir: c.dir}
						digest := images.Digest(t, image).String()
						repository := r.Host + "/" + format + "/" + key
						ref := r.Push(t, format+"/"+key+":v1", image)
						if key == "ed25519" && format == "bundle" {
							// cosign 3.1.3 signs the envelope with Ed25519ph and then refuses its own signature. A later one that
							// does not ends here, and belongs below.
							if got := harness.Run(t, c.command(c.signArgs(format, key, repository+"@"+digest)...)); got.Code == 0 {
								t.Error("this cosign can sign a bundle with Ed25519: have its signature verified")
							}
							return
						}
						c.sign(format, key, repository+"@"+digest)
						s.Import(t, ref)
						want := legacyTrusted
						if format == "bundle" {
							want = bundleTrusted
						}
						expectVerdicts(t, s, digest, want)
					})
				}
			}
		})
	}
}

func writePolicy(t *testing.T, documents string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(documents), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Several signatures on one image; signatures that come after the image; an index and its platforms.
func TestCosignImages(t *testing.T) {
	r := registry.Start(t, registry.Distribution)
	c := newCosign(t)
	c.key("ours", "p256")
	c.key("theirs", "p256")
	s := harness.StartServer(t, "--policy", writePolicy(t,
		c.policyOf("ours", r.Host, "ours", "MatchRepository")+c.policyOf("tag", r.Host+"/tagged", "ours", "MatchRepoDigestOrExact")))

	t.Run("one bad among good", func(t *testing.T) {
		image := images.Numbered(t, 1)[0]
		digest := images.Digest(t, image).String()
		ref := r.Push(t, "several:v1", image)
		s.Import(t, ref)
		expectVerdicts(t, s, digest)
		c.sign("legacy", "theirs", r.Host+"/several@"+digest)
		c.sign("legacy", "ours", r.Host+"/several@"+digest)
		s.Import(t, ref) // they arrived after the image
		expectVerdicts(t, s, digest, "SigstoreSimpleSigningV1 Trusted=False/NoMatchingKey ForImage=Unknown", legacyTrusted)
	})
	t.Run("cosign's default name and a full one", func(t *testing.T) {
		image := images.Busybox(t)
		digest := images.Digest(t, image).String()
		ref := r.Push(t, "tagged:v1", image)
		c.sign("legacy", "ours", r.Host+"/tagged@"+digest)
		c.sign("legacy", "ours", r.Host+"/tagged@"+digest, "--sign-container-identity", ref)
		s.Import(t, ref)
		expectVerdicts(t, s, digest, "SigstoreSimpleSigningV1 Trusted=False/SignedIdentityMismatch ForImage=True", legacyTrusted)
	})
	t.Run("index signed, platforms not", func(t *testing.T) {
		index := images.MultiArch(t)
		digest := images.Digest(t, index).String()
		ref := r.Push(t, "index:v1", index)
		c.sign("legacy", "ours", r.Host+"/index@"+digest)
		s.Import(t, ref)
		expectVerdicts(t, s, digest, legacyTrusted)
		for _, child := range images.Children(t, index) {
			if child.Platform == nil || child.Platform.OS == "unknown" {
				continue
			}
			expectVerdicts(t, s, child.Digest.String())
		}
		// A platform's own signature counts for it.
		child := images.Children(t, index)[0].Digest.String()
		c.sign("legacy", "ours", r.Host+"/index@"+child)
		s.Import(t, ref)
		expectVerdicts(t, s, child, legacyTrusted)
		expectVerdicts(t, s, digest, legacyTrusted)
	})
	t.Run("attestations are links", func(t *testing.T) {
		image := images.HelloWorld(t)
		digest := images.Digest(t, image).String()
		ref := r.Push(t, "attested:v1", image)
		predicate := filepath.Join(c.dir, "predicate.json")
		if err := os.WriteFile(predicate, []byte(`{"built":"here"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		c.run("attest", "--yes", "--key", "ours.key", "--signing-config", "signing-config.json", "--trusted-root", "trusted-root.json",
			"--allow-http-registry", "--type", "https://example.com/built", "--predicate", predicate, r.Host+"/attested@"+digest)
		s.Import(t, ref)
		expectVerdicts(t, s, digest)
		if got := s.Kubectl(t, "get", "image", digest, "-o", `jsonpath={.metadata.annotations.tidewaiter\.dev/attestations}`); !strings.Contains(got, `"type":"https://example.com/built"`) {
			t.Errorf("attestations %s", got)
		}
	})
}
