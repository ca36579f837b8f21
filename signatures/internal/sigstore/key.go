package sigstore

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/tlog"
	"github.com/sigstore/sigstore-go/pkg/verify"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/options"

	"github.com/tidewaiter/tidewaiter/signatures/evidence"
)

// Verifier decides whether a root of trust vouches for a signature at the time now. The error is
// always an *evidence.Failure. Verifiers are safe for concurrent use.
type Verifier interface {
	Verify(s *Signature, now time.Time) (*evidence.Evidence, error)
}

// key is a public key with the algorithms that signers use with it.
type key struct {
	public crypto.PublicKey
	id     string // sha256:<hex of SubjectPublicKeyInfo>
	hint   string // the same in the form of sigstore bundles
	// In the order to try: cosign 3 hashes with the algorithm that fits the curve and uses Ed25519ph
	// for everything but envelopes; older cosign and containers/image use SHA-256 and pure Ed25519;
	// policies of sigstore's policy-controller may require any SHA-2.
	forMessages, forEnvelopes []algorithm
}

// algorithm is one that signers use with a key.
type algorithm struct {
	signature.Verifier
	hash crypto.Hash // of the message; 0 with Ed25519
}

func newKey(public crypto.PublicKey) (*key, error) {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(der)
	k := &key{
		public: public,
		id:     evidence.KeyID(der),
		hint:   base64.StdEncoding.EncodeToString(sum[:]),
	}
	switch p := public.(type) {
	case ed25519.PublicKey:
		prehashed, err := signature.LoadED25519phVerifier(p)
		if err != nil {
			return nil, err
		}
		pure, err := signature.LoadED25519Verifier(p)
		if err != nil {
			return nil, err
		}
		k.forMessages = []algorithm{{prehashed, 0}, {pure, 0}}
		k.forEnvelopes = []algorithm{{pure, 0}, {prehashed, 0}}
		return k, nil
	case *rsa.PublicKey:
		if p.N.BitLen() < 2048 {
			return nil, fmt.Errorf("RSA key of %d bits is too weak, 2048 are required", p.N.BitLen())
		}
	}
	preferred, err := signature.GetDefaultAlgorithmDetails(public)
	if err != nil {
		return nil, err
	}
	hashes := []crypto.Hash{preferred.GetHashType()}
	for _, hash := range []crypto.Hash{crypto.SHA256, crypto.SHA384, crypto.SHA512} {
		if hash != hashes[0] {
			hashes = append(hashes, hash)
		}
	}
	for _, hash := range hashes {
		v, err := signature.LoadVerifier(public, hash)
		if err != nil {
			return nil, err
		}
		k.forMessages = append(k.forMessages, algorithm{v, hash})
	}
	k.forEnvelopes = k.forMessages
	return k, nil
}

var errNeedsManifest = errors.New("this key's algorithm needs the manifest's bytes, which the image does not hold")

// verify checks the bare signature. It returns the hash with which that was made.
func (k *key) verify(s *Signature) (crypto.Hash, error) {
	algorithms := k.forMessages
	if s.isEnvelope {
		algorithms = k.forEnvelopes
	}
	var opts []signature.VerifyOption
	var message io.Reader = bytes.NewReader(s.message)
	if s.message == nil {
		if _, ok := k.public.(ed25519.PublicKey); ok {
			return 0, errNeedsManifest
		}
		opts = append(opts, options.WithDigest(s.digest))
	}
	var first error
	for _, a := range algorithms {
		err := a.VerifySignature(bytes.NewReader(s.signature), message, opts...)
		switch {
		case err == nil && s.message == nil: // only its SHA-256 is known
			return crypto.SHA256, nil
		case err == nil:
			return a.hash, nil
		}
		if first == nil {
			first = err
		}
		message = bytes.NewReader(s.message)
	}
	if s.message == nil { // it may be valid with another hash
		return 0, fmt.Errorf("it is not made of the manifest's SHA-256: %w", errNeedsManifest)
	}
	return 0, first
}

var errDamaged = errors.New("the signature is damaged, or covers something else")

// plainly replaces a library's error about the encoding of signatures with a plain one.
func plainly(err error) error {
	if text := err.Error(); strings.Contains(text, "ASN.1") || strings.Contains(text, "verification error") {
		return errDamaged
	}
	return err
}

// madeWith reports whether the signature itself names the key, by hint, certificate or log entry.
// If it does not, a signature of another key cannot be distinguished from a damaged one.
func (k *key) madeWith(s *Signature) bool {
	if s.hint == k.hint {
		return true
	}
	if s.leaf != nil && samePublicKey(s.leaf.PublicKey, k.public) {
		return true
	}
	for _, l := range s.logs {
		entry, err := tlog.ParseTransparencyLogEntry(l)
		if err == nil && tlog.ValidateEntry(entry) == nil && samePublicKey(entry.PublicKey(), k.public) {
			return true
		}
	}
	return false
}

func samePublicKey(a any, b crypto.PublicKey) bool {
	p, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && p.Equal(b)
}

// KeyVerifier trusts one public key. It may also demand an entry in a transparency log, and a
// verified time.
type KeyVerifier struct {
	key      *key
	material root.TrustedMaterial
	verifier *verify.Verifier // nil if only the key is demanded
	demands  demands
}

// NewKeyVerifier returns a KeyVerifier that demands an entry in the log with the key rekor; with
// nil, it demands none.
func NewKeyVerifier(public crypto.PublicKey, rekor *ecdsa.PublicKey) (*KeyVerifier, error) {
	k, err := newKey(public)
	if err != nil || rekor == nil {
		return &KeyVerifier{key: k}, err
	}
	logs, err := logOf(rekor)
	if err != nil {
		return nil, err
	}
	material, err := root.NewTrustedRoot(root.TrustedRootMediaType01, nil, nil, nil, logs)
	if err != nil {
		return nil, err
	}
	return newKeyVerifier(k, material, demands{log: true})
}

// NewTrustedRootKeyVerifier returns a KeyVerifier with the demands of a sigstore trusted_root.json,
// as [NewTrustedRootVerifier] has them. It ignores the certificate authorities in the root, because
// the policy names the key.
func NewTrustedRootKeyVerifier(public crypto.PublicKey, trustedRoot []byte) (*KeyVerifier, error) {
	k, err := newKey(public)
	if err != nil {
		return nil, err
	}
	material, err := parseTrustedRoot(trustedRoot)
	if err != nil {
		return nil, err
	}
	d, err := demandsOf(material)
	if err != nil {
		return nil, err
	}
	d.certificateLog = false
	return newKeyVerifier(k, material, d)
}

func newKeyVerifier(k *key, material root.TrustedMaterial, d demands) (*KeyVerifier, error) {
	v, err := verify.NewVerifier(&keyMaterial{TrustedMaterial: material, key: k}, d.options()...)
	return &KeyVerifier{key: k, material: material, verifier: v, demands: d}, err
}

// Verify implements Verifier.
func (v *KeyVerifier) Verify(s *Signature, _ time.Time) (e *evidence.Evidence, err error) {
	err = guarded(func() error {
		e, err = v.verify(s)
		return err
	})
	return e, err
}

func (v *KeyVerifier) verify(s *Signature) (*evidence.Evidence, error) {
	if s.leaf != nil && s.SimpleSigning == nil {
		return nil, evidence.Fail(evidence.NoMatchingKey, "signed with a certificate, the policy trusts the key %s", v.key.id)
	}
	hash, err := v.key.verify(s)
	if err != nil {
		switch {
		case errors.Is(err, errNeedsManifest):
			return nil, evidence.Fail(evidence.UnsupportedFormat, "%w", err)
		case v.key.madeWith(s):
			return nil, evidence.Fail(evidence.InvalidSignature, "names key %s but does not verify under it: %w", v.key.id, plainly(err))
		}
		// which of the two is unknown
		return nil, evidence.Fail(evidence.NoMatchingKey, "signed with a different key than %s, or damaged", v.key.id)
	}
	e := &evidence.Evidence{KeyID: v.key.id, Hash: hash}
	if v.verifier == nil {
		return e, nil
	}
	if err := v.witnessed(s, e); err != nil {
		return nil, err
	}
	return e, nil
}

// witnessed checks the demanded log entry and time, and records them in e. The caller has verified
// the signature.
func (v *KeyVerifier) witnessed(s *Signature, e *evidence.Evidence) error {
	if f := v.demands.missing(s); f != nil {
		return f.AsAuthentic(true)
	}
	if s.old != nil && v.demands.log {
		entry, err := s.old.promised(v.material.RekorLogs(), v.key.public, nil)
		if err != nil {
			return evidence.Fail(evidence.TransparencyLogEntryInvalid, "log entry: %w", err).AsAuthentic(true)
		}
		e.Log, e.Time = entry, entry.Time
		return nil
	}
	entity, err := s.entity(true)
	var times []verify.TimestampVerificationResult
	if err == nil {
		times, err = v.verifier.VerifyTransparencyLogInclusion(entity)
	}
	if err != nil {
		return evidence.Fail(evidence.TransparencyLogEntryInvalid, "log entry: %w", err).AsAuthentic(true)
	}
	if times, err = v.verifier.VerifyObserverTimestamps(entity, times); err != nil {
		return untimed(s, err)
	}
	e.Time = earliest(times)
	if e.Log = verifiedEntry(s, v.material.RekorLogs()); e.Log != nil && e.Time.IsZero() {
		e.Time = e.Log.Time
	}
	return nil
}

// keyMaterial is trusted material with one more key.
type keyMaterial struct {
	root.TrustedMaterial
	key *key
}

// PublicKeyVerifier returns the one key and ignores the hint, which is not authenticated.
func (m *keyMaterial) PublicKeyVerifier(string) (root.TimeConstrainedVerifier, error) {
	return root.NewExpiringKey(m.key.forMessages[0].Verifier, time.Time{}, time.Time{}), nil
}
