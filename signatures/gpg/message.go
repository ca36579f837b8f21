package gpg

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	pgperrors "github.com/ProtonMail/go-crypto/openpgp/errors"
	"github.com/ProtonMail/go-crypto/openpgp/packet"

	"github.com/tidewaiter/tidewaiter/signatures/evidence"
	"github.com/tidewaiter/tidewaiter/signatures/payload"
)

// maxMessage bounds what a message may decompress to: compressed OpenPGP packets can nest and expand a
// thousandfold.
const maxMessage = 1 << 20

// Verify checks a signed message at the time now and returns what it says. When the error is nil, the document
// is what a trusted key signed; otherwise the document is nil unless the *evidence.Failure, which every error
// is, says that it is authentic.
func (k *Keyring) Verify(message []byte, now time.Time) (doc *payload.SimpleSigning, e *evidence.Evidence, err error) {
	defer func() {
		if r := recover(); r != nil {
			doc, e = nil, nil
			err = evidence.Fail(evidence.InvalidSignature, "the message makes its parser panic: %v", r)
		}
	}()
	limit := int64(maxMessage)
	config := &packet.Config{Time: func() time.Time { return now }, MaxDecompressedMessageSize: &limit}
	md, err := openpgp.ReadMessage(bytes.NewReader(message), k.entities, nil, config)
	if err != nil {
		return nil, nil, unreadable(message, err)
	}
	if md.IsEncrypted {
		return nil, nil, evidence.Fail(evidence.InvalidSignature, "the message is encrypted")
	}
	// The signature is checked only while the body is read, and only when it is read to its end.
	body, err := io.ReadAll(io.LimitReader(md.UnverifiedBody, maxMessage+1))
	if err != nil {
		return nil, nil, unreadable(message, err)
	}
	if len(body) > maxMessage {
		return nil, nil, evidence.Fail(evidence.InvalidSignature, "the message is larger than %d bytes", maxMessage)
	}
	if !md.IsSigned {
		return nil, nil, unreadable(message, errors.New("the message is not signed"))
	}
	// An unknown key is not an error to the library.
	if md.SignedBy == nil {
		if hasV3Signature(message) {
			return nil, nil, unsupportedV3()
		}
		return nil, nil, evidence.Fail(evidence.NoMatchingKey, "signed with key %016X, which the policy does not trust", md.SignedByKeyId)
	}
	e = &evidence.Evidence{
		KeyID:            fingerprint(md.SignedBy.Entity),
		Subject:          userID(md.SignedBy.Entity),
		IssuerCommonName: fmt.Sprintf("%016X", md.SignedByKeyId),
		NotAfter:         notAfter(md),
	}
	failure := signatureFailure(md, message, e)
	if failure != nil && !failure.Authentic {
		return nil, nil, failure
	}
	e.Time = md.Signature.CreationTime.UTC()
	doc, err = payload.ParseSimpleSigning(body, payload.TypeAtomic)
	if err != nil && failure != nil {
		return nil, nil, failure.AsAuthentic(false) // it said nothing that could be for an image
	}
	if err != nil {
		return nil, nil, evidence.Fail(evidence.InvalidSignature, "payload signed by %s: %w", e.Signer(), err)
	}
	if failure != nil {
		return doc, nil, failure
	}
	return doc, e, nil
}

// signatureFailure reads the outcome of the check. Expiry and revocation are looked at by the library only after
// the signature has verified, so with them it is authentic.
func signatureFailure(md *openpgp.MessageDetails, message []byte, e *evidence.Evidence) *evidence.Failure {
	switch err := md.SignatureError; {
	case err == nil && md.Signature != nil:
		return nil
	case err == nil:
		return evidence.Fail(evidence.InvalidSignature, "the message has no signature by %s", e.Signer())
	case errors.Is(err, pgperrors.ErrKeyRevoked):
		f := evidence.Fail(evidence.KeyRevoked, "%s is revoked", e.Signer()).AsAuthentic(true)
		f.Revoked = true
		return f
	case errors.Is(err, pgperrors.ErrKeyExpired), errors.Is(err, pgperrors.ErrSignatureExpired):
		f := evidence.Fail(evidence.KeyExpired, "%s: %w", e.Signer(), err).AsAuthentic(true)
		f.Expired = true
		return f
	case hasV3Signature(message):
		return unsupportedV3()
	default:
		return evidence.Fail(evidence.InvalidSignature, "names %s but does not verify: %w", e.Signer(), err)
	}
}

// notAfter is when the signature, its key or, for a subkey, the primary key expires, whichever is first.
func notAfter(md *openpgp.MessageDetails) time.Time {
	var first time.Time
	add := func(start time.Time, seconds *uint32) {
		if seconds == nil || *seconds == 0 {
			return
		}
		if end := start.Add(time.Duration(*seconds) * time.Second); first.IsZero() || end.Before(first) {
			first = end
		}
	}
	key := md.SignedBy
	if self, _ := key.Entity.PrimarySelfSignature(); self != nil {
		add(key.Entity.PrimaryKey.CreationTime, self.KeyLifetimeSecs)
	}
	if key.SelfSignature != nil {
		add(key.PublicKey.CreationTime, key.SelfSignature.KeyLifetimeSecs)
	}
	if md.Signature != nil {
		add(md.Signature.CreationTime, md.Signature.SigLifetimeSecs)
	}
	return first.UTC()
}

func unreadable(message []byte, err error) *evidence.Failure {
	if hasV3Signature(message) {
		return unsupportedV3()
	}
	return evidence.Fail(evidence.InvalidSignature, "not a readable OpenPGP signed message: %w", err)
}

// unsupportedV3: version 3 signatures, obsolete since 1998, hash neither their own flags nor their expiry;
// containers/image does not accept them either.
func unsupportedV3() *evidence.Failure {
	return evidence.Fail(evidence.UnsupportedFormat, "OpenPGP signatures of version 3 are not supported; sign again with a current gpg")
}

const tagSignature, tagCompressed = 2, 8

// hasV3Signature looks for a signature packet of version 3, at the top or inside one layer of compression.
func hasV3Signature(message []byte) bool {
	found, inner := scanV3(message)
	if !found && inner != nil {
		found, _ = scanV3(inner)
	}
	return found
}

func scanV3(message []byte) (found bool, compressed []byte) {
	packets := packet.NewOpaqueReader(bytes.NewReader(message))
	for {
		p, err := packets.Next()
		if err != nil {
			return false, compressed
		}
		switch p.Tag {
		case tagSignature:
			if len(p.Contents) > 0 && p.Contents[0] == 3 {
				return true, nil
			}
		case tagCompressed:
			parsed, err := p.Parse()
			if c, ok := parsed.(*packet.Compressed); err == nil && ok {
				compressed, _ = io.ReadAll(io.LimitReader(c.Body, maxMessage))
			}
		}
	}
}
