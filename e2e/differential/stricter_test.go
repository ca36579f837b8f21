//go:build containers_image_openpgp

package differential

import (
	"regexp"

	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/evidence"
)

// stricter are the documents that containers/image accepts and we refuse, each with the reason.
var stricter = []struct {
	why    string
	reason evidence.Reason
	text   *regexp.Regexp // in the document, or in what we say of it
}{
	{"something follows the one OpenPGP message, which the library does not read and another reader may", evidence.InvalidSignature, regexp.MustCompile(`not a readable OpenPGP signed message: (it is not one message|unexpected EOF)`)},
	{"what is around a cosign payload has a name twice, in another case or that is not known; readers differ in which they take", evidence.InvalidSignature, regexp.MustCompile(`malformed: (key ".*" (appears twice|differs from)|unknown key)`)},
	{"the digest in the signed name is SHA-384, which no reference here has", signatures.ReasonSignedIdentityMismatch, regexp.MustCompile(`@sha384:0{96}"`)},
}

// whyStricter is why we refuse a document that containers/image accepts; "" for no reason that is
// known.
func whyStricter(text string, ours signatures.Verdict) string {
	for _, s := range stricter {
		if c, _ := ours.Condition("Trusted"); c.Reason == s.reason && s.text.MatchString(text+"\n"+c.Message) {
			return s.why
		}
	}
	return ""
}
