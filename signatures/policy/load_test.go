package policy_test

import (
	"bytes"
	"crypto/rsa"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/sigstore/sigstore/pkg/cryptoutils"

	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

func write(t *testing.T, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoadFolder(t *testing.T) {
	dir := t.TempDir()
	key, rekor := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	d := signaturestest.NewDeployment(t)
	gpg := signaturestest.NewGPG(t, "x", d.Root.NotBefore, 0)
	write(t, dir, "keys/cosign.pub", string(key.PEM))
	write(t, dir, "keys/ca.pem", string(signaturestest.CertPEM(t, d.Root)))
	write(t, dir, "keys/root.json", string(d.TrustedRoot(t, nil)))
	write(t, dir, "keys/release.gpg", string(gpg.Public(t)))
	write(t, dir, "keys/older.gpg", string(signaturestest.NewGPG(t, "y", d.Root.NotBefore, 0).Public(t)))
	write(t, dir, "keys/rekor.pub", string(rekor.PEM))
	doc := signaturestest.Document
	write(t, dir, "a.yaml", "# a comment\n"+doc("key", "[a.example.com]", "{policyType: PublicKey, publicKey: {keyPath: keys/cosign.pub, rekorKeyPath: keys/rekor.pub}}", "")+
		"---\n---\n"+doc("fulcio", "[b.example.com]", `{policyType: FulcioCAWithRekor, fulcioCAWithRekor: {fulcioCAPath: keys/ca.pem, rekorKeyPath: keys/rekor.pub, fulcioSubject: {oidcIssuer: "https://i", signedEmail: a@b}}}`, ""))
	write(t, dir, "b.yml", doc("pki", "[c.example.com]", `{policyType: PKI, pki: {caRootsPath: keys/ca.pem, caIntermediatesPath: keys/ca.pem, pkiCertificateSubject: {hostname: "*.example.com"}}}`, ""))
	write(t, dir, "c.json", fmt.Sprintf(`{"apiVersion":"config.openshift.io/v1","kind":"ClusterImagePolicy","metadata":{"name":"root","uid":"1","managedFields":[{"a":1}]},"spec":{"scopes":["d.example.com"],"policy":{"rootOfTrust":{"policyType":"TrustedRoot","trustedRoot":{"trustedRootPath":%q,"fulcioSubject":{"oidcIssuer":"https://i","signedURI":"https://x/y"}}}}},"status":{"conditions":[]}}`,
		filepath.Join(dir, "keys/root.json")))
	write(t, dir, "d.yaml", doc("gpg", `["*.corp.example"]`, "{policyType: GPGKeys, gpgKeys: {keyPath: keys/release.gpg}}", "{matchPolicy: DigestOnly}")+
		"---\n"+doc("keyrings", `["*.corp.example"]`, "{policyType: GPGKeys, gpgKeys: {keyPaths: [keys/release.gpg, keys/older.gpg]}}", "{matchPolicy: DigestOnly}"))
	write(t, dir, ".hidden.yaml", "nonsense: [")
	write(t, dir, "README.md", "nonsense: [")
	set, err := policy.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range set.Policies() {
		names = append(names, p.Name)
		if (p.Sigstore == nil) == (p.GPG == nil) || p.Hash() == "" {
			t.Errorf("%s: sigstore %v, gpg %v", p.Name, p.Sigstore, p.GPG)
		}
		// The spec that is shown has the content of the document's files.
		if g := p.Spec.Policy.RootOfTrust.GPGKeys; p.Name == "keyrings" && (len(g.KeyDatas) != 2 || g.KeyPaths != nil) {
			t.Errorf("keyrings are shown as %v", g)
		}
	}
	if got := strings.Join(names, " "); got != "fulcio gpg key keyrings pki root" {
		t.Errorf("policies %s", got)
	}
	// The hash covers the content of the files that a document names.
	write(t, dir, "keys/cosign.pub", string(rekor.PEM))
	again, err := policy.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if again.Hash() == set.Hash() {
		t.Error("another key, the same hash")
	}
	for i, p := range again.Policies() {
		if (p.Hash() == set.Policies()[i].Hash()) != (p.Name != "key") {
			t.Errorf("hash of %s", p.Name)
		}
	}
}

// Documents that are refused, each with the line and the field that the message names.
func TestLoadRefuses(t *testing.T) {
	key := signaturestest.NewKey(t, signaturestest.P256)
	d := signaturestest.NewDeployment(t)
	good := signaturestest.TrustKey(key, nil)
	b64 := signaturestest.B64
	leaf, _ := d.Identity(t, "a@b.c", nil)
	ca, pem := b64(signaturestest.CertPEM(t, d.Root)), b64(key.PEM)
	pgp := signaturestest.NewGPG(t, "x", d.Root.NotBefore, 0).Public(t)
	subject := `fulcioSubject: {oidcIssuer: "https://i", signedEmail: a@b}`
	doc := func(scopes, trust, identity string) string {
		return signaturestest.Document("x", scopes, trust, identity)
	}
	trust := func(trust string) string { return doc("[a.example.com]", trust, "") }
	identity := func(identity string) string { return doc("[a.example.com]", good, identity) }
	fulcio := func(subjects string) string {
		return trust("{policyType: FulcioCAWithRekor, fulcioCAWithRekor: {fulcioCAData: " + ca + ", rekorKeyData: " + pem + ", " + subjects + "}}")
	}
	const root = "spec.policy.rootOfTrust."
	for _, tc := range []struct {
		name, yaml string
		line       int
		field      string
		message    string
	}{
		{"unknown key", strings.Replace(trust(good), "keyData", "keyDat", 1), 8, root + "publicKey.keyDat", "known here: keyData, keyDatas, keyPath, keyPaths, rekorKeyData, rekorKeyPath"},
		{"case of a key", strings.Replace(trust(good), "keyData", "KeyData", 1), 8, root + "publicKey.KeyData", "unknown field"},
		{"key twice", strings.Replace(trust(good), "  scopes:", "  scopes: [b.example.com]\n  scopes:", 1), 7, "spec.scopes", "appears twice, first at line 6"},
		{"alias", strings.Replace(trust(good), "[a.example.com]", "&s [a.example.com]\n  policy2: *s", 1), 7, "spec.policy2", "unknown field"},
		{"alias of a value", "apiVersion: &a config.openshift.io/v1\nkind: *a\n", 2, "kind", "aliases"},
		{"merge key", "<<: {kind: ClusterImagePolicy}\napiVersion: config.openshift.io/v1\n", 1, "<<", "plain strings"},
		{"wrong type", strings.Replace(trust(good), "[a.example.com]", "a.example.com", 1), 6, "spec.scopes", "must be a list"},
		{"number for a string", strings.Replace(trust(good), "[a.example.com]", "[12]", 1), 6, "spec.scopes[0]", "must be a string"},
		{"list for a mapping", strings.Replace(trust(good), "{name: x}", "[x]", 1), 4, "metadata", "must be a mapping"},
		{"no mapping", "hello\n", 1, "", "must be a mapping"},
		{"syntax", "a: [\n", 0, "", "yaml:"},
		{"not base64", trust("{policyType: PublicKey, publicKey: {keyData: '***'}}"), 8, root + "publicKey.keyData", "not base64"},
		{"another API", strings.Replace(trust(good), "openshift.io/v1", "openshift.io/v1alpha1", 1), 2, "apiVersion", "must be config.openshift.io/v1"},
		{"ImagePolicy", strings.Replace(trust(good), "ClusterImagePolicy", "ImagePolicy", 1), 3, "kind", "write a ClusterImagePolicy"},
		{"another kind", strings.Replace(trust(good), "ClusterImagePolicy", "List", 1), 3, "kind", "must be ClusterImagePolicy"},
		{"no name", strings.Replace(trust(good), "{name: x}", "{}", 1), 4, "metadata.name", "required"},

		{"no scopes", doc("[]", good, ""), 6, "spec.scopes", "the policy covers no image"},
		{"too many scopes", doc("["+strings.Repeat("a.example.com,", 257)+"]", good, ""), 6, "spec.scopes", "at most 256"},
		{"platforms", doc("[a.example.com]", good, "") + "    platforms: signed\n", 9, "spec.policy.platforms", `is "signed", must be ByIndex or Signed`},
		{"scope without dot", doc("[registry]", good, ""), 6, "spec.scopes[0]", "write docker.io/library/registry, or the host with its port, as in registry:5000"},
		{"path on Docker Hub", doc("[team/app]", good, ""), 6, "spec.scopes[0]", "write docker.io/team/app, or the host with its port, as in team:5000"},
		{"scope that is empty", doc(`['']`, good, ""), 6, "spec.scopes[0]", "it is empty"},
		{"scope that ends in a slash", doc("[a.example.com/]", good, ""), 6, "spec.scopes[0]", "it ends in a slash"},
		{"scope with a scheme", doc("['https://a.example.com/x']", good, ""), 6, "spec.scopes[0]", `spec.scopes[0]: "https://a.example.com/x" is not host`},
		{"scope with a port that is none", doc("['a.example.com:99999/x']", good, ""), 6, "spec.scopes[0]", "from 1 to 65535"},
		{"scope of a short digest", doc("['a.example.com/x@sha256:abc']", good, ""), 6, "spec.scopes[0]", "64 hex digits"},
		{"wildcard inside", doc(`["a.*.example.com"]`, good, ""), 6, "spec.scopes[0]", "wildcard"},
		{"wildcard with path", doc(`["*.example.com/x"]`, good, ""), 6, "spec.scopes[0]", "wildcard"},
		{"upper case path", doc("[a.example.com/X]", good, ""), 6, "spec.scopes[0]", "is not host"},
		{"scope with tag and digest", doc("[a.example.com/x:v1@sha256:"+strings.Repeat("0", 64)+"]", good, ""), 6, "spec.scopes[0]", "both a tag and a digest"},
		{"scope twice", doc("[docker.io/library, index.docker.io/library]", good, ""), 6, "spec.scopes[1]", "appears twice"},

		{"no match policy", identity("{}"), 9, "spec.policy.signedIdentity.matchPolicy", "required"},
		{"unknown match policy", identity("{matchPolicy: Any}"), 9, "spec.policy.signedIdentity.matchPolicy", "MatchRepository"},
		{"exact without repository", identity("{matchPolicy: ExactRepository}"), 9, "spec.policy.signedIdentity.exactRepository", "required"},
		{"repository without exact", identity("{matchPolicy: MatchRepository, exactRepository: {repository: a.example.com/x}}"), 9, "spec.policy.signedIdentity.exactRepository", "forbidden"},
		{"remap without prefix", identity("{matchPolicy: RemapIdentity, remapIdentity: {signedPrefix: b.example.com}}"), 9, "spec.policy.signedIdentity.remapIdentity.prefix", "is not host"},
		{"prefix with tag", identity("{matchPolicy: ExactRepository, exactRepository: {repository: 'a.example.com/x:v1'}}"), 9, "spec.policy.signedIdentity.exactRepository.repository", "without tag"},
		{"host for a repository", identity("{matchPolicy: ExactRepository, exactRepository: {repository: a.example.com}}"), 9, "spec.policy.signedIdentity.exactRepository.repository", "not a repository"},

		{"no policy type", trust("{}"), 8, root + "policyType", "must be one of PublicKey"},
		{"type without member", trust("{policyType: PKI}"), 8, root + "pki", "required"},
		{"member without type", trust("{policyType: PublicKey, publicKey: {keyData: " + pem + "}, gpgKeys: {}}"), 8, root + "gpgKeys", "forbidden"},
		{"no key", trust("{policyType: PublicKey, publicKey: {}}"), 8, root + "publicKey.keyData", "required"},
		{"empty key", trust("{policyType: PublicKey, publicKey: {keyData: ''}}"), 8, root + "publicKey.keyData", "must not be empty"},
		{"empty Rekor key", trust("{policyType: PublicKey, publicKey: {keyData: " + pem + ", rekorKeyData: ''}}"), 8, root + "publicKey.rekorKeyData", "must not be empty"},
		{"key and path", trust("{policyType: PublicKey, publicKey: {keyPath: x, keyData: " + pem + "}}"), 8, root + "publicKey.keyPath", "give one"},
		{"no such file", trust("{policyType: PublicKey, publicKey: {keyPath: x.pub}}"), 8, root + "publicKey.keyPath", "no such file"},
		{"not PEM", trust("{policyType: PublicKey, publicKey: {keyData: aGVsbG8=}}"), 8, root + "publicKey.keyData", "PEM"},
		{"a certificate for a key", trust("{policyType: PublicKey, publicKey: {keyData: " + ca + "}}"), 8, root + "publicKey.keyData", "not a public key"},
		{"key and keys", trust("{policyType: PublicKey, publicKey: {keyData: " + pem + ", keyDatas: [" + pem + "]}}"), 8, root + "publicKey", "not several"},
		{"no keys", trust("{policyType: PublicKey, publicKey: {keyDatas: []}}"), 8, root + "publicKey.keyDatas", "trust no signer"},
		{"an empty key among keys", trust("{policyType: PublicKey, publicKey: {keyDatas: [" + pem + ", '']}}"), 8, root + "publicKey.keyDatas[1]", "must not be empty"},
		{"no such file among keys", trust("{policyType: PublicKey, publicKey: {keyPaths: [x.pub]}}"), 8, root + "publicKey.keyPaths[0]", "no such file"},
		{"rubbish behind a key", trust("{policyType: PublicKey, publicKey: {keyData: " + b64(append(append([]byte{}, key.PEM...), "rubbish"...)) + "}}"), 8, root + "publicKey.keyData", `after key 1 that is not a key: "rubbish"`},
		{"rubbish between keys", trust("{policyType: PublicKey, publicKey: {keyData: " + b64(slices.Concat(key.PEM, []byte("rubbish\n"), key.PEM)) + "}}"), 8, root + "publicKey.keyData", `after key 1 that is not a key: "rubbish`},
		{"half a key between keys", trust("{policyType: PublicKey, publicKey: {keyData: " + b64(slices.Concat(key.PEM, key.PEM[:60], []byte("\n"), key.PEM)) + "}}"), 8, root + "publicKey.keyData", "a damaged PEM block after key 1"},
		{"two Rekor keys", trust("{policyType: PublicKey, publicKey: {keyData: " + pem + ", rekorKeyData: " + b64(append(append([]byte{}, key.PEM...), key.PEM...)) + "}}"), 8, root + "publicKey.rekorKeyData", "TrustedRoot"},
		{"one subject and several", fulcio(subject + ", fulcioSubjects: []"), 8, root + "fulcioCAWithRekor", "either"},
		{"no subjects", fulcio("fulcioSubjects: []"), 8, root + "fulcioCAWithRekor.fulcioSubjects", "1 to 64"},
		{"a pattern for a URI", fulcio("fulcioSubject: {oidcIssuer: 'https://i', signedURI: 'https://github.com/acme/*'}"), 8, root + "fulcioCAWithRekor.fulcioSubject.signedURI", "subjectRegExp"},
		{"no expression", fulcio("fulcioSubject: {oidcIssuer: 'https://i', subjectRegExp: 'a)(b'}"), 8, root + "fulcioCAWithRekor.fulcioSubject.subjectRegExp", "RE2"},
		{"an expression for everybody", fulcio("fulcioSubject: {oidcIssuer: 'https://i', subjectRegExp: '.*'}"), 8, root + "fulcioCAWithRekor.fulcioSubject.subjectRegExp", "every subject"},
		{"a misspelt extension", fulcio("fulcioSubject: {oidcIssuer: 'https://i', signedURI: 'https://a/b', extensions: [{name: sourceRepositoryUrl, value: a}]}"), 8, root + "fulcioCAWithRekor.fulcioSubject.extensions[0].name", "did you mean sourceRepositoryURI?"},
		{"the issuer as an extension", fulcio("fulcioSubject: {oidcIssuer: 'https://i', signedURI: 'https://a/b', extensions: [{name: issuer, value: a}]}"), 8, root + "fulcioCAWithRekor.fulcioSubject.extensions[0].name", "oidcIssuer"},
		{"an extension without a value", fulcio("fulcioSubject: {oidcIssuer: 'https://i', signedURI: 'https://a/b', extensions: [{name: buildTrigger, value: push}, {name: runnerEnvironment}]}"), 8, root + "fulcioCAWithRekor.fulcioSubject.extensions[1]", "exactly one of value and valueRegExp"},
		{"an extension with both", fulcio("fulcioSubject: {oidcIssuer: 'https://i', signedURI: 'https://a/b', extensions: [{name: buildTrigger, value: push, valueRegExp: push}]}"), 8, root + "fulcioCAWithRekor.fulcioSubject.extensions[0]", "exactly one of value and valueRegExp"},
		{"an extension twice", fulcio("fulcioSubject: {oidcIssuer: 'https://i', signedURI: 'https://a/b', extensions: [{name: buildTrigger, value: push}, {name: buildTrigger, valueRegExp: p}]}"), 8, root + "fulcioCAWithRekor.fulcioSubject.extensions[1].name", "appears twice"},
		{"a pattern for an extension", fulcio("fulcioSubject: {oidcIssuer: 'https://i', signedURI: 'https://a/b', extensions: [{name: sourceRepositoryRef, value: 'refs/tags/*'}]}"), 8, root + "fulcioCAWithRekor.fulcioSubject.extensions[0].value", "valueRegExp"},
		{"an extension that matches all", fulcio("fulcioSubject: {oidcIssuer: 'https://i', signedURI: 'https://a/b', extensions: [{name: sourceRepositoryRef, valueRegExp: '.*'}]}"), 8, root + "fulcioCAWithRekor.fulcioSubject.extensions[0].valueRegExp", "every subject"},
		{"no extensions", fulcio("fulcioSubject: {oidcIssuer: 'https://i', signedURI: 'https://a/b', extensions: []}"), 8, root + "fulcioCAWithRekor.fulcioSubject.extensions", "leave it out"},
		{"a field of an extension", fulcio("fulcioSubject: {oidcIssuer: 'https://i', signedURI: 'https://a/b', extensions: [{name: buildTrigger, regExp: p}]}"), 8, root + "fulcioCAWithRekor.fulcioSubject.extensions[0].regExp", "unknown field; known here: name, value, valueRegExp"},
		{"issuer and expression", fulcio("fulcioSubject: {oidcIssuer: 'https://i', issuerRegExp: 'https://.+', signedEmail: a@b}"), 8, root + "fulcioCAWithRekor.fulcioSubject.oidcIssuer", "issuerRegExp"},
		{"no Rekor key", trust("{policyType: FulcioCAWithRekor, fulcioCAWithRekor: {fulcioCAData: " + ca + ", " + subject + "}}"), 8, root + "fulcioCAWithRekor.rekorKeyData", "required"},
		{"no identity", trust("{policyType: FulcioCAWithRekor, fulcioCAWithRekor: {fulcioCAData: " + ca + ", rekorKeyData: " + pem + "}}"), 8, root + "fulcioCAWithRekor", "either fulcioSubject or"},
		{"issuer only", trust("{policyType: FulcioCAWithRekor, fulcioCAWithRekor: {fulcioCAData: " + ca + ", rekorKeyData: " + pem + `, fulcioSubject: {oidcIssuer: "https://i"}}}`), 8, root + "fulcioCAWithRekor.fulcioSubject", "anyone"},
		{"mail and URI", trust("{policyType: FulcioCAWithRekor, fulcioCAWithRekor: {fulcioCAData: " + ca + ", rekorKeyData: " + pem + `, fulcioSubject: {oidcIssuer: "https://i", signedEmail: a@b, signedURI: "https://x"}}}`), 8, root + "fulcioCAWithRekor.fulcioSubject", "exactly one"},
		{"issuer no URL", trust("{policyType: FulcioCAWithRekor, fulcioCAWithRekor: {fulcioCAData: " + ca + ", rekorKeyData: " + pem + `, fulcioSubject: {oidcIssuer: google, signedEmail: a@b}}}`), 8, root + "fulcioCAWithRekor.fulcioSubject.oidcIssuer", "not a URL"},
		{"leaf for a CA", trust("{policyType: FulcioCAWithRekor, fulcioCAWithRekor: {fulcioCAData: " + b64(signaturestest.CertPEM(t, leaf)) + ", rekorKeyData: " + pem + ", " + subject + "}}"), 8, root + "fulcioCAWithRekor.fulcioCAData", "not a CA"},
		{"PKI without subject", trust("{policyType: PKI, pki: {caRootsData: " + ca + "}}"), 8, root + "pki.pkiCertificateSubject", "every certificate"},
		{"PKI with a bad host name", trust("{policyType: PKI, pki: {caRootsData: " + ca + ", pkiCertificateSubject: {hostname: 'a b'}}}"), 8, root + "pki.pkiCertificateSubject.hostname", "host name"},
		{"trusted root of nothing", trust("{policyType: TrustedRoot, trustedRoot: {trustedRootData: e30=, " + subject + "}}"), 8, root + "trustedRoot.trustedRootData", "media type"},
		{"trusted root without time", trust(strings.Replace(d.TrustRoot(t, "signedEmail: a@b", func(p *signaturestest.TrustedRootParts) { p.Logs, p.TSAs = nil, nil }), "{", "{", 1)), 8, root + "trustedRoot.trustedRootData", "when a signature was made"},
		{"trusted root for nobody", trust("{policyType: TrustedRoot, trustedRoot: {trustedRootData: " + signaturestest.B64(d.TrustedRoot(t, nil)) + "}}"), 8, root + "trustedRoot", "either fulcioSubject"},
		{"trusted root with subject and key", trust("{policyType: TrustedRoot, trustedRoot: {trustedRootData: " + signaturestest.B64(d.TrustedRoot(t, nil)) + ", keyData: " + signaturestest.B64(key.PEM) + ", " + subject + "}}"), 8, root + "trustedRoot", "either fulcioSubject"},
		{"trusted root without CA", trust(d.TrustRoot(t, "signedEmail: a@b", func(p *signaturestest.TrustedRootParts) { p.CAs = nil })), 8, root + "trustedRoot.trustedRootData", "no certificate authority"},
		{"keyring and keyrings", trust("{policyType: GPGKeys, gpgKeys: {keyData: " + b64(pgp) + ", keyDatas: [" + b64(pgp) + "]}}"), 8, root + "gpgKeys", "not several"},
		{"no keyrings", trust("{policyType: GPGKeys, gpgKeys: {keyPaths: []}}"), 8, root + "gpgKeys.keyDatas", "trust no signer"},
		{"no keyring among keyrings", trust("{policyType: GPGKeys, gpgKeys: {keyDatas: [" + b64(pgp) + ", aGVsbG8=]}}"), 8, root + "gpgKeys.keyDatas[1]", ""},
		{"no such file among keyrings", trust("{policyType: GPGKeys, gpgKeys: {keyPaths: [x.gpg]}}"), 8, root + "gpgKeys.keyPaths[0]", "no such file"},
		{"too many keyrings", trust("{policyType: GPGKeys, gpgKeys: {keyDatas: [" + strings.Repeat(b64(pgp)+", ", 200) + "]}}"), 8, root + "gpgKeys.keyDatas", "at most"},
		{"no keyring", trust("{policyType: GPGKeys, gpgKeys: {keyData: aGVsbG8=}}"), 8, root + "gpgKeys.keyData", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file := write(t, t.TempDir(), "p.yaml", tc.yaml)
			set, err := policy.Load(file)
			var e *policy.Error
			if set != nil || !errors.As(err, &e) {
				t.Fatalf("set %v, error %v", set, err)
			}
			if e.File != file || e.Document != 1 || e.Line != tc.line || e.Field != tc.field || !strings.Contains(err.Error(), tc.message) {
				t.Errorf("document %d, line %d, field %q\nwant line %d, field %q, %q in\n%v", e.Document, e.Line, e.Field, tc.line, tc.field, tc.message, err)
			}
		})
	}
	t.Run("weak key", func(t *testing.T) {
		weak, err := cryptoutils.MarshalPublicKeyToPEM(&rsa.PublicKey{N: new(big.Int).SetBit(big.NewInt(1), 1023, 1), E: 65537})
		if err != nil {
			t.Fatal(err)
		}
		_, err = policy.Parse([]byte(trust("{policyType: PublicKey, publicKey: {keyData: "+b64(weak)+"}}")), "")
		if err == nil || !strings.Contains(err.Error(), "1024 bits is too weak") {
			t.Errorf("a 1024-bit RSA key: %v", err)
		}
	})
	t.Run("no documents", func(t *testing.T) {
		dir := t.TempDir()
		if _, err := policy.Load(dir); err == nil || !strings.Contains(err.Error(), "holds no ClusterImagePolicy") {
			t.Error(err)
		}
		if _, err := policy.Load(filepath.Join(dir, "absent")); err == nil || !strings.Contains(err.Error(), "no such file") {
			t.Error(err)
		}
	})
	t.Run("overlap", func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir, "a.yaml", signaturestest.Document("one", "[docker.io/library]", good, ""))
		write(t, dir, "b.yaml", signaturestest.Document("one", "[quay.io]", good, ""))
		_, err := policy.Load(dir)
		if part := "b.yaml:4: document 1: metadata.name: \"one\" is the name of another policy"; err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("want %q in\n%v", part, err)
		}
		var sharing string
		for i := range 17 {
			sharing += signaturestest.Document(fmt.Sprint("p", i), "[docker.io/library]", good, "")
		}
		_, err = policy.Load(write(t, t.TempDir(), "c.yaml", sharing))
		if part := `spec.scopes: "docker.io/library" is a scope of more than 16 policies`; err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("want %q in\n%v", part, err)
		}
	})
	t.Run("all that is wrong at once", func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir, "a.yaml", trust("{}")+trust("{}"))
		write(t, dir, "b.yaml", trust("{}"))
		_, err := policy.Load(dir)
		for _, part := range []string{"a.yaml:8: document 1", "a.yaml:16: document 2", "b.yaml:8: document 1"} {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("want %q in\n%v", part, err)
			}
		}
	})
	t.Run("too large", func(t *testing.T) {
		file := write(t, t.TempDir(), "p.yaml", strings.Repeat("#", policy.MaxFileSize+1))
		if _, err := policy.Load(file); err == nil || !strings.Contains(err.Error(), "larger than") {
			t.Error(err)
		}
	})
}

// A file has two keys or certificates. A beginning of it that ends within one of them is refused,
// and so is a file in which one is damaged.
func TestHalfWrittenTrust(t *testing.T) {
	key := func() []byte { return signaturestest.NewKey(t, signaturestest.P256).PEM }
	ca := func() []byte {
		cert, _ := signaturestest.IssueCA(t, "ca", nil, nil, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
		return signaturestest.CertPEM(t, cert)
	}
	armored := func() []byte {
		var b bytes.Buffer
		w, err := armor.Encode(&b, openpgp.PublicKeyType, nil)
		if err == nil {
			_, err = w.Write(signaturestest.NewGPG(t, "ann", time.Now(), 0).Public(t))
		}
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		return append(b.Bytes(), '\n')
	}
	dir := t.TempDir()
	for _, c := range []struct {
		name, root    string
		first, second []byte
	}{
		{"keys", "{policyType: PublicKey, publicKey: {keyPath: trust}}", key(), key()},
		{"certificates", "{policyType: FulcioCAWithRekor, fulcioCAWithRekor: {fulcioCAPath: trust, rekorKeyData: " + signaturestest.B64(key()) + ", fulcioSubject: {oidcIssuer: https://a.example.com, signedEmail: a@b.example.com}}}", ca(), ca()},
		{"keyring", "{policyType: GPGKeys, gpgKeys: {keyPath: trust}}", armored(), armored()},
	} {
		t.Run(c.name, func(t *testing.T) {
			document := []byte(signaturestest.Document("p", "[a.example.com]", c.root, ""))
			good := func(content []byte) bool {
				write(t, dir, "trust", string(content))
				_, err := policy.Parse(document, filepath.Join(dir, "p.yaml"))
				return err == nil
			}
			both := slices.Concat(c.first, c.second)
			if !good(both) || !good(c.first) {
				t.Fatal("the whole file is refused")
			}
			one := len(bytes.TrimSpace(c.first))
			for n := range len(bytes.TrimSpace(both)) {
				if whole := n >= one && n <= len(c.first); !whole && good(both[:n]) {
					t.Errorf("%d of %d bytes are taken for whole", n, len(both))
				}
			}
			for n := range one { // a line is lost
				if both[n] == '\n' && good(slices.Concat(both[:n/2], both[n+1:])) {
					t.Errorf("damage before byte %d is passed over", n)
				}
			}
		})
	}
}
