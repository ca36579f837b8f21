package signaturestest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	protorekor "github.com/sigstore/protobuf-specs/gen/pb-go/rekor/v1"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/testing/ca"
	"github.com/sigstore/sigstore-go/pkg/tlog"
	"github.com/sigstore/sigstore/pkg/cryptoutils"

	"github.com/tidewaiter/tidewaiter/internal/payload"
)

// Deployment is a sigstore deployment in memory: a CA that can issue any certificate, and
// sigstore-go's virtual transparency log and timestamp authority.
type Deployment struct {
	*ca.VirtualSigstore
	Root, Intermediate *x509.Certificate
	intermediateKey    crypto.Signer
	rootKey            crypto.Signer
}

// NewDeployment starts one.
func NewDeployment(t testing.TB) *Deployment {
	t.Helper()
	v, err := ca.NewVirtualSigstore()
	must(t, err)
	d := &Deployment{VirtualSigstore: v}
	now := time.Now()
	d.Root, d.rootKey = IssueCA(t, "test root", nil, nil, now.Add(-24*time.Hour), now.Add(24*time.Hour))
	d.Intermediate, d.intermediateKey = IssueCA(t, "test intermediate", d.Root, d.rootKey, now.Add(-24*time.Hour), now.Add(24*time.Hour))
	return d
}

// IssueCA makes a CA certificate, self-signed if parent is nil.
func IssueCA(t testing.TB, name string, parent *x509.Certificate, parentKey crypto.Signer, from, until time.Time) (*x509.Certificate, crypto.Signer) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name, Organization: []string{"tests"}},
		NotBefore: from, NotAfter: until, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	if parent == nil {
		parent, parentKey = template, key
	}
	return issue(t, template, parent, key.Public(), parentKey), key
}

func issue(t testing.TB, template, parent *x509.Certificate, public crypto.PublicKey, signer crypto.Signer) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, signer)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	return cert
}

// UseIntermediate replaces the intermediate CA by one with another validity.
func (d *Deployment) UseIntermediate(t testing.TB, from, until time.Time) {
	t.Helper()
	d.Intermediate, d.intermediateKey = IssueCA(t, "test intermediate", d.Root, d.rootKey, from, until)
}

// RevocationLists returns the list of the root, which revokes nothing, and the list of the
// intermediate CA, which revokes the certificate with a serial number. They are valid for a day.
func (d *Deployment) RevocationLists(t testing.TB, revoked int64) (ofRoot, ofIntermediate []byte) {
	t.Helper()
	now := time.Now()
	list := func(issuer *x509.Certificate, key crypto.Signer, entries ...x509.RevocationListEntry) []byte {
		der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
			Number: big.NewInt(1), ThisUpdate: now.Add(-time.Hour), NextUpdate: now.Add(23 * time.Hour), RevokedCertificateEntries: entries,
		}, issuer, key)
		must(t, err)
		return der
	}
	return list(d.Root, d.rootKey), list(d.Intermediate, d.intermediateKey, x509.RevocationListEntry{SerialNumber: big.NewInt(revoked), RevocationTime: now.Add(-time.Hour)})
}

// The extensions in which Fulcio puts the OpenID Connect issuer: the old one raw, the new one as
// DER.
var (
	OIDIssuer   = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 1}
	OIDIssuerV2 = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 8}
)

// Issuer is the OpenID Connect issuer of certificates made by Identity.
const Issuer = "https://issuer.example.com"

// Identity issues a code signing certificate valid for ten minutes around now, for an e-mail
// address or a URI, and returns it with its key. edit may change the template.
func (d *Deployment) Identity(t testing.TB, subject string, edit func(*x509.Certificate)) (*x509.Certificate, *Key) {
	t.Helper()
	key := NewKey(t, P256)
	now := time.Now()
	der, err := asn1.MarshalWithParams(Issuer, "utf8")
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: now.Add(-5 * time.Minute), NotAfter: now.Add(5 * time.Minute),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
		ExtraExtensions: []pkix.Extension{{Id: OIDIssuer, Value: []byte(Issuer)}, {Id: OIDIssuerV2, Value: der}},
	}
	if strings.Contains(subject, "://") {
		u, err := url.Parse(subject)
		must(t, err)
		template.URIs = []*url.URL{u}
	} else if subject != "" {
		template.EmailAddresses = []string{subject}
	}
	if edit != nil {
		edit(template)
	}
	return issue(t, template, d.Intermediate, key.Private.Public(), d.intermediateKey), key
}

// Extensions adds Fulcio's extensions to a certificate, by the last number of their OIDs. The
// deprecated ones, up to 6, are raw, and the others DER.
func Extensions(t testing.TB, values map[int]string) func(*x509.Certificate) {
	t.Helper()
	var all []pkix.Extension
	for _, n := range slices.Sorted(maps.Keys(values)) {
		value := []byte(values[n])
		if n > 6 {
			var err error
			value, err = asn1.MarshalWithParams(values[n], "utf8")
			must(t, err)
		}
		all = append(all, pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, n}, Value: value})
	}
	return func(c *x509.Certificate) { c.ExtraExtensions = append(c.ExtraExtensions, all...) }
}

// RekorKey is the log's public key in PEM form.
func (d *Deployment) RekorKey(t testing.TB) []byte {
	t.Helper()
	for _, l := range d.RekorLogs() {
		pem, err := cryptoutils.MarshalPublicKeyToPEM(l.PublicKey)
		must(t, err)
		return pem
	}
	t.Fatal("no log")
	return nil
}

// CertPEM is a certificate in PEM form.
func CertPEM(t testing.TB, certs ...*x509.Certificate) []byte {
	t.Helper()
	pem, err := cryptoutils.MarshalCertificatesToPEM(certs)
	must(t, err)
	return pem
}

// hashedRekord is the canonical body of a log entry for a signature over a message digest. verifier
// is a public key or a certificate in PEM form.
func hashedRekord(algorithm string, digest, signature, verifier []byte) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"0.0.1","kind":"hashedrekord","spec":{"data":{"hash":{"algorithm":%q,"value":%q}},"signature":{"content":%q,"publicKey":{"content":%q}}}}`,
		algorithm, hex.EncodeToString(digest), base64.StdEncoding.EncodeToString(signature), base64.StdEncoding.EncodeToString(verifier))
}

// Entry promises to log a body at the given time, as the annotation that cosign writes.
func (d *Deployment) Entry(t testing.TB, body []byte, at time.Time, index int64) string {
	t.Helper()
	id, err := d.RekorLogID()
	must(t, err)
	p := tlog.RekorPayload{Body: base64.StdEncoding.EncodeToString(body), IntegratedTime: at.Unix(), LogIndex: index, LogID: id}
	promise, err := d.RekorSignPayload(p)
	must(t, err)
	return string(Marshal(t, LogBundle{SignedEntryTimestamp: promise, Payload: p}))
}

// LogBundle is the content of cosign's bundle annotation.
type LogBundle struct {
	SignedEntryTimestamp []byte
	Payload              tlog.RekorPayload
}

// ParseLogBundle reads what Entry wrote, to be tampered with.
func ParseLogBundle(t testing.TB, text string) LogBundle {
	t.Helper()
	var b LogBundle
	must(t, json.Unmarshal([]byte(text), &b))
	return b
}

// Log adds a log entry to a cosign signature. verifierPEM is the key that made the signature, or a
// certificate of that key. algorithm is the hash of the logged digest: the log checks the signature
// with it.
func (d *Deployment) Log(t testing.TB, b *payload.Blob, algorithm string, verifierPEM []byte, at time.Time) {
	t.Helper()
	sig, err := base64.StdEncoding.DecodeString(b.Annotations[payload.AnnotationSignature])
	must(t, err)
	h := map[string]crypto.Hash{"sha256": crypto.SHA256, "sha384": crypto.SHA384, "sha512": crypto.SHA512}[algorithm].New()
	h.Write(b.Payload)
	b.Annotations[payload.AnnotationLogBundle] = d.Entry(t, hashedRekord(algorithm, h.Sum(nil), sig, verifierPEM), at, 4711)
}

// Keyless makes a cosign signature with certificate, chain and log entry.
func (d *Deployment) Keyless(t testing.TB, leaf *x509.Certificate, key *Key, digest, reference string, at time.Time) *payload.Blob {
	t.Helper()
	b := key.SimpleSigning(t, digest, reference)
	b.Annotations[payload.AnnotationCertificate] = string(CertPEM(t, leaf))
	b.Annotations[payload.AnnotationChain] = string(CertPEM(t, d.Intermediate, d.Root))
	d.Log(t, b, "sha256", CertPEM(t, leaf), at)
	return b
}

// KeylessBundle makes a version 0.3 bundle with certificate, a log entry of kind dsse with promise
// and proof, and a signed timestamp.
func (d *Deployment) KeylessBundle(t testing.TB, leaf *x509.Certificate, key *Key, statement []byte, at time.Time) *protobundle.Bundle {
	t.Helper()
	b := key.Bundle(t, statement)
	sig := b.GetDsseEnvelope().GetSignatures()[0].GetSig()
	b.VerificationMaterial.Content = &protobundle.VerificationMaterial_Certificate{Certificate: &protocommon.X509Certificate{RawBytes: leaf.Raw}}
	entry, err := d.GenerateTlogEntry(leaf, &dsse.Envelope{
		PayloadType: payload.MediaTypeInToto,
		Payload:     base64.StdEncoding.EncodeToString(statement),
		Signatures:  []dsse.Signature{{Sig: base64.StdEncoding.EncodeToString(sig)}},
	}, sig, at.Unix(), true)
	must(t, err)
	tle := entry.TransparencyLogEntry()
	tle.KindVersion = &protorekor.KindVersion{Kind: "dsse", Version: "0.0.1"}
	bundle := ParseLogBundle(t, d.Entry(t, tle.GetCanonicalizedBody(), at, tle.GetLogIndex()))
	tle.InclusionPromise = &protorekor.InclusionPromise{SignedEntryTimestamp: bundle.SignedEntryTimestamp}
	b.VerificationMaterial.TlogEntries = []*protorekor.TransparencyLogEntry{tle}
	stamp, err := d.TimestampResponse(sig)
	must(t, err)
	b.VerificationMaterial.TimestampVerificationData = &protobundle.TimestampVerificationData{
		Rfc3161Timestamps: []*protocommon.RFC3161SignedTimestamp{{SignedTimestamp: stamp}},
	}
	return b
}

// TrustedRoot returns the deployment as a trusted_root.json. edit may change its parts first.
func (d *Deployment) TrustedRoot(t testing.TB, edit func(*TrustedRootParts)) []byte {
	t.Helper()
	p := &TrustedRootParts{
		CAs: append(d.FulcioCertificateAuthorities(),
			&root.FulcioCertificateAuthority{Root: d.Root, Intermediates: []*x509.Certificate{d.Intermediate}, URI: "https://fulcio.test"}),
		TSAs: d.TimestampingAuthorities(),
		Logs: d.RekorLogs(),
	}
	for hexID, l := range p.Logs {
		raw, err := hex.DecodeString(hexID)
		must(t, err)
		l.ID = raw
	}
	if edit != nil {
		edit(p)
	}
	tr, err := root.NewTrustedRoot(root.TrustedRootMediaType01, p.CAs, p.CTLogs, p.TSAs, p.Logs)
	must(t, err)
	b, err := tr.MarshalJSON()
	must(t, err)
	return b
}

// TrustedRootParts are the parts of a trusted root.
type TrustedRootParts struct {
	CAs    []root.CertificateAuthority
	CTLogs map[string]*root.TransparencyLog
	TSAs   []root.TimestampingAuthority
	Logs   map[string]*root.TransparencyLog
}

// KeylessV2Bundle makes a bundle with a signed timestamp and an entry of a Rekor v2 log, which
// proves inclusion but promises no time. The certificate is the virtual sigstore's own, for an
// e-mail address.
func (d *Deployment) KeylessV2Bundle(t testing.TB, email string, statement []byte) *protobundle.Bundle {
	t.Helper()
	entity, err := d.AttestHashedRekordV2(email, Issuer, statement)
	must(t, err)
	content, err := entity.SignatureContent()
	must(t, err)
	verification, err := entity.VerificationContent()
	must(t, err)
	entries, err := entity.TlogEntries()
	must(t, err)
	stamps, err := entity.Timestamps()
	must(t, err)
	b := NewKey(t, P256).Bundle(t, statement)
	b.GetDsseEnvelope().Signatures[0].Sig = content.Signature()
	b.VerificationMaterial = &protobundle.VerificationMaterial{
		Content:     &protobundle.VerificationMaterial_Certificate{Certificate: &protocommon.X509Certificate{RawBytes: verification.Certificate().Raw}},
		TlogEntries: []*protorekor.TransparencyLogEntry{entries[0].TransparencyLogEntry()},
		TimestampVerificationData: &protobundle.TimestampVerificationData{
			Rfc3161Timestamps: []*protocommon.RFC3161SignedTimestamp{{SignedTimestamp: stamps[0]}},
		},
	}
	return b
}
