package signatures_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"maps"
	"slices"
	"testing"
	"time"
	"unicode/utf8"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// The fuzz targets judge signatures of an image that no trusted key has ever signed. Whatever comes
// in, the verdict must be well-formed and must not be True. A verdict of True would mean a
// signature whose digest is not the image's.
//
// Each fuzzing process has keys of its own, so an input of bytes alone would never verify in the
// next process. Inputs are therefore edits to a genuine signature that the process has made itself.
// There are raw bytes, too.

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
		f.sets = append(f.sets, signaturestest.Set(t, trust, digestOnly))
	}
	return f
}

func (f *fuzzed) check(t *testing.T, typ string, content []byte) {
	for _, set := range f.sets {
		v := signatures.Verify(signatures.Signature{Type: typ, Content: content}, unsigned, set, now)
		wellFormed(t, v)
		if c, _ := v.Condition(verdicts.Trusted); c.Status == corev1.ConditionTrue {
			t.Fatalf("trusted: %+v", v)
		}
	}
}

// genuine makes sure that a seed would be trusted for the image that was signed.
func (f *fuzzed) genuine(t testing.TB, typ string, content []byte) []byte {
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

// editedBytes applies edits of four bytes to a copy of content: where (two bytes), what to do, and
// a byte for it.
func editedBytes(content, edits []byte) []byte {
	content = bytes.Clone(content)
	for ; len(edits) >= 4 && len(content) > 0; edits = edits[4:] {
		at, value := int(binary.BigEndian.Uint16(edits))%len(content), edits[3]
		end := min(at+int(value), len(content))
		switch edits[2] % 4 {
		case 0:
			content[at] = value
		case 1:
			content[at] ^= value
		case 2:
			content = slices.Delete(content, at, end)
		case 3: // again
			content = slices.Insert(content, at, content[at:end]...)
		}
	}
	return content
}

func FuzzVerifyBundle(f *testing.F) {
	z := newFuzzed(f)
	statement := signaturestest.Statement(signedInstead, cosignSign)
	leaf, key := z.d.Identity(f, mail, nil)
	seeds := [][]byte{
		z.genuine(f, signatures.TypeBundle, signaturestest.Marshal(f, z.key.Bundle(f, statement))),
		z.genuine(f, signatures.TypeBundle, signaturestest.Marshal(f, z.d.KeylessBundle(f, leaf, key, statement, time.Now()))),
		z.genuine(f, signatures.TypeBundle, signaturestest.Marshal(f, z.d.KeylessV2Bundle(f, mail, statement))),
		signaturestest.Marshal(f, z.key.ManifestBundle(f, []byte("other"))),
		signaturestest.Marshal(f, z.key.Bundle(f, signaturestest.Statement(digest, "https://slsa.dev/provenance/v1"))),
	}
	for i := range seeds {
		f.Add([]byte(nil), uint8(i), []byte(nil))
		f.Add([]byte(nil), uint8(i), []byte{0, 40, 2, 9, 1, 0, 3, 30})
	}
	f.Add([]byte(`{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","verificationMaterial":{"certificate":{"rawBytes":"MAA="},"tlogEntries":[{"logIndex":"1","logId":{"keyId":"AA=="},"kindVersion":{"kind":"dsse","version":"0.0.1"},"integratedTime":"1","inclusionProof":{"checkpoint":{"envelope":"x"}},"canonicalizedBody":"eyJraW5kIjoiZHNzZSIsImFwaVZlcnNpb24iOiIwLjAuMSIsInNwZWMiOnt9fQ=="}]},"dsseEnvelope":{"payload":"e30=","payloadType":"application/vnd.in-toto+json","signatures":[{"sig":"AA=="}]}}`), uint8(0), []byte(nil))
	f.Fuzz(func(t *testing.T, raw []byte, which uint8, edits []byte) {
		if len(raw) > 0 {
			z.check(t, signatures.TypeBundle, raw)
		}
		z.check(t, signatures.TypeBundle, editedBytes(seeds[int(which)%len(seeds)], edits))
	})
}

// The annotations of a cosign signature hold certificates, log entries and timestamps. Each is
// edited by itself.
func FuzzVerifyAnnotations(f *testing.F) {
	z := newFuzzed(f)
	leaf, key := z.d.Identity(f, mail, nil)
	logged := z.key.SimpleSigning(f, signedInstead, repository)
	z.d.Log(f, logged, "sha256", z.key.PEM, now)
	seeds := []*payload.Blob{
		z.key.SimpleSigning(f, signedInstead, repository), logged, z.d.Keyless(f, leaf, key, signedInstead, repository, time.Now()),
	}
	names := []string{payload.AnnotationSignature, payload.AnnotationCertificate, payload.AnnotationChain, payload.AnnotationLogBundle, payload.AnnotationTimestamp}
	for i, b := range seeds {
		z.genuine(f, signatures.TypeSimpleSigning, signaturestest.Marshal(f, b))
		for j := range names {
			f.Add(uint8(i), uint8(j), "", []byte{0, 20, 1, 1})
		}
		f.Add(uint8(i), uint8(4), `{"SignedRFC3161Timestamp":"MAA="}`, []byte(nil))
		f.Add(uint8(i), uint8(3), `{"SignedEntryTimestamp":"","Payload":{"body":"e30=","integratedTime":1,"logIndex":1,"logID":"00"}}`, []byte(nil))
		f.Add(uint8(i), uint8(5), "", []byte{0, 20, 1, 1})
	}
	f.Fuzz(func(t *testing.T, which, annotation uint8, value string, edits []byte) {
		b := *seeds[int(which)%len(seeds)]
		b.Annotations = maps.Clone(b.Annotations)
		if n := int(annotation) % (len(names) + 1); n == len(names) {
			b.Payload = editedBytes(b.Payload, edits)
		} else if value != "" {
			b.Annotations[names[n]] = value
		} else {
			b.Annotations[names[n]] = string(editedBytes([]byte(b.Annotations[names[n]]), edits))
		}
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
	seeds := [][]byte{
		z.genuine(f, signatures.TypeAtomic, message), z.genuine(f, signatures.TypeAtomic, signaturestest.Compressed(f, message)), bytes.Repeat(message, 2),
	}
	for i := range seeds {
		f.Add([]byte(nil), uint8(i), []byte{0, 3, 0, 3, 0, 40, 1, 1})
	}
	f.Add([]byte{0x90, 13, 3, 0, 8, 1, 1, 2, 3, 4, 5, 6, 7, 8, 1, 0xcb, 7, 'b', 0, 0, 0, 0, 0, 'x', 0x88, 5, 3, 5, 0, 0, 0}, uint8(0), []byte(nil))
	f.Fuzz(func(t *testing.T, raw []byte, which uint8, edits []byte) {
		if len(raw) > 0 {
			z.check(t, signatures.TypeAtomic, raw)
		}
		z.check(t, signatures.TypeAtomic, editedBytes(seeds[int(which)%len(seeds)], edits))
	})
}

// FuzzVerifyImage judges a whole object twice. The second time nothing changes, and JSON keeps all
// of it.
func FuzzVerifyImage(f *testing.F) {
	z := newFuzzed(f)
	f.Add(signatures.TypeSimpleSigning, signaturestest.Marshal(f, z.key.SimpleSigning(f, signedInstead, repository)), image.Reference, manifest)
	f.Add(signatures.TypeAtomic, z.gpg.SimpleSigning(f, signedInstead, repository, now), repository+":v1@"+digest, "")
	f.Add("", []byte{}, "", "")
	f.Add("", []byte{}, "\xd2", "\xa9") // halves of a character
	f.Fuzz(func(t *testing.T, typ string, content []byte, reference, manifest string) {
		if !utf8.ValidString(typ) || !utf8.ValidString(reference) || !utf8.ValidString(manifest) {
			return // an object that came through the API has no such strings
		}
		for _, set := range z.sets {
			img := object(stored(t, typ, content))
			img.DockerImageReference, img.DockerImageManifest = reference, manifest
			signatures.VerifyImage(img, set, now, nil)
			if verified, _, _ := signatures.Summary(img); verified == "True" {
				t.Fatalf("verified: %+v", img.Signatures)
			}
			if changed, _ := signatures.VerifyImage(img, set, now.Add(time.Minute), nil); changed {
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
			if changed, _ := signatures.VerifyImage(&back, set, now.Add(time.Minute), nil); changed {
				t.Fatal("changed by being stored")
			}
		}
	})
}
