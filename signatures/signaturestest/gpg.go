package signaturestest

import (
	"bytes"
	"compress/flate"
	"crypto"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/packet"

	"github.com/tidewaiter/tidewaiter/internal/payload"
)

// GPG is an OpenPGP key.
type GPG struct {
	Entity *openpgp.Entity
	made   time.Time
}

// NewGPG makes a key at the given time. It is valid for lifetime, or forever if that is zero.
func NewGPG(t testing.TB, user string, made time.Time, lifetime time.Duration) *GPG {
	t.Helper()
	e, err := openpgp.NewEntity(user, "", "release@example.com", gpgConfig(made, lifetime))
	must(t, err)
	return &GPG{Entity: e, made: made}
}

func gpgConfig(at time.Time, lifetime time.Duration) *packet.Config {
	return &packet.Config{
		Time: func() time.Time { return at }, KeyLifetimeSecs: uint32(lifetime / time.Second),
		Algorithm: packet.PubKeyAlgoEdDSA, DefaultHash: crypto.SHA256,
	}
}

// Public returns the public keyring as it is now, with any revocation made before.
func (g *GPG) Public(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	must(t, g.Entity.Serialize(&b))
	return b.Bytes()
}

// Revoke revokes the key at the given time.
func (g *GPG) Revoke(t testing.TB, at time.Time) {
	t.Helper()
	must(t, g.Entity.RevokeKey(packet.KeyCompromised, "lost", gpgConfig(at, 0)))
}

// Sign makes a signed message of any content.
func (g *GPG) Sign(t testing.TB, content []byte, at time.Time) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := openpgp.Sign(&b, g.Entity, nil, gpgConfig(at, 0))
	must(t, err)
	_, err = w.Write(content)
	must(t, err)
	must(t, w.Close())
	return b.Bytes()
}

// SimpleSigning makes a signed simple signing document.
func (g *GPG) SimpleSigning(t testing.TB, digest, reference string, at time.Time) []byte {
	t.Helper()
	doc, err := payload.MarshalSimpleSigning(payload.TypeAtomic, digest, reference,
		map[string]any{"creator": "tests", "timestamp": at.Unix()})
	must(t, err)
	return g.Sign(t, doc, at)
}

// TrustGPG is a rootOfTrust of keyrings.
func TrustGPG(keyring []byte) string {
	return "{policyType: GPGKeys, gpgKeys: {keyData: " + B64(keyring) + "}}"
}

// Compressed wraps a message in a compressed packet (RFC 9580, section 5.6), as gpg does by
// default.
func Compressed(t testing.TB, message []byte) []byte {
	t.Helper()
	var body bytes.Buffer
	w, err := flate.NewWriter(&body, flate.BestCompression)
	must(t, err)
	_, err = w.Write(message)
	must(t, err)
	must(t, w.Close())
	// An old-format header of tag 8 and indeterminate length, and the algorithm ZIP.
	return append([]byte{0xa3, 1}, body.Bytes()...)
}

// Prolong gives the key another lifetime, counted from when it was made, and returns the public
// keyring.
func (g *GPG) Prolong(t testing.TB, at time.Time, lifetime time.Duration) []byte {
	t.Helper()
	for _, identity := range g.Entity.Identities {
		seconds := uint32(lifetime / time.Second)
		identity.SelfSignature.KeyLifetimeSecs = &seconds
		identity.SelfSignature.CreationTime = at
		must(t, identity.SelfSignature.SignUserId(identity.UserId.Id, g.Entity.PrimaryKey, g.Entity.PrivateKey, gpgConfig(at, 0)))
	}
	return g.Public(t)
}
