package signatures_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"
	"unicode/utf8"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"

	"tidewaiter/signatures"
	"tidewaiter/signatures/payload"
	"tidewaiter/signatures/policy"
	"tidewaiter/signatures/signaturestest"
)

// The fuzz targets judge signatures of an image that no trusted key has ever signed. Whatever comes in, the verdict must
// be well-formed and must not be True: a verdict of True would be a signature whose digest is not the image's.

var unsigned = signatures.Image{Digest: digest, Reference: image.Reference, Manifest: []byte(manifest)}

const signedInstead = otherImage

type fuzzed struct {
	sets []*policy.Set
	key  *signaturestest.Key
	d    *signaturestest.Deployment
	gpg  *signaturestest.GPG
}

func newFuzzed(t testing.TB) *fuzzed {
	f := &fuzzed{key: signaturestest.NewKey(t, signaturestest.P256), d: signaturestest.NewDeployment(t)}
	f.gpg = signaturestest.NewGPG(t, "Release", now.AddDate(-1, 0, 0), 0)
	for _, trust := range []string{
		signaturestest.TrustKey(f.key, nil), signaturestest.TrustKey(f.key, f.d.RekorKey(t)),
		f.d.TrustFulcio(t, "signedEmail: "+mail, f.d.Root, f.d.Intermediate), f.d.TrustRoot(t, "signedEmail: "+mail, nil),
		signaturestest.TrustGPG(f.gpg.Public(t)),
	} {
		f.sets = append(f.sets, signaturestest.Set(t, trust, digestOnly), signaturestest.Set(t, trust, matchRepository))
	}
	return f
}

func (f *fuzzed) check(t *testing.T, typ string, content []byte) {
	for _, set := range f.sets {
		v := signatures.Verify(signatures.Signature{Type: typ, Content: content}, unsigned, set, now)
		wellFormed(t, v)
		if c, _ := v.Condition(signatures.ConditionTrusted); c.Status == corev1.ConditionTrue {
			t.Fatalf("trusted: %+v", v)
		}
	}
}

// checkSeed makes sure that a seed would be trusted if the image were the one that was signed, so that fuzzing starts from
// something that gets far.
func (f *fuzzed) checkSeed(t testing.TB, typ string, content []byte) []byte {
	t.Helper()
	for _, set := range f.sets {
		v := signatures.Verify(signatures.Signature{Type: typ, Content: content},
			signatures.Image{Digest: signedInstead, Reference: repository + "@" + signedInstead}, set, now)
		if v.Trusted() {
			return content
		}
	}
	t.Fatal("no policy trusts the seed")
	return nil
}

func FuzzVerifyBundle(f *testing.F) {
	z := newFuzzed(f)
	statement := signaturestest.Statement(signedInstead, cosignSign)
	leaf, key := z.d.Identity(f, mail, nil)
	f.Add(z.checkSeed(f, signatures.TypeBundle, signaturestest.Marshal(f, z.key.Bundle(f, statement))))
	f.Add(z.checkSeed(f, signatures.TypeBundle, signaturestest.Marshal(f, z.d.KeylessBundle(f, leaf, key, statement, time.Now()))))
	f.Add(z.checkSeed(f, signatures.TypeBundle, signaturestest.Marshal(f, z.d.KeylessV2Bundle(f, mail, statement))))
	f.Add(signaturestest.Marshal(f, z.key.ManifestBundle(f, []byte("other"))))
	f.Add(signaturestest.Marshal(f, z.key.Bundle(f, signaturestest.Statement(digest, "https://slsa.dev/provenance/v1"))))
	// The log and certificate parsers beneath are reached through fields that a blind mutation of JSON seldom hits.
	f.Add([]byte(`{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","verificationMaterial":{"certificate":{"rawBytes":"MAA="},"tlogEntries":[{"logIndex":"1","logId":{"keyId":"AA=="},"kindVersion":{"kind":"dsse","version":"0.0.1"},"integratedTime":"1","inclusionProof":{"checkpoint":{"envelope":"x"}},"canonicalizedBody":"eyJraW5kIjoiZHNzZSIsImFwaVZlcnNpb24iOiIwLjAuMSIsInNwZWMiOnt9fQ=="}]},"dsseEnvelope":{"payload":"e30=","payloadType":"application/vnd.in-toto+json","signatures":[{"sig":"AA=="}]}}`))
	f.Fuzz(func(t *testing.T, content []byte) { z.check(t, signatures.TypeBundle, content) })
}

// The annotations of a cosign signature are what holds certificates, log entries and timestamps.
func FuzzVerifyAnnotations(f *testing.F) {
	z := newFuzzed(f)
	leaf, key := z.d.Identity(f, mail, nil)
	add := func(b *payload.Blob) {
		z.checkSeed(f, signatures.TypeSimpleSigning, signaturestest.Marshal(f, b))
		f.Add(b.Payload, b.Annotations[payload.AnnotationSignature], b.Annotations[payload.AnnotationCertificate],
			b.Annotations[payload.AnnotationChain], b.Annotations[payload.AnnotationLogBundle], b.Annotations[payload.AnnotationTimestamp])
	}
	add(z.key.SimpleSigning(f, signedInstead, repository))
	add(z.d.Keyless(f, leaf, key, signedInstead, repository, time.Now()))
	stamped := z.d.Keyless(f, leaf, key, signedInstead, repository, time.Now())
	stamped.Annotations[payload.AnnotationTimestamp] = `{"SignedRFC3161Timestamp":"MAA="}`
	add(stamped)
	f.Fuzz(func(t *testing.T, doc []byte, sig, certificate, chain, log, stamp string) {
		b := &payload.Blob{MediaType: payload.MediaTypeSimpleSigning, Payload: doc, Annotations: map[string]string{
			payload.AnnotationSignature: sig, payload.AnnotationCertificate: certificate, payload.AnnotationChain: chain,
			payload.AnnotationLogBundle: log, payload.AnnotationTimestamp: stamp,
		}}
		content, err := b.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		z.check(t, signatures.TypeSimpleSigning, content)
	})
}

func FuzzVerifyOpenPGP(f *testing.F) {
	z := newFuzzed(f)
	message := z.gpg.SimpleSigning(f, signedInstead, repository, now.AddDate(0, -1, 0))
	f.Add(z.checkSeed(f, signatures.TypeAtomic, message))
	f.Add(z.checkSeed(f, signatures.TypeAtomic, signaturestest.Compressed(f, message)))
	f.Add(bytes.Repeat(message, 2))
	f.Add([]byte{0x90, 13, 3, 0, 8, 1, 1, 2, 3, 4, 5, 6, 7, 8, 1, 0xcb, 7, 'b', 0, 0, 0, 0, 0, 'x', 0x88, 5, 3, 5, 0, 0, 0})
	f.Fuzz(func(t *testing.T, content []byte) { z.check(t, signatures.TypeAtomic, content) })
}

// FuzzVerifyImage judges a whole object twice: the second time nothing changes, and JSON keeps all of it.
func FuzzVerifyImage(f *testing.F) {
	z := newFuzzed(f)
	f.Add(signatures.TypeSimpleSigning, signaturestest.Marshal(f, z.key.SimpleSigning(f, signedInstead, repository)), image.Reference, manifest)
	f.Add(signatures.TypeAtomic, z.gpg.SimpleSigning(f, signedInstead, repository, now), repository+":v1@"+digest, "")
	f.Add("", []byte{}, "", "")
	f.Fuzz(func(t *testing.T, typ string, content []byte, reference, manifest string) {
		if !utf8.ValidString(typ + reference + manifest) {
			return // an object that came through the API has no such strings
		}
		for _, set := range z.sets {
			img := object(stored(t, typ, content))
			img.DockerImageReference, img.DockerImageManifest = reference, manifest
			signatures.VerifyImage(img, set, now)
			if verified, _, _ := signatures.Summary(img); verified == "True" {
				t.Fatalf("verified: %+v", img.Signatures)
			}
			if changed, _ := signatures.VerifyImage(img, set, now.Add(time.Minute)); changed {
				t.Fatal("changed although nothing did")
			}
			b, err := json.Marshal(img)
			if err != nil {
				t.Fatal(err)
			}
			var back imagev1.Image
			if err := json.Unmarshal(b, &back); err != nil {
				t.Fatal(err)
			}
			if changed, _ := signatures.VerifyImage(&back, set, now.Add(time.Minute)); changed {
				t.Fatal("changed by being stored")
			}
		}
	})
}
