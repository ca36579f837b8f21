package signatures_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/digitorus/timestamp"
	"github.com/notaryproject/notation-core-go/signature/cose"
	"github.com/notaryproject/notation-core-go/signature/jws"
	"github.com/notaryproject/notation-core-go/testhelper"
	"github.com/notaryproject/notation-go"
	"github.com/notaryproject/notation-go/signer"
	godigest "github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// notarized is an envelope that notation's own signer makes, as `notation sign` does.
func notarized(t testing.TB, key crypto.PrivateKey, chain []*x509.Certificate, digest string, o notation.SignerSignOptions) []byte {
	t.Helper()
	s, err := signer.NewGenericSigner(key, chain)
	if err != nil {
		t.Fatal(err)
	}
	envelope, _, err := s.Sign(t.Context(), ocispec.Descriptor{
		MediaType: ocispec.MediaTypeImageManifest, Digest: godigest.Digest(digest), Size: 528, Annotations: map[string]string{"build": "4711"},
	}, o)
	if err != nil {
		t.Fatal(err)
	}
	return envelope
}

// trustNotary is a rootOfTrust of CAs and identities; tsa may be nil.
func trustNotary(t testing.TB, roots, tsa []*x509.Certificate, identities ...string) string {
	t.Helper()
	text, err := json.Marshal(identities)
	if err != nil {
		t.Fatal(err)
	}
	more := ""
	if tsa != nil {
		more = ", tsaRootsData: " + signaturestest.B64(signaturestest.CertPEM(t, tsa...))
	}
	return fmt.Sprintf("{policyType: Notary, notary: {caRootsData: %s, trustedIdentities: %s%s}}", signaturestest.B64(signaturestest.CertPEM(t, roots...)), text, more)
}

// Signatures of the Notary Project are judged by a policy that maps notation's trust policy.
func TestVerifyNotary(t *testing.T) {
	t.Parallel()
	root, leaf := testhelper.GetRSARootCertificate(), testhelper.GetRSALeafCertificate()
	ecRoot, ecLeaf := testhelper.GetECRootCertificate(), testhelper.GetECLeafCertificate()
	alone := testhelper.GetRSASelfSignedSigningCertificate()
	chain, ecChain := []*x509.Certificate{leaf.Cert, root.Cert}, []*x509.Certificate{ecLeaf.Cert, ecRoot.Cert}
	o := notation.SignerSignOptions{SignatureMediaType: jws.MediaTypeEnvelope}
	inCOSE := notation.SignerSignOptions{SignatureMediaType: cose.MediaTypeEnvelope}
	expiring := notation.SignerSignOptions{SignatureMediaType: jws.MediaTypeEnvelope, ExpiryDuration: time.Hour}
	good := notarized(t, leaf.PrivateKey, chain, digest, o)
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(good, &parts); err != nil {
		t.Fatal(err)
	}
	var other map[string]json.RawMessage
	if err := json.Unmarshal(notarized(t, leaf.PrivateKey, chain, otherImage, o), &other); err != nil {
		t.Fatal(err)
	}
	other["payload"] = parts["payload"]
	swapped, err := json.Marshal(other)
	if err != nil {
		t.Fatal(err)
	}
	const somebody = "x509.subject: C=US, ST=WA, O=Notary"
	trust := trustNotary(t, []*x509.Certificate{root.Cert}, nil, somebody)
	at := time.Now().Add(time.Minute)
	for _, tc := range []struct {
		name     string
		envelope []byte
		trust    string
		at       time.Time
		want     string
	}{
		{"JWS", good, trust, at, trusted},
		{"COSE", notarized(t, leaf.PrivateKey, chain, digest, inCOSE), trust, at, trusted},
		{"ECDSA", notarized(t, ecLeaf.PrivateKey, ecChain, digest, inCOSE), trustNotary(t, []*x509.Certificate{ecRoot.Cert}, nil, "*"), at, trusted},
		{"a certificate that its signer issued", notarized(t, alone.PrivateKey, []*x509.Certificate{alone.Cert}, digest, o), trustNotary(t, []*x509.Certificate{alone.Cert}, nil, "*"), at, trusted},
		{"an authority beside a signer's own certificate", good, trustNotary(t, []*x509.Certificate{alone.Cert}, nil, "*"), at, "False NoMatchingKey / Unknown"},
		{"one of two identities", good, trustNotary(t, []*x509.Certificate{root.Cert}, nil, "x509.subject: C=DE, ST=HH, O=acme", somebody), at, trusted},
		{"another identity", good, trustNotary(t, []*x509.Certificate{root.Cert}, nil, "x509.subject: C=US, ST=WA, O=acme"), at, "False SubjectMismatch / True"},
		{"another identity, another image", notarized(t, leaf.PrivateKey, chain, otherImage, o), trustNotary(t, []*x509.Certificate{root.Cert}, nil, "x509.subject: C=US, ST=WA, O=acme"), at, "False SubjectMismatch / False"},
		{"another CA", good, trustNotary(t, []*x509.Certificate{ecRoot.Cert}, nil, "*"), at, "False NoMatchingKey / Unknown"},
		{"another image", notarized(t, leaf.PrivateKey, chain, otherImage, o), trust, at, "False DigestMismatch / False"},
		{"the payload of another signature", swapped, trust, at, "False InvalidSignature / Unknown"},
		{"truncated", good[:len(good)/2], trust, at, "False InvalidSignature / Unknown"},
		{"no envelope", []byte("junk"), trust, at, "False InvalidSignature / Unknown"},
		{"empty", nil, trust, at, "False InvalidSignature / Unknown"},
		{"not expired", notarized(t, leaf.PrivateKey, chain, digest, expiring), trust, at, trusted},
		{"expired", notarized(t, leaf.PrivateKey, chain, digest, expiring), trust, at.Add(2 * time.Hour), "False KeyExpired / True"},
		{"a certificate that has expired", good, trust, leaf.Cert.NotAfter.Add(time.Minute), "False CertificateExpired / True"},
		{"a certificate of later", good, trust, leaf.Cert.NotBefore.Add(-time.Hour), "False CertificateExpired / True"},
		{"a timestamp is demanded", good, trustNotary(t, []*x509.Certificate{root.Cert}, []*x509.Certificate{ecRoot.Cert}, "*"), at, "False TimestampInvalid / True"},
		{"another root of trust", good, signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil), at, "False NoMatchingKey / Unknown"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := signatures.Verify(signatures.Signature{Type: signatures.TypeNotation, Content: tc.envelope}, signatures.Image{Digest: digest, Reference: repository + "@" + digest}, signaturestest.Set(t, tc.trust, "{matchPolicy: DigestOnly}"), tc.at)
			want(t, v, tc.want)
			if tc.want != trusted {
				return
			}
			if v.IssuedTo == nil || !strings.Contains(v.IssuedTo.CommonName, "O=Notary") || v.IssuedBy == nil || v.SignedClaims["annotations.build"] != "4711" || v.NotAfter.IsZero() {
				t.Errorf("issued to %v by %v, claims %v, until %s", v.IssuedTo, v.IssuedBy, v.SignedClaims, v.NotAfter)
			}
		})
	}
	sigstore := signatures.Verify(signatures.Signature{Type: signatures.TypeBundle, Content: signaturestest.Marshal(t, signaturestest.NewKey(t, signaturestest.P256).Bundle(t, signaturestest.Statement(digest, cosignSign)))},
		signatures.Image{Digest: digest, Reference: repository + "@" + digest}, signaturestest.Set(t, trust, ""), at)
	want(t, sigstore, "False NoMatchingKey / Unknown")
}

// tsa is a timestamp authority. Its certificates keep to the Notary Project's rules.
type tsa struct {
	root, leaf   *x509.Certificate
	rootKey, key crypto.Signer
}

func newTSA(t testing.TB) *tsa {
	t.Helper()
	root, rootKey := signaturestest.IssueCA(t, "tsa", nil, nil, time.Now().Add(-time.Hour), time.Now().AddDate(10, 0, 0))
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	usage, err := asn1.Marshal([]asn1.ObjectIdentifier{{1, 3, 6, 1, 5, 5, 7, 3, 8}})
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "tsa leaf"}, KeyUsage: x509.KeyUsageDigitalSignature,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 37}, Critical: true, Value: usage}},
	}, root, key.Public(), rootKey)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &tsa{root, leaf, rootKey, key}
}

// token is a timestamp of a signature.
func (a *tsa) token(t testing.TB, sig []byte) []byte {
	t.Helper()
	hash := sha256.Sum256(sig)
	stamp := timestamp.Timestamp{
		HashAlgorithm: crypto.SHA256, HashedMessage: hash[:], Time: time.Now(), Policy: asn1.ObjectIdentifier{1, 2, 3}, AddTSACertificate: true,
	}
	response, err := stamp.CreateResponseWithOpts(a.leaf, a.key, crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	var parsed struct {
		Status asn1.RawValue
		Token  asn1.RawValue
	}
	if _, err := asn1.Unmarshal(response, &parsed); err != nil {
		t.Fatal(err)
	}
	return parsed.Token.FullBytes
}

// stamp adds a timestamp to a JWS envelope.
func (a *tsa) stamp(t testing.TB, envelope []byte) []byte {
	t.Helper()
	var parts struct {
		Payload   string         `json:"payload"`
		Protected string         `json:"protected"`
		Header    map[string]any `json:"header"`
		Signature string         `json:"signature"`
	}
	if err := json.Unmarshal(envelope, &parts); err != nil {
		t.Fatal(err)
	}
	sig, err := base64.RawURLEncoding.DecodeString(parts.Signature)
	if err != nil {
		t.Fatal(err)
	}
	parts.Header["io.cncf.notary.timestampSignature"] = a.token(t, sig)
	content, err := json.Marshal(parts)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// A timestamp by an authority of the policy keeps a signature good after its certificate has
// expired.
func TestNotaryTimestamps(t *testing.T) {
	t.Parallel()
	root, leaf := testhelper.GetRSARootCertificate(), testhelper.GetRSALeafCertificate()
	ours, stranger := newTSA(t), newTSA(t)
	stamped := func(by *tsa) []byte {
		return by.stamp(t, notarized(t, leaf.PrivateKey, []*x509.Certificate{leaf.Cert, root.Cert}, digest, notation.SignerSignOptions{SignatureMediaType: jws.MediaTypeEnvelope}))
	}
	trust := trustNotary(t, []*x509.Certificate{root.Cert}, []*x509.Certificate{ours.root}, "*")
	for _, at := range []time.Time{time.Now(), leaf.Cert.NotAfter.AddDate(1, 0, 0)} {
		for by, verdict := range map[*tsa]string{ours: trusted, stranger: "False TimestampInvalid / True"} {
			v := signatures.Verify(signatures.Signature{Type: signatures.TypeNotation, Content: stamped(by)}, signatures.Image{Digest: digest, Reference: repository + "@" + digest}, signaturestest.Set(t, trust, ""), at)
			want(t, v, verdict)
		}
	}
}

// A policy that makes no sense for Notary Project signatures is refused, with the field.
func TestNotaryPolicies(t *testing.T) {
	t.Parallel()
	root := testhelper.GetRSARootCertificate()
	ca := "caRootsData: " + signaturestest.B64(signaturestest.CertPEM(t, root.Cert))
	for _, tc := range []struct{ root, identity, want string }{
		{"{" + ca + ", trustedIdentities: ['*']}", "", ""},
		{"{" + ca + ", trustedIdentities: ['*']}", "{matchPolicy: DigestOnly}", ""},
		{"{" + ca + ", trustedIdentities: ['*']}", matchRepository, "spec.policy.signedIdentity: "},
		{"{" + ca + "}", "", "trustedIdentities: has 0 items"},
		{"{" + ca + ", trustedIdentities: ['acme']}", "", "trustedIdentities: "},
		{"{" + ca + ", trustedIdentities: ['x509.subject: O=acme']}", "", "trustedIdentities: "},
		{"{" + ca + ", trustedIdentities: ['*', 'x509.subject: C=US, ST=WA, O=acme']}", "", "trustedIdentities: "},
		{"{trustedIdentities: ['*']}", "", "caRootsData: is required"},
		{"{tsaRootsData: " + signaturestest.B64(signaturestest.CertPEM(t, root.Cert)) + ", trustedIdentities: ['*']}", "", "caRootsData: is required"},
	} {
		_, err := policy.Parse([]byte(signaturestest.Document("demo", "["+repository+"]", "{policyType: Notary, notary: "+tc.root+"}", tc.identity)), "")
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s %s: %v", tc.root, tc.identity, err)
		}
	}
}

// No envelope is trusted, because the policy's CA has never signed the image.
func FuzzNotary(f *testing.F) {
	root, leaf := testhelper.GetRSARootCertificate(), testhelper.GetRSALeafCertificate()
	chain := []*x509.Certificate{leaf.Cert, root.Cert}
	for _, mediaType := range []string{jws.MediaTypeEnvelope, cose.MediaTypeEnvelope} {
		f.Add(notarized(f, leaf.PrivateKey, chain, otherImage, notation.SignerSignOptions{SignatureMediaType: mediaType}))
	}
	f.Add([]byte(`{"payload":"e30","protected":"e30","header":{"x5c":[]},"signature":""}`))
	set := signaturestest.Set(f, trustNotary(f, []*x509.Certificate{root.Cert}, nil, "*"), "")
	f.Fuzz(func(t *testing.T, content []byte) {
		v := signatures.Verify(signatures.Signature{Type: signatures.TypeNotation, Content: content}, signatures.Image{Digest: digest, Reference: repository + "@" + digest}, set, time.Now())
		if v.Trusted() {
			t.Errorf("trusted: %+v", v)
		}
	})
}
