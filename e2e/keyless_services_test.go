//go:build nightly

package e2e

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
	"github.com/tidewaiter/tidewaiter/e2e/rekor"
)

const (
	signer      = "test-user@zitadel.ch" // the address of the provider's first user
	otherSigner = "test-user2@zitadel.ch"
	since       = ",start-time=2020-01-01T00:00:00Z"
)

// keyless is the real cosign with a user's ID token, and the services that it signs with.
type keyless struct {
	*cosign
	provider *provider
	fulcio   string // URL
}

// services are where a signature goes.
type services struct {
	logs []*rekor.Log
	tsa  *rekor.Log // the log beside which the authority runs; nil: no timestamp
}

func (k *keyless) issuer() rekor.Issuer {
	return rekor.Issuer{URL: k.provider.issuer, Client: "kubectl", CA: k.provider.ca}
}

// token writes a user's ID token to a file.
func (k *keyless) token(t *testing.T, user string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(file, []byte(k.provider.loginFor(t, user, "openid email")), 0o600))
	return file
}

// run signs with cosign. It does not check what it signed: some of it is wrong on purpose, and it
// finds no server to ask for a trusted root.
func (k *keyless) run(t *testing.T, args ...string) {
	t.Helper()
	c := (&cosign{t: t, dir: k.dir}).command(args...)
	c.Env = append(c.Env, "TUF_ROOT="+t.TempDir(), "TUF_MIRROR=http://127.0.0.1:1")
	harness.MustRun(t, c)
}

// bundle signs in the present format, and returns the bundle if it is not to be uploaded.
func (k *keyless) bundle(t *testing.T, ref, user string, s services, upload bool) (made []byte) {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "signing-config.json")
	create := []string{"signing-config", "create", "--with-default-services=false", "--out", config, "--fulcio=url=" + k.fulcio + ",api-version=1,operator=tests" + since}
	for _, l := range s.logs {
		create = append(create, fmt.Sprintf("--rekor=url=%s,api-version=%d,operator=tests%s", l.URL, l.Version, since), "--rekor-config=ANY")
	}
	if s.tsa != nil {
		create = append(create, "--tsa=url="+s.tsa.TSA+",api-version=1,operator=tests"+since, "--tsa-config=ANY")
	}
	k.run(t, create...)
	file := filepath.Join(dir, "bundle.json")
	k.run(t, "sign", "--yes", "--identity-token", k.token(t, user), "--signing-config", config, "--allow-http-registry",
		fmt.Sprintf("--upload=%t", upload), "--bundle", file, ref)
	made, err := os.ReadFile(file)
	must(t, err)
	return made
}

// legacy signs with annotations of the tag sha256-….sig.
func (k *keyless) legacy(t *testing.T, ref, user string, s services) {
	t.Helper()
	args := []string{"sign", "--yes", "--identity-token", k.token(t, user), "--use-signing-config=false", "--new-bundle-format=false",
		"--fulcio-url", k.fulcio, "--allow-http-registry", fmt.Sprintf("--tlog-upload=%t", len(s.logs) > 0)}
	for _, l := range s.logs {
		args = append(args, "--rekor-url", l.URL)
	}
	if s.tsa != nil {
		args = append(args, "--timestamp-server-url", s.tsa.TSA)
	}
	k.run(t, append(args, ref)...)
}

// trustedRoot makes a trusted root with authorities and services.
func (k *keyless) trustedRoot(t *testing.T, s services, authorities ...string) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "trusted-root.json")
	args := []string{"trusted-root", "create", "--with-default-services=false", "--out", file}
	args = append(args, authorities...)
	for _, l := range s.logs {
		server := "--rekor=url=" + l.URL + ",public-key=" + l.Key + since
		if l.Origin != "" {
			server += ",origin=" + l.Origin
		}
		args = append(args, server)
	}
	if s.tsa != nil {
		args = append(args, "--tsa=url="+s.tsa.TSA+",certificate-chain="+s.tsa.TSAChain)
	}
	k.run(t, args...)
	made, err := os.ReadFile(file)
	must(t, err)
	return made
}

// trust is what a trusted root has of an authority: its certificates until a time, if there is one,
// and the log of its certificates.
func trust(a *rekor.Authority, until time.Time) []string {
	ca := "--fulcio=url=http://" + strings.ReplaceAll(a.Name, " ", "-") + ",certificate-chain=" + a.Chain + since
	if !until.IsZero() {
		ca += ",end-time=" + until.UTC().Format(time.RFC3339)
	}
	return []string{ca, "--ctfe=url=" + a.Log + ",public-key=" + a.LogPublic + since}
}

// keylessPolicy is a policy document for a scope.
func keylessPolicy(name, scope, rootOfTrust, matchPolicy string) string {
	return fmt.Sprintf(`---
apiVersion: config.openshift.io/v1
kind: ClusterImagePolicy
metadata: {name: %s}
spec:
  scopes: ["%s"]
  policy:
    rootOfTrust: %s
    signedIdentity: {matchPolicy: %s}
`, name, scope, rootOfTrust, matchPolicy)
}

func (k *keyless) byRoot(file, mail string) string {
	return fmt.Sprintf("{policyType: TrustedRoot, trustedRoot: {trustedRootPath: %s, fulcioSubject: {oidcIssuer: '%s', signedEmail: %s}}}", file, k.provider.issuer, mail)
}

// attach makes a bundle a referrer of an image, as cosign does.
func attach(t *testing.T, repository string, subject v1.Image, bundle map[string]any) {
	t.Helper()
	content, err := json.Marshal(bundle)
	must(t, err)
	mediaType := types.MediaType(bundle["mediaType"].(string))
	of, err := partial.Descriptor(subject)
	must(t, err)
	made, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), mediaType), static.NewLayer(content, mediaType))
	must(t, err)
	made = mutate.Subject(made, *of).(v1.Image)
	at, err := name.NewDigest(repository+"@"+images.Digest(t, made).String(), name.Insecure)
	must(t, err)
	must(t, remote.Write(at, made))
}

// entry is the only entry of a bundle in a log.
func entry(t *testing.T, bundle map[string]any) map[string]any {
	t.Helper()
	return bundle["verificationMaterial"].(map[string]any)["tlogEntries"].([]any)[0].(map[string]any)
}

// TestKeyless: the real cosign signs with certificates of a real Fulcio for a real ID token, which
// a real log of certificates promises to show, into real logs of both versions and with stamps of a
// real authority. Each verdict is the server's.
func TestKeyless(t *testing.T) {
	old, tiles := rekor.StartBoth(t)
	k := &keyless{cosign: &cosign{t: t, dir: t.TempDir()}, provider: startProvider(t)}
	acme, other := rekor.NewAuthority(t, "acme sigstore"), rekor.NewAuthority(t, "other sigstore")
	right := acme.StartFulcio(t, k.issuer(), rekor.Fulcio{})
	k.fulcio = right
	user, user2 := "test-user@127.0.0.1", "test-user2"

	all := services{logs: []*rekor.Log{old, tiles}, tsa: tiles}
	logged, stamped, inTiles, unlogged := services{logs: []*rekor.Log{old}}, services{[]*rekor.Log{old}, tiles}, services{[]*rekor.Log{tiles}, tiles}, services{tsa: tiles}
	dir := t.TempDir()
	rootFile := func(name string, content []byte) string {
		file := filepath.Join(dir, name)
		must(t, os.WriteFile(file, content, 0o600))
		return file
	}
	whole := rootFile("whole.json", k.trustedRoot(t, all, trust(acme, time.Time{})...))
	unstamped := rootFile("unstamped.json", k.trustedRoot(t, logged, trust(acme, time.Time{})...))
	r := registry.Start(t, registry.Distribution)
	byCA := fmt.Sprintf("{policyType: FulcioCAWithRekor, fulcioCAWithRekor: {fulcioCAPath: %s, rekorKeyPath: %s, fulcioSubject: {oidcIssuer: '%s', signedEmail: %s}}}", acme.Chain, old.Key, k.provider.issuer, signer)
	policies := writePolicy(t, strings.Join([]string{
		keylessPolicy("root", r.Host+"/root", k.byRoot(whole, signer), "DigestOnly"),
		keylessPolicy("unstamped", r.Host+"/unstamped", k.byRoot(unstamped, signer), "DigestOnly"),
		keylessPolicy("ca", r.Host+"/ca", byCA, "DigestOnly"),
		keylessPolicy("named", r.Host+"/named", byCA, "MatchRepository"),
		keylessPolicy("issuer", r.Host+"/issuer", strings.ReplaceAll(k.byRoot(whole, signer), k.provider.issuer, "https://accounts.example.com"), "DigestOnly"),
	}, ""))
	clock := harness.NewClock(t)
	s := harness.StartServerAt(t, clock, "--policy", policies)
	pool := images.Numbered(t, 64)

	const bundleFalse, legacyFalse = "SigstoreBundleV03 Trusted=False/", "SigstoreSimpleSigningV1 Trusted=False/"
	// judged pushes an image below a scope, has it signed, imports it and returns its signatures.
	judged := func(t *testing.T, scope string, sign func(t *testing.T, ref string, image v1.Image)) (digest string, all []storedSignature) {
		t.Helper()
		image := pool[0]
		pool = pool[1:]
		digest = images.Digest(t, image).String()
		repository := fmt.Sprintf("%s/app%d", scope, len(pool))
		r.Push(t, repository+":v1", image)
		sign(t, r.Host+"/"+repository+"@"+digest, image)
		s.Import(t, r.Host+"/"+repository+":v1")
		return digest, signaturesOf(t, s, digest)
	}
	bundled := func(by services, who string) func(*testing.T, string, v1.Image) {
		return func(t *testing.T, ref string, _ v1.Image) { k.bundle(t, ref, who, by, true) }
	}
	annotated := func(by services, who string) func(*testing.T, string, v1.Image) {
		return func(t *testing.T, ref string, _ v1.Image) { k.legacy(t, ref, who, by) }
	}
	// edited signs, changes the bundle and attaches that.
	edited := func(by services, edit func(bundle, entry map[string]any)) func(*testing.T, string, v1.Image) {
		return func(t *testing.T, ref string, image v1.Image) {
			var made map[string]any
			must(t, json.Unmarshal(k.bundle(t, ref, user, by, false), &made))
			edit(made, entry(t, made))
			repository, _, _ := strings.Cut(ref, "@")
			attach(t, repository, image, made)
		}
	}
	from := func(fulcio string, sign func(*testing.T, string, v1.Image)) func(*testing.T, string, v1.Image) {
		return func(t *testing.T, ref string, image v1.Image) {
			k.fulcio = fulcio
			defer func() { k.fulcio = right }()
			sign(t, ref, image)
		}
	}
	promiseOnly := func(version string) func(bundle, entry map[string]any) {
		return func(bundle, entry map[string]any) {
			delete(entry, "inclusionProof")
			if version != "0.1" {
				return
			}
			bundle["mediaType"] = "application/vnd.dev.sigstore.bundle+json;version=0.1"
			material := bundle["verificationMaterial"].(map[string]any)
			material["x509CertificateChain"] = map[string]any{"certificates": []any{material["certificate"]}}
			delete(material, "certificate")
		}
	}
	proofOnly := func(_, entry map[string]any) { delete(entry, "inclusionPromise"); delete(entry, "integratedTime") }

	late, early := harness.NewClock(t), harness.NewClock(t)
	late.Set(t, -30*time.Minute)
	early.Set(t, 30*time.Minute)
	expired := acme.StartFulcio(t, k.issuer(), rekor.Fulcio{Clock: late})
	future := acme.StartFulcio(t, k.issuer(), rekor.Fulcio{Clock: early})
	unshown := acme.StartFulcio(t, k.issuer(), rekor.Fulcio{Unlogged: true})
	foreign := other.StartFulcio(t, k.issuer(), rekor.Fulcio{})

	for _, tc := range []struct {
		name, scope string
		sign        func(*testing.T, string, v1.Image)
		want        string // the verdict
		says        string // in its message
	}{
		{"bundle in a log of version 1", "root", bundled(logged, user), bundleTrusted, signer},
		{"bundle in a log of version 1, stamped", "root", bundled(stamped, user), bundleTrusted, signer},
		{"bundle in a log of version 2, stamped", "root", bundled(inTiles, user), bundleTrusted, signer},
		{"bundle, by CA and log", "ca", bundled(logged, user), bundleTrusted, signer},
		{"annotations", "root", annotated(logged, user), legacyTrusted, signer},
		{"annotations, stamped", "root", annotated(stamped, user), legacyTrusted, signer},
		{"annotations, by CA and log", "named", annotated(logged, user), legacyTrusted, signer},
		{"promise only, as bundles 0.1 may be", "root", edited(logged, promiseOnly("0.1")), bundleTrusted, signer},
		{"promise only in a bundle 0.3", "root", edited(logged, promiseOnly("0.3")), bundleFalse + "InvalidSignature ForImage=Unknown", "inclusion proof missing"},
		{"proof only", "root", edited(logged, proofOnly), bundleFalse + "TimestampInvalid ForImage=True", ""},
		{"proof only, stamped", "root", edited(stamped, proofOnly), bundleTrusted, signer},
		{"proof only, stamped by an authority that is not trusted", "unstamped", edited(stamped, proofOnly), bundleFalse + "TimestampInvalid ForImage=True", ""},
		{"stamped, in no log", "root", bundled(unlogged, user), bundleFalse + "TransparencyLogEntryMissing ForImage=True", ""},
		{"annotations, stamped, in no log", "root", annotated(unlogged, user), legacyFalse + "TransparencyLogEntryMissing ForImage=True", ""},
		{"another user", "root", bundled(logged, user2), bundleFalse + "SubjectMismatch ForImage=True", otherSigner},
		{"annotations of another user", "root", annotated(logged, user2), legacyFalse + "SubjectMismatch ForImage=True", otherSigner},
		{"another provider", "issuer", bundled(logged, user), bundleFalse + "SubjectMismatch ForImage=True", ""},
		{"another Fulcio", "root", from(foreign, bundled(logged, user)), bundleFalse + "NoMatchingKey ForImage=Unknown", "other sigstore"},
		{"expired leaf", "root", from(expired, bundled(logged, user)), bundleFalse + "CertificateExpired ForImage=True Expired=True", "was not valid when the signature was made"},
		{"expired leaf in a log of version 2", "root", from(expired, bundled(inTiles, user)), bundleFalse + "CertificateExpired ForImage=True Expired=True", "was not valid when the signature was made"},
		{"annotations with an expired leaf", "root", from(expired, annotated(logged, user)), legacyFalse + "CertificateExpired ForImage=True Expired=True", "was not valid when the signature was made"},
		{"annotations with an expired leaf, by CA and log", "named", from(expired, annotated(logged, user)), legacyFalse + "CertificateExpired ForImage=True Expired=True", "was not valid when the signature was made"},
		{"Fulcio's clock is ahead", "root", from(future, bundled(stamped, user)), bundleFalse + "CertificateExpired ForImage=True Expired=True", "was not valid when the signature was made"},
		{"certificate in no log", "root", from(unshown, bundled(logged, user)), bundleFalse + "CertificateLogInvalid ForImage=True", ""},
		{"certificate in no log, by CA and log", "ca", from(unshown, bundled(logged, user)), bundleTrusted, signer},
	} {
		t.Run(tc.name, func(t *testing.T) {
			digest, got := judged(t, tc.scope, tc.sign)
			if len(got) != 1 {
				t.Fatalf("%d signatures", len(got))
			}
			message := got[0].Conditions[0].Message
			t.Logf("%s: %s", got[0].verdict(), message)
			expectVerdicts(t, s, digest, tc.want)
			wantContains(t, "the message", message, tc.says)
			if strings.Contains(tc.want, "Trusted=True") && (got[0].IssuedTo == nil || got[0].IssuedTo.CommonName != signer || got[0].IssuedBy.CommonName != "acme sigstore intermediate") {
				t.Errorf("issued to %v by %v", got[0].IssuedTo, got[0].IssuedBy)
			}
		})
	}

	// A certificate that has ended by the server's clock, or not begun, was valid by the logs'.
	for _, by := range []time.Duration{-30 * time.Minute, 30 * time.Minute} {
		t.Run(fmt.Sprintf("the server's clock is off by %s", by), func(t *testing.T) {
			clock.Set(t, by)
			defer clock.Set(t, 0)
			for name, sign := range map[string]func(*testing.T, string, v1.Image){"v1": bundled(logged, user), "v2": bundled(inTiles, user)} {
				digest, _ := judged(t, "root", sign)
				t.Log(name)
				expectVerdicts(t, s, digest, bundleTrusted)
			}
			digest, _ := judged(t, "named", annotated(logged, user))
			expectVerdicts(t, s, digest, legacyTrusted)
		})
	}

	t.Run("rotated roots", func(t *testing.T) {
		repository := newTUF(t)
		repository.publish(t, k.trustedRoot(t, logged, trust(acme, time.Time{})...))
		dir := t.TempDir()
		config := filepath.Join(dir, "tidewaiter.yaml")
		must(t, os.WriteFile(config, fmt.Appendf(nil, `ownPodsOnly: true
trustedRoots:
- {file: trusted-root.json, mirror: "%s", rootFile: "%s"}
`, repository.url, filepath.Join(repository.dir, "1.root.json")), 0o600))
		policies := filepath.Join(dir, "policy.yaml")
		must(t, os.WriteFile(policies, []byte(keylessPolicy("rotated", r.Host+"/rotated", k.byRoot("trusted-root.json", signer), "DigestOnly")), 0o600))
		data := filepath.Join(dir, "data")
		serve := func() { s = harness.StartServerOn(t, data, "--policy", policies, "--config", config) }
		outer := s
		defer func() { s = outer }()
		serve()
		// restart has the server read the repository, as it does every hour.
		restart := func(t *testing.T) {
			t.Helper()
			if code := s.Terminate(t); code != 0 {
				t.Fatalf("the server ends with %d", code)
			}
			serve()
		}
		becomes := func(digest, want, says string) {
			t.Helper()
			harness.Eventually(t, func() error {
				got := signaturesOf(t, s, digest)
				if message := got[0].Conditions[0].Message; got[0].verdict() != want || !strings.Contains(message, says) {
					return fmt.Errorf("%s: %s, want %s: %s", got[0].verdict(), message, want, says)
				}
				return nil
			})
		}
		before, _ := judged(t, "rotated", bundled(logged, user))
		becomes(before, bundleTrusted, signer)
		foreigner, _ := judged(t, "rotated", from(foreign, bundled(logged, user)))
		becomes(foreigner, bundleFalse+"NoMatchingKey ForImage=Unknown", "")

		// The repository gets other keys and another CA; the one before ends.
		until := time.Now()
		repository.rotate(t)
		repository.publish(t, k.trustedRoot(t, logged, append(trust(acme, until), trust(other, time.Time{})...)...))
		restart(t)
		becomes(foreigner, bundleTrusted, signer)
		becomes(before, bundleTrusted, signer)
		time.Sleep(time.Until(until.Truncate(time.Second).Add(time.Second))) // certificates count in whole seconds
		after, _ := judged(t, "rotated", bundled(logged, user))
		becomes(after, bundleFalse+"NoMatchingKey ForImage=Unknown", "only until")

		// Of what is withdrawn, nothing counts.
		repository.publish(t, k.trustedRoot(t, logged, trust(other, time.Time{})...))
		restart(t)
		becomes(before, bundleFalse+"NoMatchingKey ForImage=Unknown", "")
		becomes(foreigner, bundleTrusted, signer)
	})
}

// tufRepository is a repository of The Update Framework with one key for all roles.
type tufRepository struct {
	dir, url      string
	key           ed25519.PrivateKey
	root, version int
}

func newTUF(t *testing.T) *tufRepository {
	t.Helper()
	r := &tufRepository{dir: t.TempDir()}
	server := httptest.NewServer(http.FileServer(http.Dir(r.dir)))
	t.Cleanup(server.Close)
	r.url = server.URL
	r.rotate(t)
	return r
}

// sign writes signed metadata. These texts and numbers are the same in canonical JSON.
func (r *tufRepository) sign(t *testing.T, file string, signed map[string]any, keys ...ed25519.PrivateKey) {
	t.Helper()
	signed["spec_version"], signed["expires"] = "1.0.31", time.Now().AddDate(1, 0, 0).UTC().Format("2006-01-02T15:04:05Z")
	content, err := json.Marshal(signed)
	must(t, err)
	var signatures []any
	for _, key := range keys {
		id, _ := tufKey(t, key)
		signatures = append(signatures, map[string]any{"keyid": id, "sig": hex.EncodeToString(ed25519.Sign(key, content))})
	}
	content, err = json.Marshal(map[string]any{"signed": signed, "signatures": signatures})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(r.dir, file), content, 0o600))
}

func tufKey(t *testing.T, private ed25519.PrivateKey) (id string, key map[string]any) {
	t.Helper()
	key = map[string]any{"keytype": "ed25519", "scheme": "ed25519", "keyval": map[string]any{"public": hex.EncodeToString(private.Public().(ed25519.PublicKey))}}
	content, err := json.Marshal(key)
	must(t, err)
	return sum(content), key
}

func sum(content []byte) string {
	hash := sha256.Sum256(content)
	return hex.EncodeToString(hash[:])
}

// rotate makes the next root, with a new key, which the key before and the new one sign.
func (r *tufRepository) rotate(t *testing.T) {
	t.Helper()
	before := r.key
	_, key, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	r.key = key
	r.root++
	id, public := tufKey(t, key)
	role := map[string]any{"keyids": []string{id}, "threshold": 1}
	keys := []ed25519.PrivateKey{key}
	if before != nil {
		keys = append(keys, before)
	}
	r.sign(t, fmt.Sprintf("%d.root.json", r.root), map[string]any{
		"_type": "root", "version": r.root, "consistent_snapshot": true, "keys": map[string]any{id: public},
		"roles": map[string]any{"root": role, "targets": role, "snapshot": role, "timestamp": role},
	}, keys...)
}

// publish makes content the trusted root.
func (r *tufRepository) publish(t *testing.T, content []byte) {
	t.Helper()
	r.version++
	hash := sum(content)
	must(t, os.MkdirAll(filepath.Join(r.dir, "targets"), 0o700))
	must(t, os.WriteFile(filepath.Join(r.dir, "targets", hash+".trusted_root.json"), content, 0o600))
	meta := func(name string) map[string]any { return map[string]any{name: map[string]any{"version": r.version}} }
	r.sign(t, fmt.Sprintf("%d.targets.json", r.version), map[string]any{"_type": "targets", "version": r.version, "targets": map[string]any{
		"trusted_root.json": map[string]any{"length": len(content), "hashes": map[string]any{"sha256": hash}},
	}}, r.key)
	r.sign(t, fmt.Sprintf("%d.snapshot.json", r.version), map[string]any{"_type": "snapshot", "version": r.version, "meta": meta("targets.json")}, r.key)
	r.sign(t, "timestamp.json", map[string]any{"_type": "timestamp", "version": r.version, "meta": meta("snapshot.json")}, r.key)
}
