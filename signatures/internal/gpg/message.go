package gpg

import (
	"bytes"
	"crypto"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	pgperrors "github.com/ProtonMail/go-crypto/openpgp/errors"
	"github.com/ProtonMail/go-crypto/openpgp/packet"

	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/signatures/evidence"
)

// skew is how far a signer's clock may be ahead of ours.
const skew = time.Minute

// minModulus is the least size of an RSA or DSA key, in bits (NIST SP 800-131A).
const minModulus = 2048

// weakHashes are hashes for which an attacker can make two documents with the same signature.
var weakHashes = []crypto.Hash{crypto.MD5, crypto.SHA1, crypto.RIPEMD160}

// signed is a message with its signature and the result of checking it.
type signed struct {
	content   []byte
	keyID     uint64       // the ID of the key that the message names
	key       *openpgp.Key // nil if the keyring has no such key for signing
	signature *packet.Signature
	// why the signature is not valid; expiry and revocation are reported only if it is authentic
	err error
}

// Verify checks a signed message at the time now and returns the document in it. When the error is
// nil, a trusted key signed the document. Every error is an *evidence.Failure. With an error the
// document is nil, unless the Failure is authentic.
func (k *Keyring) Verify(message []byte, now time.Time) (doc *payload.SimpleSigning, e *evidence.Evidence, err error) {
	defer func() {
		if r := recover(); r != nil {
			doc, e = nil, nil
			err = evidence.Fail(evidence.InvalidSignature, "the message caused a panic in the parser: %v", r)
		}
	}()
	envelope, err := open(message)
	if err != nil {
		return nil, nil, err
	}
	s, err := k.check(envelope, now)
	if err == nil && s.key != nil && s.outOfTime() {
		// The library reports a signature that is not valid yet as expired.
		if start := s.validFrom(); start.After(now) && start.Sub(now) <= skew {
			s, err = k.check(envelope, start)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	return s.judge(now)
}

func (k *Keyring) check(e *envelope, now time.Time) (*signed, error) {
	if e.isVersion3() {
		return k.checkVersion3(e, now)
	}
	if e.onePass == nil {
		return nil, unreadable(errors.New("the signature comes before the content, which only version 3 allowed"))
	}
	message, err := e.plain()
	if err != nil {
		return nil, err
	}
	md, err := openpgp.ReadMessage(bytes.NewReader(message), k.entities, nil, &packet.Config{Time: func() time.Time { return now }})
	if err != nil {
		return nil, unreadable(err)
	}
	// The signature is checked only while the body is read, and only if it is read to its end.
	content, err := io.ReadAll(md.UnverifiedBody)
	if err != nil {
		return nil, unreadable(err)
	}
	if md.SignedBy == nil && md.SignedByKeyId == 0 {
		if _, err := e.onePass.Parse(); err != nil {
			// the library ignores packets that it does not support
			return nil, e.unsupported(err)
		}
	}
	s := &signed{content: content, keyID: md.SignedByKeyId, key: md.SignedBy, signature: md.Signature, err: md.SignatureError}
	if s.err == nil && s.signature == nil {
		s.err = errors.New("the message has no signature by this key")
	}
	return s, nil
}

// judge returns the result of the check at the time now.
func (s *signed) judge(now time.Time) (*payload.SimpleSigning, *evidence.Evidence, error) {
	if s.key == nil { // no error to the library
		return nil, nil, evidence.Fail(evidence.NoMatchingKey, "signed with key %016X, which the policy does not trust", s.keyID)
	}
	e := evidenceOf(s.key.Entity, s.key.PublicKey)
	e.IssuerCommonName, e.NotAfter = fmt.Sprintf("%016X", s.keyID), s.notAfter()
	failure := s.failure(e, now)
	if failure != nil && !failure.Authentic {
		return nil, nil, failure
	}
	e.Time = s.signature.CreationTime.UTC()
	doc, err := payload.ParseSimpleSigning(s.content, payload.TypeAtomic)
	switch {
	case err != nil && failure != nil:
		return nil, nil, failure.AsAuthentic(false) // its content is no document about an image
	case err != nil:
		return nil, nil, evidence.Fail(evidence.InvalidSignature, "payload signed by %s: %w", e.Signer(), err)
	case failure != nil:
		return doc, nil, failure
	}
	return doc, e, nil
}

// failure converts the result of the check to a Failure, nil for none. It checks expiry and
// revocation only after the signature has verified, so a Failure about these is authentic.
func (s *signed) failure(e *evidence.Evidence, now time.Time) *evidence.Failure {
	if s.signature != nil && slices.Contains(weakHashes, s.signature.Hash) {
		return evidence.Fail(evidence.InvalidSignature, "names %s and signs with %v, which can be forged; sign again with a current gpg", e.Signer(), s.signature.Hash)
	}
	if bits, weak := weakKey(s.key.PublicKey); weak {
		return evidence.Fail(evidence.InvalidSignature, "names %s, a key of %d bits, which can be broken; at least %d are needed", e.Signer(), bits, minModulus)
	}
	switch start := s.validFrom(); {
	case s.err == nil:
		return nil
	case errors.Is(s.err, pgperrors.ErrKeyRevoked):
		f := evidence.Fail(evidence.KeyRevoked, "%s is revoked", e.Signer()).AsAuthentic(true)
		f.Revoked = true
		return f
	case s.outOfTime() && start.After(now):
		f := evidence.Fail(evidence.NotYetValid, "%s is not valid before %s; is a clock wrong?", e.Signer(), start.Format(time.RFC3339)).AsAuthentic(true)
		f.NotBefore = start
		return f
	case s.outOfTime():
		f := evidence.Fail(evidence.KeyExpired, "%s: %w", e.Signer(), s.err).AsAuthentic(true)
		f.Expired = true
		return f
	default:
		return evidence.Fail(evidence.InvalidSignature, "names %s but does not verify: %w", e.Signer(), s.err)
	}
}

func weakKey(key *packet.PublicKey) (bits uint16, weak bool) {
	switch key.PubKeyAlgo {
	case packet.PubKeyAlgoRSA, packet.PubKeyAlgoRSASignOnly, packet.PubKeyAlgoDSA:
		bits, err := key.BitLength()
		return bits, err != nil || bits < minModulus
	}
	return 0, false
}

func (s *signed) outOfTime() bool {
	return errors.Is(s.err, pgperrors.ErrKeyExpired) || errors.Is(s.err, pgperrors.ErrSignatureExpired)
}

// validFrom returns when the signature, its key and the primary key were all valid.
func (s *signed) validFrom() time.Time {
	last := s.key.Entity.PrimaryKey.CreationTime
	later := func(t time.Time) {
		if t.After(last) {
			last = t
		}
	}
	later(s.key.PublicKey.CreationTime)
	self, _ := s.key.Entity.PrimarySelfSignature()
	for _, sig := range []*packet.Signature{self, s.key.SelfSignature, s.signature} {
		if sig != nil {
			later(sig.CreationTime)
		}
	}
	return last.UTC()
}

// notAfter returns when the first of these expires: the signature, its key or, for a subkey, the
// primary key.
func (s *signed) notAfter() time.Time {
	var first time.Time
	add := func(start time.Time, seconds *uint32) {
		if seconds == nil || *seconds == 0 {
			return
		}
		if end := start.Add(time.Duration(*seconds) * time.Second); first.IsZero() || end.Before(first) {
			first = end
		}
	}
	if self, _ := s.key.Entity.PrimarySelfSignature(); self != nil {
		add(s.key.Entity.PrimaryKey.CreationTime, self.KeyLifetimeSecs)
	}
	if s.key.SelfSignature != nil {
		add(s.key.PublicKey.CreationTime, s.key.SelfSignature.KeyLifetimeSecs)
	}
	if s.signature != nil {
		add(s.signature.CreationTime, s.signature.SigLifetimeSecs)
	}
	return first.UTC()
}
