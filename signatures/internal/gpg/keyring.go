package gpg

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/packet"

	"github.com/tidewaiter/tidewaiter/signatures/evidence"
)

// Keyring is a set of trusted OpenPGP keys. It is safe for concurrent use.
type Keyring struct {
	entities openpgp.EntityList
}

const (
	armorBegin = "-----BEGIN PGP"
	armorEnd   = "-----END PGP PUBLIC KEY BLOCK-----"
)

// ParseKeyring reads the public keys of one or more keyrings, each ASCII-armored (one block or
// several, with any text around them) or binary. Copies of one key are merged, in any order: a
// revocation in one of them counts, and the newest of several self-signatures counts. Keys of
// unsupported kinds are ignored. It is an error if no key of the keyring can sign, if it has a
// private key, or if one copy of a key is readable and another is not.
func ParseKeyring(data ...[]byte) (k *Keyring, err error) {
	// The packet parsers of the library are old and large. A panic in them must not end the process.
	defer func() {
		if r := recover(); r != nil {
			k, err = nil, fmt.Errorf("the keyring caused a panic in the parser: %v", r)
		}
	}()
	var keys keys
	for _, keyring := range data {
		if !bytes.Contains(keyring, []byte(armorBegin)) {
			err = keys.read(bytes.NewReader(keyring))
		} else {
			err = keys.readArmored(keyring)
		}
		if err != nil {
			return nil, err
		}
	}
	return keys.keyring()
}

// keys collects the keys of a keyring.
type keys struct {
	merged     openpgp.EntityList
	unreadable map[string]error // by fingerprint
	lastErr    error
}

func (k *keys) readArmored(data []byte) error {
	for _, text := range bytes.SplitAfter(data, []byte(armorEnd)) {
		begins, ends := bytes.Count(text, []byte(armorBegin)), bytes.HasSuffix(text, []byte(armorEnd))
		lastLine := text[bytes.LastIndexByte(text, '\n')+1:]
		if begins == 0 && !ends && (len(lastLine) == 0 || !strings.HasPrefix(armorBegin, string(lastLine))) {
			continue
		}
		if begins != 1 {
			return errors.New("holds a damaged block, without its beginning or its end")
		}
		block, err := armor.Decode(bytes.NewReader(text))
		if err != nil {
			return fmt.Errorf("ASCII armor: %w", err)
		}
		if block.Type != openpgp.PublicKeyType {
			return fmt.Errorf("holds a %q block, expected %q", block.Type, openpgp.PublicKeyType)
		}
		if !ends {
			return errors.New("ends within a block")
		}
		if err := k.read(block.Body); err != nil {
			return err
		}
	}
	return nil
}

// read cuts the packets of a keyring at each primary key, and reads each key by itself.
func (k *keys) read(r io.Reader) error {
	var key bytes.Buffer
	for packets := packet.NewOpaqueReader(r); ; {
		p, err := packets.Next()
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if err != nil || p.Tag == tagPublicKey || p.Tag == tagSecretKey {
			k.add(key.Bytes())
			key.Reset()
		}
		if err != nil {
			return nil
		}
		if err := p.Serialize(&key); err != nil {
			return err
		}
	}
}

func (k *keys) add(key []byte) {
	if len(key) == 0 {
		return
	}
	e, err := openpgp.ReadEntity(packet.NewReader(bytes.NewReader(key)))
	if err != nil {
		k.lastErr = err
		if p, ok := firstPacket(key).(*packet.PublicKey); ok {
			if k.unreadable == nil {
				k.unreadable = map[string]error{}
			}
			k.unreadable[string(p.Fingerprint)] = err
		}
		return
	}
	i := slices.IndexFunc(k.merged, func(have *openpgp.Entity) bool {
		return bytes.Equal(have.PrimaryKey.Fingerprint, e.PrimaryKey.Fingerprint)
	})
	if i < 0 {
		k.merged = append(k.merged, e)
		return
	}
	merge(k.merged[i], e)
}

func firstPacket(key []byte) packet.Packet {
	p, err := packet.Read(bytes.NewReader(key))
	if err != nil {
		return nil
	}
	return p
}

// merge adds everything that only e has to into, another copy of the same key. The parser has
// verified the self-signatures and revocations of both.
func merge(into, e *openpgp.Entity) {
	if into.PrivateKey == nil {
		into.PrivateKey = e.PrivateKey
	}
	into.Revocations = append(into.Revocations, e.Revocations...)
	into.Signatures = append(into.Signatures, e.Signatures...)
	into.SelfSignature = newer(into.SelfSignature, e.SelfSignature)
	for name, identity := range e.Identities {
		have, ok := into.Identities[name]
		if !ok {
			into.Identities[name] = identity
			continue
		}
		have.SelfSignature = newer(have.SelfSignature, identity.SelfSignature)
		have.Revocations = append(have.Revocations, identity.Revocations...)
		have.Signatures = append(have.Signatures, identity.Signatures...)
	}
	for _, subkey := range e.Subkeys {
		i := slices.IndexFunc(into.Subkeys, func(have openpgp.Subkey) bool {
			return bytes.Equal(have.PublicKey.Fingerprint, subkey.PublicKey.Fingerprint)
		})
		if i < 0 {
			into.Subkeys = append(into.Subkeys, subkey)
			continue
		}
		have := &into.Subkeys[i]
		have.Sig = newer(have.Sig, subkey.Sig)
		have.Revocations = append(have.Revocations, subkey.Revocations...)
	}
}

func newer(a, b *packet.Signature) *packet.Signature {
	if a == nil || b != nil && b.CreationTime.After(a.CreationTime) {
		return b
	}
	return a
}

func (k *keys) keyring() (*Keyring, error) {
	if len(k.merged) == 0 && k.lastErr != nil {
		return nil, k.lastErr
	}
	if len(k.merged) == 0 {
		return nil, errors.New("holds no OpenPGP key")
	}
	for _, e := range k.merged {
		if e.PrivateKey != nil {
			return nil, fmt.Errorf("holds the private key %s; give the public key only (gpg --export)", fingerprint(e))
		}
		if err, ok := k.unreadable[string(e.PrimaryKey.Fingerprint)]; ok {
			return nil, fmt.Errorf("holds the key %s more than once, and one copy, which may revoke it, cannot be read: %w", fingerprint(e), err)
		}
	}
	if !slices.ContainsFunc(k.merged, canSign) {
		return nil, errors.New("has no key that is marked for signing")
	}
	return &Keyring{entities: k.merged}, nil
}

// canSign reports whether the primary key or a subkey is marked for signing, even if it has expired
// by now.
func canSign(e *openpgp.Entity) bool {
	if sig, _ := e.PrimarySelfSignature(); sig != nil && sig.FlagsValid && sig.FlagSign {
		return true
	}
	return slices.ContainsFunc(e.Subkeys, func(s openpgp.Subkey) bool { return s.Sig.FlagsValid && s.Sig.FlagSign })
}

// Usable returns nil if a key of the keyring can make a signature that is accepted at the time now,
// and otherwise the reason why none can.
func (k *Keyring) Usable(now time.Time) error {
	for _, e := range k.entities {
		if key, ok := e.SigningKey(now); ok {
			if _, weak := weakKey(key.PublicKey); !weak {
				return nil
			}
		}
	}
	return errors.New("every OpenPGP key of the keyring is expired, revoked or too short")
}

func fingerprint(e *openpgp.Entity) string { return fingerprintOf(e.PrimaryKey) }

func fingerprintOf(k *packet.PublicKey) string {
	return strings.ToUpper(hex.EncodeToString(k.Fingerprint))
}

// evidenceOf returns the Evidence for a signature by a key or a subkey of an entity.
func evidenceOf(e *openpgp.Entity, signing *packet.PublicKey) *evidence.Evidence {
	out := &evidence.Evidence{KeyID: fingerprint(e), Subject: userID(e), Names: slices.Sorted(maps.Keys(e.Identities))}
	if id := fingerprintOf(signing); id != out.KeyID {
		out.SigningKeyID = id
	}
	return out
}

// userID returns the name to show for a key: the user ID that is marked as primary, otherwise the
// first in order. It returns a revoked user ID only if there is no other.
func userID(e *openpgp.Entity) string {
	var names []string
	for name, identity := range e.Identities {
		if len(identity.Revocations) > 0 {
			continue
		}
		if s := identity.SelfSignature; s != nil && s.IsPrimaryId != nil && *s.IsPrimaryId {
			return name
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		names = slices.Collect(maps.Keys(e.Identities))
	}
	if len(names) == 0 {
		return ""
	}
	return slices.Min(names)
}

// Signers returns the keys of the keyring and their subkeys, as evidence names them.
func (k *Keyring) Signers() (all []*evidence.Evidence) {
	for _, e := range k.entities {
		all = append(all, evidenceOf(e, e.PrimaryKey))
		for i := range e.Subkeys {
			all = append(all, evidenceOf(e, e.Subkeys[i].PublicKey))
		}
	}
	return all
}
