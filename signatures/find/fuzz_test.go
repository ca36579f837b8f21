package find

import (
	"strings"
	"testing"
	"unicode"
)

// A bundle is sorted once: there is an error or a type, and the text that goes on is
// clean.
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
