package signatures

import (
	"slices"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/verdicts"
)

// Summary reads an Image's verdicts, for columns and indexes. verified is the worst of the verdicts
// in the repositories that a policy covers. signers are those that are trusted, sorted. nextExpiry
// is when time alone may change the verdicts, zero for never.
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
	if !slices.ContainsFunc(image.Signatures, func(s imagev1.ImageSignature) bool { return !isAttestation(&s) }) {
		for _, r := range annotation.Found(image.Annotations) {
			if r.Unread != "" || r.Unusable != "" {
				return verdicts.VerifiedUnknown, nil, nextExpiry
			}
		}
		return verdicts.NoPolicy, nil, nextExpiry
	}
	verified, signers = saidOf(image, false)
	return verified, signers, nextExpiry
}

// Attested reads the verdict on the attestations of an Image: the worst in the repositories that a
// policy covers. Where policies demand attestations, it reports whether all are there; elsewhere
// whether one is trusted. It is "" where there are no attestations and none is demanded.
func Attested(image *imagev1.Image) string {
	judged := annotation.Judged(image.Annotations)
	if len(judged) == 0 {
		attested, _ := saidOf(image, true)
		return attested
	}
	worst := ""
	for _, v := range judged {
		worst = verdicts.Worse(worst, v.Attested)
	}
	return worst
}

// saidOf reads the conditions on signatures, or on attestations: their common verdict, and the
// signers of those that are trusted. It is "" where there are none.
func saidOf(image *imagev1.Image, attestations bool) (verified string, signers []string) {
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
				signers = append(signers, signer)
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

// signerOf names the signer: the owner of the key, or else the key. Conditions saved by `oc adm
// verify-image-signature` come with the issuing key only.
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
