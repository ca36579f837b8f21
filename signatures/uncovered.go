package signatures

import (
	"cmp"
	"fmt"
	"slices"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/verdicts"
)

// AskAnyway is Ask for a reference that no policy covers: what is known of the signatures in its repository, and of them alone. It never
// says False, since nobody said who must sign. It says True only if an administrator has saved that.
func AskAnyway(image *imagev1.Image, asked reference.Reference) annotation.Verdict {
	found := annotation.Found(image.Annotations)
	brought, here := holdersOf(found), found[asked.Name()]
	signed := slices.ContainsFunc(image.Signatures, func(s imagev1.ImageSignature) bool {
		return !isAttestation(&s) && brought.count(&s, asked.Name())
	})
	_, ours := image.Annotations[AnnotationPolicy]
	v := annotation.Verdict{Verified: verdicts.NoPolicy, Reason: string(ReasonNoMatchingPolicy), Message: fmt.Sprintf("no policy covers %s, and it has no signature there", asked)}
	switch {
	case signed && !ours && savedByAdministrator(image):
		v.Verified, v.Signers = saidOf(image, false)
		v.Reason, v.Message = "", "an administrator saved this; no policy covers "+asked.String()
	case signed || len(here.LeftOut) > 0:
		v.Verified, v.Message = verdicts.VerifiedUnknown, fmt.Sprintf("it is signed, and no policy covers %s", asked)
	case here.Unread != "" || here.Unusable != "":
		v.Verified, v.Reason = verdicts.VerifiedUnknown, string(ReasonSearchIncomplete)
		v.Message = fmt.Sprintf("no policy covers %s, and not all signatures there could be read: %s", asked, cmp.Or(here.Unread, here.Unusable))
	}
	return v
}

// Everywhere returns the words of an Image's verdicts: one for each repository that it is in, whether a policy covers that or
// not, and one for each tag that is the scope of a policy.
func Everywhere(image *imagev1.Image) (verified []string) {
	judged := annotation.Judged(image.Annotations)
	for _, v := range judged {
		verified = append(verified, v.Verified)
	}
	for _, repository := range annotation.In(image.Annotations, image.DockerImageReference, image.Name) {
		if _, ok := judged[repository.String()]; !ok {
			verified = append(verified, AskAnyway(image, repository.WithDigest(image.Name)).Verified)
		}
	}
	if len(verified) == 0 { // it is in no repository
		own, _, _ := Summary(image)
		verified = []string{own}
	}
	return verified
}

// savedByAdministrator tells whether conditions of signatures are neither absent nor the server's own.
func savedByAdministrator(image *imagev1.Image) bool {
	return slices.ContainsFunc(image.Signatures, func(s imagev1.ImageSignature) bool {
		return !isAttestation(&s) && len(s.Conditions) > 0 && !isNoPolicy(s.Conditions)
	})
}
