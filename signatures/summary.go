package signatures

import (
	"slices"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
)

// Summary summarizes an Image's stored verdicts, for columns and indexes. verified is the worst
// verdict in the repositories that a policy covers; if no policy covers any, it is the verdict of
// [AskAnyway]. signers are the trusted signers, sorted. nextExpiry is when a verdict may change
// because something expires, zero for never.
func Summary(image *imagev1.Image) (verified string, signers []string, nextExpiry time.Time) {
	if t, err := time.Parse(time.RFC3339, image.Annotations[AnnotationRecheck]); err == nil {
		nextExpiry = t
	}
	if judged := annotation.Judged(image.Annotations); len(judged) > 0 {
		for _, v := range judged {
			verified = verdicts.Worse(verified, v.Verified)
			signers = append(signers, v.Signers...)
		}
		slices.Sort(signers)
		return verified, slices.Compact(signers), nextExpiry
	}
	if len(image.Signatures) == 0 && len(annotation.Found(image.Annotations)) == 0 {
		return verdicts.NoPolicy, nil, nextExpiry // as in Held, without parsing references
	}
	for _, v := range Held(image) {
		verified = verdicts.Worse(verified, v.Verified)
		signers = append(signers, v.Signers...)
	}
	if verified == "" { // it is in no repository
		v := anyway(image, nil, nil, "")
		verified, signers = v.Verified, v.Signers
	}
	slices.Sort(signers)
	return verified, slices.Compact(signers), nextExpiry
}

// Attested returns the stored verdict on an Image's attestations: the worst in the repositories
// that a policy covers. If policies demand attestations, it is about whether all are there;
// otherwise, whether one is trusted. It is "" if there are no attestations and none is demanded.
func Attested(image *imagev1.Image) string {
	judged := annotation.Judged(image.Annotations)
	if len(judged) == 0 {
		attested, _ := conditionsSummary(image, true)
		return attested
	}
	worst := ""
	for _, v := range judged {
		worst = verdicts.Worse(worst, v.Attested)
	}
	return worst
}

// conditionsSummary summarizes the conditions of signatures, or of attestations: one verdict, "" if
// there are no conditions, and the trusted signers.
func conditionsSummary(image *imagev1.Image, attestations bool) (verified string, signers []string) {
	for i := range image.Signatures {
		s := &image.Signatures[i]
		if isAttestation(s) != attestations {
			continue
		}
		trusted, forImage := verdicts.ConditionOf(s, verdicts.Trusted).Status, verdicts.ConditionOf(s, verdicts.ForImage).Status
		switch {
		case trusted == corev1.ConditionTrue && forImage == corev1.ConditionTrue:
			verified = verdicts.VerifiedTrue
			if signer := signerOf(s); signer != "" {
				signers = append(signers, namesOf(signer, s.SignedClaims)...)
			}
		case verified == verdicts.VerifiedTrue:
		case trusted == corev1.ConditionFalse || forImage == corev1.ConditionFalse:
			verified = verdicts.VerifiedFalse
		case verified == "":
			verified = verdicts.VerifiedUnknown
		}
	}
	slices.Sort(signers)
	return verified, slices.Compact(signers)
}

// signerOf returns the signer's name: the owner of the key, or else the key. If `oc adm
// verify-image-signature` saved the conditions, only the issuing key is known.
func signerOf(s *imagev1.ImageSignature) string {
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
