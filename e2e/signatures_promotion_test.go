package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// keysPolicy is a policy as an object: it trusts any of several keys, whose files are in c's
// folder.
func (c *cosign) keysPolicy(policy, scope string, keys ...string) string {
	c.t.Helper()
	var all []string
	for _, key := range keys {
		public, err := os.ReadFile(filepath.Join(c.dir, key+".pub"))
		must(c.t, err)
		data, err := json.Marshal(public)
		must(c.t, err)
		all = append(all, string(data))
	}
	return fmt.Sprintf(`---
apiVersion: config.openshift.io/v1
kind: ClusterImagePolicy
metadata: {name: %s}
spec:
  scopes: [%q]
  policy:
    rootOfTrust: {policyType: PublicKey, publicKey: {keyDatas: [%s]}}
    signedIdentity: {matchPolicy: DigestOnly}
`, policy, scope, strings.Join(all, ", "))
}

// awaitVerdict waits until an image is selected by a verdict in a repository.
func awaitVerdict(t *testing.T, s *harness.Server, digest, verdict, repository string) {
	t.Helper()
	harness.Eventually(t, func() error {
		if got := s.Kubectl(t, "get", "images", "--field-selector", "verdicts="+verdict+"@"+repository, "-o", "name"); strings.Contains(got, digest) {
			return nil
		}
		return errors.New(s.Kubectl(t, "get", "image", digest, "-o", `jsonpath={.metadata.annotations.tidewaiter\.dev/verdicts}`))
	})
}

// An image is promoted from a repository of developers to one for production, each with a key of
// its own: as it is, by cosign copy with its signatures, and then signed anew. Each repository has
// its own verdict all the time. The policies are applied with kubectl, and verdicts follow when
// they come, change and go.
func TestPromotion(t *testing.T) {
	t.Parallel()
	r := registry.Start(t, registry.Distribution)
	s := harness.StartServer(t)
	c := newCosign(t)
	c.key("dev", "p256")
	c.key("prod", "p256")
	dev, prod := r.Host+"/dev/app", r.Host+"/prod/app"
	apply := func(document string, args ...string) string {
		t.Helper()
		return s.KubectlStdin(t, document, append([]string{"apply", "-f", "-"}, args...)...)
	}
	if got := apply(c.keysPolicy("dev", r.Host+"/dev", "dev") + c.keysPolicy("prod", r.Host+"/prod", "prod")); strings.Count(got, "created") != 2 {
		t.Error(got)
	}
	s.Kubectl(t, "wait", "clusterimagepolicies/dev", "clusterimagepolicies/prod", "--for=condition=Applied", "--timeout=60s")
	for i, format := range []string{"legacy", "bundle"} {
		image := images.Numbered(t, 4)[2*i]
		digest := images.Digest(t, image).String()
		tag := ":" + format
		r.Push(t, "dev/app"+tag, image)
		c.sign(format, "dev", dev+"@"+digest)
		r.Push(t, "prod/app"+tag, image) // without its signature
		s.Import(t, dev+tag)
		s.Import(t, prod+tag)
		awaitVerdict(t, s, digest, "True", dev)
		awaitVerdict(t, s, digest, "Unsigned", prod)
		if format == "legacy" { // of bundles cosign 3.1 copies none
			c.run("copy", "--allow-http-registry", "--force", dev+"@"+digest, prod+tag)
			s.Import(t, prod+tag)
			awaitVerdict(t, s, digest, "False", prod)
		}
		c.sign(format, "prod", prod+"@"+digest)
		s.Import(t, prod+tag)
		awaitVerdict(t, s, digest, "True", prod)
		awaitVerdict(t, s, digest, "True", dev)
		if verified := s.Kubectl(t, "get", "images", "--field-selector", "signatures.verified=True", "-o", "name"); !strings.Contains(verified, digest) {
			t.Errorf("%s is not among %s", digest, verified)
		}
	}
	digest := images.Digest(t, images.Numbered(t, 4)[0]).String()

	// Who may promote changes, and the other repository does not care.
	apply(c.keysPolicy("prod", r.Host+"/prod", "dev"))
	apply(c.keysPolicy("dev", r.Host+"/dev", "prod"))
	awaitVerdict(t, s, digest, "False", dev)
	awaitVerdict(t, s, digest, "True", prod) // by what cosign copied
	covers := func(name string) string {
		t.Helper()
		return s.Kubectl(t, "get", "clusterimagepolicy", name, "-o", `jsonpath={.status.conditions[?(@.type=="CoversImages")].message}`)
	}
	harness.Eventually(t, func() error {
		// The bundle was not copied, so one has no signature that counts.
		if got := covers("prod"); !strings.HasPrefix(got, "2 images in 1 repository; 1 does not meet it, as of 20") {
			return errors.New(got)
		}
		return nil
	})
	s.Kubectl(t, "delete", "clusterimagepolicy", "dev", "prod")
	awaitVerdict(t, s, digest, "NoPolicy", dev)
	awaitVerdict(t, s, digest, "NoPolicy", prod)

	broken := strings.Replace(c.keysPolicy("prod", r.Host+"/prod", "dev"), "keyDatas: [", "keyDatas: [anVuaw==, ", 1)
	command := s.KubectlCommand(t, "apply", "-f", "-")
	command.Stdin = broken
	if got := harness.Run(t, command); got.Code == 0 || !strings.Contains(got.Stderr, "spec.policy.rootOfTrust.publicKey.keyDatas[0]") {
		t.Errorf("exit %d: %s", got.Code, got.Stderr)
	}
}

// A key is replaced: both count while images are signed anew, and the old one no longer when they
// are.
func TestKeyRotation(t *testing.T) {
	t.Parallel()
	r := registry.Start(t, registry.Distribution)
	s := harness.StartServer(t)
	c := newCosign(t)
	c.key("old", "p256")
	c.key("new", "p384")
	repository := r.Host + "/team/app"
	all := images.Numbered(t, 2)
	first, second := images.Digest(t, all[0]).String(), images.Digest(t, all[1]).String()
	for i, image := range all {
		r.Push(t, fmt.Sprintf("team/app:v%d", i+1), image)
	}
	put := func(keys ...string) {
		t.Helper()
		s.KubectlStdin(t, c.keysPolicy("team", repository, keys...), "apply", "--server-side", "-f", "-")
	}
	put("old")
	c.sign("bundle", "old", repository+"@"+first)
	c.sign("bundle", "new", repository+"@"+second)
	s.Import(t, repository+":v1", repository+":v2")
	awaitVerdict(t, s, first, "True", repository)
	awaitVerdict(t, s, second, "False", repository)
	put("old", "new")
	awaitVerdict(t, s, first, "True", repository)
	awaitVerdict(t, s, second, "True", repository)
	put("new")
	awaitVerdict(t, s, first, "False", repository)
	awaitVerdict(t, s, second, "True", repository)
	c.sign("bundle", "new", repository+"@"+first)
	s.Import(t, repository+":v1")
	awaitVerdict(t, s, first, "True", repository)
}

// A signature that is deleted at the registry goes when the image is searched again.
func TestSignatureDeletion(t *testing.T) {
	t.Parallel()
	r := registry.Start(t, registry.Distribution)
	s := harness.StartServer(t)
	c := newCosign(t)
	c.key("ours", "p256")
	s.KubectlStdin(t, c.keysPolicy("ours", r.Host, "ours"), "apply", "-f", "-")
	all := images.Numbered(t, 2)
	for i, format := range []string{"legacy", "bundle"} {
		digest := images.Digest(t, all[i])
		repository := r.Host + "/" + format
		ref := r.Push(t, format+":v1", all[i])
		c.sign(format, "ours", repository+"@"+digest.String())
		s.Import(t, ref)
		awaitVerdict(t, s, digest.String(), "True", repository)
		deleteSignatures(t, repository, digest, map[string]string{"legacy": ".sig", "bundle": ""}[format])
		s.Import(t, ref)
		awaitVerdict(t, s, digest.String(), "Unsigned", repository)
	}
}

// deleteSignatures deletes the manifest of the tag under which cosign, or who keeps referrers
// without an API for them, puts what belongs to a digest.
func deleteSignatures(t *testing.T, repository string, digest v1.Hash, suffix string) {
	t.Helper()
	tag, err := name.NewTag(fmt.Sprintf("%s:%s-%s%s", repository, digest.Algorithm, digest.Hex, suffix), name.Insecure)
	must(t, err)
	found, err := remote.Head(tag, remote.WithContext(t.Context()))
	must(t, err)
	must(t, remote.Delete(tag.Context().Digest(found.Digest.String()), remote.WithContext(t.Context())))
}

// An OpenPGP key expires while the server runs: what it signed is no longer trusted from then on,
// without anybody asking.
func TestSignatureExpiry(t *testing.T) {
	t.Parallel()
	g := newGPG(t)
	r := registry.Start(t, registry.Distribution)
	lookaside, config := t.TempDir(), t.TempDir()
	files := httptest.NewServer(http.FileServer(http.Dir(lookaside)))
	defer files.Close()
	must(t, os.WriteFile(filepath.Join(config, "default.yaml"), fmt.Appendf(nil, "docker:\n  %s:\n    lookaside: %s\n", r.Host, files.URL), 0o600))
	file := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(file, fmt.Appendf(nil, "registriesDir: %s\nallowedNetworks: [127.0.0.0/8]\n", config), 0o600))
	s := harness.StartServer(t)
	image := images.Numbered(t, 1)[0]
	digest := images.Digest(t, image)
	ref := r.Push(t, "team/app:v1", image)

	g.run("--quick-generate-key", "short <short@example.com>", "ed25519", "sign", "seconds=50")
	keyring := filepath.Join(g.home, "trusted.gpg")
	g.run("--armor", "--output", keyring, "--export", "short")
	keys, err := os.ReadFile(keyring)
	must(t, err)
	g.sign("short", digest.String(), ref, filepath.Join(lookaside, "team", fmt.Sprintf("app@%s=%s", digest.Algorithm, digest.Hex), "signature-1"))
	data, err := json.Marshal(keys)
	must(t, err)
	s.Import(t, "--config", file, ref)
	s.KubectlStdin(t, strings.Replace(gpgPolicy(r.Host, keyring), "keyPath: "+keyring, "keyData: "+string(data), 1), "apply", "-f", "-")
	awaitVerdict(t, s, digest.String(), "True", r.Host+"/team/app")
	awaitVerdict(t, s, digest.String(), "False", r.Host+"/team/app")
	if got := verdicts(t, s, digest.String()); len(got) != 1 || !strings.Contains(got[0], "KeyExpired") {
		t.Errorf("verdicts are %v", got)
	}
}
