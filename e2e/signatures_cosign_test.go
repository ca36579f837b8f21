package e2e

import (
	"cmp"
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
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
	"github.com/tidewaiter/tidewaiter/e2e/rekor"
)

// cosign is the real signing tool, with a folder of keys that it can use without services on the
// internet.
type cosign struct {
	t   *testing.T
	dir string
	log *rekor.Log // what it signs is put there; nil: into no log
}

func newCosign(t *testing.T) *cosign {
	return newCosignWithLog(t, nil)
}

func newCosignWithLog(t *testing.T, log *rekor.Log) *cosign {
	c := &cosign{t: t, dir: t.TempDir(), log: log}
	config := []string{"signing-config", "create", "--with-default-services=false", "--out", "signing-config.json"}
	root := []string{"trusted-root", "create", "--with-default-services=false", "--out", "trusted-root.json"}
	const since = ",start-time=2020-01-01T00:00:00Z"
	if log != nil {
		config = append(config, "--rekor-config=ANY", fmt.Sprintf("--rekor=url=%s,api-version=%d,operator=tests%s", log.URL, log.Version, since))
		server := "--rekor=url=" + log.URL + ",public-key=" + log.Key + since
		if log.Origin != "" {
			server += ",origin=" + log.Origin
		}
		root = append(root, server)
	}
	if log != nil && log.TSA != "" {
		config = append(config, "--tsa-config=ANY", "--tsa=url="+log.TSA+",api-version=1,operator=tests"+since)
		root = append(root, "--tsa=url="+log.TSA+",certificate-chain="+log.TSAChain)
	}
	c.run(config...)
	c.run(root...)
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

// sign signs in one of the two formats: "legacy" is the .sig tag, "bundle" a sigstore bundle as a
// referrer.
func (c *cosign) sign(format, key, ref string, more ...string) {
	c.t.Helper()
	c.run(c.signArgs(format, key, ref, more...)...)
}

func (c *cosign) signArgs(format, key, ref string, more ...string) []string {
	args := []string{"sign", "--yes", "--key", key + ".key", "--allow-http-registry"}
	switch {
	case format == "bundle":
		args = append(args, "--signing-config", "signing-config.json", "--trusted-root", "trusted-root.json")
	case c.log == nil:
		args = append(args, "--tlog-upload=false", "--use-signing-config=false", "--new-bundle-format=false")
	default:
		args = append(args, "--tlog-upload=true", "--use-signing-config=false", "--new-bundle-format=false", "--rekor-url", c.log.URL, "--trusted-root", "trusted-root.json")
	}
	return append(append(args, more...), ref)
}

// policyOf is a policy document that trusts a key for a scope, and demands an entry in the log if
// there is one.
func (c *cosign) policyOf(name, scope, key, matchPolicy string) string {
	public := filepath.Join(c.dir, key+".pub")
	trust := fmt.Sprintf("{policyType: PublicKey, publicKey: {keyPath: %s}}", public)
	switch {
	case c.log == nil:
	case c.log.Version == 1:
		trust = fmt.Sprintf("{policyType: PublicKey, publicKey: {keyPath: %s, rekorKeyPath: %s}}", public, c.log.Key)
	default:
		trust = fmt.Sprintf("{policyType: TrustedRoot, trustedRoot: {keyPath: %s, trustedRootPath: %s}}", public, filepath.Join(c.dir, "trusted-root.json"))
	}
	return fmt.Sprintf(`---
apiVersion: config.openshift.io/v1
kind: ClusterImagePolicy
metadata: {name: %s}
spec:
  scopes: ["%s"]
  policy:
    rootOfTrust: %s
    signedIdentity: {matchPolicy: %s}
`, name, scope, trust, matchPolicy)
}

// storedSignature is a signature of an Image, as the API tells it.
type storedSignature struct {
	Type               string
	Conditions         []struct{ Type, Status, Reason, Message string }
	ImageIdentity      string
	SignedClaims       map[string]string
	IssuedBy, IssuedTo *struct{ CommonName, Organization, PublicKeyID string }
	Created            string
}

func signaturesOf(t *testing.T, s *harness.Server, digest string) []storedSignature {
	t.Helper()
	var image struct{ Signatures []storedSignature }
	if err := json.Unmarshal([]byte(s.Kubectl(t, "get", "image", digest, "-o", "json")), &image); err != nil {
		t.Fatal(err)
	}
	// A server keeps them in the order of their content's hashes. Here those that are not trusted
	// come first.
	slices.SortFunc(image.Signatures, func(a, b storedSignature) int { return cmp.Compare(a.verdict(), b.verdict()) })
	return image.Signatures
}

// verdict is what an Image says of a signature: "type Trusted=…/reason ForImage=…".
func (s storedSignature) verdict() string {
	text := s.Type
	for i, c := range s.Conditions {
		text += fmt.Sprintf(" %s=%s", c.Type, c.Status)
		if i == 0 {
			text += "/" + c.Reason
		}
	}
	return text
}

// verdicts are the verdicts on the signatures of an Image, sorted.
func verdicts(t *testing.T, s *harness.Server, digest string) []string {
	t.Helper()
	var out []string
	for _, signature := range signaturesOf(t, s, digest) {
		out = append(out, signature.verdict())
	}
	return out
}

func expectVerdicts(t *testing.T, s *harness.Server, digest string, want ...string) {
	t.Helper()
	want = slices.Sorted(slices.Values(want))
	if got := verdicts(t, s, digest); !slices.Equal(got, want) {
		t.Errorf("%s has\n\t%s\nwant\n\t%s", digest, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

const (
	legacyTrusted = "SigstoreSimpleSigningV1 Trusted=True/SignatureVerified ForImage=True"
	bundleTrusted = "SigstoreBundleV03 Trusted=True/SignatureVerified ForImage=True"
)

// Every kind of key, both formats, without a log and with one, signed by the real cosign in a real
// registry; one kind of key in another.
func TestCosignKeys(t *testing.T) {
	t.Parallel()
	every := slices.Sorted(maps.Keys(keyKinds))
	for _, kind := range registry.Kinds(t) {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			keys := every
			if kind != registry.Distribution {
				// a registry takes a format or does not, whatever key made what is in it
				keys = []string{"p256"}
			}
			signWithKeys(t, registry.Start(t, kind), newCosign(t), keys, "legacy", "bundle")
		})
	}
	// A log of version 1 takes every legacy signature, and of bundles those over SHA-256; one of
	// version 2 takes bundles only.
	t.Run("log of version 1", func(t *testing.T) {
		t.Parallel()
		signWithKeys(t, registry.Start(t, registry.Distribution), newCosignWithLog(t, rekor.Start(t)), every, "legacy", "bundle")
	})
	t.Run("log of version 2", func(t *testing.T) {
		t.Parallel()
		signWithKeys(t, registry.Start(t, registry.Distribution), newCosignWithLog(t, rekor.StartV2(t)), every, "bundle")
	})
}

// signWithKeys signs an image with a key of each of the kinds, in each of the formats, and has it
// imported and verified.
func signWithKeys(t *testing.T, r *registry.Registry, c *cosign, keys []string, formats ...string) {
	var policies string
	for _, key := range keys {
		c.key(key, key)
		policies += c.policyOf("legacy-"+key, r.Host+"/legacy/"+key, key, "MatchRepository")
		policies += c.policyOf("bundle-"+key, r.Host+"/bundle/"+key, key, "DigestOnly")
	}
	s := harness.StartServer(t, "--policy", writePolicy(t, policies))
	// An image of its own for each: the registry is one and an Image is known by its digest.
	all := images.Numbered(t, len(formats)*len(keys))
	for _, key := range keys {
		for _, format := range formats {
			image := all[0]
			all = all[1:]
			t.Run(key+"/"+format, func(t *testing.T) {
				c := &cosign{t: t, dir: c.dir, log: c.log}
				digest := images.Digest(t, image).String()
				ref := r.Push(t, format+"/"+key+":v1", image)
				sign := c.command(c.signArgs(format, key, r.Host+"/"+format+"/"+key+"@"+digest)...)
				if format == "bundle" && c.log != nil && c.log.Version == 1 && !strings.HasPrefix(key, "rsa") && key != "p256" {
					// The log's client checks envelopes as if every key signed with SHA-256.
					if got := harness.Run(t, sign); got.Code == 0 {
						t.Error("this log takes such bundles: have them verified")
					}
					return
				}
				if format == "bundle" && key == "ed25519" {
					// cosign 3.1.3 signs the envelope with Ed25519ph and checks it as Ed25519.
					if got := harness.Run(t, sign); got.Code == 0 {
						t.Error("this cosign can check its own Ed25519 bundles: let it")
					}
					sign = c.unchecked(sign)
				}
				harness.MustRun(t, sign)
				s.Import(t, ref)
				want := legacyTrusted
				if format == "bundle" {
					want = bundleTrusted
				}
				expectVerdicts(t, s, digest, want)
				if index := signaturesOf(t, s, digest)[0].SignedClaims["rekor.logIndex"]; (index != "") != (c.log != nil) {
					t.Errorf("log index %q", index)
				}
			})
		}
	}
}

// unchecked has cosign not check what it signed: it has no trusted root to do it with, and finds no
// server to ask for one.
func (c *cosign) unchecked(sign harness.Command) harness.Command {
	i := slices.Index(sign.Args, "--trusted-root")
	sign.Args = slices.Delete(slices.Clone(sign.Args), i, i+2)
	// A second signature over the same bytes would not be a new one to a log of version 2.
	sign.Args = append(sign.Args, "--annotations", "attempt=2")
	sign.Env = append(sign.Env, "TUF_ROOT="+c.t.TempDir(), "TUF_MIRROR=http://127.0.0.1:1")
	return sign
}

func writePolicy(t *testing.T, documents string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(documents), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Several signatures on one image; signatures that come after the image; an index and its
// platforms.
func TestCosignImages(t *testing.T) {
	t.Parallel()
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
	t.Run("as a referrer, in the legacy format", func(t *testing.T) {
		image := images.Numbered(t, 2)[1]
		digest := images.Digest(t, image).String()
		ref := r.Push(t, "referrer:v1", image)
		sign := c.command(c.signArgs("legacy", "ours", r.Host+"/referrer@"+digest, "--registry-referrers-mode=oci-1-1")...)
		sign.Env = append(sign.Env, "COSIGN_EXPERIMENTAL=1")
		harness.MustRun(t, sign)
		s.Import(t, ref)
		expectVerdicts(t, s, digest, legacyTrusted)
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
	t.Run("attestations are kept", func(t *testing.T) {
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
		expectVerdicts(t, s, digest, "InTotoAttestationV1 Trusted=True/AttestationVerified ForImage=True")
		if got := s.Kubectl(t, "get", "images", "--field-selector", "metadata.name="+digest+",signatures.verified=Unsigned", "-o", "name"); !strings.Contains(got, digest) {
			t.Error("an image that nobody signed counts as signed")
		}
		if got := s.Kubectl(t, "get", "image", digest, "-o", `jsonpath={.metadata.annotations.tidewaiter\.dev/repositories}`); !strings.Contains(got, `"type":"https://example.com/built"`) {
			t.Errorf("attestations %s", got)
		}
	})
}

// What a log vouches for: that the signature is in it, at a time and by the key that made it.
func TestCosignLogged(t *testing.T) {
	t.Parallel()
	r := registry.Start(t, registry.Distribution)
	ours, other := newCosignWithLog(t, rekor.Start(t)), newCosignWithLog(t, rekor.Start(t))
	ours.key("ours", "p256")
	unlogged := &cosign{t: t, dir: ours.dir}
	elsewhere := &cosign{t: t, dir: other.dir, log: other.log}
	for _, suffix := range []string{".key", ".pub"} {
		b, err := os.ReadFile(filepath.Join(ours.dir, "ours"+suffix))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(other.dir, "ours"+suffix), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := harness.StartServer(t, "--policy", writePolicy(t, ours.policyOf("logged", r.Host, "ours", "MatchRepository")))
	image := images.Busybox(t)
	digest := images.Digest(t, image).String()
	ref := r.Push(t, "app:v1", image)
	for _, c := range []*cosign{unlogged, elsewhere, ours} {
		c.sign("legacy", "ours", r.Host+"/app@"+digest)
	}
	s.Import(t, ref)
	expectVerdicts(t, s, digest,
		"SigstoreSimpleSigningV1 Trusted=False/TransparencyLogEntryMissing ForImage=True",
		"SigstoreSimpleSigningV1 Trusted=False/TransparencyLogEntryInvalid ForImage=True",
		legacyTrusted)

	got := signaturesOf(t, s, digest)[2]
	if got.ImageIdentity != r.Host+"/app" {
		t.Errorf("imageIdentity %q", got.ImageIdentity)
	}
	for claim, want := range map[string]string{
		"critical.type":                         "cosign container image signature",
		"critical.image.docker-manifest-digest": digest,
		"critical.identity.docker-reference":    r.Host + "/app",
		"rekor.logIndex":                        "0",
		"rekor.integratedTime":                  got.Created,
	} {
		if got.SignedClaims[claim] != want {
			t.Errorf("claim %s is %q, want %q", claim, got.SignedClaims[claim], want)
		}
	}
	if got.Created == "" || got.IssuedBy == nil || got.IssuedTo == nil || !strings.HasPrefix(got.IssuedTo.PublicKeyID, "sha256:") {
		t.Errorf("created %q, issued by %v to %v", got.Created, got.IssuedBy, got.IssuedTo)
	}
	wantContains(t, "the message", got.Conditions[0].Message, `policy "logged" for `+r.Host+`/app: signed by key sha256:`, "log index 0, at "+got.Created)
}
