package signaturestest

import (
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"testing"

	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// Set is a set of one policy, named "demo", for everything under registry.example.com. rootOfTrust
// and signedIdentity are the values of those fields as YAML in flow style; signedIdentity may be
// "".
func Set(t testing.TB, rootOfTrust, signedIdentity string) *policy.Set {
	t.Helper()
	return SetFrom(t, Document("demo", `["registry.example.com"]`, rootOfTrust, signedIdentity))
}

// SetFrom is a set of the given documents.
func SetFrom(t testing.TB, yaml string) *policy.Set {
	t.Helper()
	// paths are those of the test's folder
	policies, err := policy.Parse([]byte(yaml), "policies.yaml")
	must(t, err)
	s, err := policy.NewSet(policies)
	must(t, err)
	return s
}

// Document is a policy document.
func Document(name, scopes, rootOfTrust, signedIdentity string) string {
	doc := fmt.Sprintf("---\napiVersion: config.openshift.io/v1\nkind: ClusterImagePolicy\nmetadata: {name: %s}\nspec:\n  scopes: %s\n  policy:\n    rootOfTrust: %s\n",
		name, scopes, rootOfTrust)
	if signedIdentity != "" {
		doc += "    signedIdentity: " + signedIdentity + "\n"
	}
	return doc
}

// TrustKey is a rootOfTrust of one key; rekor may be nil.
func TrustKey(key *Key, rekor []byte) string {
	more := ""
	if rekor != nil {
		more = ", rekorKeyData: " + B64(rekor)
	}
	return "{policyType: PublicKey, publicKey: {keyData: " + B64(key.PEM) + more + "}}"
}

// TrustFulcio is a rootOfTrust of the deployment's log and the given CAs, by default the
// deployment's root. subject is one such as "signedEmail: a@b".
func (d *Deployment) TrustFulcio(t testing.TB, subject string, cas ...*x509.Certificate) string {
	if len(cas) == 0 {
		cas = []*x509.Certificate{d.Root}
	}
	return fmt.Sprintf("{policyType: FulcioCAWithRekor, fulcioCAWithRekor: {fulcioCAData: %s, rekorKeyData: %s, fulcioSubject: {oidcIssuer: %q, %s}}}",
		B64(CertPEM(t, cas...)), B64(d.RekorKey(t)), Issuer, subject)
}

// TrustRoot is a rootOfTrust of a whole trusted_root.json.
func (d *Deployment) TrustRoot(t testing.TB, subject string, edit func(*TrustedRootParts)) string {
	return fmt.Sprintf("{policyType: TrustedRoot, trustedRoot: {trustedRootData: %s, fulcioSubject: {oidcIssuer: %q, %s}}}",
		B64(d.TrustedRoot(t, edit)), Issuer, subject)
}

// TrustRootKey is a rootOfTrust of a key and a trusted_root.json.
func (d *Deployment) TrustRootKey(t testing.TB, key *Key, edit func(*TrustedRootParts)) string {
	return fmt.Sprintf("{policyType: TrustedRoot, trustedRoot: {trustedRootData: %s, keyData: %s}}", B64(d.TrustedRoot(t, edit)), B64(key.PEM))
}

// B64 encodes binary data for policies.
func B64(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
