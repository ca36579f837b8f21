package signatures

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/verdicts"
	"github.com/tidewaiter/tidewaiter/signatures/evidence"
)

// Values of ImageSignature.type. The name is part of the stored Image; content is never rewritten.
const (
	// TypeAtomic is an OpenPGP signed message; OpenShift's name.
	TypeAtomic = verdicts.TypeAtomic
	// TypeAtomicAlias is how the registry's signature extension spells TypeAtomic. Both are
	// accepted.
	TypeAtomicAlias = verdicts.TypeAtomicAlias
	// TypeSimpleSigning is a cosign signature as a sigstore blob (payload.Blob), which
	// containers/image can read from lookaside storage as it is.
	TypeSimpleSigning = "SigstoreSimpleSigningV1"
	// TypeBundle is a sigstore bundle, the JSON as it was in the registry, of version 0.1 to 0.3.
	TypeBundle = "SigstoreBundleV03"
	// TypeNotation is a Notary Project signature envelope, JWS or COSE.
	TypeNotation = "NotationV1"
)

// Reasons of conditions, besides those in package evidence.
const (
	ReasonSignatureVerified evidence.Reason = "SignatureVerified" // Trusted=True
	// signed for another image name
	ReasonSignedIdentityMismatch evidence.Reason = "SignedIdentityMismatch"
	// signs a digest only, and the policy wants a name
	ReasonNoSignedIdentity evidence.Reason = "NoSignedIdentity"
	// a good signature, but of another image
	ReasonDigestMismatch evidence.Reason = "DigestMismatch"
	ReasonDigestMatches  evidence.Reason = "DigestMatches" // ForImage=True
	// ForImage=Unknown: nobody vouches for the digest
	ReasonNotEvaluated evidence.Reason = "NotEvaluated"
	// of a repository: an index there vouches for the image
	ReasonIndexVerified evidence.Reason = "IndexVerified"
	// of a repository: it could not be read whether an index vouches
	ReasonIndexUnreadable evidence.Reason = "IndexUnreadable"
	// of a repository: none of its signatures is held
	ReasonSignaturesLeftOut evidence.Reason = "SignaturesLeftOut"
	// of a repository: not all signatures could be read
	ReasonSearchIncomplete evidence.Reason = "SearchIncomplete"
	// of a repository: a possible signature there cannot be used
	ReasonSignaturesUnusable evidence.Reason = "SignaturesUnusable"
	// of many repositories: there is no place for their verdicts
	ReasonNotJudged evidence.Reason = "NotJudged"
	// an exception of the policy lets the image through
	ReasonExcepted evidence.Reason = "Excepted"
	// nobody said who must sign this image
	ReasonNoMatchingPolicy evidence.Reason = "NoMatchingPolicy"
)

// Annotations of an Image that this package and its subpackages write.
const (
	// AnnotationPolicy is the policy an Image's verdicts were computed with, "<name>@<hash>". Where
	// it is present, the conditions are ours and not an admin's.
	AnnotationPolicy = annotation.Policy
	// AnnotationRecheck is the time, in RFC 3339, at which time alone may change a verdict.
	AnnotationRecheck = annotation.Recheck
	// AnnotationAttestations lists the other things that are attached to the image: JSON, an array
	// of find.Attestation.
	AnnotationAttestations = annotation.Attestations
	// AnnotationWarnings names what the search for signatures had to leave out: JSON, an array of
	// strings.
	AnnotationWarnings = annotation.Warnings
)

// MaxStored is how many signatures of one repository an Image holds, as in OpenShift.
const MaxStored = 10

// Name is the name of an ImageSignature: "<image digest>@<hex SHA-256 of content>".
func Name(imageDigest string, content []byte) string {
	sum := sha256.Sum256(content)
	return imageDigest + "@" + hex.EncodeToString(sum[:])
}
