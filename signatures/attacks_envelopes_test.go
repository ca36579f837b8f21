package signatures_test

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notaryproject/notation-core-go/signature/cose"
	"github.com/notaryproject/notation-core-go/signature/jws"
	"github.com/notaryproject/notation-core-go/testhelper"
	"github.com/notaryproject/notation-go"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// A bundle or a cosign layer holds a trusted signer's envelope, but a lax reader finds another
// statement in it. It is refused, as an attestation and as a signature.
func TestAttackTwoReadingsOfABundle(t *testing.T) {
	t.Parallel()
	key := signaturestest.NewKey(t, signaturestest.P256)
	set := signaturestest.Set(t, signaturestest.TrustKey(key, nil), digestOnly)
	forged := base64.StdEncoding.EncodeToString(statement(digest, spdx, `{"spdxVersion":"SPDX-2.3"}`))
	for typ, signed := range map[string][]byte{signatures.TypeAttestation: statement(digest, slsa1, `{}`), signatures.TypeBundle: signaturestest.Statement(digest, cosignSign)} {
		honest := signaturestest.Marshal(t, key.Bundle(t, signed))
		changes := map[string][2]string{
			"a second envelope":      {`{`, `{"dsse_envelope":{"payload":"` + forged + `"},`},
			"another case":           {`{`, `{"DsseEnvelope":{"payload":"` + forged + `"},`},
			"a payload beside it":    {`{`, `{"payload":"` + forged + `",`},
			"the other spelling":     {`"dsseEnvelope"`, `"dsse_envelope"`},
			"a payload in it":        {`"payloadType"`, `"Payload":"` + forged + `","payloadType"`},
			"an escaped payload":     {`"payloadType"`, `"payl\u006fad":"` + forged + `","payloadType"`},
			"an envelope in it":      {`"payloadType"`, `"dsseEnvelope":{"payload":"` + forged + `"},"payloadType"`},
			"the other payload type": {`"payloadType"`, `"payload_type":"x","payloadType"`},
		}
		for name, change := range changes {
			evil := bytes.Replace(honest, []byte(change[0]), []byte(change[1]), 1)
			if bytes.Equal(evil, honest) {
				t.Fatalf("%s: nothing is changed in %s", name, honest)
			}
			v := verify(t, typ, evil, set)
			if v.Trusted() || v.Reason() != "InvalidSignature" || v.Statement != "" {
				t.Errorf("%s, %s: %s, %s", typ, name, v.Reason(), v.Statement)
			}
		}
	}
	honest := layer(t, key, statement(digest, slsa1, `{}`))
	if v := signatures.Verify(signatures.Signature{Type: signatures.TypeAttestation, Content: signaturestest.Marshal(t, honest)}, image, set, now); v.Reason() != signatures.ReasonAttestationVerified || v.Statement == "" {
		t.Errorf("the honest layer: %s, %s", v.Reason(), v.Statement)
	}
	for _, more := range []string{`"dsseEnvelope":{"payload":"` + forged + `"},`, `"PAYLOAD":"` + forged + `",`, `"x":1,`, `"payload":"` + forged + `",`} {
		evil := *honest
		evil.Payload = append([]byte("{"+more), honest.Payload[1:]...)
		if v := verify(t, signatures.TypeAttestation, signaturestest.Marshal(t, &evil), set); v.Reason() != "InvalidSignature" || v.Statement != "" {
			t.Errorf("a layer with %s: %s, %s", more, v.Reason(), v.Statement)
		}
	}
}

// notation's parser ignores the case of keys and uses the last of two. So an envelope with two
// payloads is refused.
func TestAttackTwoReadingsOfNotary(t *testing.T) {
	root, leaf := testhelper.GetRSARootCertificate(), testhelper.GetRSALeafCertificate()
	set := signaturestest.Set(t, trustNotary(t, []*x509.Certificate{root.Cert}, nil, "*"), "")
	honest := notarized(t, leaf.PrivateKey, []*x509.Certificate{leaf.Cert, root.Cert}, digest, notation.SignerSignOptions{SignatureMediaType: jws.MediaTypeEnvelope})
	judge := func(content []byte) signatures.Verdict {
		return signatures.Verify(signatures.Signature{Type: signatures.TypeNotation, Content: content}, signatures.Image{Digest: digest, Reference: repository + "@" + digest}, set, time.Now())
	}
	if v := judge(honest); !v.Trusted() {
		t.Fatalf("%+v", v)
	}
	other := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"targetArtifact":{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":%q,"size":528}}`, otherImage))
	for name, more := range map[string]string{
		"a first payload":  `"payload":"` + other + `",`,
		"another case":     `"Payload":"` + other + `",`,
		"escaped":          `"p\u0061yload":"` + other + `",`,
		"a second header":  `"HEADER":{},`,
		"several payloads": `"signatures":[],`,
	} {
		if v := judge(append([]byte("{"+more), honest[1:]...)); v.Trusted() || v.Reason() != "InvalidSignature" {
			t.Errorf("%s: %+v", name, v.Conditions)
		}
	}
}

// A signature in COSE is one array of four, with each header once, and nothing after it.
func TestAttackTwoReadingsOfCOSE(t *testing.T) {
	root, leaf := testhelper.GetRSARootCertificate(), testhelper.GetRSALeafCertificate()
	set := signaturestest.Set(t, trustNotary(t, []*x509.Certificate{root.Cert}, nil, "*"), "")
	honest := notarized(t, leaf.PrivateKey, []*x509.Certificate{leaf.Cert, root.Cert}, digest, notation.SignerSignOptions{SignatureMediaType: cose.MediaTypeEnvelope})
	judge := func(content []byte) signatures.Verdict {
		return signatures.Verify(signatures.Signature{Type: signatures.TypeNotation, Content: content}, signatures.Image{Digest: digest, Reference: repository + "@" + digest}, set, time.Now())
	}
	if v := judge(honest); !v.Trusted() {
		t.Fatalf("%+v", v)
	}
	// tag 18, an array of four: the protected headers as bytes, and a map of the others
	if honest[0] != 0xd2 || honest[1] != 0x84 || honest[2] != 0x58 {
		t.Fatalf("the signature begins with % x", honest[:3])
	}
	others := 4 + int(honest[3])
	if honest[others]&0xe0 != 0xa0 {
		t.Fatalf("the other headers begin with %x", honest[others])
	}
	const chain = "\x18\x21" // the header that has the certificates
	with := func(more string) []byte {
		evil := bytes.Clone(honest[:others])
		evil = append(evil, honest[others]+1)
		return append(append(evil, more...), honest[others+1:]...)
	}
	five := append(bytes.Clone(honest), 0x40)
	five[1] = 0x85
	for name, evil := range map[string][]byte{
		"something after it": append(bytes.Clone(honest), 0xf6), "another signature after it": append(bytes.Clone(honest), honest...),
		"an array of five": five, "without its tag": honest[1:], "certificates twice": with(chain + "\x80"),
		"a critical header": with("\x02\x81\x18\x21"),
	} {
		if v := judge(evil); v.Trusted() {
			t.Errorf("%s: %+v", name, v.Conditions)
		}
	}
}

// A signer vouches for a document in each repository where the document was found and where a
// policy trusts the signer.
func TestVouchedByPlace(t *testing.T) {
	t.Parallel()
	const dev = "registry.example.com/dev/app"
	prodKey, devKey := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	set := signaturestest.SetFrom(t, signaturestest.Document("prod", `["`+repository+`"]`, signaturestest.TrustKey(prodKey, nil), digestOnly)+
		"---\n"+signaturestest.Document("dev", `["`+dev+`"]`, signaturestest.TrustKey(devKey, nil), digestOnly))
	sbom, vex := statement(digest, spdx, `{}`), statement(digest, "https://openvex.dev/ns/v0.2.0", `{}`)
	prods, devs := stored(t, signatures.TypeAttestation, prodKey.Bundle(t, sbom)), stored(t, signatures.TypeAttestation, devKey.Bundle(t, vex))
	provenance := stored(t, signatures.TypeAttestation, prodKey.Bundle(t, statement(digest, slsa1, `{}`)))
	both := []string{sigID(prods.Name), sigID(devs.Name), sigID(provenance.Name)}
	ofSBOM, ofVEX := sumOf(t, sbom), sumOf(t, vex)
	for name, tc := range map[string]struct {
		inProd, inDev           []string
		vouchedProd, vouchedDev string
	}{
		"each in its own":      {both[:1], both[1:2], ofSBOM + "=prod", ofVEX + "=dev"},
		"all in both":          {both, both, ofSBOM + "=prod", ofVEX + "=dev"},
		"each in the other's":  {both[1:2], both[:1], "", ""},
		"all in the other one": {nil, both, "", ofVEX + "=dev"},
	} {
		img := object(prods, devs, provenance)
		img.Annotations = map[string]string{}
		ref, err := reference.Parse(dev + "@" + digest)
		if err != nil {
			t.Fatal(err)
		}
		annotation.SetKnown(img.Annotations, []reference.Reference{ref})
		annotation.SetFound(img.Annotations, map[string]annotation.Repository{repository: {Signatures: slices.Clone(tc.inProd), Warnings: []string{"x"}}, dev: {Signatures: slices.Clone(tc.inDev)}})
		signatures.VerifyImage(img, set, now, nil)
		judged := annotation.Judged(img.Annotations)
		for place, want := range map[string]string{repository: tc.vouchedProd, dev: tc.vouchedDev} {
			var got []string
			for statement, by := range judged[place].Vouches {
				got = append(got, statement+"="+by)
			}
			if strings.Join(got, " ") != want {
				t.Errorf("%s, in %s: %v, want %q", name, place, got, want)
			}
		}
		// Ask judges in the same way
		asked, err := reference.Parse(repository + "@" + digest)
		if err != nil {
			t.Fatal(err)
		}
		if v := signatures.Ask(img, asked, "", set, now.Add(time.Hour), nil); len(v.Vouches) > 0 != (tc.vouchedProd != "") {
			t.Errorf("%s: asked, it is %v", name, v.Vouches)
		}
	}
}

func sumOf(t *testing.T, statement []byte) string {
	t.Helper()
	s, err := payload.ParseStatement(statement)
	if err != nil {
		t.Fatal(err)
	}
	return s.Sum
}

// However the bytes of a trusted attestation are changed: either it is refused, or other readers
// find the verified statement in it.
func FuzzVerifiedStatement(f *testing.F) {
	key := signaturestest.NewKey(f, signaturestest.P256)
	signed := statement(digest, spdx, `{"spdxVersion":"SPDX-2.3"}`)
	forged := base64.StdEncoding.EncodeToString(statement(digest, spdx, `{}`))
	bundle, envelope := signaturestest.Marshal(f, key.Bundle(f, signed)), layer(f, key, signed)
	for _, more := range []string{"", `"dsseEnvelope":{"payload":"` + forged + `"},`, `"payload":"` + forged + `",`, `"x":1,`} {
		f.Add(append([]byte("{"+more), bundle[1:]...))
		evil := *envelope
		evil.Payload = append([]byte("{"+more), envelope.Payload[1:]...)
		f.Add(signaturestest.Marshal(f, &evil))
	}
	set := signaturestest.Set(f, signaturestest.TrustKey(key, nil), digestOnly)
	var want payload.Statement
	if s, err := payload.ParseStatement(signed); err != nil {
		f.Fatal(err)
	} else {
		want = *s
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		v := signatures.Verify(signatures.Signature{Type: signatures.TypeAttestation, Content: content}, image, set, now)
		read, err := payload.ParseAttestation(content)
		switch {
		case !v.Trusted():
		case err != nil:
			t.Fatalf("trusted, and refused by those who read it: %v", err)
		case read.Sum != v.Statement || read.Sum != want.Sum || !json.Valid(read.Predicate) || !bytes.Equal(read.Predicate, want.Predicate):
			t.Fatalf("verified %s, and read %s", v.Statement, read.Sum)
		}
		if c, _ := v.Condition(verdicts.Trusted); c.Reason == "" {
			t.Fatal("no reason")
		}
	})
}
