package signatures

import (
	"crypto/sha256"
	"encoding/hex"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/signatures/evidence"
)

// Values of ImageSignature.type. The name is part of the stored Image; content is never rewritten.
const (
	// TypeAtomic is an OpenPGP signed message; OpenShift's name.
	TypeAtomic = verdicts.TypeAtomic
	// TypeAtomicAlias is the name of TypeAtomic in the registry's signature extension. Both are
	// accepted.
	TypeAtomicAlias = verdicts.TypeAtomicAlias
	// TypeSimpleSigning is a cosign signature as a sigstore blob (payload.Blob), a format that
	// containers/image reads from lookaside storage.
	TypeSimpleSigning = "SigstoreSimpleSigningV1"
	// TypeBundle is a sigstore bundle of version 0.1 to 0.3: the unchanged JSON from the registry.
	TypeBundle = "SigstoreBundleV03"
	// TypeNotation is a Notary Project signature envelope, JWS or COSE.
	TypeNotation = "NotationV1"
)

// Reasons of conditions, besides those in package evidence.
const (
	ReasonSignatureVerified evidence.Reason = "SignatureVerified" // Trusted=True
	// signed for another image name
	ReasonSignedIdentityMismatch evidence.Reason = "SignedIdentityMismatch"
	// signs only a digest, but the policy requires a name
	ReasonNoSignedIdentity evidence.Reason = "NoSignedIdentity"
	// a valid signature of another image
	ReasonDigestMismatch evidence.Reason = "DigestMismatch"
	ReasonDigestMatches  evidence.Reason = "DigestMatches" // ForImage=True
	// ForImage=Unknown: no trusted signer vouches for the digest
	ReasonNotEvaluated evidence.Reason = "NotEvaluated"
	// an index in the repository vouches for the image
	ReasonIndexVerified evidence.Reason = "IndexVerified"
	// the indexes in the repository that may vouch could not be read
	ReasonIndexUnreadable evidence.Reason = "IndexUnreadable"
	// none of the repository's signatures is stored
	ReasonSignaturesLeftOut evidence.Reason = "SignaturesLeftOut"
	// not all of the repository's signatures could be read
	ReasonSearchIncomplete evidence.Reason = "SearchIncomplete"
	// a possible signature in the repository cannot be used
	ReasonSignaturesUnusable evidence.Reason = "SignaturesUnusable"
	// there are too many repositories or tags to store a verdict for each
	ReasonNotJudged evidence.Reason = "NotJudged"
	// an exception of the policy lets the image through
	ReasonExcepted evidence.Reason = "Excepted"
	// no policy covers this image
	ReasonNoMatchingPolicy evidence.Reason = "NoMatchingPolicy"
)

// Annotations of an Image that this package and its subpackages write.
const (
	// AnnotationPolicy is the policy by which an Image's verdicts were computed, "<name>@<hash>". If
	// it is present, the server set the conditions, not an administrator.
	AnnotationPolicy = annotation.Policy
	// AnnotationRecheck is the time, in RFC 3339, at which a verdict may change because something
	// expires.
	AnnotationRecheck = annotation.Recheck
	// AnnotationAttestations lists the attestations and other artifacts that are attached to the
	// image: JSON, an array of find.Attestation.
	AnnotationAttestations = annotation.Attestations
	// AnnotationWarnings lists what the search for signatures left out: JSON, an array of strings.
	AnnotationWarnings = annotation.Warnings
)

// AskAgain makes a server judge an image again when it stores the image: it replaces the names of
// the policies that judged the image with a name that no policy has.
func AskAgain(image *imagev1.Image) {
	metav1.SetMetaDataAnnotation(&image.ObjectMeta, AnnotationPolicy, again)
}

// IsAskedAgain reports whether a client asks for that by its image.
func IsAskedAgain(image *imagev1.Image) bool { return image.Annotations[AnnotationPolicy] == again }

const again = "again"

// MaxStored is how many signatures of one repository an Image holds, as in OpenShift.
const MaxStored = 10

// Name is the name of an ImageSignature: "<image digest>@<hex SHA-256 of content>".
func Name(imageDigest string, content []byte) string {
	sum := sha256.Sum256(content)
	return imageDigest + "@" + hex.EncodeToString(sum[:])
}
