package gpg

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
)

// Keyring is a set of trusted OpenPGP keys. It is safe for concurrent use.
type Keyring struct {
	entities openpgp.EntityList
}

const (
	armorBegin = "-----BEGIN PGP"
	armorEnd   = "-----END PGP PUBLIC KEY BLOCK-----"
)

// ParseKeyring reads public keys, ASCII-armored (one block or several) or binary. A keyring in which no key can
// sign, or which holds a private key, is an error.
func ParseKeyring(data []byte) (k *Keyring, err error) {
	// The packet parsers beneath are old and large; a panic in them must not take the caller down.
	defer func() {
		if r := recover(); r != nil {
			k, err = nil, fmt.Errorf("the keyring makes its parser panic: %v", r)
		}
	}()
	if !bytes.Contains(data, []byte(armorBegin)) {
		entities, err := openpgp.ReadKeyRing(bytes.NewReader(data))
		if err != nil {
			return nil, err
		}
		return newKeyring(entities)
	}
	var entities openpgp.EntityList
	for _, text := range bytes.SplitAfter(data, []byte(armorEnd)) {
		if len(bytes.TrimSpace(text)) == 0 {
			continue
		}
		block, err := armor.Decode(bytes.NewReader(text))
		if err != nil {
			return nil, fmt.Errorf("ASCII armor: %w", err)
		}
		if block.Type != openpgp.PublicKeyType {
			return nil, fmt.Errorf("holds a %q block, expected %q", block.Type, openpgp.PublicKeyType)
		}
		more, err := openpgp.ReadKeyRing(block.Body)
		if err != nil {
			return nil, err
		}
		entities = append(entities, more...)
	}
	return newKeyring(entities)
}

func newKeyring(entities openpgp.EntityList) (*Keyring, error) {
	if len(entities) == 0 {
		return nil, errors.New("holds no OpenPGP key")
	}
	for _, e := range entities {
		if e.PrivateKey != nil {
			return nil, fmt.Errorf("holds the private key %s; give the public key only (gpg --export)", fingerprint(e))
		}
	}
	if !slices.ContainsFunc(entities, canSign) {
		return nil, errors.New("holds no key that is marked for signing")
	}
	return &Keyring{entities: entities}, nil
}

// canSign tells whether the primary key or a subkey is marked for signing, be it expired by now.
func canSign(e *openpgp.Entity) bool {
	if sig, _ := e.PrimarySelfSignature(); sig != nil && sig.FlagsValid && sig.FlagSign {
		return true
	}
	return slices.ContainsFunc(e.Subkeys, func(s openpgp.Subkey) bool { return s.Sig.FlagsValid && s.Sig.FlagSign })
}

func fingerprint(e *openpgp.Entity) string {
	return strings.ToUpper(hex.EncodeToString(e.PrimaryKey.Fingerprint))
}

// userID is the name to show for a key: the one marked as primary, else the first in order.
func userID(e *openpgp.Entity) string {
	var names []string
	for name, identity := range e.Identities {
		if s := identity.SelfSignature; s != nil && s.IsPrimaryId != nil && *s.IsPrimaryId {
			return name
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return ""
	}
	return slices.Min(names)
}
