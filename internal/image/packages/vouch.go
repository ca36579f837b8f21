package packages

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Voucher is the result of judging a document: whether a trusted signer signed it, and who.
type Voucher struct {
	// Verified is True, False (signed, but not by a trusted signer), Unsigned, or Unknown.
	Verified string
	// By is the signer, or the index that lists the document, if that is known; Reason is why Verified
	// is not True.
	By, Reason string
}

// Vouched returns who vouches for a document that is attached to an image, from the verdicts stored
// in the Image. They are the verdicts of the policies that cover a reference, in its repository or
// under its tag: a signer who is trusted elsewhere does not vouch there. index reads an index.
func (s *Source) Vouched(image *imagev1.Image, asked reference.Reference, index func(digest string) (*imagev1.Image, error)) Voucher {
	unknown := func(format string, args ...any) Voucher {
		return Voucher{Verified: verdicts.VerifiedUnknown, Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case s.Signature != "":
		return s.ofSignature(image, asked)
	case s.Signed:
		return unknown("it is signed, and too large or one of too many to be judged")
	case s.Index == "":
		return Voucher{Verified: verdicts.Unsigned, Reason: "nobody signed it"}
	case s.DerivedFrom == "":
		return unknown("%s", underived)
	}
	above, err := index(s.Index)
	if err != nil || above == nil {
		return unknown("the index %s, which lists it, cannot be read", s.Index)
	}
	v, covered := annotation.JudgedFor(above.Annotations, asked)
	switch {
	case verdicts.IsVerified(v.Verified):
		return Voucher{Verified: verdicts.VerifiedTrue, By: strings.Join(v.Signers, ", ")}
	case !covered || v.Verified == verdicts.NoPolicy:
		return Voucher{Verified: verdicts.Unsigned, Reason: fmt.Sprintf("no policy demands a signature of the index %s, which lists it", s.Index)}
	}
	return Voucher{Verified: v.Verified, By: strings.Join(v.Signers, ", "), Reason: fmt.Sprintf("the index %s, which lists it, is %s", s.Index, v.Verified)}
}

const (
	// unjudged is the reason if no condition has one.
	unjudged = "nobody judged it"
	// underived is the reason if a client sent the packages and the server has not read the document.
	underived = "the server has not read it itself: import the image again with the server"
)

// ofSignature returns the verdict of the policies that cover a reference on a signed document.
func (s *Source) ofSignature(image *imagev1.Image, asked reference.Reference) Voucher {
	i := slices.IndexFunc(image.Signatures, func(signature imagev1.ImageSignature) bool { return signature.Name == image.Name+"@"+s.Signature })
	if i < 0 {
		return Voucher{Verified: verdicts.VerifiedUnknown, Reason: "its signature is not kept, so nobody judged it"}
	}
	if s.DerivedFrom == "" {
		return Voucher{Verified: verdicts.VerifiedUnknown, Reason: underived}
	}
	there, covered := annotation.JudgedFor(image.Annotations, asked)
	if by, ok := there.Vouches[s.DerivedFrom]; ok {
		return Voucher{Verified: verdicts.VerifiedTrue, By: by}
	}
	if !covered {
		return Voucher{Verified: verdicts.VerifiedUnknown, Reason: "no policy covers " + asked.String()}
	}
	signature := &image.Signatures[i]
	trusted, forImage := verdicts.ConditionOf(signature, verdicts.Trusted), verdicts.ConditionOf(signature, verdicts.ForImage)
	v := Voucher{Verified: verdicts.VerifiedUnknown, Reason: cmp.Or(trusted.Reason, unjudged)}
	if by := signature.IssuedTo; by != nil {
		v.By = cmp.Or(by.CommonName, by.PublicKeyID)
	}
	switch {
	case trusted.Status == corev1.ConditionFalse:
		v.Verified = verdicts.VerifiedFalse
	case forImage.Status == corev1.ConditionFalse:
		v.Verified, v.Reason = verdicts.VerifiedFalse, forImage.Reason
	case trusted.Status != corev1.ConditionTrue:
	case forImage.Status != corev1.ConditionTrue:
		v.Reason = cmp.Or(forImage.Reason, unjudged)
	case there.Verified == verdicts.VerifiedUnknown && len(there.Vouches) == 0:
		v.Reason = cmp.Or(there.Reason, unjudged)
	default: // it is trusted in other places, but not here
		v.Verified, v.Reason = verdicts.VerifiedFalse, fmt.Sprintf("signed in another repository, and not in %s by a signer whom its policies trust", asked.Name())
	}
	return v
}
