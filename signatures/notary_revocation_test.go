package signatures_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/json"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/notaryproject/notation-core-go/revocation"
	"github.com/notaryproject/notation-core-go/revocation/crl"
	"github.com/notaryproject/notation-core-go/signature"
	"github.com/notaryproject/notation-core-go/signature/jws"
	"github.com/notaryproject/notation-go"
	"github.com/notaryproject/notation-go/verifier"
	filecrl "github.com/notaryproject/notation-go/verifier/crl"
	"github.com/notaryproject/notation-go/verifier/trustpolicy"
	"github.com/notaryproject/notation-go/verifier/truststore"
	godigest "github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// The URLs of the revocation lists in the certificates of a notaryPKI.
const rootLists, caLists = "http://crl.example.com/root.crl", "http://crl.example.com/ca.crl"

var (
	oidDelta, oidFreshest       = asn1.ObjectIdentifier{2, 5, 29, 27}, asn1.ObjectIdentifier{2, 5, 29, 46}
	oidIssuing, oidInvalidity   = asn1.ObjectIdentifier{2, 5, 29, 28}, asn1.ObjectIdentifier{2, 5, 29, 24}
	oidUnknown                  = asn1.ObjectIdentifier{1, 2, 3, 4}
	leafSerial, caSerial, other = big.NewInt(3), big.NewInt(2), big.NewInt(4711)
)

// notaryPKI is a root, a CA below it, and a signer.
type notaryPKI struct {
	root, ca, leaf          *x509.Certificate
	rootKey, caKey, leafKey *ecdsa.PrivateKey
}

// newNotaryPKI makes certificates of the same names each time. edit changes the signer's.
func newNotaryPKI(t testing.TB, edit func(*x509.Certificate)) *notaryPKI {
	t.Helper()
	p := &notaryPKI{}
	issue := func(template, parent *x509.Certificate, by *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
		t.Helper()
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if parent == nil {
			parent, by = template, key
		}
		template.NotBefore, template.NotAfter, template.BasicConstraintsValid = time.Now().Add(-time.Hour), time.Now().AddDate(1, 0, 0), true
		der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
		if err != nil {
			t.Fatal(err)
		}
		c, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return c, key
	}
	name := func(cn string) pkix.Name {
		return pkix.Name{CommonName: cn, Organization: []string{"Notary"}, Country: []string{"US"}, Province: []string{"WA"}}
	}
	const ca = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	p.root, p.rootKey = issue(&x509.Certificate{SerialNumber: big.NewInt(1), Subject: name("root"), IsCA: true, KeyUsage: ca}, nil, nil)
	p.ca, p.caKey = issue(&x509.Certificate{SerialNumber: caSerial, Subject: name("ca"), IsCA: true, KeyUsage: ca, CRLDistributionPoints: []string{rootLists}}, p.root, p.rootKey)
	leaf := &x509.Certificate{
		SerialNumber: leafSerial, Subject: name("signer"), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning}, CRLDistributionPoints: []string{caLists},
	}
	if edit != nil {
		edit(leaf)
	}
	p.leaf, p.leafKey = issue(leaf, p.ca, p.caKey)
	return p
}

func (p *notaryPKI) chain() []*x509.Certificate { return []*x509.Certificate{p.leaf, p.ca, p.root} }

// sign makes an envelope.
func (p *notaryPKI) sign(t testing.TB) []byte {
	return notarized(t, p.leafKey, p.chain(), digest, notation.SignerSignOptions{SignatureMediaType: jws.MediaTypeEnvelope})
}

// listEdit changes a list before it is signed.
type listEdit func(*x509.RevocationList)

// list makes a revocation list in DER with a number. It is valid for a day.
func list(t testing.TB, issuer *x509.Certificate, key crypto.Signer, number int64, edits ...listEdit) []byte {
	t.Helper()
	l := &x509.RevocationList{Number: big.NewInt(number), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(23 * time.Hour)}
	for _, edit := range edits {
		edit(l)
	}
	der, err := x509.CreateRevocationList(rand.Reader, l, issuer, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func revokes(serial *big.Int, reason int, extensions ...pkix.Extension) listEdit {
	return func(l *x509.RevocationList) {
		l.RevokedCertificateEntries = append(l.RevokedCertificateEntries, x509.RevocationListEntry{
			SerialNumber: serial, RevocationTime: time.Now().Add(-30 * time.Minute), ReasonCode: reason, ExtraExtensions: extensions,
		})
	}
}

func holds(from, until time.Time) listEdit {
	return func(l *x509.RevocationList) { l.ThisUpdate, l.NextUpdate = from, until }
}

func extended(id asn1.ObjectIdentifier, critical bool, value []byte) listEdit {
	return func(l *x509.RevocationList) {
		l.ExtraExtensions = append(l.ExtraExtensions, pkix.Extension{Id: id, Critical: critical, Value: value})
	}
}

// invalidSince is the extension invalidityDate.
func invalidSince(t testing.TB, at time.Time) pkix.Extension {
	t.Helper()
	value, err := asn1.MarshalWithParams(at.UTC(), "generalized")
	if err != nil {
		t.Fatal(err)
	}
	return pkix.Extension{Id: oidInvalidity, Value: value}
}

// about makes the value of an issuingDistributionPoint with a URI and tagged fields.
func about(t testing.TB, uri string, fields ...asn1.RawValue) []byte {
	t.Helper()
	tagged := func(tag int, constructed bool, content []byte) asn1.RawValue {
		return asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: tag, IsCompound: constructed, Bytes: content}
	}
	marshal := func(v any) []byte {
		der, err := asn1.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	var all []asn1.RawValue
	if uri != "" {
		all = append(all, tagged(0, true, marshal(tagged(0, true, marshal(tagged(6, false, []byte(uri)))))))
	}
	return marshal(append(all, fields...))
}

// flag is a field of an issuingDistributionPoint that is true.
func flag(tag int) asn1.RawValue {
	return asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: tag, Bytes: []byte{0xff}}
}

// withLists adds lists to a rootOfTrust of trustNotary.
func withLists(trust string, lists ...[]byte) string {
	var texts []string
	for _, l := range lists {
		texts = append(texts, signaturestest.B64(l))
	}
	return strings.TrimSuffix(trust, "}}") + ", crlDatas: [" + strings.Join(texts, ", ") + "]}}"
}

// A signature with a certificate that a list of the policy revokes is not trusted. If the policy
// has lists, each certificate needs one. Each case is something that an attacker, a CA or a job
// that fetches lists may do. If notation-go can have the same lists in its cache, its own verifier
// must decide the same.
func TestNotaryRevocation(t *testing.T) {
	t.Parallel()
	p := newNotaryPKI(t, nil)
	silent := newNotaryPKI(t, func(c *x509.Certificate) { c.CRLDistributionPoints = nil })
	onlyOCSP := newNotaryPKI(t, func(c *x509.Certificate) {
		c.CRLDistributionPoints, c.OCSPServer = nil, []string{"http://ocsp.example.com"}
	})
	stranger := newNotaryPKI(t, nil) // the same names, other keys
	now := time.Now()
	ofRoot := func(edits ...listEdit) []byte { return list(t, p.root, p.rootKey, 1, edits...) }
	ofCA := func(number int64, edits ...listEdit) []byte { return list(t, p.ca, p.caKey, number, edits...) }
	good := ofRoot()
	damaged := bytes.Clone(ofCA(1))
	damaged[len(damaged)-1] ^= 1
	const (
		revoked, unknown = "False CertificateRevoked / True", "False RevocationUnknown / True"
		// what notation decides, if it can have the same lists
		same, stricter = true, false
	)
	for _, tc := range []struct {
		name   string
		signer *notaryPKI
		lists  [][]byte
		at     time.Time
		want   string
		like   bool   // notation decides the same
		says   string // part of the message
	}{
		{"nobody is revoked", p, [][]byte{good, ofCA(1)}, now, trusted, same, ""},
		{"somebody else is", p, [][]byte{good, ofCA(1, revokes(other, 1))}, now, trusted, same, ""},
		{"the signer is", p, [][]byte{good, ofCA(1, revokes(other, 1), revokes(leafSerial, 1))}, now, revoked, same, `"CN=signer,O=Notary,ST=WA,C=US", serial number 3, is revoked since`},
		{"no reason is given", p, [][]byte{good, ofCA(1, revokes(leafSerial, 0))}, now, revoked, same, "is revoked since"},
		{"the CA is", p, [][]byte{ofRoot(revokes(caSerial, 2)), ofCA(1)}, now, revoked, same, "(cACompromise)"},
		{"both are", p, [][]byte{ofRoot(revokes(caSerial, 2)), ofCA(1, revokes(leafSerial, 4))}, now, revoked, same, ""},
		{"the serial number of another CA", p, [][]byte{ofRoot(revokes(leafSerial, 1)), ofCA(1)}, now, trusted, same, ""},
		{"on hold", p, [][]byte{good, ofCA(1, revokes(leafSerial, 6))}, now, revoked, same, "(certificateHold)"},
		{"on hold, and removed", p, [][]byte{good, ofCA(1, revokes(leafSerial, 6)), ofCA(2)}, now, trusted, stricter, ""},
		{"invalid only later, without a time that counts", p, [][]byte{good, ofCA(1, revokes(leafSerial, 1, invalidSince(t, now.Add(time.Hour))))}, now, revoked, same, ""},
		{"no list of the CA", p, [][]byte{good}, now, unknown, same, `"CN=signer,O=Notary,ST=WA,C=US" is revoked is unknown: the policy has no revocation list of "CN=ca,O=Notary,ST=WA,C=US"`},
		{"no list of the root", p, [][]byte{ofCA(1)}, now, unknown, same, ""},
		{"revoked by the one list", p, [][]byte{ofCA(1, revokes(leafSerial, 1))}, now, revoked, same, ""},
		{"a list that has ended", p, [][]byte{good, ofCA(1, holds(now.Add(-time.Hour), now.Add(-time.Minute)))}, now, unknown, same, "held until"},
		{"a list that will end", p, [][]byte{good, ofCA(1)}, now.Add(24 * time.Hour), unknown, stricter, "held until"},
		{"a list of later", p, [][]byte{good, ofCA(1, holds(now.Add(time.Hour), now.Add(2*time.Hour)))}, now, unknown, stricter, "holds only from then on"},
		{"a clock that is a little ahead", p, [][]byte{good, ofCA(1, holds(now.Add(30*time.Second), now.Add(2*time.Hour)))}, now, trusted, same, ""},
		{"the next list is there already", p, [][]byte{good, ofCA(1), ofCA(2, holds(now.Add(time.Hour), now.Add(2*time.Hour)), revokes(leafSerial, 1))}, now, trusted, stricter, ""},
		{"the next list has come", p, [][]byte{good, ofCA(1), ofCA(2, holds(now.Add(time.Hour), now.Add(2*time.Hour)), revokes(leafSerial, 1))}, now.Add(time.Hour), revoked, stricter, ""},
		{"an older list beside the newer one", p, [][]byte{good, ofCA(2, revokes(leafSerial, 1)), ofCA(1)}, now, revoked, stricter, ""},
		{"the newer one comes second", p, [][]byte{good, ofCA(1), ofCA(2, revokes(leafSerial, 1))}, now, revoked, stricter, ""},
		{"an older list that holds beside a newer one that ended", p, [][]byte{good, ofCA(1), ofCA(2, holds(now.Add(-time.Hour), now.Add(-time.Minute)))}, now, unknown, stricter, ""},
		{"a list by another CA of the same name", p, [][]byte{good, list(t, stranger.ca, stranger.caKey, 9)}, now, unknown, same, "is not signed with the key of this CA"},
		{"beside the right one", p, [][]byte{good, list(t, stranger.ca, stranger.caKey, 9), ofCA(1, revokes(leafSerial, 1))}, now, revoked, stricter, ""},
		{"another CA of the same name cannot revoke", p, [][]byte{good, list(t, stranger.ca, stranger.caKey, 9, revokes(leafSerial, 1)), ofCA(1)}, now, trusted, stricter, ""},
		{"a list whose signature is damaged", p, [][]byte{good, damaged}, now, unknown, same, "is not signed with the key of this CA"},
		{"a list for the other half of the certificates", p, [][]byte{good, ofCA(1, extended(oidIssuing, true, about(t, "http://crl.example.com/2.crl")))}, now, unknown, stricter, ""},
		{"a list for this half", p, [][]byte{good, ofCA(1, extended(oidIssuing, true, about(t, caLists)), revokes(leafSerial, 1))}, now, revoked, same, ""},
		{"a list for this half, without the signer", p, [][]byte{good, ofCA(1, extended(oidIssuing, true, about(t, caLists)))}, now, trusted, same, ""},
		{"both halves, with numbers of one sequence", p, [][]byte{good, ofCA(1, extended(oidIssuing, true, about(t, caLists)), revokes(leafSerial, 1)), ofCA(2, extended(oidIssuing, true, about(t, "http://crl.example.com/2.crl")))}, now, revoked, stricter, ""},
		{"a list of CAs only", p, [][]byte{good, ofCA(1, extended(oidIssuing, true, about(t, "", flag(2))))}, now, unknown, stricter, ""},
		{"a list of signers only", p, [][]byte{good, ofCA(1, extended(oidIssuing, true, about(t, "", flag(1))))}, now, trusted, same, ""},
		{"an entry with an unknown critical extension", p, [][]byte{good, ofCA(1, revokes(leafSerial, 1, pkix.Extension{Id: oidUnknown, Critical: true, Value: []byte{5, 0}}))}, now, unknown, same, "unsupported critical extension"},
		{"a certificate that names no list, and a list that revokes it", silent, [][]byte{list(t, silent.root, silent.rootKey, 1), list(t, silent.ca, silent.caKey, 1, revokes(leafSerial, 1))}, now, revoked, stricter, ""},
		{"a certificate that names no list, and no list", silent, [][]byte{list(t, silent.root, silent.rootKey, 1)}, now, unknown, stricter, ""},
		{"a certificate that names only OCSP, and a list that revokes it", onlyOCSP, [][]byte{list(t, onlyOCSP.root, onlyOCSP.rootKey, 1), list(t, onlyOCSP.ca, onlyOCSP.caKey, 1, revokes(leafSerial, 1))}, now, revoked, stricter, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			trust := withLists(trustNotary(t, []*x509.Certificate{tc.signer.root}, nil, "*"), tc.lists...)
			content := tc.signer.sign(t)
			v := signatures.Verify(signatures.Signature{Type: signatures.TypeNotation, Content: content}, signatures.Image{Digest: digest, Reference: repository + "@" + digest}, signaturestest.Set(t, trust, ""), tc.at)
			want(t, v, tc.want)
			c, _ := v.Condition(verdicts.Trusted)
			if !strings.Contains(c.Message, tc.says) {
				t.Errorf("message %q does not say %q", c.Message, tc.says)
			}
			if _, isRevoked := v.Condition(verdicts.Revoked); isRevoked != (tc.want == revoked) {
				t.Errorf("the condition Revoked is there: %t", isRevoked)
			}
			if v.Trusted() && (v.NotAfter.IsZero() || v.NotAfter.After(now.Add(24*time.Hour))) {
				t.Errorf("it is trusted until %s, longer than its lists hold", v.NotAfter)
			}
			theirs := notationWith(t, tc.signer, tc.lists, content)
			if tc.like && (theirs == nil) != v.Trusted() {
				t.Errorf("notation says %v", theirs)
			}
			if theirs != nil && tc.like && !strings.Contains(theirs.Error(), "revo") {
				t.Errorf("notation refuses it for another reason: %v", theirs)
			}
		})
	}
}

// notationWith returns what notation-go's own verifier decides with these lists in its cache and
// without a network.
func notationWith(t *testing.T, p *notaryPKI, lists [][]byte, content []byte) error {
	t.Helper()
	cache, err := filecrl.NewFileCache(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, der := range lists {
		parsed, err := x509.ParseRevocationList(der)
		if err != nil {
			t.Fatal(err)
		}
		url := caLists
		if parsed.Issuer.CommonName == p.root.Subject.CommonName {
			url = rootLists
		}
		if err := cache.Set(t.Context(), url, &crl.Bundle{BaseCRL: parsed}); err != nil {
			t.Fatal(err)
		}
	}
	fetcher, err := crl.NewHTTPFetcher(&http.Client{Transport: away{}})
	if err != nil {
		t.Fatal(err)
	}
	fetcher.Cache = cache
	validator, err := revocation.NewWithOptions(revocation.Options{OCSPHTTPClient: &http.Client{Transport: away{}}, CRLFetcher: fetcher})
	if err != nil {
		t.Fatal(err)
	}
	v, err := verifier.NewWithOptions(&trustpolicy.Document{Version: "1.0", TrustPolicies: []trustpolicy.TrustPolicy{{
		Name: "p", RegistryScopes: []string{"*"}, TrustStores: []string{"ca:p", "signingAuthority:p"}, TrustedIdentities: []string{"*"},
		SignatureVerification: trustpolicy.SignatureVerification{VerificationLevel: trustpolicy.LevelStrict.Name},
	}}}, onlyRoot{p.root}, nil, verifier.VerifierOptions{RevocationCodeSigningValidator: validator})
	if err != nil {
		t.Fatal(err)
	}
	_, err = v.Verify(t.Context(), target(), content, notation.VerifierVerifyOptions{ArtifactReference: repository + "@" + digest, SignatureMediaType: jws.MediaTypeEnvelope})
	return err
}

// target is the descriptor of the image, which signatures are for.
func target() ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: godigest.Digest(digest), Size: 528, Annotations: map[string]string{"build": "4711"}}
}

// away is a network on which every request fails.
type away struct{}

func (away) RoundTrip(*http.Request) (*http.Response, error) { return nil, errors.New("no network") }

// onlyRoot is a trust store.
type onlyRoot struct{ root *x509.Certificate }

func (o onlyRoot) GetCertificates(context.Context, truststore.Type, string) ([]*x509.Certificate, error) {
	return []*x509.Certificate{o.root}, nil
}

// A signing authority vouches for the time of a signature. As in notation, a certificate that
// became invalid only later counts at that time, and one that was revoked without a date does not.
func TestNotaryRevocationOfASigningAuthority(t *testing.T) {
	t.Parallel()
	p := newNotaryPKI(t, nil)
	signedAt := time.Now().Add(-time.Minute)
	local, err := signature.NewLocalSigner(p.chain(), p.leafKey)
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(map[string]any{"targetArtifact": target()})
	if err != nil {
		t.Fatal(err)
	}
	envelope, err := signature.NewEnvelope(jws.MediaTypeEnvelope)
	if err != nil {
		t.Fatal(err)
	}
	content, err := envelope.Sign(&signature.SignRequest{
		Payload: signature.Payload{ContentType: "application/vnd.cncf.notary.payload.v1+json", Content: body}, Signer: local,
		SigningTime: signedAt, SigningScheme: signature.SigningSchemeX509SigningAuthority,
	})
	if err != nil {
		t.Fatal(err)
	}
	trust := strings.Replace(trustNotary(t, []*x509.Certificate{p.root}, nil, "*"), "caRootsData", "signingAuthorityRootsData", 1)
	for _, tc := range []struct {
		entry listEdit
		want  string
	}{
		{revokes(leafSerial, 1), "False CertificateRevoked / True"},
		{revokes(leafSerial, 1, invalidSince(t, signedAt.Add(-time.Second))), "False CertificateRevoked / True"},
		{revokes(leafSerial, 1, invalidSince(t, signedAt.Add(time.Minute))), trusted},
	} {
		lists := [][]byte{list(t, p.root, p.rootKey, 1), list(t, p.ca, p.caKey, 1, tc.entry)}
		v := signatures.Verify(signatures.Signature{Type: signatures.TypeNotation, Content: content}, signatures.Image{Digest: digest, Reference: repository + "@" + digest}, signaturestest.Set(t, withLists(trust, lists...), ""), time.Now())
		want(t, v, tc.want)
		if theirs := notationWith(t, p, lists, content); (theirs == nil) != v.Trusted() {
			t.Errorf("notation says %v", theirs)
		}
	}
}

// The certificates of a timestamp need lists, too. A timestamp does not make a revoked certificate
// valid, whatever its invalidity date.
func TestNotaryRevocationAndTimestamps(t *testing.T) {
	t.Parallel()
	p, authority := newNotaryPKI(t, nil), newTSA(t)
	content := authority.stamp(t, p.sign(t))
	trust := trustNotary(t, []*x509.Certificate{p.root}, []*x509.Certificate{authority.root}, "*")
	good := [][]byte{list(t, p.root, p.rootKey, 1), list(t, p.ca, p.caKey, 1)}
	for _, tc := range []struct {
		name  string
		lists [][]byte
		want  string
	}{
		{"all lists", append(good, list(t, authority.root, authority.rootKey, 1)), trusted},
		{"no list of the timestamp authority", good, "False RevocationUnknown / True"},
		{"its certificate is revoked", append(good, list(t, authority.root, authority.rootKey, 1, revokes(authority.leaf.SerialNumber, 1))), "False CertificateRevoked / True"},
		{"the signer's was revoked after the timestamp", [][]byte{
			list(t, p.root, p.rootKey, 1), list(t, authority.root, authority.rootKey, 1),
			list(t, p.ca, p.caKey, 1, revokes(leafSerial, 1, invalidSince(t, time.Now().Add(time.Hour)))),
		}, "False CertificateRevoked / True"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := signatures.Verify(signatures.Signature{Type: signatures.TypeNotation, Content: content}, signatures.Image{Digest: digest, Reference: repository + "@" + digest}, signaturestest.Set(t, withLists(trust, tc.lists...), ""), time.Now().Add(time.Minute))
			want(t, v, tc.want)
		})
	}
}

// Incomplete lists are refused when the policy is written, with the field and the list that is
// needed instead.
func TestNotaryListsRefused(t *testing.T) {
	t.Parallel()
	p := newNotaryPKI(t, nil)
	l := func(edits ...listEdit) []byte { return list(t, p.ca, p.caKey, 1, edits...) }
	pemOf := func(typ string, der ...[]byte) []byte {
		var all []byte
		for _, d := range der {
			all = append(all, pem.EncodeToMemory(&pem.Block{Type: typ, Bytes: d})...)
		}
		return all
	}
	good := pemOf("X509 CRL", l(), l())
	integer, err := asn1.Marshal(1)
	if err != nil {
		t.Fatal(err)
	}
	reasons, err := asn1.MarshalWithParams(asn1.BitString{Bytes: []byte{0x40}, BitLength: 2}, "tag:3")
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		data []byte
		want string
	}{
		"two in PEM form":                {good, ""},
		"two in DER form":                {append(l(), l()...), ""},
		"with a line end behind":         {append(l(), '\n'), ""},
		"nothing":                        {[]byte("\n"), "crlDatas[0]: must not be empty"},
		"no list":                        {[]byte("junk"), "crlDatas[0]: after 0 lists: is not a revocation list in PEM or DER form"},
		"a certificate":                  {pemOf("CERTIFICATE", p.ca.Raw), `has a PEM block "CERTIFICATE", must be "X509 CRL"`},
		"a certificate in DER form":      {p.ca.Raw, "is not a revocation list"},
		"DER that is cut":                {l()[:100], "is not a revocation list in PEM or DER form"},
		"PEM that is cut in the second":  {good[:len(good)-30], "after 1 lists: has a damaged PEM block"},
		"PEM with something behind":      {append(bytes.Clone(good), "more"...), "after 2 lists: has a damaged PEM block, or something that is none"},
		"a block with two":               {pemOf("X509 CRL", append(l(), l()...)), "has something behind the list"},
		"a delta list":                   {l(extended(oidDelta, true, integer)), "deltaCRLIndicator"},
		"a list that has delta lists":    {l(extended(oidFreshest, false, []byte{0x30, 0})), "freshestCRL"},
		"an unknown critical extension":  {l(extended(oidUnknown, true, integer)), "the critical extension 1.2.3.4"},
		"an unknown extension":           {l(extended(oidUnknown, false, integer)), ""},
		"some reasons":                   {l(extended(oidIssuing, true, about(t, "", asn1.RawValue{FullBytes: reasons}))), "onlySomeReasons"},
		"an indirect list":               {l(extended(oidIssuing, true, about(t, caLists, flag(4)))), "indirectCRL"},
		"attribute certificates":         {l(extended(oidIssuing, true, about(t, "", flag(5)))), "onlyContainsAttributeCerts"},
		"neither signers nor CAs":        {l(extended(oidIssuing, true, about(t, "", flag(1), flag(2)))), "excludes all"},
		"fields in another order":        {l(extended(oidIssuing, true, about(t, "", flag(4), flag(1)))), "malformed"},
		"a field that is not known":      {l(extended(oidIssuing, true, about(t, "", flag(6)))), "malformed"},
		"two issuingDistributionPoints":  {l(extended(oidIssuing, true, about(t, caLists)), extended(oidIssuing, true, about(t, rootLists))), "two issuingDistributionPoints"},
		"more lists than are looked at":  {bytes.Repeat(l(), 65), "more than 64 lists"},
		"as many lists as are looked at": {bytes.Repeat(l(), 64), ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := policy.Parse([]byte(signaturestest.Document("demo", "["+repository+"]", withLists(trustNotary(t, []*x509.Certificate{p.root}, nil, "*"), tc.data), "")), "")
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("the error is %v, want %q", err, tc.want)
			}
		})
	}
}

// A policy is usable while one of its lists is valid. It warns before a list ends, unless another
// one replaces it.
func TestNotaryListsEnd(t *testing.T) {
	t.Parallel()
	p := newNotaryPKI(t, nil)
	now := time.Now()
	set := signaturestest.Set(t, withLists(trustNotary(t, []*x509.Certificate{p.root}, nil, "*"),
		list(t, p.root, p.rootKey, 1, holds(now, now.Add(time.Minute))), list(t, p.root, p.rootKey, 2, holds(now, now.Add(time.Hour))), list(t, p.ca, p.caKey, 1, holds(now, now.Add(10*time.Hour)))), "")
	one := set.Policies()[0]
	for _, tc := range []struct {
		after        time.Duration
		usable, soon bool
	}{{0, true, false}, {50 * time.Minute, true, true}, {2 * time.Hour, true, true}, {11 * time.Hour, false, true}} {
		usable, soon := one.Usable(now.Add(tc.after)), one.EndsSoon(now.Add(tc.after), time.Hour)
		if (usable == nil) != tc.usable || (soon != nil) != tc.soon {
			t.Errorf("after %s: %v, %v", tc.after, usable, soon)
		}
	}
}

// Whatever the policy's list contains: a certificate that the CA has revoked, in the only list that
// it signed, is not trusted.
func FuzzRevocationLists(f *testing.F) {
	p := newNotaryPKI(f, nil)
	theOnly := list(f, p.ca, p.caKey, 1, revokes(leafSerial, 1))
	f.Add(theOnly)
	f.Add(pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: theOnly}))
	stranger := newNotaryPKI(f, nil)
	for _, edit := range []listEdit{
		func(*x509.RevocationList) {}, revokes(leafSerial, 6), revokes(other, 1, invalidSince(f, time.Now())),
		extended(oidIssuing, true, about(f, caLists, flag(1))), extended(oidDelta, true, []byte{2, 1, 1}),
	} {
		f.Add(list(f, stranger.ca, stranger.caKey, 2, edit))
	}
	ofRoot, content := list(f, p.root, p.rootKey, 1), p.sign(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		document := signaturestest.Document("demo", `["registry.example.com"]`, withLists(trustNotary(t, []*x509.Certificate{p.root}, nil, "*"), ofRoot, data), "")
		policies, err := policy.Parse([]byte(document), "policies.yaml")
		if err != nil {
			return
		}
		set, err := policy.NewSet(policies)
		if err != nil {
			t.Fatal(err)
		}
		v := signatures.Verify(signatures.Signature{Type: signatures.TypeNotation, Content: content}, signatures.Image{Digest: digest, Reference: repository + "@" + digest}, set, time.Now())
		if c, _ := v.Condition(verdicts.Trusted); v.Trusted() || c.Reason != "CertificateRevoked" && c.Reason != "RevocationUnknown" {
			t.Errorf("trusted: %t, %s: %s", v.Trusted(), c.Reason, c.Message)
		}
	})
}
