package packages

import (
	"cmp"
	"fmt"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/verdicts"
)

// Voucher says whether somebody whom the policies trust vouches for a document.
type Voucher struct {
	// Verified is True, False (signed by nobody who is trusted), Unsigned, or Unknown.
	Verified string
	// By is who signed it, or the index that lists it, if that is known; Reason says why it is not
	// True.
	By, Reason string
}

// Vouched returns who vouches for a document that is attached to an image, by what the image holds.
// index reads an index.
func (s *Source) Vouched(image *imagev1.Image, index func(digest string) (*imagev1.Image, error)) Voucher {
	switch {
	case s.Signature != "":
		return ofSignature(image, image.Name+"@"+s.Signature)
	case s.Signed:
		return Voucher{Verified: verdicts.VerifiedUnknown, Reason: "it is signed, and too large or one of too many to be judged"}
	case s.Index == "":
		return Voucher{Verified: verdicts.Unsigned, Reason: "nobody signed it"}
	}
	above, err := index(s.Index)
	if err != nil || above == nil {
		return Voucher{Verified: verdicts.VerifiedUnknown, Reason: fmt.Sprintf("the index %s, which lists it, cannot be read", s.Index)}
	}
	v := annotation.Judged(above.Annotations)[s.Repository]
	switch {
	case verdicts.IsVerified(v.Verified):
		return Voucher{Verified: verdicts.VerifiedTrue, By: strings.Join(v.Signers, ", ")}
	case v.Verified == "" || v.Verified == verdicts.NoPolicy:
		return Voucher{Verified: verdicts.Unsigned, Reason: fmt.Sprintf("no policy demands a signature of the index %s, which lists it", s.Index)}
	}
	return Voucher{Verified: v.Verified, By: strings.Join(v.Signers, ", "), Reason: fmt.Sprintf("the index %s, which lists it, is %s", s.Index, v.Verified)}
}

// unjudged is the reason where no condition has one.
const unjudged = "nobody judged it"

// ofSignature is what the conditions of an image's signature say.
func ofSignature(image *imagev1.Image, name string) Voucher {
	for i := range image.Signatures {
		signature := &image.Signatures[i]
		if signature.Name != name {
			continue
		}
		trusted, forImage := verdicts.ConditionOf(signature, verdicts.Trusted), verdicts.ConditionOf(signature, verdicts.ForImage)
		v := Voucher{Verified: verdicts.VerifiedUnknown, Reason: cmp.Or(trusted.Reason, unjudged)}
		if by := signature.IssuedTo; by != nil {
			if v.By = by.CommonName; v.By == "" {
				v.By = by.PublicKeyID
			}
		}
		switch {
		case trusted.Status == corev1.ConditionFalse:
			v.Verified, v.Reason = verdicts.VerifiedFalse, trusted.Reason
		case forImage.Status == corev1.ConditionFalse:
			v.Verified, v.Reason = verdicts.VerifiedFalse, forImage.Reason
		case trusted.Status != corev1.ConditionTrue:
		case forImage.Status == corev1.ConditionTrue:
			v.Verified, v.Reason = verdicts.VerifiedTrue, ""
		default:
			v.Reason = cmp.Or(forImage.Reason, unjudged)
		}
		return v
	}
	return Voucher{Verified: verdicts.VerifiedUnknown, Reason: "its signature is not kept, so nobody judged it"}
}
