// Package signaturestest makes keys, certificates, log entries and signatures for tests. They have
// the formats that cosign and gpg write, and need neither program.
package signaturestest

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"testing"

	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	protodsse "github.com/sigstore/protobuf-specs/gen/pb-go/dsse"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/options"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/tidewaiter/tidewaiter/internal/payload"
)

// Kinds of keys that image signers use.
const (
	P256    = "ECDSA-P256"
	P384    = "ECDSA-P384"
	P521    = "ECDSA-P521"
	RSA2048 = "RSA-2048"
	RSA4096 = "RSA-4096"
	Ed25519 = "Ed25519"
)

// Kinds is every kind of key.
var Kinds = []string{P256, P384, P521, RSA2048, RSA4096, Ed25519}

// Key is a signing key.
type Key struct {
	Kind    string
	Private crypto.Signer
	// PEM is the public key.
	PEM []byte
	// Old signs as cosign 2 and containers/image do: with SHA-256 for every curve, and pure Ed25519.
	Old bool
	// With is the hash with which a key other than Ed25519 signs; 0 is the one that Old implies.
	With crypto.Hash
}

// NewKey generates a key.
func NewKey(t testing.TB, kind string) *Key {
	t.Helper()
	var private crypto.Signer
	var err error
	switch kind {
	case P256:
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case P384:
		private, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case P521:
		private, err = ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case RSA2048:
		private, err = rsa.GenerateKey(rand.Reader, 2048)
	case RSA4096:
		private, err = rsa.GenerateKey(rand.Reader, 4096)
	case Ed25519:
		_, private, err = ed25519.GenerateKey(rand.Reader)
	default:
		t.Fatalf("unknown kind of key %q", kind)
	}
	must(t, err)
	return keyOf(t, kind, private)
}

// keyOf wraps a private key.
func keyOf(t testing.TB, kind string, private crypto.Signer) *Key {
	t.Helper()
	pem, err := cryptoutils.MarshalPublicKeyToPEM(private.Public())
	must(t, err)
	return &Key{Kind: kind, Private: private, PEM: pem}
}

// Hint returns the name of the key in bundles.
func (k *Key) Hint(t testing.TB) string {
	t.Helper()
	der, err := cryptoutils.MarshalPublicKeyToDER(k.Private.Public())
	must(t, err)
	sum := sha256.Sum256(der)
	return base64.StdEncoding.EncodeToString(sum[:])
}

// ID is the key's ID in verdicts.
func (k *Key) ID(t testing.TB) string {
	t.Helper()
	raw, err := base64.StdEncoding.DecodeString(k.Hint(t))
	must(t, err)
	return "sha256:" + hex.EncodeToString(raw)
}

// Hash is the algorithm with which the key signs payloads.
func (k *Key) Hash() string {
	switch {
	case k.With != 0:
		return map[crypto.Hash]string{crypto.SHA256: "sha256", crypto.SHA384: "sha384", crypto.SHA512: "sha512"}[k.With]
	case k.Kind == P384 && !k.Old:
		return "sha384"
	case k.Kind == P521 && !k.Old, k.Kind == Ed25519:
		return "sha512"
	}
	return "sha256"
}

// Sign signs a message as cosign does: the content of an envelope if envelope is true, otherwise a
// payload.
func (k *Key) Sign(t testing.TB, message []byte, envelope bool) []byte {
	t.Helper()
	var opts []signature.LoadOption
	if k.Kind == Ed25519 && !envelope && !k.Old {
		opts = append(opts, options.WithED25519ph())
	}
	var signer signature.Signer
	var err error
	switch {
	case k.With != 0:
		signer, err = signature.LoadSigner(k.Private, k.With)
	case k.Old:
		signer, err = signature.LoadSigner(k.Private, crypto.SHA256)
	default:
		signer, err = signature.LoadDefaultSigner(k.Private, opts...)
	}
	must(t, err)
	sig, err := signer.SignMessage(bytes.NewReader(message))
	must(t, err)
	return sig
}

// SimpleSigning makes a cosign signature.
func (k *Key) SimpleSigning(t testing.TB, digest, reference string) *payload.Blob {
	t.Helper()
	doc, err := payload.MarshalSimpleSigning(payload.TypeCosign, digest, reference, nil)
	must(t, err)
	return k.Blob(t, doc)
}

// Blob signs any payload as cosign would.
func (k *Key) Blob(t testing.TB, doc []byte) *payload.Blob {
	t.Helper()
	return &payload.Blob{
		MediaType: payload.MediaTypeSimpleSigning,
		Payload:   doc,
		Annotations: map[string]string{
			payload.AnnotationSignature: base64.StdEncoding.EncodeToString(k.Sign(t, doc, false)),
		},
	}
}

// Statement is an in-toto statement about an image.
func Statement(digest, predicateType string) []byte {
	return fmt.Appendf(nil, `{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":%q}}],"predicateType":%q,"predicate":{}}`,
		digest[len("sha256:"):], predicateType)
}

// PAE is the DSSE pre-authentication encoding of a statement.
func PAE(statement []byte) []byte {
	return fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(payload.MediaTypeInToto), payload.MediaTypeInToto, len(statement), statement)
}

// Bundle makes a version 0.3 bundle with a statement in an envelope.
func (k *Key) Bundle(t testing.TB, statement []byte) *protobundle.Bundle {
	t.Helper()
	return &protobundle.Bundle{
		MediaType: "application/vnd.dev.sigstore.bundle.v0.3+json",
		VerificationMaterial: &protobundle.VerificationMaterial{
			Content: &protobundle.VerificationMaterial_PublicKey{PublicKey: &protocommon.PublicKeyIdentifier{Hint: k.Hint(t)}},
		},
		Content: &protobundle.Bundle_DsseEnvelope{DsseEnvelope: &protodsse.Envelope{
			Payload:     statement,
			PayloadType: payload.MediaTypeInToto,
			Signatures:  []*protodsse.Signature{{Sig: k.Sign(t, PAE(statement), true)}},
		}},
	}
}

// ManifestBundle makes a bundle that signs a manifest itself.
func (k *Key) ManifestBundle(t testing.TB, manifest []byte) *protobundle.Bundle {
	t.Helper()
	b := k.Bundle(t, nil)
	sum := sha256.Sum256(manifest)
	b.Content = &protobundle.Bundle_MessageSignature{MessageSignature: &protocommon.MessageSignature{
		MessageDigest: &protocommon.HashOutput{Algorithm: protocommon.HashAlgorithm_SHA2_256, Digest: sum[:]},
		Signature:     k.Sign(t, manifest, false),
	}}
	return b
}

// Marshal writes a blob's or a bundle's bytes.
func Marshal(t testing.TB, signature any) []byte {
	t.Helper()
	var b []byte
	var err error
	switch s := signature.(type) {
	case *payload.Blob:
		b, err = s.Marshal()
	case *protobundle.Bundle:
		b, err = protojson.Marshal(s)
	default:
		b, err = json.Marshal(s)
	}
	must(t, err)
	return b
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
