package signatures_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// Annotations of `cosign sign -a` are among the claims, in a bundle as in the older format. They
// come from the signed subject, and cannot replace another claim.
func TestAnnotationsOfBundles(t *testing.T) {
	t.Parallel()
	key := signaturestest.NewKey(t, signaturestest.P256)
	hex := func(digest string) string { return strings.TrimPrefix(digest, "sha256:") }
	subject := func(digest, annotations string) string {
		return fmt.Sprintf(`{"digest":{"sha256":%q},"annotations":%s}`, hex(digest), annotations)
	}
	for _, tc := range []struct {
		name, subjects string
		want           map[string]string
	}{
		{"strings", subject(digest, `{"build":"4711","team":"a"}`), map[string]string{"optional.build": "4711", "optional.team": "a"}},
		{"numbers and objects", subject(digest, `{"n":1,"o":{"a":[true]}}`), map[string]string{"optional.n": "1", "optional.o": `{"a":[true]}`}},
		{"a name of ours", subject(digest, `{"rekor.logIndex":"1","predicateType":"x"}`), map[string]string{"rekor.logIndex": "", "predicateType": cosignSign, "optional.predicateType": "x"}},
		{"twice", subject(digest, `{"build":"1","build":"2"}`), map[string]string{"optional.build": ""}},
		{"no object", subject(digest, `[1]`), map[string]string{"predicateType": cosignSign}},
		{"null", subject(digest, `null`), map[string]string{"predicateType": cosignSign}},
		{"another subject", subject(digest, `{}`) + "," + subject(otherImage, `{"build":"4711"}`), map[string]string{"optional.build": ""}},
	} {
		statement := fmt.Appendf(nil, `{"_type":"https://in-toto.io/Statement/v1","subject":[%s],"predicateType":%q,"predicate":{}}`, tc.subjects, cosignSign)
		v := verify(t, signatures.TypeBundle, signaturestest.Marshal(t, key.Bundle(t, statement)), signaturestest.Set(t, signaturestest.TrustKey(key, nil), "{matchPolicy: DigestOnly}"))
		want(t, v, trusted)
		for claim, value := range tc.want {
			if got := v.SignedClaims[claim]; got != value {
				t.Errorf("%s: %s is %q, want %q, in %v", tc.name, claim, got, value, v.SignedClaims)
			}
		}
	}
}
