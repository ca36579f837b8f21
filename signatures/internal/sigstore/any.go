package sigstore

import (
	"errors"
	"time"

	"github.com/tidewaiter/tidewaiter/signatures/evidence"
)

// AnyOf trusts a signature that one of several verifiers trusts. It is never empty.
type AnyOf []Verifier

// Verify implements Verifier. If none vouches for the signature, it returns the error that tells
// most. That is the error of a verifier to which the signature is authentic, else of one that knows
// the key, else of the first.
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
