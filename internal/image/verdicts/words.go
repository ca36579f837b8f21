// Package verdicts has the words in which verdicts on signatures are stored, shown and selected.
// The image API validates and serves them; package signatures chooses them.
package verdicts

import (
	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
)

// Types of a signature's conditions, in the order in which they must stand:
// openshift-apiserver dereferences nil when any other condition precedes ForImage.
const (
	// Trusted reports whether a signer whom the policy trusts made the signature.
	Trusted = imagev1.SignatureConditionType("Trusted")
	// ForImage reports whether the signature is for the image that holds it.
	ForImage = imagev1.SignatureConditionType("ForImage")
	// Expired reports that the signature, its key or its certificate has expired.
	Expired = imagev1.SignatureConditionType("Expired")
	// Revoked reports that the key or the certificate was revoked.
	Revoked = imagev1.SignatureConditionType("Revoked")
)

// Conditions are the types of conditions in that order.
var Conditions = []imagev1.SignatureConditionType{Trusted, ForImage, Expired, Revoked}

// Verdicts of all signatures of an image, in the column VERIFIED and the field signatures.verified.
// Its attestations have the same words, except Unsigned, in the column ATTESTED and the field
// attestations.verified.
const (
	VerifiedTrue    = "True"     // at least one signature is trusted and for the image
	VerifiedFalse   = "False"    // none is trusted, and at least one was judged untrusted
	VerifiedUnknown = "Unknown"  // not everything could be read or judged
	Unsigned        = "Unsigned" // a policy demands a signature, and there is none
	NoPolicy        = "NoPolicy" // no policy covers the reference, whether it is signed or not
	ByIndex         = "ByIndex"  // an index that lists the image is verified
	// the image does not meet the policy; an exception lets it through until it ends
	Excepted = "Excepted"
)

// All are these words, the worst first.
var All = []string{VerifiedFalse, Unsigned, VerifiedUnknown, Excepted, NoPolicy, ByIndex, VerifiedTrue}

// IsVerified reports whether the image, or an index that lists it, meets the policy.
func IsVerified(verified string) bool { return verified == VerifiedTrue || verified == ByIndex }

// Two types of a signature that name the same format, an OpenPGP signed message: OpenShift's name,
// and the name in the registry's signature extension.
const (
	TypeAtomic      = imagev1.ImageSignatureTypeAtomicImageV1
	TypeAtomicAlias = "atomic"
)

// TypeAttestation is the type of attestations, which are stored among an image's signatures: an
// attestation is a signed statement about the image, and not a signature of the image.
const TypeAttestation = "InTotoAttestationV1"

// ConditionOf returns the first condition of a type, which counts for verdicts. If there is none,
// it returns one that is Unknown, without a reason. Users who may write signatures can write
// several conditions of a type.
func ConditionOf(s *imagev1.ImageSignature, t imagev1.SignatureConditionType) imagev1.SignatureCondition {
	for _, c := range s.Conditions {
		if c.Type == t {
			return c
		}
	}
	return imagev1.SignatureCondition{Type: t, Status: corev1.ConditionUnknown}
}

// MaxContent bounds the content of one signature, in bytes.
const MaxContent = 1 << 20

// ReasonNotVerified is the reason of the condition ImportSuccess of a stream's tag that moves only
// to verified images, while it waits for a verdict, and of the Event about that.
const ReasonNotVerified = "NotVerified"
