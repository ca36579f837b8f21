package signatures

import (
	"slices"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
)

// Values of Summary's first result.
const (
	VerifiedTrue    = "True"     // at least one signature is trusted and for the image
	VerifiedFalse   = "False"    // none is, and at least one was judged untrusted
	VerifiedUnknown = "Unknown"  // there are signatures, none could be judged
	Unsigned        = "Unsigned" // there is no signature
)

// Summary reads an Image's verdicts, for columns and indexes: whether the image is verified, who signed it (only
// signers that are trusted, sorted), and when time alone may change that (zero for never).
func Summary(image *imagev1.Image) (verified string, signers []string, nextExpiry time.Time) {
	if t, err := time.Parse(time.RFC3339, image.Annotations[AnnotationRecheck]); err == nil {
		nextExpiry = t
	}
	if len(image.Signatures) == 0 {
		return Unsigned, nil, nextExpiry
	}
	verified = VerifiedUnknown
	for _, s := range image.Signatures {
		trusted, forImage := status(s, ConditionTrusted), status(s, ConditionForImage)
		switch {
		case trusted == corev1.ConditionTrue && forImage == corev1.ConditionTrue:
			verified = VerifiedTrue
			if signer := signerOf(s); signer != "" {
				signers = append(signers, signer)
			}
		case (trusted == corev1.ConditionFalse || forImage == corev1.ConditionFalse) && verified == VerifiedUnknown:
			verified = VerifiedFalse
		}
	}
	slices.Sort(signers)
	return verified, slices.Compact(signers), nextExpiry
}

func status(s imagev1.ImageSignature, t imagev1.SignatureConditionType) corev1.ConditionStatus {
	for _, c := range s.Conditions {
		if c.Type == t {
			return c.Status
		}
	}
	return corev1.ConditionUnknown
}

// signerOf names the signer: whom the key belongs to, else the key. Conditions saved by `oc adm
// verify-image-signature` come with the issuing key only.
func signerOf(s imagev1.ImageSignature) string {
	if s.IssuedTo != nil {
		if s.IssuedTo.CommonName != "" {
			return s.IssuedTo.CommonName
		}
		if s.IssuedTo.PublicKeyID != "" {
			return s.IssuedTo.PublicKeyID
		}
	}
	if s.IssuedBy != nil {
		return s.IssuedBy.CommonName
	}
	return ""
}
