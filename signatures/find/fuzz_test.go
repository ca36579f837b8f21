package find

import (
	"strings"
	"testing"
	"unicode"
)

// predicateOf returns an error or a type, and the text is clean.
func FuzzPredicateOf(f *testing.F) {
	f.Add([]byte(`{"dsseEnvelope":{"payload":"eyJwcmVkaWNhdGVUeXBlIjoicCJ9"}}`))
	f.Add([]byte(`{"messageSignature":{}}`))
	f.Add([]byte(`{"dsseEnvelope":{"payload":"*"}}`))
	f.Fuzz(func(t *testing.T, bundle []byte) {
		predicate, err := predicateOf(bundle)
		if err != nil && predicate != "" {
			t.Fatalf("%q with %v", predicate, err)
		}
		if c := clip(predicate); len(c) > maxWarningBytes || strings.ContainsFunc(c, unicode.IsControl) {
			t.Fatalf("%q", c)
		}
	})
}
