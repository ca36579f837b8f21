package signatures_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// BenchmarkVerify judges one signature. The metric x-bare is the time that it takes, as a multiple
// of the bare cryptographic operation with hashing. It has to stay under 3 for signatures made with
// a key.
func BenchmarkVerify(b *testing.B) {
	for _, kind := range signaturestest.Kinds {
		key := signaturestest.NewKey(b, kind)
		statement := signaturestest.Statement(digest, cosignSign)
		bundle := key.Bundle(b, statement)
		blob := key.SimpleSigning(b, digest, repository)
		raw, err := base64.StdEncoding.DecodeString(blob.Annotations[payload.AnnotationSignature])
		if err != nil {
			b.Fatal(err)
		}
		set := signaturestest.Set(b, signaturestest.TrustKey(key, nil), digestOnly)
		for _, tc := range []struct {
			format, typ  string
			content      []byte
			message, sig []byte
			envelope     bool
		}{
			{"SimpleSigning", signatures.TypeSimpleSigning, signaturestest.Marshal(b, blob), blob.Payload, raw, false},
			{"Bundle", signatures.TypeBundle, signaturestest.Marshal(b, bundle), signaturestest.PAE(statement), bundle.GetDsseEnvelope().GetSignatures()[0].GetSig(), true},
		} {
			b.Run(fmt.Sprintf("Key=%s/Format=%s", kind, tc.format), func(b *testing.B) {
				bare := perOperation(b, func() bool { return bareVerify(key, tc.message, tc.sig, tc.envelope) })
				for b.Loop() {
					if v := signatures.Verify(signatures.Signature{Type: tc.typ, Content: tc.content}, image, set, now); !v.Trusted() {
						b.Fatal(v.Conditions)
					}
				}
				b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(bare), "x-bare")
			})
		}
	}
}

// perOperation times f, which must succeed.
func perOperation(b *testing.B, f func() bool) time.Duration {
	const n = 200
	start := time.Now()
	for range n {
		if !f() {
			b.Fatal("the bare verification fails")
		}
	}
	return time.Since(start) / n
}

func bareVerify(key *signaturestest.Key, message, sig []byte, envelope bool) bool {
	sum := sha256.Sum256(message)
	switch public := key.Private.Public().(type) {
	case *ecdsa.PublicKey:
		digest := sum[:]
		switch key.Kind {
		case signaturestest.P384:
			h := sha512.Sum384(message)
			digest = h[:]
		case signaturestest.P521:
			h := sha512.Sum512(message)
			digest = h[:]
		}
		return ecdsa.VerifyASN1(public, digest, sig)
	case *rsa.PublicKey:
		return rsa.VerifyPKCS1v15(public, crypto.SHA256, sum[:], sig) == nil
	case ed25519.PublicKey:
		if envelope {
			return ed25519.Verify(public, message, sig)
		}
		h := sha512.Sum512(message)
		return ed25519.VerifyWithOptions(public, h[:], sig, &ed25519.Options{Hash: crypto.SHA512}) == nil
	}
	return false
}

// BenchmarkReverify judges stored images again, as after a change of policy. images/s is for one
// core. Nothing changes in the images, which is the usual case. A change would also cost a write.
func BenchmarkReverify(b *testing.B) {
	d := signaturestest.NewDeployment(b)
	key := signaturestest.NewKey(b, signaturestest.P256)
	leaf, certKey := d.Identity(b, mail, nil)
	gpg := signaturestest.NewGPG(b, "Release", now.AddDate(-1, 0, 0), 0)
	logged := key.SimpleSigning(b, digest, repository)
	d.Log(b, logged, "sha256", key.PEM, now)
	for _, tc := range []struct {
		name      string
		trust     string
		signature imagev1.ImageSignature
	}{
		{"Key", signaturestest.TrustKey(key, nil), stored(b, signatures.TypeSimpleSigning, key.SimpleSigning(b, digest, repository))},
		{"KeyAndRekor", signaturestest.TrustKey(key, d.RekorKey(b)), stored(b, signatures.TypeSimpleSigning, logged)},
		{"Keyless", d.TrustFulcio(b, "signedEmail: "+mail), stored(b, signatures.TypeSimpleSigning, d.Keyless(b, leaf, certKey, digest, repository, time.Now()))},
		{"KeylessBundle", d.TrustRoot(b, "signedEmail: "+mail, nil), stored(b, signatures.TypeBundle, d.KeylessBundle(b, leaf, certKey, signaturestest.Statement(digest, cosignSign), time.Now()))},
		{"OpenPGP", signaturestest.TrustGPG(gpg.Public(b)), stored(b, signatures.TypeAtomic, gpg.SimpleSigning(b, digest, repository, now.AddDate(0, -1, 0)))},
	} {
		b.Run("Trust="+tc.name, func(b *testing.B) {
			set := signaturestest.Set(b, tc.trust, digestOnly)
			img := object(tc.signature)
			signatures.VerifyImage(img, set, now, nil)
			if verified, _, _ := signatures.Summary(img); verified != "True" {
				b.Fatalf("%+v", img.Signatures)
			}
			b.ReportAllocs()
			for b.Loop() {
				if changed, _ := signatures.VerifyImage(img, set, now, nil); changed {
					b.Fatal("changed")
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "images/s")
		})
	}
}
