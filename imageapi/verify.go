package imageapi

import (
	"bytes"
	"context"
	"maps"

	imagev1 "github.com/openshift/api/image/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apiserver/pkg/warning"
)

// Verifier judges the signatures of an image.
type Verifier interface {
	// Verify reports whether a policy covers image. If so it has set the verdict on every
	// signature: conditions, imageIdentity, signedClaims, created, issuedBy and issuedTo; and it may
	// have set annotations of its own. If not it has left image alone.
	//
	// The signatures of image hold the verdicts that are stored, none for a new signature. Verify
	// runs in the path of a write: it must not wait for a network.
	Verify(ctx context.Context, image *imagev1.Image) (covered bool)
}

// verifySignatures sets the verdicts of an image that a policy covers, whatever the client sent. On
// any other image the client's own conditions stay: that is how `oc adm verify-image-signature`
// records an administrator's judgement. old is the stored image; nil on create.
func verifySignatures(ctx context.Context, v Verifier, image, old *imagev1.Image) {
	if v == nil || len(image.Signatures) == 0 {
		return
	}
	if old != nil && old.DockerImageReference == image.DockerImageReference && apiequality.Semantic.DeepEqual(old.Signatures, image.Signatures) {
		return
	}
	// A copy of what a verifier may change.
	judged := new(imagev1.Image)
	*judged = *image
	judged.Annotations = maps.Clone(image.Annotations)
	judged.Signatures = make([]imagev1.ImageSignature, len(image.Signatures))
	for i := range image.Signatures {
		image.Signatures[i].DeepCopyInto(&judged.Signatures[i])
	}
	for i := range judged.Signatures {
		clearVerdict(&judged.Signatures[i])
		if stored := findSignature(old, &judged.Signatures[i]); stored != nil {
			copyVerdict(&judged.Signatures[i], stored)
		}
	}
	if !v.Verify(ctx, judged) {
		return
	}
	for i := range image.Signatures {
		if claimsVerdict(&image.Signatures[i], &judged.Signatures[i]) {
			warning.AddWarning(ctx, "", "signatures: conditions are computed by the server: a policy covers this image")
			break
		}
	}
	image.Signatures, image.Annotations = judged.Signatures, judged.Annotations
}

// claimsVerdict reports whether the client sent a verdict other than the server's.
func claimsVerdict(sent, judged *imagev1.ImageSignature) bool {
	return len(sent.Conditions) > 0 && !apiequality.Semantic.DeepEqual(sent.Conditions, judged.Conditions)
}

// findSignature returns the signature of image with the name and the bytes of s.
func findSignature(image *imagev1.Image, s *imagev1.ImageSignature) *imagev1.ImageSignature {
	if image == nil {
		return nil
	}
	for i := range image.Signatures {
		if t := &image.Signatures[i]; t.Name == s.Name && sameSignatureContent(t, s) {
			return t
		}
	}
	return nil
}

// sameSignatureContent reports whether two signatures are the same, by type and bytes. The types
// atomic and AtomicImageV1 are two names of one format.
func sameSignatureContent(a, b *imagev1.ImageSignature) bool {
	return signatureFormat(a.Type) == signatureFormat(b.Type) && bytes.Equal(a.Content, b.Content)
}

func signatureFormat(t string) string {
	if t == "atomic" {
		return imagev1.ImageSignatureTypeAtomicImageV1
	}
	return t
}

// clearVerdict removes what only a verifier may say.
func clearVerdict(s *imagev1.ImageSignature) { copyVerdict(s, &imagev1.ImageSignature{}) }

func copyVerdict(to, from *imagev1.ImageSignature) {
	from = from.DeepCopy()
	to.Conditions = from.Conditions
	to.ImageIdentity = from.ImageIdentity
	to.SignedClaims = from.SignedClaims
	to.Created = from.Created
	to.IssuedBy = from.IssuedBy
	to.IssuedTo = from.IssuedTo
}
