package signatures_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

const (
	slsa1 = "https://slsa.dev/provenance/v1"
	slsa0 = "https://slsa.dev/provenance/v0.2"
	spdx  = "https://spdx.dev/Document"
	vuln  = "https://cosign.sigstore.dev/attestation/vuln/v1"
)

// statement is an in-toto statement about an image with a predicate.
func statement(digest, predicateType, predicate string) []byte {
	return fmt.Appendf(nil, `{"_type":"https://in-toto.io/Statement/v0.1","subject":[{"name":%q,"digest":{"sha256":%q}}],"predicateType":%q,"predicate":%s}`,
		repository, strings.TrimPrefix(digest, "sha256:"), predicateType, predicate)
}

// demanding makes a set of one policy that demands attestations: the items of a list, as YAML in
// flow style.
func demanding(t testing.TB, rootOfTrust, attestations string) *policy.Set {
	t.Helper()
	return signaturestest.SetFrom(t, demandingDocument("demo", `["registry.example.com"]`, rootOfTrust, attestations))
}

func demandingDocument(name, scopes, rootOfTrust, attestations string) string {
	return signaturestest.Document(name, scopes, rootOfTrust, "") + "    attestations: [" + attestations + "]\n"
}

const (
	anySLSA   = "{name: provenance, predicateType: slsaprovenance1}"
	builtHere = `{name: provenance, predicateType: slsaprovenance1, policy: {type: cel, data: 'predicate.builder == "here"'}}`
	noneBad   = `{name: scan, predicateType: vuln, policy: {type: cel, data: 'predicate.found.all(f, f.severity != "CRITICAL")'}}`
)

// asked returns the server's answer about an image with these attestations and signatures in its
// repository: the verdict, with reason and message, and the Image.
func asked(t testing.TB, set *policy.Set, sigs ...imagev1.ImageSignature) (annotation.Verdict, *imagev1.Image) {
	t.Helper()
	img := object(sigs...)
	signatures.VerifyImage(img, set, now, nil)
	return annotation.Judged(img.Annotations)[repository], img
}

func wantVerdict(t testing.TB, v annotation.Verdict, verified, reason string, parts ...string) {
	t.Helper()
	if v.Verified != verified || reason != "" && v.Reason != reason {
		t.Errorf("%s %s, want %s %s: %s", v.Verified, v.Reason, verified, reason, v.Message)
	}
	for _, part := range parts {
		if !strings.Contains(v.Message, part) {
			t.Errorf("message %q does not say %q", v.Message, part)
		}
	}
}

// layer is what `cosign attest` puts into the .att tag.
func layer(t testing.TB, key *signaturestest.Key, statement []byte) *payload.Blob {
	t.Helper()
	envelope, err := json.Marshal(map[string]any{
		"payloadType": payload.MediaTypeInToto, "payload": statement,
		"signatures": []any{map[string]any{"sig": key.Sign(t, signaturestest.PAE(statement), true)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &payload.Blob{MediaType: payload.MediaTypeEnvelope, Payload: envelope, Annotations: map[string]string{
		payload.AnnotationSignature: "", "predicateType": slsa1,
	}}
}

func TestAttestationsOfKeys(t *testing.T) {
	t.Parallel()
	for _, kind := range signaturestest.Kinds {
		key, other := twoKeys(t, kind)
		s := statement(digest, slsa1, `{"builder":"here"}`)
		for form, content := range map[string]any{"bundle": key.Bundle(t, s), "layer": layer(t, key, s)} {
			a := stored(t, signatures.TypeAttestation, content)
			v, img := asked(t, demanding(t, signaturestest.TrustKey(key, nil), builtHere), a)
			wantVerdict(t, v, verdicts.VerifiedTrue, "AttestationVerified", slsa1)
			if got := condition(img.Signatures[0], verdicts.Trusted); got.Status != corev1.ConditionTrue || got.Reason != "AttestationVerified" {
				t.Errorf("%s %s: %+v", kind, form, got)
			}
			if s := img.Signatures[0]; s.IssuedBy != nil || s.IssuedTo == nil || s.SignedClaims["predicateType"] != slsa1 {
				t.Errorf("%s %s: issued by %v to %v, claims %v", kind, form, s.IssuedBy, s.IssuedTo, s.SignedClaims)
			}
			v, _ = asked(t, demanding(t, signaturestest.TrustKey(other, nil), builtHere), a)
			wantVerdict(t, v, verdicts.VerifiedFalse, "NoMatchingKey", "provenance")
		}
	}
}

// Attestations are verified by a certificate and a log: with the log's entries of kind dsse, with
// entries of version 2, and with a certificate that is valid now.
func TestAttestationsOfCertificates(t *testing.T) {
	t.Parallel()
	d := signaturestest.NewDeployment(t)
	leaf, key := d.Identity(t, mail, nil)
	at := time.Now()
	s := statement(digest, slsa1, `{"builder":"here"}`)
	bundle := stored(t, signatures.TypeAttestation, d.KeylessBundle(t, leaf, key, s, at))
	second := stored(t, signatures.TypeAttestation, d.KeylessV2Bundle(t, mail, s))
	// The same as a layer: the promise of the log is in an annotation.
	entry := d.KeylessBundle(t, leaf, key, s, at)
	tagged := layerOf(t, d, entry, signaturestest.CertPEM(t, leaf), signaturestest.CertPEM(t, d.Intermediate, d.Root), at)
	for name, a := range map[string]imagev1.ImageSignature{"bundle": bundle, "bundle v2": second, "layer": stored(t, signatures.TypeAttestation, tagged)} {
		for _, trust := range []string{
			d.TrustFulcio(t, "signedEmail: "+mail, d.Root, d.Intermediate), d.TrustRoot(t, "signedEmail: "+mail, nil),
		} {
			if name == "bundle v2" && strings.Contains(trust, "fulcioCAData") {
				continue // a log of version 2 is known by a trusted root only
			}
			v, img := asked(t, demanding(t, trust, builtHere), a)
			wantVerdict(t, v, verdicts.VerifiedTrue, "AttestationVerified")
			if len(v.Signers) != 1 || v.Signers[0] != mail {
				t.Errorf("%s: signers %v, %+v", name, v.Signers, img.Signatures[0].Conditions)
			}
		}
		v, _ := asked(t, demanding(t, d.TrustRoot(t, "signedEmail: someone@else.example", nil), builtHere), a)
		wantVerdict(t, v, verdicts.VerifiedFalse, "SubjectMismatch", mail)
	}
	stripped := layerOf(t, d, entry, signaturestest.CertPEM(t, leaf), signaturestest.CertPEM(t, d.Intermediate, d.Root), at)
	delete(stripped.Annotations, payload.AnnotationLogBundle)
	v, _ := asked(t, demanding(t, d.TrustFulcio(t, "signedEmail: "+mail, d.Root, d.Intermediate), builtHere), stored(t, signatures.TypeAttestation, stripped))
	wantVerdict(t, v, verdicts.VerifiedFalse, "TransparencyLogEntryMissing")

	late := d.KeylessBundle(t, leaf, key, s, leaf.NotAfter.Add(time.Hour))
	v, _ = asked(t, demanding(t, d.TrustFulcio(t, "signedEmail: "+mail, d.Root, d.Intermediate), builtHere), stored(t, signatures.TypeAttestation, late))
	wantVerdict(t, v, verdicts.VerifiedFalse, "CertificateExpired")
}

// layerOf puts a bundle with a certificate into the form of a layer.
func layerOf(t testing.TB, d *signaturestest.Deployment, b *protobundle.Bundle, leaf, chain []byte, at time.Time) *payload.Blob {
	t.Helper()
	envelope, err := json.Marshal(map[string]any{
		"payloadType": payload.MediaTypeInToto, "payload": b.GetDsseEnvelope().GetPayload(),
		"signatures": []any{map[string]any{"keyid": "", "sig": b.GetDsseEnvelope().GetSignatures()[0].GetSig()}},
	})
	if err != nil {
		t.Fatal(err)
	}
	entry := b.GetVerificationMaterial().GetTlogEntries()[0]
	return &payload.Blob{MediaType: payload.MediaTypeEnvelope, Payload: envelope, Annotations: map[string]string{
		payload.AnnotationSignature: "", payload.AnnotationCertificate: string(leaf), payload.AnnotationChain: string(chain),
		payload.AnnotationLogBundle: d.Entry(t, entry.GetCanonicalizedBody(), at, entry.GetLogIndex()),
	}}
}

// A demanded attestation may be absent, about another image, of another type, by another signer, or
// refused by the expression. The verdict is then False, with the reason of the attestation that
// comes closest.
func TestDemandsThatAreNotMet(t *testing.T) {
	t.Parallel()
	key, other := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	attest := func(k *signaturestest.Key, digest, typ, predicate string) imagev1.ImageSignature {
		return stored(t, signatures.TypeAttestation, k.Bundle(t, statement(digest, typ, predicate)))
	}
	good := attest(key, digest, slsa1, `{"builder":"here"}`)
	signature := stored(t, signatures.TypeBundle, key.Bundle(t, signaturestest.Statement(digest, cosignSign)))
	clean, bad := attest(key, digest, vuln, `{"found":[{"severity":"LOW"}]}`), attest(key, digest, vuln, `{"found":[{"severity":"CRITICAL"}]}`)
	tampered := key.Bundle(t, statement(digest, slsa1, `{"builder":"there"}`))
	tampered.GetDsseEnvelope().Payload = statement(digest, slsa1, `{"builder":"here"}`)
	two := key.Bundle(t, statement(digest, slsa1, `{"builder":"here"}`))
	two.GetDsseEnvelope().Signatures = append(two.GetDsseEnvelope().Signatures, two.GetDsseEnvelope().Signatures[0])
	for _, tc := range []struct {
		name, demands    string
		there            []imagev1.ImageSignature
		verified, reason string
	}{
		{"there", builtHere, []imagev1.ImageSignature{good}, "True", "AttestationVerified"},
		{"without an expression", anySLSA, []imagev1.ImageSignature{good}, "True", "AttestationVerified"},
		{"two that are there", builtHere + "," + noneBad, []imagev1.ImageSignature{clean, good}, "True", "AttestationVerified"},
		{"one of two", builtHere + "," + noneBad, []imagev1.ImageSignature{good}, "False", "AttestationMissing"},
		{"an old scan and a new one", noneBad, []imagev1.ImageSignature{bad, clean}, "True", "AttestationVerified"},
		{"nothing", builtHere, nil, "False", "AttestationMissing"},
		{"a signature", builtHere, []imagev1.ImageSignature{signature}, "False", "AttestationMissing"},
		{"another image", builtHere, []imagev1.ImageSignature{attest(key, otherImage, slsa1, `{"builder":"here"}`)}, "False", "DigestMismatch"},
		{"another type", builtHere, []imagev1.ImageSignature{attest(key, digest, slsa0, `{"builder":"here"}`)}, "False", "AttestationMissing"},
		{"a longer type", builtHere, []imagev1.ImageSignature{attest(key, digest, slsa1+"/", `{"builder":"here"}`)}, "False", "AttestationMissing"},
		{"another key", builtHere, []imagev1.ImageSignature{attest(other, digest, slsa1, `{"builder":"here"}`)}, "False", "NoMatchingKey"},
		{"another predicate", builtHere, []imagev1.ImageSignature{attest(key, digest, slsa1, `{"builder":"there"}`)}, "False", "PredicateRefused"},
		{"no predicate", builtHere, []imagev1.ImageSignature{attest(key, digest, slsa1, `null`)}, "False", "PredicateRefused"},
		{"a critical finding", noneBad, []imagev1.ImageSignature{bad}, "False", "PredicateRefused"},
		{"changed after it was signed", builtHere, []imagev1.ImageSignature{stored(t, signatures.TypeAttestation, tampered)}, "False", "InvalidSignature"},
		{"signed twice", builtHere, []imagev1.ImageSignature{stored(t, signatures.TypeAttestation, two)}, "False", "AttestationMissing"},
		{"a signature called an attestation", builtHere, []imagev1.ImageSignature{{ObjectMeta: signature.ObjectMeta, Type: signatures.TypeAttestation, Content: signature.Content}}, "False", "AttestationMissing"},
		{"an attestation called a signature", builtHere, []imagev1.ImageSignature{{ObjectMeta: good.ObjectMeta, Type: signatures.TypeBundle, Content: good.Content}}, "False", "AttestationMissing"},
		{"the nearest", builtHere, []imagev1.ImageSignature{attest(other, digest, slsa1, `{"builder":"here"}`), attest(key, digest, slsa1, `{"builder":"there"}`)}, "False", "PredicateRefused"},
	} {
		v, _ := asked(t, demanding(t, signaturestest.TrustKey(key, nil), tc.demands), tc.there...)
		if v.Verified != tc.verified || v.Reason != tc.reason || v.Message == "" {
			t.Errorf("%s: %s %s, want %s %s: %s", tc.name, v.Verified, v.Reason, tc.verified, tc.reason, v.Message)
		}
		if len(v.Signers) > 0 != (tc.verified == "True") {
			t.Errorf("%s: signers %v", tc.name, v.Signers)
		}
	}
}

// Attestations have a verdict beside that of signatures. If policies demand attestations, it covers
// all of these; otherwise, those that exist. The Image's verdict is the worst of its repositories.
func TestVerdictOfAttestations(t *testing.T) {
	t.Parallel()
	key, other := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	good := stored(t, signatures.TypeAttestation, key.Bundle(t, statement(digest, slsa1, `{"builder":"here"}`)))
	theirs := stored(t, signatures.TypeAttestation, other.Bundle(t, statement(digest, slsa1, `{"builder":"here"}`)))
	signature := stored(t, signatures.TypeBundle, key.Bundle(t, signaturestest.Statement(digest, cosignSign)))
	trust, scope := signaturestest.TrustKey(key, nil), `["registry.example.com/demo"]`
	signed := signaturestest.Document("signed", scope, trust, digestOnly)
	provenance := demandingDocument("provenance", scope, trust, builtHere)
	elsewhere := demandingDocument("elsewhere", `["registry.example.com/other"]`, trust, builtHere)
	vouching := func(policies string) signatures.Indexes {
		return func(repository string) ([]*imagev1.Image, error) {
			return []*imagev1.Image{{ObjectMeta: metav1.ObjectMeta{Name: otherImage, Annotations: map[string]string{annotation.Verdicts: fmt.Sprintf(`{%q:{"verified":"True","policy":%q}}`, repository, policies)}}}}, nil
		}
	}
	damaged := func(string) ([]*imagev1.Image, error) { return nil, errors.New("damaged") }
	for _, tc := range []struct {
		name, policies     string
		there              []imagev1.ImageSignature
		found              map[string]annotation.Repository
		index              signatures.Indexes
		verified, attested string
	}{
		{name: "nothing", policies: signed, verified: "Unsigned"},
		{name: "no policy", there: []imagev1.ImageSignature{good}, verified: "NoPolicy", attested: "Unknown"},
		{name: "a signature", policies: signed, there: []imagev1.ImageSignature{signature}, verified: "True"},
		{name: "trusted, not demanded", policies: signed, there: []imagev1.ImageSignature{theirs, good}, verified: "Unsigned", attested: "True"},
		{name: "not trusted, not demanded", policies: signed, there: []imagev1.ImageSignature{signature, theirs}, verified: "True", attested: "False"},
		{name: "demanded", policies: provenance, there: []imagev1.ImageSignature{good}, verified: "True", attested: "True"},
		{name: "demanded, and absent", policies: provenance, there: []imagev1.ImageSignature{signature}, verified: "False", attested: "False"},
		{name: "demanded beside a signature", policies: signed + provenance, there: []imagev1.ImageSignature{good}, verified: "Unsigned", attested: "True"},
		{name: "demanded, signed and absent", policies: signed + provenance, there: []imagev1.ImageSignature{signature}, verified: "False", attested: "False"},
		{name: "one is demanded, another is there", policies: demandingDocument("scan", scope, trust, noneBad), there: []imagev1.ImageSignature{good}, verified: "False", attested: "False"},
		{name: "attested of the index", policies: provenance, index: vouching("provenance"), verified: "False", attested: "False"},
		{name: "an index that cannot be read, and no attestation", policies: provenance, index: damaged, verified: "False", attested: "False"},
		{name: "an index that cannot be read", policies: signed, index: damaged, verified: "Unknown"},
		{name: "not demanded of the index", policies: signed, there: []imagev1.ImageSignature{theirs}, index: vouching("signed"), verified: "ByIndex", attested: "False"},
		{name: "attested, and the index is signed", policies: provenance + signed, there: []imagev1.ImageSignature{good}, index: vouching("provenance,signed"), verified: "ByIndex", attested: "True"},
		{name: "not attested, and the index is signed", policies: provenance + signed, index: vouching("provenance,signed"), verified: "False", attested: "False"},
		{name: "an index by another policy", policies: signed, index: vouching("lax"), verified: "Unsigned"},
		{name: "an index by one of the policies", policies: provenance + signed, there: []imagev1.ImageSignature{good}, index: vouching("signed"), verified: "Unsigned", attested: "True"},
		{name: "not read", policies: provenance, found: map[string]annotation.Repository{repository: {Unread: "503"}}, verified: "Unknown", attested: "Unknown"},
		{name: "left out, not demanded", policies: signed, found: map[string]annotation.Repository{repository: {Attestations: json.RawMessage(`[{"type":"x","leftOut":"too large"}]`)}}, verified: "Unsigned", attested: "Unknown"},
		{name: "absent in another repository", policies: provenance + elsewhere, there: []imagev1.ImageSignature{good},
			found: map[string]annotation.Repository{repository: {Signatures: []string{sigID(good.Name)}}, "registry.example.com/other/app": {Warnings: []string{"x"}}}, verified: "False", attested: "False"},
	} {
		img := object(tc.there...)
		if tc.found != nil {
			img.Annotations = map[string]string{}
			annotation.SetFound(img.Annotations, tc.found)
		}
		set := &policy.Set{}
		if tc.policies != "" {
			set = signaturestest.SetFrom(t, tc.policies)
		}
		signatures.VerifyImage(img, set, now, tc.index)
		if verified, _, _ := signatures.Summary(img); verified != tc.verified || signatures.Attested(img) != tc.attested {
			t.Errorf("%s: verified %s and attested %q, want %s and %q: %v", tc.name, verified, signatures.Attested(img), tc.verified, tc.attested, img.Annotations)
		}
	}
}

// Two policies for one scope demand both: a signature, and attestations.
func TestSignatureAndAttestationAreDemanded(t *testing.T) {
	t.Parallel()
	key := signaturestest.NewKey(t, signaturestest.P256)
	trust := signaturestest.TrustKey(key, nil)
	set := signaturestest.SetFrom(t, signaturestest.Document("signed", `["registry.example.com"]`, trust, digestOnly)+
		demandingDocument("attested", `["registry.example.com"]`, trust, builtHere))
	attested := stored(t, signatures.TypeAttestation, key.Bundle(t, statement(digest, slsa1, `{"builder":"here"}`)))
	signed := stored(t, signatures.TypeBundle, key.Bundle(t, signaturestest.Statement(digest, cosignSign)))
	v, _ := asked(t, set, attested, signed)
	wantVerdict(t, v, verdicts.VerifiedTrue, "")
	v, _ = asked(t, set, signed)
	wantVerdict(t, v, verdicts.VerifiedFalse, "AttestationMissing")
	v, _ = asked(t, set, attested)
	wantVerdict(t, v, verdicts.Unsigned, "OnlyAttestations", slsa1)
}

// Attestations do not make an image signed, whoever made them. The message names them and their
// signers, separately for each repository.
func TestImageWithOnlyAttestations(t *testing.T) {
	t.Parallel()
	prod, dev := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	set := signaturestest.SetFrom(t, signaturestest.Document("prod", `["registry.example.com/demo"]`, signaturestest.TrustKey(prod, nil), digestOnly)+
		signaturestest.Document("dev", `["registry.example.com/dev"]`, signaturestest.TrustKey(dev, nil), digestOnly))
	byProd := stored(t, signatures.TypeAttestation, prod.Bundle(t, statement(digest, slsa1, `{}`)))
	byDev := stored(t, signatures.TypeAttestation, dev.Bundle(t, statement(digest, spdx, `{}`)))
	img := object(byProd, byDev)
	img.Annotations = map[string]string{}
	annotation.SetFound(img.Annotations, map[string]annotation.Repository{
		repository: {Signatures: []string{sigID(byProd.Name), sigID(byDev.Name)},
			Attestations: json.RawMessage(`[{"type":"https://cyclonedx.org/bom","leftOut":"900000 bytes, at most 524288 are read"}]`)},
		"registry.example.com/dev/app": {Signatures: []string{sigID(byDev.Name)}},
	})
	signatures.VerifyImage(img, set, now, nil)
	judged := annotation.Judged(img.Annotations)
	wantVerdict(t, judged[repository], verdicts.Unsigned, "OnlyAttestations", slsa1+" by prod", spdx+" by an untrusted signer (NoMatchingKey)", "https://cyclonedx.org/bom, not read")
	wantVerdict(t, judged["registry.example.com/dev/app"], verdicts.Unsigned, "OnlyAttestations", spdx+" by dev")
	if strings.Contains(judged["registry.example.com/dev/app"].Message, slsa1) {
		t.Errorf("one repository's attestation is told of another: %s", judged["registry.example.com/dev/app"].Message)
	}
	if verified, signers, _ := signatures.Summary(img); verified != verdicts.Unsigned || len(signers) != 0 {
		t.Errorf("the image is %s by %v", verified, signers)
	}
	bare := object(byProd)
	signatures.VerifyImage(bare, nil, now, nil)
	if verified, _, _ := signatures.Summary(bare); verified != verdicts.NoPolicy {
		t.Errorf("without policies it is %s", verified)
	}
}

func sigID(name string) string { return strings.SplitN(name, "@", 2)[1] }

// A demanded attestation that the search could not store does not count as absent: the verdict is
// Unknown.
func TestDemandedAttestationIsLeftOut(t *testing.T) {
	t.Parallel()
	key := signaturestest.NewKey(t, signaturestest.P256)
	img := object()
	img.Annotations = map[string]string{}
	annotation.SetFound(img.Annotations, map[string]annotation.Repository{
		repository: {Attestations: json.RawMessage(`[{"type":"https://slsa.dev/provenance/v1","leftOut":"900000 bytes, at most 524288 are read"}]`)},
	})
	signatures.VerifyImage(img, demanding(t, signaturestest.TrustKey(key, nil), builtHere), now, nil)
	wantVerdict(t, annotation.Judged(img.Annotations)[repository], verdicts.VerifiedUnknown, "AttestationLeftOut", "too large")
}

// Junk displaces neither the demanded attestation nor a signature, in any order, and an Image's
// size stays bounded.
func TestAttackJunkAttestationsDisplace(t *testing.T) {
	t.Parallel()
	key, other := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	good := stored(t, signatures.TypeAttestation, key.Bundle(t, statement(digest, slsa1, fmt.Sprintf(`{"builder":"here","more":%q}`, strings.Repeat("x", 50_000)))))
	signature := stored(t, signatures.TypeSimpleSigning, other.SimpleSigning(t, digest, repository))
	var all []imagev1.ImageSignature
	for i := range 40 {
		k := other
		if i%2 == 0 {
			k = key // trusted, but not demanded
		}
		all = append(all, stored(t, signatures.TypeAttestation, k.Bundle(t, statement(digest, spdx, fmt.Sprintf(`{"n":%d,"more":%q}`, i, strings.Repeat("y", 20_000))))))
	}
	all = append(all, signature, good)
	var names []string
	for _, s := range all {
		names = append(names, sigID(s.Name))
	}
	img := object(all...)
	img.Annotations = map[string]string{}
	annotation.SetFound(img.Annotations, map[string]annotation.Repository{repository: {Signatures: names}})
	signatures.VerifyImage(img, demanding(t, signaturestest.TrustKey(key, nil), builtHere), now, nil)
	wantVerdict(t, annotation.Judged(img.Annotations)[repository], verdicts.VerifiedTrue, "AttestationVerified")
	held := map[string]bool{}
	for _, s := range img.Signatures {
		held[s.Name] = true
	}
	if !held[good.Name] || !held[signature.Name] || len(held) != signatures.MaxStored+1 {
		t.Errorf("%d are held, the demanded one: %v, the signature: %v", len(held), held[good.Name], held[signature.Name])
	}
	found := annotation.Found(img.Annotations)[repository]
	if len(found.LeftOut) != 0 || len(found.AttestationsLeftOut) != len(all)-len(held) {
		t.Errorf("left out are %d signatures and %d attestations", len(found.LeftOut), len(found.AttestationsLeftOut))
	}
}

// oldEntry puts a layer into the log as cosign did before 2.2, with an entry of kind intoto 0.0.1.
func oldEntry(t testing.TB, d *signaturestest.Deployment, l *payload.Blob, verifierPEM []byte, at time.Time) {
	t.Helper()
	// nothing reads the hash of the payload
	envelope, statement := sha256.Sum256(l.Payload), sha256.Sum256(nil)
	l.Annotations[payload.AnnotationLogBundle] = d.Entry(t, fmt.Appendf(nil, `{"apiVersion":"0.0.1","kind":"intoto","spec":{"content":{"hash":{"algorithm":"sha256","value":"%x"},"payloadHash":{"algorithm":"sha256","value":"%x"}},"publicKey":%q}}`,
		envelope, statement, signaturestest.B64(verifierPEM)), at, 4711)
}

// A log entry of kind intoto 0.0.1 has the envelope's hash and not the signature. It vouches for
// this envelope only.
func TestAttestationsWithOldLogEntries(t *testing.T) {
	t.Parallel()
	d, stranger := signaturestest.NewDeployment(t), signaturestest.NewDeployment(t)
	key, other := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	leaf, leafKey := d.Identity(t, mail, nil)
	s := statement(digest, slsa0, `{"builder":"here"}`)
	const demand = `{name: provenance, predicateType: slsaprovenance, policy: {type: cel, data: 'predicate.builder == "here"'}}`
	byKey := func(log *signaturestest.Deployment, verifier []byte) *payload.Blob {
		l := layer(t, key, s)
		oldEntry(t, log, l, verifier, time.Now())
		return l
	}
	byCertificate := func(at time.Time) *payload.Blob {
		l := layer(t, leafKey, s)
		l.Annotations[payload.AnnotationCertificate] = string(signaturestest.CertPEM(t, leaf))
		l.Annotations[payload.AnnotationChain] = string(signaturestest.CertPEM(t, d.Intermediate, d.Root))
		oldEntry(t, d, l, signaturestest.CertPEM(t, leaf), at)
		return l
	}
	elsewhere := byKey(d, key.PEM)
	elsewhere.Annotations[payload.AnnotationLogBundle] = func() string {
		l := layer(t, key, statement(otherImage, slsa0, `{"builder":"here"}`))
		oldEntry(t, d, l, key.PEM, now)
		return l.Annotations[payload.AnnotationLogBundle]
	}()
	later := byKey(d, key.PEM)
	later.Annotations[payload.AnnotationLogBundle] = func() string {
		b := signaturestest.ParseLogBundle(t, later.Annotations[payload.AnnotationLogBundle])
		b.Payload.IntegratedTime++
		return string(signaturestest.Marshal(t, b))
	}()
	otherCertificate, _ := d.Identity(t, mail, nil)
	swapped := byCertificate(leaf.NotBefore.Add(time.Second))
	oldEntry(t, d, swapped, signaturestest.CertPEM(t, otherCertificate), leaf.NotBefore.Add(time.Second))
	resigned := byCertificate(leaf.NotBefore.Add(time.Second))
	resigned.Payload = layer(t, key, s).Payload // by another key than the certificate's
	oldEntry(t, d, resigned, signaturestest.CertPEM(t, leaf), leaf.NotBefore.Add(time.Second))

	logged, fulcio, root := signaturestest.TrustKey(key, d.RekorKey(t)), d.TrustFulcio(t, "signedEmail: "+mail, d.Root, d.Intermediate), d.TrustRoot(t, "signedEmail: "+mail, nil)
	certificateLog := d.TrustRoot(t, "signedEmail: "+mail, func(p *signaturestest.TrustedRootParts) {
		p.CTLogs = d.CTLogs()
		for _, l := range p.CTLogs {
			l.ID = bytes.Repeat([]byte{1}, 32)
		}
	})
	for _, tc := range []struct {
		name, trust      string
		l                *payload.Blob
		verified, reason string
	}{
		{"key", logged, byKey(d, key.PEM), "True", "AttestationVerified"},
		{"key and a trusted root", d.TrustRootKey(t, key, nil), byKey(d, key.PEM), "True", "AttestationVerified"},
		{"key, no log demanded", signaturestest.TrustKey(key, nil), elsewhere, "True", "AttestationVerified"},
		{"an entry of another envelope", logged, elsewhere, "False", "TransparencyLogEntryInvalid"},
		{"an entry of another key", logged, byKey(d, other.PEM), "False", "TransparencyLogEntryInvalid"},
		{"an entry of another log", logged, byKey(stranger, key.PEM), "False", "TransparencyLogEntryInvalid"},
		{"another time than was promised", logged, later, "False", "TransparencyLogEntryInvalid"},
		{"certificate", fulcio, byCertificate(leaf.NotBefore.Add(time.Second)), "True", "AttestationVerified"},
		{"a certificate that had expired", fulcio, byCertificate(leaf.NotAfter.Add(time.Second)), "False", "CertificateExpired"},
		{"certificate and a trusted root", root, byCertificate(leaf.NotBefore.Add(time.Second)), "True", "AttestationVerified"},
		{"a certificate in no log of certificates", certificateLog, byCertificate(leaf.NotBefore.Add(time.Second)), "False", "CertificateLogInvalid"},
		{"an entry of another certificate", fulcio, swapped, "False", "TransparencyLogEntryInvalid"},
		{"a signature by another key", fulcio, resigned, "False", "InvalidSignature"},
		{"somebody else", d.TrustFulcio(t, "signedEmail: other@example.com", d.Root, d.Intermediate), byCertificate(leaf.NotBefore.Add(time.Second)), "False", "SubjectMismatch"},
		{"another CA", stranger.TrustFulcio(t, "signedEmail: "+mail), byCertificate(leaf.NotBefore.Add(time.Second)), "False", "NoMatchingKey"},
	} {
		v, img := asked(t, demanding(t, tc.trust, demand), stored(t, signatures.TypeAttestation, tc.l))
		t.Log(tc.name)
		wantVerdict(t, v, tc.verified, tc.reason)
		if claims := img.Signatures[0].SignedClaims; tc.verified == "True" && tc.l != elsewhere && claims["rekor.logIndex"] != "4711" {
			t.Errorf("%s: claims are %v", tc.name, claims)
		}
	}
}

// An attestation is trusted only if a trusted key has signed exactly its bytes.
func FuzzAttestation(f *testing.F) {
	key := signaturestest.NewKey(f, signaturestest.P256)
	of := statement(signedInstead, slsa1, `{"builder":"here"}`)
	seeds := [][]byte{signaturestest.Marshal(f, key.Bundle(f, of)), signaturestest.Marshal(f, layer(f, key, of))}
	set := demanding(f, signaturestest.TrustKey(key, nil), builtHere)
	for i, s := range seeds {
		v := signatures.Verify(signatures.Signature{Type: signatures.TypeAttestation, Content: s}, signatures.Image{Digest: signedInstead, Reference: repository + "@" + signedInstead}, set, now)
		if !v.Trusted() {
			f.Fatalf("the seed is not trusted: %+v", v)
		}
		f.Add([]byte(nil), uint8(i), []byte(nil))
		f.Add([]byte(nil), uint8(i), []byte{0, 40, 2, 9, 1, 0, 3, 30})
	}
	f.Add([]byte("\x00sigstore-json\n{\"mimeType\":\"application/vnd.dsse.envelope.v1+json\",\"payload\":\"e30=\",\"annotations\":{}}"), uint8(0), []byte(nil))
	f.Fuzz(func(t *testing.T, raw []byte, which uint8, edits []byte) {
		for _, content := range [][]byte{raw, editedBytes(seeds[int(which)%len(seeds)], edits)} {
			v := signatures.Verify(signatures.Signature{Type: signatures.TypeAttestation, Content: content}, unsigned, set, now)
			if c, _ := v.Condition(verdicts.Trusted); c.Status == corev1.ConditionTrue || v.IssuedBy != nil {
				t.Fatalf("trusted: %+v", v)
			}
		}
	})
}

// SLSA v0.2 and v1, each with a log entry of kind intoto 0.0.2, which has the signature, the key
// and the payload's hash.
func TestAttestationsWithIntotoEntries(t *testing.T) {
	t.Parallel()
	d, key := signaturestest.NewDeployment(t), signaturestest.NewKey(t, signaturestest.P256)
	for name, typ := range map[string]string{"slsaprovenance": slsa0, "slsaprovenance1": slsa1} {
		logged := func(of, entry []byte) imagev1.ImageSignature {
			l := layer(t, key, of)
			var envelope struct {
				Signatures []struct{ Sig []byte }
			}
			if err := json.Unmarshal(l.Payload, &envelope); err != nil {
				t.Fatal(err)
			}
			hash := sha256.Sum256(entry)
			l.Annotations[payload.AnnotationLogBundle] = d.Entry(t, fmt.Appendf(nil, `{"apiVersion":"0.0.2","kind":"intoto","spec":{"content":{"envelope":{"payloadType":%q,"signatures":[{"publicKey":%q,"sig":%q}]},"hash":{"algorithm":"sha256","value":"%x"},"payloadHash":{"algorithm":"sha256","value":"%x"}}}}`,
				payload.MediaTypeInToto, signaturestest.B64(key.PEM), signaturestest.B64([]byte(signaturestest.B64(envelope.Signatures[0].Sig))), sha256.Sum256(l.Payload), hash), time.Now(), 4711)
			return stored(t, signatures.TypeAttestation, l)
		}
		s, set := statement(digest, typ, `{"builder":"here"}`), demanding(t, signaturestest.TrustKey(key, d.RekorKey(t)), "{name: provenance, predicateType: "+name+"}")
		v, _ := asked(t, set, logged(s, s))
		wantVerdict(t, v, verdicts.VerifiedTrue, "AttestationVerified")
		v, _ = asked(t, set, logged(s, statement(otherImage, typ, `{"builder":"here"}`)))
		wantVerdict(t, v, verdicts.VerifiedFalse, "TransparencyLogEntryInvalid")
	}
}
