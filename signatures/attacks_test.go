package signatures_test

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/digitorus/timestamp"
	protorekor "github.com/sigstore/protobuf-specs/gen/pb-go/rekor/v1"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"google.golang.org/protobuf/proto"

	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// Each test here is an attack that succeeded against some verifier.
// Without the guard, the test fails.

const (
	digestOnly = "{matchPolicy: DigestOnly}"
	cosignSign = payload.PredicateCosignSign
	mail       = "dev@example.com"
)

// attack checks that a signature is refused for the reason that the guard gives. It also checks
// that the same signature without the attack is trusted: otherwise it might be refused for another
// reason.
func attack(t *testing.T, typ string, set *policy.Set, honest, evil any, expected string) {
	t.Helper()
	want(t, verify(t, typ, signaturestest.Marshal(t, honest), set), trusted)
	want(t, verify(t, typ, signaturestest.Marshal(t, evil), set), expected)
}

// edited copies a blob and changes an annotation.
func edited(b *payload.Blob, annotation, value string) *payload.Blob {
	c := *b
	c.Annotations = maps.Clone(b.Annotations)
	c.Annotations[annotation] = value
	return &c
}

// logFixture is a keyed, logged signature and everything to make others like it.
type logFixture struct {
	d      *signaturestest.Deployment
	key    *signaturestest.Key
	set    *policy.Set
	honest *payload.Blob
}

func newLogFixture(t *testing.T) *logFixture {
	f := &logFixture{d: signaturestest.NewDeployment(t), key: signaturestest.NewKey(t, signaturestest.P256)}
	f.set = signaturestest.Set(t, signaturestest.TrustKey(f.key, f.d.RekorKey(t)), matchRepository)
	f.honest = f.key.SimpleSigning(t, digest, repository)
	f.d.Log(t, f.honest, "sha256", f.key.PEM, now)
	return f
}

// A log entry of another signature, attached to ours (CVE-2022-36056, GHSA-8gw7-4j42-w388).
func TestAttackLogEntryOfAnotherSignature(t *testing.T) {
	f := newLogFixture(t)
	// ECDSA signatures of the same payload differ
	again := f.key.SimpleSigning(t, digest, repository)
	f.d.Log(t, again, "sha256", f.key.PEM, now)
	attack(t, signatures.TypeSimpleSigning, f.set, f.honest,
		edited(f.honest, payload.AnnotationLogBundle, again.Annotations[payload.AnnotationLogBundle]), "False TransparencyLogEntryInvalid / True")
}

// The same attack in a log of version 2. Its entries have no content: the logged content is
// computed from the bundle.
func TestAttackLogEntryV2OfAnotherSignature(t *testing.T) {
	d := signaturestest.NewDeployment(t)
	set := signaturestest.Set(t, d.TrustRoot(t, "signedEmail: "+mail, nil), digestOnly)
	statement := signaturestest.Statement(digest, cosignSign)
	honest, other := d.KeylessV2Bundle(t, mail, statement), d.KeylessV2Bundle(t, mail, statement)
	want(t, verify(t, signatures.TypeBundle, signaturestest.Marshal(t, honest), set), trusted)
	honest.VerificationMaterial.TlogEntries = other.VerificationMaterial.TlogEntries
	want(t, verify(t, signatures.TypeBundle, signaturestest.Marshal(t, honest), set), "False TransparencyLogEntryInvalid / True")
}

// Unsigned numbers beside a log entry do not become claims: the index of a proof in a log of
// version 2, and the index and time of an entry that is skipped because its promise is bad.
func TestAttackLogIndexForged(t *testing.T) {
	d := signaturestest.NewDeployment(t)
	set := signaturestest.Set(t, d.TrustRoot(t, "signedEmail: "+mail, nil), digestOnly)
	statement := signaturestest.Statement(digest, cosignSign)
	v2 := d.KeylessV2Bundle(t, mail, statement)
	v2.VerificationMaterial.TlogEntries[0].InclusionProof.LogIndex = 666
	v := verify(t, signatures.TypeBundle, signaturestest.Marshal(t, v2), set)
	want(t, v, trusted)
	if got := v.SignedClaims["rekor.logIndex"]; got != "0" {
		t.Errorf("of a proof with another index, rekor.logIndex %q", got)
	}

	leaf, key := d.Identity(t, mail, nil)
	set = signaturestest.Set(t, d.TrustFulcio(t, "signedEmail: "+mail, d.Root, d.Intermediate), digestOnly)
	v1 := d.KeylessBundle(t, leaf, key, statement, time.Now())
	honest := verify(t, signatures.TypeBundle, signaturestest.Marshal(t, v1), set)
	want(t, honest, trusted)
	forged := proto.CloneOf(v1.VerificationMaterial.TlogEntries[0])
	forged.LogIndex, forged.IntegratedTime = 666, forged.IntegratedTime+1
	v1.VerificationMaterial.TlogEntries = append([]*protorekor.TransparencyLogEntry{forged}, v1.VerificationMaterial.TlogEntries...)
	v = verify(t, signatures.TypeBundle, signaturestest.Marshal(t, v1), set)
	want(t, v, trusted)
	if !maps.Equal(v.SignedClaims, honest.SignedClaims) {
		t.Errorf("beside a bad entry, claims %v, without it %v", v.SignedClaims, honest.SignedClaims)
	}
}

// A log entry of another artifact by the same key (CVE-2022-23649).
func TestAttackLogEntryOfAnotherDigest(t *testing.T) {
	f := newLogFixture(t)
	other := f.key.SimpleSigning(t, otherImage, repository)
	f.d.Log(t, other, "sha256", f.key.PEM, now)
	attack(t, signatures.TypeSimpleSigning, f.set, f.honest,
		edited(f.honest, payload.AnnotationLogBundle, other.Annotations[payload.AnnotationLogBundle]), "False TransparencyLogEntryInvalid / True")
}

// A log entry has the right signature bytes but names another key (CVE-2026-22703,
// GHSA-whqx-f9j3-ch6m). With ECDSA anyone can find a key under which given bytes verify, and the
// log accepts it in good faith.
func TestAttackLogEntryOfAnotherKey(t *testing.T) {
	f := newLogFixture(t)
	raw, err := base64.StdEncoding.DecodeString(f.honest.Annotations[payload.AnnotationSignature])
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := cryptoutils.MarshalPublicKeyToPEM(signaturestest.RecoverKey(t, f.honest.Payload, raw, f.key))
	if err != nil {
		t.Fatal(err)
	}
	evil := edited(f.honest, payload.AnnotationLogBundle, "")
	f.d.Log(t, evil, "sha256", stranger, now)
	attack(t, signatures.TypeSimpleSigning, f.set, f.honest, evil, "False TransparencyLogEntryInvalid / True")
}

// The time of a log entry is moved back to when a certificate was valid. The log's promise signs
// the time.
func TestAttackIntegratedTimeAltered(t *testing.T) {
	d := signaturestest.NewDeployment(t)
	leaf, key := d.Identity(t, mail, nil)
	set := signaturestest.Set(t, d.TrustFulcio(t, "signedEmail: "+mail), matchRepository)
	honest := d.Keyless(t, leaf, key, digest, repository, time.Now())
	late := d.Keyless(t, leaf, key, digest, repository, time.Now().Add(time.Hour))
	b := signaturestest.ParseLogBundle(t, late.Annotations[payload.AnnotationLogBundle])
	b.Payload.IntegratedTime = time.Now().Unix()
	attack(t, signatures.TypeSimpleSigning, set, honest,
		edited(late, payload.AnnotationLogBundle, string(signaturestest.Marshal(t, b))), "False TransparencyLogEntryInvalid / True")
}

// An attestation, properly signed by the right key, is counted as approval of the image
// (CVE-2022-35929, CVE-2026-39395).
func TestAttackAttestationCountedAsSignature(t *testing.T) {
	key := signaturestest.NewKey(t, signaturestest.P256)
	set := signaturestest.Set(t, signaturestest.TrustKey(key, nil), digestOnly)
	honest := key.Bundle(t, signaturestest.Statement(digest, cosignSign))
	for _, predicate := range []string{"https://slsa.dev/provenance/v1", "https://spdx.dev/Document", "https://cosign.sigstore.dev/attestation/v1", ""} {
		attack(t, signatures.TypeBundle, set, honest, key.Bundle(t, signaturestest.Statement(digest, predicate)), "Unknown UnsupportedFormat / Unknown")
	}
	d := signaturestest.NewDeployment(t)
	leaf, certKey := d.Identity(t, mail, nil)
	keyless := signaturestest.Set(t, d.TrustRoot(t, "signedEmail: "+mail, nil), digestOnly)
	attack(t, signatures.TypeBundle, keyless,
		d.KeylessBundle(t, leaf, certKey, signaturestest.Statement(digest, cosignSign), time.Now()),
		d.KeylessBundle(t, leaf, certKey, signaturestest.Statement(digest, "https://slsa.dev/provenance/v1"), time.Now()), "Unknown UnsupportedFormat / Unknown")
}

// A certificate issued by an intermediate CA that had expired (CVE-2026-24122).
func TestAttackExpiredIntermediate(t *testing.T) {
	d := signaturestest.NewDeployment(t)
	set := signaturestest.Set(t, d.TrustFulcio(t, "signedEmail: "+mail), matchRepository)
	leaf, key := d.Identity(t, mail, nil)
	honest := d.Keyless(t, leaf, key, digest, repository, time.Now())
	d.UseIntermediate(t, time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour))
	leaf, key = d.Identity(t, mail, nil)
	attack(t, signatures.TypeSimpleSigning, set, honest,
		d.Keyless(t, leaf, key, digest, repository, time.Now()), "False CertificateExpired / Unknown")
}

// A timestamp signed by a certificate that the timestamp authority's CA issued for something else
// (CVE-2026-39984).
func TestAttackTimestampByAnotherLeaf(t *testing.T) {
	d := signaturestest.NewDeployment(t)
	leaf, key := d.Identity(t, mail, nil)
	set := signaturestest.Set(t, d.TrustRoot(t, "signedEmail: "+mail, func(p *signaturestest.TrustedRootParts) {
		p.Logs = nil // only a timestamp can vouch for the time
		p.TSAs = append(p.TSAs, &root.SigstoreTimestampingAuthority{Root: d.Root, Intermediates: []*x509.Certificate{d.Intermediate}, URI: "https://tsa.test"})
	}), digestOnly)
	honest := d.KeylessBundle(t, leaf, key, signaturestest.Statement(digest, cosignSign), time.Now())
	evil := d.KeylessBundle(t, leaf, key, signaturestest.Statement(digest, cosignSign), time.Now())
	// The code signing certificate makes its own timestamp.
	evil.VerificationMaterial.TimestampVerificationData.Rfc3161Timestamps[0].SignedTimestamp =
		stampedBy(t, leaf, key.Private, evil.GetDsseEnvelope().GetSignatures()[0].GetSig())
	attack(t, signatures.TypeBundle, set, honest, evil, "False TimestampInvalid / True")
}

func stampedBy(t *testing.T, cert *x509.Certificate, key crypto.Signer, signature []byte) []byte {
	request, err := timestamp.CreateRequest(bytes.NewReader(signature), &timestamp.RequestOptions{Hash: crypto.SHA256})
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := timestamp.ParseRequest(request)
	if err != nil {
		t.Fatal(err)
	}
	stamp := timestamp.Timestamp{
		HashAlgorithm: parsed.HashAlgorithm, HashedMessage: parsed.HashedMessage, Time: time.Now(),
		Policy: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 2}, AddTSACertificate: true,
	}
	response, err := stamp.CreateResponseWithOpts(cert, key, crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	return response
}

// The same log entry twice, as if two logs had witnessed it (GHSA-9vcr-p3rj-q5q6). Policies here
// demand one log, so an attacker gains nothing; it is refused all the same.
func TestAttackOneLogAsTwoWitnesses(t *testing.T) {
	d := signaturestest.NewDeployment(t)
	leaf, key := d.Identity(t, mail, nil)
	set := signaturestest.Set(t, d.TrustRoot(t, "signedEmail: "+mail, nil), digestOnly)
	honest := d.KeylessBundle(t, leaf, key, signaturestest.Statement(digest, cosignSign), time.Now())
	evil := d.KeylessBundle(t, leaf, key, signaturestest.Statement(digest, cosignSign), time.Now())
	evil.VerificationMaterial.TlogEntries = append(evil.VerificationMaterial.TlogEntries, evil.VerificationMaterial.TlogEntries[0])
	attack(t, signatures.TypeBundle, set, honest, evil, "False TransparencyLogEntryInvalid / True")
}

// A promise made by a log's key after the key was retired (GHSA-wqqc-jjcq-vfxm).
func TestAttackRetiredLogKey(t *testing.T) {
	d := signaturestest.NewDeployment(t)
	leaf, key := d.Identity(t, mail, nil)
	content := d.Keyless(t, leaf, key, digest, repository, time.Now())
	trust := func(end time.Time) *policy.Set {
		return signaturestest.Set(t, d.TrustRoot(t, "signedEmail: "+mail, func(p *signaturestest.TrustedRootParts) {
			for _, l := range p.Logs {
				l.ValidityPeriodEnd = end
			}
		}), matchRepository)
	}
	bytes := signaturestest.Marshal(t, content)
	want(t, verify(t, signatures.TypeSimpleSigning, bytes, trust(time.Now().Add(time.Hour))), trusted)
	want(t, verify(t, signatures.TypeSimpleSigning, bytes, trust(time.Now().Add(-time.Minute))), "False TransparencyLogEntryInvalid / True")
}

// The trusted root has retired a CA, as happens when a deployment moves to another one. A
// certificate of this CA counts if it was issued and used before. Otherwise the message names the
// CA and the time.
func TestAttackRetiredCA(t *testing.T) {
	d := signaturestest.NewDeployment(t)
	leaf, key := d.Identity(t, mail, nil)
	used := leaf.NotBefore.Add(4 * time.Minute)
	content := signaturestest.Marshal(t, d.Keyless(t, leaf, key, digest, repository, used))
	trust := func(edit func(*root.FulcioCertificateAuthority)) *policy.Set {
		return signaturestest.Set(t, d.TrustRoot(t, "signedEmail: "+mail, func(p *signaturestest.TrustedRootParts) {
			for _, l := range p.Logs { // the virtual log begins later
				l.ValidityPeriodStart = leaf.NotBefore.Add(-time.Hour)
			}
			for _, ca := range p.CAs {
				edit(ca.(*root.FulcioCertificateAuthority))
			}
		}), matchRepository)
	}
	until := func(end time.Time) func(*root.FulcioCertificateAuthority) {
		return func(ca *root.FulcioCertificateAuthority) { ca.ValidityPeriodEnd = end }
	}
	for _, tc := range []struct {
		name          string
		edit          func(*root.FulcioCertificateAuthority)
		want, message string
	}{
		{"retired later", until(used.Add(time.Minute)), trusted, ""},
		{"retired before it signed", until(used.Add(-time.Minute)), "False CertificateExpired / True", "was not valid when the signature was made"},
		{"retired before it was issued", until(leaf.NotBefore.Add(-time.Minute)), "False NoMatchingKey / Unknown",
			`the trusted root trusts "test root" only until ` + leaf.NotBefore.Add(-time.Minute).UTC().Format(time.RFC3339)},
		{"not trusted yet", func(ca *root.FulcioCertificateAuthority) { ca.ValidityPeriodStart = leaf.NotBefore.Add(time.Hour) }, "False NoMatchingKey / Unknown",
			`the trusted root trusts "test root" only from ` + leaf.NotBefore.Add(time.Hour).UTC().Format(time.RFC3339)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := verify(t, signatures.TypeSimpleSigning, content, trust(tc.edit))
			want(t, v, tc.want)
			if !strings.Contains(v.Conditions[0].Message, tc.message) {
				t.Errorf("the message is %q, want %q", v.Conditions[0].Message, tc.message)
			}
		})
	}
}

// An envelope has two signatures. A verifier that accepts any good one would be fooled.
func TestAttackTwoSignaturesInOneEnvelope(t *testing.T) {
	key, stranger := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	statement := signaturestest.Statement(digest, cosignSign)
	set := signaturestest.Set(t, signaturestest.TrustKey(key, nil), digestOnly)
	honest, evil := key.Bundle(t, statement), key.Bundle(t, statement)
	evil.GetDsseEnvelope().Signatures = append(evil.GetDsseEnvelope().Signatures, stranger.Bundle(t, statement).GetDsseEnvelope().Signatures...)
	attack(t, signatures.TypeBundle, set, honest, evil, "False InvalidSignature / Unknown")
}

// A signer is tricked into signing JSON in which two parsers find different digests.
func TestAttackAmbiguousJSON(t *testing.T) {
	key := signaturestest.NewKey(t, signaturestest.P256)
	set := signaturestest.Set(t, signaturestest.TrustKey(key, nil), matchRepository)
	honest := key.SimpleSigning(t, digest, repository)
	const typ = `"type":"cosign container image signature"`
	image := func(d string) string { return fmt.Sprintf(`"image":{"docker-manifest-digest":%q}`, d) }
	identity := fmt.Sprintf(`"identity":{"docker-reference":%q}`, repository)
	for name, doc := range map[string]string{
		"repeated digest":   fmt.Sprintf(`{"critical":{%s,"image":{"docker-manifest-digest":%q,"docker-manifest-digest":%q},%s},"optional":null}`, typ, otherImage, digest, identity),
		"digest, case":      fmt.Sprintf(`{"critical":{%s,"image":{"docker-manifest-digest":%q,"Docker-Manifest-Digest":%q},%s},"optional":null}`, typ, otherImage, digest, identity),
		"repeated image":    fmt.Sprintf(`{"critical":{%s,%s,%s,%s},"optional":null}`, typ, image(otherImage), image(digest), identity),
		"repeated critical": fmt.Sprintf(`{"critical":{%s,%s,%s},"critical":{%s,%s,%s},"optional":null}`, typ, image(otherImage), identity, typ, image(digest), identity),
		"critical, case":    fmt.Sprintf(`{"critical":{%s,%s,%s},"CRITICAL":{%s,%s,%s},"optional":null}`, typ, image(digest), identity, typ, image(otherImage), identity),
		"trailing document": fmt.Sprintf(`{"critical":{%s,%s,%s},"optional":null}{"critical":{%s,%s,%s}}`, typ, image(digest), identity, typ, image(otherImage), identity),
		"unknown critical":  fmt.Sprintf(`{"critical":{%s,%s,%s,"only-for":"tests"},"optional":null}`, typ, image(digest), identity),
		"OpenPGP's type":    fmt.Sprintf(`{"critical":{"type":"atomic container signature",%s,%s},"optional":null}`, image(digest), identity),
	} {
		t.Run(name, func(t *testing.T) {
			attack(t, signatures.TypeSimpleSigning, set, honest, key.Blob(t, []byte(doc)), "False InvalidSignature / Unknown")
		})
	}
	bundles := signaturestest.Set(t, signaturestest.TrustKey(key, nil), digestOnly)
	subject := func(d string) string { return fmt.Sprintf(`"subject":[{"digest":{"sha256":%q}}]`, d[len("sha256:"):]) }
	statement := func(fields ...string) []byte {
		return []byte(`{"_type":"https://in-toto.io/Statement/v1",` + strings.Join(fields, ",") + `}`)
	}
	sign := fmt.Sprintf(`"predicateType":%q`, cosignSign)
	for name, doc := range map[string][]byte{
		"repeated subject":        statement(sign, subject(otherImage), subject(digest)),
		"subject, case":           statement(sign, subject(digest), strings.Replace(subject(otherImage), "subject", "Subject", 1)),
		"repeated predicate type": statement(`"predicateType":"https://slsa.dev/provenance/v1"`, sign, subject(digest)),
	} {
		t.Run(name, func(t *testing.T) {
			attack(t, signatures.TypeBundle, bundles, key.Bundle(t, signaturestest.Statement(digest, cosignSign)), key.Bundle(t, doc), "False InvalidSignature / Unknown")
		})
	}
}

// A good signature of image A is copied to the signatures of image B, with A's name and with B's.
func TestAttackSignatureOfAnotherImage(t *testing.T) {
	key := signaturestest.NewKey(t, signaturestest.P256)
	for _, identity := range []string{matchRepository, digestOnly} {
		set := signaturestest.Set(t, signaturestest.TrustKey(key, nil), identity)
		attack(t, signatures.TypeSimpleSigning, set, key.SimpleSigning(t, digest, repository), key.SimpleSigning(t, otherImage, repository), "False DigestMismatch / False")
	}
	set := signaturestest.Set(t, signaturestest.TrustKey(key, nil), digestOnly)
	attack(t, signatures.TypeBundle, set, key.Bundle(t, signaturestest.Statement(digest, cosignSign)),
		key.Bundle(t, signaturestest.Statement(otherImage, cosignSign)), "False DigestMismatch / False")
	attack(t, signatures.TypeBundle, set, key.ManifestBundle(t, []byte(manifest)), key.ManifestBundle(t, []byte("other")), "False DigestMismatch / False")

	gpg := signaturestest.NewGPG(t, "Release", now.AddDate(-1, 0, 0), 0)
	pgp := signaturestest.Set(t, signaturestest.TrustGPG(gpg.Public(t)), digestOnly)
	want(t, verify(t, signatures.TypeAtomic, gpg.SimpleSigning(t, otherImage, repository, now.AddDate(0, -1, 0)), pgp), "False DigestMismatch / False")
}

// A certificate's old and new issuer extensions differ, so two readers find different issuers.
func TestAttackTwoIssuers(t *testing.T) {
	d := signaturestest.NewDeployment(t)
	set := signaturestest.Set(t, d.TrustFulcio(t, "signedEmail: "+mail), matchRepository)
	leaf, key := d.Identity(t, mail, nil)
	honest := d.Keyless(t, leaf, key, digest, repository, time.Now())
	for _, oid := range []asn1.ObjectIdentifier{signaturestest.OIDIssuer, signaturestest.OIDIssuerV2} {
		leaf, key := d.Identity(t, mail, func(c *x509.Certificate) {
			for i, x := range c.ExtraExtensions {
				if x.Id.Equal(oid) {
					other := []byte("https://attacker.example.com")
					if oid.Equal(signaturestest.OIDIssuerV2) {
						other, _ = asn1.MarshalWithParams(string(other), "utf8")
					}
					c.ExtraExtensions[i] = pkix.Extension{Id: oid, Value: other}
				}
			}
		})
		attack(t, signatures.TypeSimpleSigning, set, honest, d.Keyless(t, leaf, key, digest, repository, time.Now()), "False SubjectMismatch / True")
	}
}

// A log key with which no promise can be verified must be refused when the policy is read.
// Otherwise the policy would demand no log entry.
func TestAttackLogKeyOfAnotherAlgorithm(t *testing.T) {
	key := signaturestest.NewKey(t, signaturestest.P256)
	for _, kind := range []string{signaturestest.RSA2048, signaturestest.Ed25519} {
		logKey, _ := twoKeys(t, kind)
		doc := signaturestest.Document("demo", `["registry.example.com"]`, signaturestest.TrustKey(key, logKey.PEM), matchRepository)
		if _, err := policy.Parse([]byte(doc), ""); err == nil || !strings.Contains(err.Error(), "ECDSA") {
			t.Errorf("a Rekor key of kind %s: %v", kind, err)
		}
	}
}

// Without a log entry, or with one without a promise, a policy that demands a log must not fall
// back to the key alone.
func TestAttackLogEntryStripped(t *testing.T) {
	f := newLogFixture(t)
	attack(t, signatures.TypeSimpleSigning, f.set, f.honest, edited(f.honest, payload.AnnotationLogBundle, ""), "False TransparencyLogEntryMissing / True")
	b := signaturestest.ParseLogBundle(t, f.honest.Annotations[payload.AnnotationLogBundle])
	b.SignedEntryTimestamp = nil
	attack(t, signatures.TypeSimpleSigning, f.set, f.honest, edited(f.honest, payload.AnnotationLogBundle, string(signaturestest.Marshal(t, b))), "False TransparencyLogEntryInvalid / True")
	b.SignedEntryTimestamp = []byte{}
	attack(t, signatures.TypeSimpleSigning, f.set, f.honest, edited(f.honest, payload.AnnotationLogBundle, string(signaturestest.Marshal(t, b))), "False TransparencyLogEntryInvalid / True")
	elsewhere := edited(f.honest, payload.AnnotationLogBundle, "")
	signaturestest.NewDeployment(t).Log(t, elsewhere, "sha256", f.key.PEM, now)
	attack(t, signatures.TypeSimpleSigning, f.set, f.honest, elsewhere, "False TransparencyLogEntryInvalid / True")
}

// An OpenPGP message signed with an unknown key: the library reports no error for it.
func TestAttackUnknownOpenPGPKey(t *testing.T) {
	made := now.AddDate(-1, 0, 0)
	key, stranger := signaturestest.NewGPG(t, "Release", made, 0), signaturestest.NewGPG(t, "Release", made, 0)
	set := signaturestest.Set(t, signaturestest.TrustGPG(key.Public(t)), matchRepository)
	want(t, verify(t, signatures.TypeAtomic, key.SimpleSigning(t, digest, repository, made), set), trusted)
	want(t, verify(t, signatures.TypeAtomic, stranger.SimpleSigning(t, digest, repository, made), set), "False NoMatchingKey / Unknown")
	// The document without any signature around it.
	doc, err := payload.MarshalSimpleSigning(payload.TypeAtomic, digest, repository, nil)
	if err != nil {
		t.Fatal(err)
	}
	literal := append([]byte{0xcb, 0xff, 0, 0, 0, byte(len(doc) + 6), 'b', 0, 0, 0, 0, 0}, doc...)
	want(t, verify(t, signatures.TypeAtomic, literal, set), "False InvalidSignature / Unknown")
}

// A signature by a bare key has a certificate beside it that proves nothing, and the other way
// round.
func TestAttackKeyForCertificate(t *testing.T) {
	d := signaturestest.NewDeployment(t)
	leaf, certKey := d.Identity(t, mail, nil)
	attacker := signaturestest.NewKey(t, signaturestest.P256)
	set := signaturestest.Set(t, d.TrustFulcio(t, "signedEmail: "+mail), matchRepository)
	// The victim's certificate stands beside a signature of the attacker's key, logged with the
	// certificate. The log would not take it, a forged entry cannot have a promise, and the
	// signature does not verify under the certificate.
	honest := d.Keyless(t, leaf, certKey, digest, repository, time.Now())
	forged := attacker.SimpleSigning(t, digest, repository)
	forged.Annotations[payload.AnnotationCertificate] = honest.Annotations[payload.AnnotationCertificate]
	forged.Annotations[payload.AnnotationChain] = honest.Annotations[payload.AnnotationChain]
	forged.Annotations[payload.AnnotationLogBundle] = honest.Annotations[payload.AnnotationLogBundle]
	attack(t, signatures.TypeSimpleSigning, set, honest, forged, "False InvalidSignature / Unknown")

	trustRoot := signaturestest.Set(t, d.TrustRoot(t, "signedEmail: "+mail, nil), digestOnly)
	attack(t, signatures.TypeBundle, trustRoot, d.KeylessBundle(t, leaf, certKey, signaturestest.Statement(digest, cosignSign), time.Now()),
		attacker.Bundle(t, signaturestest.Statement(digest, cosignSign)), "False NoMatchingKey / Unknown")
}

// A CA of the attacker's own, sent along in the chain annotation.
func TestAttackOwnCAInChain(t *testing.T) {
	d, attacker := signaturestest.NewDeployment(t), signaturestest.NewDeployment(t)
	set := signaturestest.Set(t, d.TrustFulcio(t, "signedEmail: "+mail), matchRepository)
	leaf, key := d.Identity(t, mail, nil)
	honest := d.Keyless(t, leaf, key, digest, repository, time.Now())
	leaf, key = attacker.Identity(t, mail, nil)
	evil := attacker.Keyless(t, leaf, key, digest, repository, time.Now())
	// the log accepts entries from anyone
	d.Log(t, evil, "sha256", signaturestest.CertPEM(t, leaf), time.Now())
	attack(t, signatures.TypeSimpleSigning, set, honest, evil, "False NoMatchingKey / Unknown")
}

// A certificate is in no certificate transparency log, although the trusted root demands one.
func TestAttackUnloggedCertificate(t *testing.T) {
	d := signaturestest.NewDeployment(t)
	leaf, key := d.Identity(t, mail, nil)
	content := signaturestest.Marshal(t, d.KeylessBundle(t, leaf, key, signaturestest.Statement(digest, cosignSign), time.Now()))
	without := signaturestest.Set(t, d.TrustRoot(t, "signedEmail: "+mail, nil), digestOnly)
	want(t, verify(t, signatures.TypeBundle, content, without), trusted)
	with := signaturestest.Set(t, d.TrustRoot(t, "signedEmail: "+mail, func(p *signaturestest.TrustedRootParts) {
		p.CTLogs = d.CTLogs()
		for _, l := range p.CTLogs {
			l.ID = bytes.Repeat([]byte{1}, 32)
		}
	}), digestOnly)
	want(t, verify(t, signatures.TypeBundle, content, with), "False CertificateLogInvalid / True")
}

// Far too much content (GHSA-vfp6-jrw2-99g9, CVE-2024-45395, CVE-2020-1702).
func TestAttackEndlessData(t *testing.T) {
	key := signaturestest.NewKey(t, signaturestest.P256)
	keys := signaturestest.Set(t, signaturestest.TrustKey(key, nil), digestOnly)
	t.Run("subjects", func(t *testing.T) {
		var s strings.Builder
		s.WriteString(`{"_type":"https://in-toto.io/Statement/v1","predicateType":"` + cosignSign + `","subject":[`)
		for range 1024 {
			s.WriteString(`{"digest":{"sha256":"00"}},`)
		}
		s.WriteString(fmt.Sprintf(`{"digest":{"sha256":%q}}]}`, digest[7:]))
		attack(t, signatures.TypeBundle, keys, key.Bundle(t, signaturestest.Statement(digest, cosignSign)), key.Bundle(t, []byte(s.String())), "False InvalidSignature / Unknown")
	})
	t.Run("content", func(t *testing.T) {
		evil := key.SimpleSigning(t, digest, repository)
		evil.Annotations["padding"] = strings.Repeat("x", 1<<20)
		attack(t, signatures.TypeSimpleSigning, keys, key.SimpleSigning(t, digest, repository), evil, "False InvalidSignature / Unknown")
	})
	t.Run("annotations", func(t *testing.T) {
		evil := key.SimpleSigning(t, digest, repository)
		for i := range 100 {
			evil.Annotations[fmt.Sprint(i)] = ""
		}
		attack(t, signatures.TypeSimpleSigning, keys, key.SimpleSigning(t, digest, repository), evil, "False InvalidSignature / Unknown")
	})
	t.Run("log entries", func(t *testing.T) {
		d := signaturestest.NewDeployment(t)
		leaf, certKey := d.Identity(t, mail, nil)
		set := signaturestest.Set(t, d.TrustRoot(t, "signedEmail: "+mail, nil), digestOnly)
		honest := d.KeylessBundle(t, leaf, certKey, signaturestest.Statement(digest, cosignSign), time.Now())
		evil := d.KeylessBundle(t, leaf, certKey, signaturestest.Statement(digest, cosignSign), time.Now())
		for range 40 {
			evil.VerificationMaterial.TlogEntries = append(evil.VerificationMaterial.TlogEntries, evil.VerificationMaterial.TlogEntries[0])
		}
		attack(t, signatures.TypeBundle, set, honest, evil, "False InvalidSignature / Unknown")
	})
	t.Run("compressed OpenPGP", func(t *testing.T) {
		gpg := signaturestest.NewGPG(t, "Release", now.AddDate(-1, 0, 0), 0)
		set := signaturestest.Set(t, signaturestest.TrustGPG(gpg.Public(t)), digestOnly)
		doc, err := json.Marshal(map[string]any{
			"critical": map[string]any{"type": payload.TypeAtomic, "image": map[string]string{"docker-manifest-digest": digest}, "identity": map[string]string{"docker-reference": repository}},
			"optional": map[string]string{"padding": strings.Repeat("x", 2<<20)},
		})
		if err != nil {
			t.Fatal(err)
		}
		small := signaturestest.Compressed(t, gpg.SimpleSigning(t, digest, repository, now.AddDate(0, -1, 0)))
		want(t, verify(t, signatures.TypeAtomic, small, set), trusted)
		bomb := signaturestest.Compressed(t, gpg.Sign(t, doc, now.AddDate(0, -1, 0)))
		if len(bomb) > 1<<16 {
			t.Fatalf("the bomb has %d bytes", len(bomb))
		}
		want(t, verify(t, signatures.TypeAtomic, bomb, set), "False InvalidSignature / Unknown")
	})
}
