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

// Signers are keys or a subject, named as in evidence.
type Signers struct {
	keys    []string
	subject string
	// met is set when evidence of one of them is judged; nil unless they are from a Set.Revoke
	met *atomic.Bool
}

// String returns the IDs of the keys, or the subject.
func (s Signers) String() string {
	return cmp.Or(s.subject, strings.Join(s.keys, ", "))
}

func (s Signers) made(e *evidence.Evidence) bool {
	if slices.Contains(s.keys, e.KeyID) || e.SigningKeyID != "" && slices.Contains(s.keys, e.SigningKeyID) {
		return true
	}
	return s.subject != "" && (s.isSubject(e.Subject) || slices.ContainsFunc(e.Names, s.isSubject))
}

// isSubject reports whether a name is the subject. The attributes of a distinguished name may be in
// any order and have spaces between them.
func (s Signers) isSubject(name string) bool {
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
		var s Signers
		for _, e := range ring.Signers() {
			s.keys = append(s.keys, e.KeyID)
		}
		slices.Sort(s.keys)
		s.keys = slices.Compact(s.keys)
		return s, nil
	case strings.Contains(text, "-----BEGIN "):
		return signersOfPEM([]byte(text))
	}
	var s Signers
	for one := range strings.SplitSeq(trimmed, ",") {
		keys := fingerprints(strings.ReplaceAll(strings.TrimSpace(one), " ", ""))
		if keys == nil {
			return Signers{subject: trimmed}, nil
		}
		s.keys = append(s.keys, keys...)
	}
	return s, nil
}

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
	for len(s.keys) < maxKeys {
		block, rest := pem.Decode(text)
		if block == nil {
			break
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
		s.keys = append(s.keys, evidence.KeyID(spki))
	}
	if len(s.keys) == 0 {
		return Signers{}, errors.New("holds no public key")
	}
	return s, nil
}
