package gpg

import (
	"bytes"
	"compress/bzip2"
	"compress/flate"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/ProtonMail/go-crypto/openpgp/packet"

	"github.com/tidewaiter/tidewaiter/signatures/evidence"
)

// maxMessage bounds, in bytes, a message and its decompressed form: compressed packets can expand a
// thousandfold and be nested.
const maxMessage = 1 << 20

// maxPackets bounds the packets of a message. It needs three, and a compressed one around them.
const maxPackets = 16

// Tags of packets (RFC 9580, section 5).
const (
	tagSignature  = 2
	tagOnePass    = 4
	tagSecretKey  = 5
	tagPublicKey  = 6
	tagCompressed = 8
	tagMarker     = 10
	tagLiteral    = 11
)

// envelope has the parts of a decompressed message with one signature (RFC 9580, section 10.3).
type envelope struct {
	// nil in messages of old programs, which begin with the signature
	onePass   *packet.OpaquePacket
	literal   *packet.OpaquePacket
	signature *packet.OpaquePacket
}

// open parses a message. As in containers/image, anything but exactly one signed message with one
// signature is a Failure: otherwise a signature over one part could seem to cover another part.
// This also bounds memory, since a parsed packet takes far more than its bytes.
func open(message []byte) (*envelope, error) {
	if len(message) > maxMessage {
		return nil, evidence.Fail(evidence.InvalidSignature, "the message is larger than %d bytes", maxMessage)
	}
	e := &envelope{}
	if err := e.read(message, true); err != nil {
		return nil, err
	}
	switch {
	case e.literal == nil:
		return nil, unreadable(errors.New("it has no content"))
	case e.signature == nil:
		return nil, unreadable(errors.New("it is not signed"))
	}
	return e, nil
}

func (e *envelope) read(message []byte, mayCompress bool) error {
	compressed := false
	packets := packet.NewOpaqueReader(bytes.NewReader(message))
	for n := 0; ; n++ {
		p, err := packets.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return unreadable(err)
		}
		switch {
		case compressed:
			return unreadable(errors.New("something follows the compressed message"))
		case n == maxPackets:
			return unreadable(fmt.Errorf("it has more than %d packets", maxPackets))
		case p.Tag == tagMarker && string(p.Contents) == "PGP": // RFC 9580, section 5.8
		case p.Tag == tagCompressed && mayCompress && *e == envelope{}:
			inner, err := decompress(p)
			if err != nil {
				return err
			}
			if err := e.read(inner, false); err != nil {
				return err
			}
			compressed = true
		case p.Tag == tagOnePass && *e == envelope{}:
			e.onePass = p
		case p.Tag == tagLiteral && e.literal == nil && (e.onePass == nil) == (e.signature != nil):
			e.literal = p
		case p.Tag == tagSignature && e.signature == nil && (e.onePass == nil) == (e.literal == nil):
			e.signature = p
		default:
			return unreadable(fmt.Errorf("it is not one message with one signature: unexpected packet of type %d", p.Tag))
		}
	}
}

// decompress returns the content of a compressed packet (RFC 9580, section 5.6). The packet must
// end where the compressed data ends, because another reader may treat further data as a part of
// the message.
func decompress(p *packet.OpaquePacket) ([]byte, error) {
	if len(p.Contents) == 0 {
		return nil, unreadable(errors.New("the compressed message is empty"))
	}
	// an io.ByteReader, from which decompressors read no extra bytes
	rest := bytes.NewReader(p.Contents[1:])
	var body io.Reader = rest
	switch p.Contents[0] {
	case 0:
	case 1:
		body = flate.NewReader(rest)
	case 2:
		var err error
		if body, err = zlib.NewReader(rest); err != nil {
			return nil, unreadable(err)
		}
	case 3:
		body = bzip2.NewReader(rest)
	default:
		return nil, unreadable(errors.New("it is compressed with an unknown algorithm"))
	}
	inner, err := io.ReadAll(io.LimitReader(body, maxMessage+1))
	if err != nil {
		return nil, unreadable(err)
	}
	if len(inner) > maxMessage {
		return nil, evidence.Fail(evidence.InvalidSignature, "the message decompresses to more than %d bytes", maxMessage)
	}
	if rest.Len() > 0 {
		return nil, unreadable(errors.New("something follows the compressed message"))
	}
	return inner, nil
}

// plain returns the message without compression.
func (e *envelope) plain() ([]byte, error) {
	var b bytes.Buffer
	for _, p := range []*packet.OpaquePacket{e.onePass, e.literal, e.signature} {
		if err := p.Serialize(&b); err != nil {
			return nil, unreadable(err)
		}
	}
	return b.Bytes(), nil
}

func (e *envelope) content() ([]byte, error) {
	p, err := e.literal.Parse()
	if err != nil {
		return nil, unreadable(err)
	}
	literal, ok := p.(*packet.LiteralData)
	if !ok {
		return nil, unreadable(errors.New("its content cannot be read"))
	}
	content, err := io.ReadAll(literal.Body)
	if err != nil {
		return nil, unreadable(err)
	}
	return content, nil
}

// hashNames are the hashes of OpenPGP (RFC 9580, section 9.5).
var hashNames = map[byte]string{1: "MD5", 2: "SHA-1", 3: "RIPEMD-160", 8: "SHA-256", 9: "SHA-384", 10: "SHA-512", 11: "SHA-224", 12: "SHA3-256", 14: "SHA3-512"}

// unsupported returns the Failure for an unsupported signature, with the key that the message
// names.
func (e *envelope) unsupported(err error) *evidence.Failure {
	c := e.onePass.Contents
	if len(c) < 12 || c[0] != 3 {
		return unreadable(err)
	}
	key := fmt.Sprintf("names key %X", c[4:12])
	if !strings.Contains(err.Error(), "hash function") {
		return evidence.Fail(evidence.InvalidSignature, "%s, and is of an unsupported kind: %w", key, err)
	}
	hash, ok := hashNames[c[2]]
	if !ok {
		hash = fmt.Sprintf("the unknown hash number %d", c[2])
	}
	return evidence.Fail(evidence.InvalidSignature, "%s and signs with %s, which is not supported; sign again with SHA-256 or SHA-512, as a current gpg does", key, hash)
}

func unreadable(err error) *evidence.Failure {
	return evidence.Fail(evidence.InvalidSignature, "not a readable OpenPGP signed message: %w", err)
}
