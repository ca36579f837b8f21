package signatures_test

import (
	"crypto/x509"
	"encoding/hex"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/notaryproject/notation-core-go/signature/jws"
	"github.com/notaryproject/notation-core-go/testhelper"
	"github.com/notaryproject/notation-go"

	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// signedBy is a signature by a signer who has several names.
type signedBy struct {
	name, typ string
	content   []byte
	trust     string
	identity  string   // signedIdentity of the policy
	shown     string   // the name that met the policy
	names     []string // the signer can be revoked by each of them
	others    []string // names of other signers
}

// The name that met the policy is shown, whatever other names a certificate or key has. Revoking a
// signer by any of these names affects the signature.
func TestSignersWithSeveralNames(t *testing.T) {
	t.Parallel()
	d := signaturestest.NewDeployment(t)
	named := func(edit func(*x509.Certificate)) (plain, logged []byte) {
		leaf, key := d.Identity(t, "", func(c *x509.Certificate) {
			c.EmailAddresses, c.DNSNames = []string{"evil@example.com", "release@example.com"}, []string{"evil.example.com", "*.ci.example.com"}
			c.URIs = []*url.URL{{Scheme: "https", Host: "evil.example.com", Path: "/a"}, {Scheme: "https", Host: "example.com", Path: "/release"}}
			if edit != nil {
				edit(c)
			}
		})
		b := key.SimpleSigning(t, digest, repository)
		b.Annotations[payload.AnnotationCertificate] = string(signaturestest.CertPEM(t, leaf))
		b.Annotations[payload.AnnotationChain] = string(signaturestest.CertPEM(t, d.Intermediate, d.Root))
		return signaturestest.Marshal(t, b), signaturestest.Marshal(t, d.Keyless(t, leaf, key, digest, repository, time.Now()))
	}
	plain, logged := named(nil)
	all := []string{"evil@example.com", "release@example.com", "https://example.com/release", "https://evil.example.com/a", "evil.example.com"}
	fulcio := func(subject string) string {
		return d.TrustFulcio(t, subject, d.Root, d.Intermediate)
	}
	gpg, ring, primary, subkey, other := subkeys(t)
	root, leaf := testhelper.GetRSARootCertificate(), testhelper.GetRSALeafCertificate()
	notary := notarized(t, leaf.PrivateKey, []*x509.Certificate{leaf.Cert, root.Cert}, digest, notation.SignerSignOptions{SignatureMediaType: jws.MediaTypeEnvelope})
	subject := leaf.Cert.Subject.String()
	country, organization := "C="+leaf.Cert.Subject.Country[0], "O="+leaf.Cert.Subject.Organization[0]
	identity := strings.Join([]string{country, "ST=" + leaf.Cert.Subject.Province[0], organization}, ", ")
	nobody := []string{"dev@example.com", "example.com", "@example.com"}
	const workflow = "https://github.com/acme/shared/.github/workflows/build.yml@refs/tags/v1"
	builder, builderKey := d.Identity(t, workflow, signaturestest.Extensions(t, map[int]string{5: "acme/app", 12: "https://github.com/acme/app", 16: "https://github.com/acme", 18: "https://github.com/acme/app/.github/workflows/ci.yml@refs/heads/main", 20: "push"}))
	reused := signaturestest.Marshal(t, d.Keyless(t, builder, builderKey, digest, repository, time.Now()))
	callers := []string{workflow, "acme/app", "https://github.com/acme/app", "https://github.com/acme", "https://github.com/acme/app/.github/workflows/ci.yml@refs/heads/main"}
	strangers := []string{"https://github.com/acme/ap", "push", "https://github.com/acme/shared", signaturestest.Issuer}
	for _, tc := range []signedBy{
		{"Fulcio, a reusable workflow", signatures.TypeSimpleSigning, reused, fulcio("signedURI: " + workflow), matchRepository, workflow, callers, strangers},
		{"Fulcio, a demanded caller", signatures.TypeSimpleSigning, reused, fulcio("signedURI: " + workflow + ", extensions: [{name: githubWorkflowRepository, value: acme/app}]"), matchRepository, workflow, callers, strangers},
		{"PKI, the second e-mail", signatures.TypeSimpleSigning, plain, trustPKI(t, d.Root, nil, "email: release@example.com"), matchRepository, "release@example.com", all, nobody},
		{"PKI, the first", signatures.TypeSimpleSigning, plain, trustPKI(t, d.Root, nil, "email: evil@example.com"), matchRepository, "evil@example.com", all, nobody},
		{"PKI, a host by a wildcard", signatures.TypeSimpleSigning, plain, trustPKI(t, d.Root, nil, "hostname: a.ci.example.com"), matchRepository, "a.ci.example.com", append([]string{"a.ci.example.com", "*.ci.example.com"}, all...), append([]string{"b.ci.example.com"}, nobody...)},
		{"PKI, both", signatures.TypeSimpleSigning, plain, trustPKI(t, d.Root, nil, "email: release@example.com, hostname: evil.example.com"), matchRepository, "release@example.com", all, nobody},
		{"Fulcio, the second e-mail", signatures.TypeSimpleSigning, logged, fulcio("signedEmail: release@example.com"), matchRepository, "release@example.com", all, nobody},
		{"OpenPGP, a user ID", signatures.TypeAtomic, gpg, signaturestest.TrustGPG(ring), matchRepository, "Ann <release@example.com>", []string{"Ann <release@example.com>", "Zoe <zoe@example.com>", primary, subkey}, []string{other, "zoe@example.com", "Zoe"}},
		{"Notary, a part of the subject", signatures.TypeNotation, notary, trustNotary(t, []*x509.Certificate{root.Cert}, nil, "x509.subject: "+identity), "", subject, []string{subject, identity, "x509.subject: " + identity, strings.ReplaceAll(identity, ", ", ",")}, []string{organization, country}},
	} {
		set := signaturestest.Set(t, tc.trust, tc.identity)
		judge := func(set *policy.Set) signatures.Verdict {
			return signatures.Verify(signatures.Signature{Type: tc.typ, Content: tc.content}, image, set, time.Now())
		}
		v := judge(set)
		if !v.Trusted() || v.IssuedTo.CommonName != tc.shown {
			t.Errorf("%s: %s, shown as %+v, want %s: %+v", tc.name, v.Reason(), v.IssuedTo, tc.shown, v.Conditions)
			continue
		}
		for _, names := range [][]string{tc.names, tc.others} {
			for _, name := range names {
				signers, err := policy.ParseSigners(name)
				if err != nil {
					t.Fatal(err)
				}
				without, err := set.Revoke(signers)
				if err != nil {
					t.Fatal(err)
				}
				isOwn := len(tc.others) == 0 || &names[0] != &tc.others[0]
				if v := judge(without); v.Trusted() == isOwn {
					t.Errorf("%s, without %s: trusted is %t", tc.name, name, v.Trusted())
				}
			}
		}
	}
}

// If several signers are revoked, those that no policy knows are reported. A text with too many
// keys is refused.
func TestUnknownAmongRevokedSigners(t *testing.T) {
	t.Parallel()
	key, stranger := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	set := signaturestest.Set(t, signaturestest.TrustKey(key, nil), "")
	for text, unknown := range map[string]int{string(key.PEM): 0, string(key.PEM) + string(stranger.PEM): 1, string(stranger.PEM): 1, strings.Repeat("0", 64) + "," + strings.Repeat("1", 40): 2} {
		signers, err := policy.ParseSigners(text)
		if err != nil {
			t.Fatal(err)
		}
		without, err := set.Revoke(signers)
		if err != nil {
			t.Fatal(err)
		}
		all := strings.Split(signers.String(), ", ")
		if got := without.Unmet(signers); !slices.Equal(got, all[len(all)-unknown:]) {
			t.Errorf("of %s these are unknown: %s", signers, got)
		}
	}
	if _, err := policy.ParseSigners(strings.Repeat(string(key.PEM), 65)); err == nil || !strings.Contains(err.Error(), "more than 64 keys") {
		t.Errorf("65 keys: %v", err)
	}
}

// subkeys is a signature by a subkey of a key with two user IDs, its keyring, and the fingerprints
// of key, subkey and another subkey.
func subkeys(t *testing.T) (message, ring []byte, primary, subkey, other string) {
	t.Helper()
	at := time.Now().Add(-time.Hour)
	config := &packet.Config{Time: func() time.Time { return at }, Algorithm: packet.PubKeyAlgoEdDSA}
	key := signaturestest.NewGPG(t, "Ann", at, 0)
	fingerprint := func(k *packet.PublicKey) string { return strings.ToUpper(hex.EncodeToString(k.Fingerprint)) }
	if err := key.Entity.AddUserId("Zoe", "", "zoe@example.com", config); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := key.Entity.AddSigningSubkey(config); err != nil {
			t.Fatal(err)
		}
	}
	message = key.SimpleSigning(t, digest, repository, at.Add(time.Minute))
	signing, ok := key.Entity.SigningKey(at.Add(time.Minute))
	if !ok {
		t.Fatal("it cannot sign")
	}
	subkey = fingerprint(signing.PublicKey)
	for i := range key.Entity.Subkeys {
		if id := fingerprint(key.Entity.Subkeys[i].PublicKey); id != subkey && key.Entity.Subkeys[i].Sig.FlagSign {
			other = id
		}
	}
	if primary = fingerprint(key.Entity.PrimaryKey); primary == subkey || other == "" {
		t.Fatalf("key %s, subkeys %s and %s", primary, subkey, other)
	}
	return message, key.Public(t), primary, subkey, other
}
