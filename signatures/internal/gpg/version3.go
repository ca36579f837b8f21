package gpg

import (
	"bytes"
	"encoding/binary"
	"errors"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	pgperrors "github.com/ProtonMail/go-crypto/openpgp/errors"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

// A signature of version 3 (RFC 4880, section 5.2.2) is obsolete, but Red Hat's older images have
// no other. The library reads only versions 4 and later. The versions differ in the packet's
// layout, and in the bytes that are hashed after the document: version 3 hashes the type and the
// time, version 4 all hashed subpackets. So the packet is converted, and the library verifies it
// with the bytes that version 3 hashes.
const (
	v3Length       = 19 // bytes before the signature's numbers
	v3HashedLength = 5
)

func (e *envelope) isVersion3() bool {
	return len(e.signature.Contents) > 0 && e.signature.Contents[0] == 3
}

// readVersion3 returns the signature as a packet of version 4 that hashes what version 3 hashes.
func readVersion3(p *packet.OpaquePacket) (*packet.Signature, error) {
	b := p.Contents
	if len(b) < v3Length || b[1] != v3HashedLength {
		return nil, errors.New("a malformed signature of version 3")
	}
	hashed, keyID, algorithms, rest := b[2:7], b[7:15], b[15:17], b[17:]
	typ, created := hashed[:1], hashed[1:]
	v4 := append([]byte{4}, typ...)
	v4 = append(v4, algorithms...)
	v4 = append(v4, 0, 6, 5, 2) // hashed subpackets: the time
	v4 = append(v4, created...)
	v4 = append(v4, 0, 10, 9, 16) // other subpackets: the issuer
	v4 = append(v4, keyID...)
	v4 = append(v4, rest...)
	parsed, err := (&packet.OpaquePacket{Tag: tagSignature, Contents: v4}).Parse()
	if err != nil {
		return nil, err
	}
	sig, ok := parsed.(*packet.Signature)
	if !ok {
		return nil, errors.New("a malformed signature of version 3")
	}
	sig.HashSuffix = bytes.Clone(hashed)
	return sig, nil
}

// checkVersion3 checks a message whose signature is of version 3.
func (k *Keyring) checkVersion3(e *envelope, now time.Time) (*signed, error) {
	sig, err := readVersion3(e.signature)
	if err != nil {
		return nil, unreadable(err)
	}
	content, err := e.content()
	if err != nil {
		return nil, err
	}
	s := &signed{content: content, keyID: binary.BigEndian.Uint64(e.signature.Contents[7:15]), signature: sig}
	keys := k.entities.KeysByIdUsage(s.keyID, packet.KeyFlagSign)
	if len(keys) == 0 {
		return s, nil
	}
	s.key = &keys[0]
	h := sig.Hash.New()
	switch sig.SigType {
	case packet.SigTypeBinary:
		h.Write(content)
	case packet.SigTypeText:
		openpgp.NewCanonicalTextHash(h).Write(content)
	default:
		return nil, unreadable(errors.New("the signature is not one of a document"))
	}
	if s.err = s.key.PublicKey.VerifySignature(h, sig); s.err == nil {
		s.err = s.inForce(now)
	}
	return s, nil
}

// inForce checks the key and the signature as the library does when it reads a message of version
// 4.
func (s *signed) inForce(now time.Time) error {
	key := s.key
	self, identity := key.Entity.PrimarySelfSignature()
	subkey := key.PublicKey != key.Entity.PrimaryKey
	switch {
	case self == nil:
		return pgperrors.SignatureError("the key has no self-signature")
	case key.Entity.Revoked(now), subkey && key.Revoked(now), identity != nil && identity.Revoked(now):
		return pgperrors.ErrKeyRevoked
	case key.Entity.PrimaryKey.KeyExpired(self, now), subkey && key.PublicKey.KeyExpired(key.SelfSignature, now):
		return pgperrors.ErrKeyExpired
	case s.signature.SigExpired(now), self.SigExpired(now), subkey && key.SelfSignature.SigExpired(now):
		return pgperrors.ErrSignatureExpired
	}
	return nil
}
