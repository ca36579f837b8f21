package sigstore

import (
	"errors"
	"slices"
	"time"

	"github.com/tidewaiter/tidewaiter/signatures/evidence"
)

// AnyOf trusts a signature that one of several verifiers trusts. It is never empty.
type AnyOf []Verifier

// Verify implements Verifier. If no verifier vouches for the signature, Verify returns the most
// informative error: from a verifier that finds the signature authentic, else from one that knows
// the key, else from the first.
func (a AnyOf) Verify(s *Signature, now time.Time) (*evidence.Evidence, error) {
	var best error
	for _, v := range a {
		e, err := v.Verify(s, now)
		if err == nil {
			return e, nil
		}
		if best == nil || informs(err) > informs(best) {
			best = err
		}
	}
	return nil, best
}

func informs(err error) int {
	var f *evidence.Failure
	switch {
	case !errors.As(err, &f) || f.Reason == evidence.NoMatchingKey:
		return 0
	case f.Authentic:
		return 2
	}
	return 1
}

// KeyIDs returns the IDs of the keys that a verifier trusts, as evidence has them; ok is false if
// it trusts other signers, too.
func KeyIDs(v Verifier) (ids []string, ok bool) {
	switch v := v.(type) {
	case *KeyVerifier:
		return []string{v.key.id}, true
	case AnyOf:
		for _, one := range v {
			more, ok := KeyIDs(one)
			if !ok {
				return nil, false
			}
			ids = append(ids, more...)
		}
		return ids, true
	}
	return nil, false
}

// Names reports whether a verifier explicitly trusts a key with one of these IDs, or demands this
// subject, or the value of an extension. Other trusted signers are known only from their
// signatures.
func Names(v Verifier, keys []string, subject string) bool {
	switch v := v.(type) {
	case *KeyVerifier:
		return slices.Contains(keys, v.key.id)
	case *CertificateVerifier:
		return subject != "" && slices.ContainsFunc(v.subjects, func(s Subject) bool { return s.names(subject) })
	case *PKIVerifier:
		return subject != "" && (v.email == subject || v.hostname == subject)
	case AnyOf:
		return slices.ContainsFunc(v, func(one Verifier) bool { return Names(one, keys, subject) })
	}
	return false
}
