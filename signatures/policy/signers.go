package policy

import (
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/sigstore/sigstore/pkg/cryptoutils"

	"github.com/tidewaiter/tidewaiter/signatures/evidence"
	"github.com/tidewaiter/tidewaiter/signatures/internal/gpg"
)

// Signers are some keys or one subject, named as in evidence.
type Signers struct {
	all []signer
	// each is set when a signature by that signer is judged; nil unless Set.Revoke made them
	met []*atomic.Bool
}

// signer is a key, given by its possible IDs, or a subject.
type signer struct {
	ids     []string
	subject string
}

// String returns the IDs of the keys, or the subject.
func (s Signers) String() string {
	names := make([]string, len(s.all))
	for i, one := range s.all {
		names[i] = one.String()
	}
	return strings.Join(names, ", ")
}

func (s signer) String() string { return cmp.Or(s.subject, strings.Join(s.ids, " or ")) }

// keys returns all possible IDs of the keys.
func (s Signers) keys() (ids []string) {
	for _, one := range s.all {
		ids = append(ids, one.ids...)
	}
	return ids
}

func (s Signers) made(e *evidence.Evidence) bool {
	return slices.ContainsFunc(s.all, func(one signer) bool { return one.made(e) })
}

func (s signer) made(e *evidence.Evidence) bool {
	if slices.Contains(s.ids, e.KeyID) || e.SigningKeyID != "" && slices.Contains(s.ids, e.SigningKeyID) {
		return true
	}
	return s.subject != "" && (s.isSubject(e.Subject) || slices.ContainsFunc(e.Names, s.isSubject))
}

// isSubject reports whether a name is the subject. The attributes of a distinguished name may be in
// any order and have spaces between them.
func (s signer) isSubject(name string) bool {
	if s.subject == name {
		return true
	}
	return strings.Contains(s.subject, "=") && strings.Contains(name, "=") && slices.Equal(attributes(s.subject), attributes(name))
}

// attributes returns the attributes of a distinguished name, sorted.
func attributes(name string) (all []string) {
	for attribute := range strings.SplitSeq(strings.TrimPrefix(name, "x509.subject:"), ",") {
		all = append(all, strings.TrimSpace(attribute))
	}
	slices.Sort(all)
	return all
}

var (
	keyFingerprint  = regexp.MustCompile(`^(?:sha256:)?([0-9a-fA-F]{64})$`)
	gpgFingerprint  = regexp.MustCompile(`^[0-9a-fA-F]{40}$`)
	errAuthorityKey = errors.New("it is the certificate of an authority, which vouches for many signers: to see what happens without it, review a policy without it")
)

// maxKeys bounds the keys in a text in PEM form.
const maxKeys = 64

// MaxSigners bounds the text that ParseSigners reads, in bytes.
const MaxSigners = 64 << 10

// ParseSigners parses signers from user input: public keys or certificates in PEM form, an OpenPGP
// keyring, fingerprints of keys with commas between them (sha256: and the hex SHA-256 of its
// SubjectPublicKeyInfo, or an OpenPGP fingerprint), or else a subject: the e-mail address or URI in
// a certificate, or an OpenPGP user ID.
func ParseSigners(text string) (Signers, error) {
	trimmed := strings.TrimSpace(text)
	switch {
	case trimmed == "":
		return Signers{}, errors.New("needs a key, a fingerprint or a subject")
	case len(text) > MaxSigners:
		return Signers{}, fmt.Errorf("is longer than %d bytes", MaxSigners)
	case strings.Contains(text, "-----BEGIN PGP"), !utf8.ValidString(text): // armored or binary
		ring, err := gpg.ParseKeyring([]byte(text))
		if err != nil {
			return Signers{}, err
		}
		var ids []string
		for _, e := range ring.Signers() {
			ids = append(ids, e.KeyID)
		}
		slices.Sort(ids)
		var s Signers
		for _, id := range slices.Compact(ids) {
			s.add(id)
		}
		return s, nil
	case strings.Contains(text, "-----BEGIN "):
		return signersOfPEM([]byte(text))
	}
	var s Signers
	for one := range strings.SplitSeq(trimmed, ",") {
		keys := fingerprints(strings.ReplaceAll(strings.TrimSpace(one), " ", ""))
		if keys == nil {
			return Signers{all: []signer{{subject: trimmed}}}, nil
		}
		s.add(keys...)
	}
	return s, nil
}

// add adds a key, given by its possible IDs.
func (s *Signers) add(ids ...string) { s.all = append(s.all, signer{ids: ids}) }

// fingerprints returns the IDs of the keys that may have a text as their fingerprint; none if the
// text is no fingerprint.
func fingerprints(text string) []string {
	if m := keyFingerprint.FindStringSubmatch(text); m != nil {
		keys := []string{"sha256:" + strings.ToLower(m[1])}
		if text == m[1] { // may also be an OpenPGP fingerprint of version 6, with as many digits
			keys = append(keys, strings.ToUpper(m[1]))
		}
		return keys
	}
	if gpgFingerprint.MatchString(text) {
		return []string{strings.ToUpper(text)}
	}
	return nil
}

func signersOfPEM(text []byte) (s Signers, err error) {
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			break
		}
		if len(s.all) == maxKeys {
			return Signers{}, fmt.Errorf("holds more than %d keys", maxKeys)
		}
		text = rest
		var spki []byte
		if block.Type == "CERTIFICATE" {
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return Signers{}, err
			}
			if c.IsCA {
				return Signers{}, errAuthorityKey
			}
			spki = c.RawSubjectPublicKeyInfo
		} else {
			public, err := cryptoutils.UnmarshalPEMToPublicKey(pem.EncodeToMemory(block))
			if err != nil {
				return Signers{}, fmt.Errorf("is not a public key in PEM form: %w", err)
			}
			if spki, err = x509.MarshalPKIXPublicKey(public); err != nil {
				return Signers{}, err
			}
		}
		s.add(evidence.KeyID(spki))
	}
	if len(s.all) == 0 {
		return Signers{}, errors.New("holds no public key")
	}
	return s, nil
}
