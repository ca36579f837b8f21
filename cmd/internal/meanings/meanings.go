// Package meanings explains the words for verdicts and reasons in the API, the tables and the
// console, and what a person can do about each.
package meanings

import (
	"slices"
	"strings"

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/evidence"
)

// Kinds of words.
const (
	Verdict = "verdict"       // of an image, a reference or a container
	Reason  = "reason"        // of a verdict, or of a condition of a signature
	Import  = "import reason" // why the import of a reference failed
)

// Meaning is the meaning of one word.
type Meaning struct {
	Word string `json:"word"`
	Kind string `json:"kind"`
	// Means explains the word in one or two sentences.
	Means string `json:"means"`
	// Next is what to do; "" if there is nothing to do.
	Next string `json:"next,omitempty"`
}

// Of returns the meanings of a word, in upper or lower case. It may have several: DigestMismatch is
// a reason of two kinds.
func Of(word string) (all []Meaning) {
	for _, m := range All() {
		if strings.EqualFold(m.Word, word) {
			all = append(all, m)
		}
	}
	return all
}

// All returns the meanings of all words, by kind.
func All() []Meaning {
	return slices.Concat(ofKind(Verdict, ofVerdicts), ofKind(Reason, ofReasons), ofKind(Import, ofImports))
}

// Words returns the words of a kind.
func Words(kind string) (all []string) {
	for _, m := range All() {
		if m.Kind == kind {
			all = append(all, m.Word)
		}
	}
	return all
}

func ofKind[Word ~string](kind string, words []meaning[Word]) (all []Meaning) {
	for _, m := range words {
		all = append(all, Meaning{string(m.word), kind, m.means, m.next})
	}
	return all
}

// meaning is a Meaning without its kind, which its list determines.
type meaning[Word ~string] struct {
	word        Word
	means, next string
}

const (
	describe  = "`tidewaiter describe REF` lists each signature with its reason."
	newPolicy = "Try a changed policy first: `tidewaiter policy preview -f FILE`."
)

var ofVerdicts = []meaning[string]{
	{verdicts.VerifiedFalse, "There are signatures, and the policy trusts none of them for this image.", describe},
	{verdicts.Unsigned, "A policy demands a signature, and there is none.", "Sign the image, or find out why the signature is not beside it in the registry. `tidewaiter import REF` looks for signatures again."},
	{verdicts.VerifiedUnknown, "Not everything could be read or judged, so the image may be signed or not.", describe + " `tidewaiter explain REASON` explains the reason that follows the word."},
	{verdicts.Excepted, "The image does not meet the policy. An exception lets it through until it ends.", "Sign the image before the exception ends. `kubectl get clusterimagepolicies -o wide` shows when it ends."},
	{verdicts.NoPolicy, "No policy covers the image, whether it is signed or not.", "Write a policy whose scopes cover it: `kubectl explain clusterimagepolicy.spec`. " + newPolicy},
	{verdicts.ByIndex, "An index that lists the image is verified. The image has no trusted signature of its own.", ""},
	{verdicts.VerifiedTrue, "A signer whom the policy names signed this digest.", ""},
}

var ofReasons = []meaning[evidence.Reason]{
	{signatures.ReasonSignatureVerified, "The signature is by a signer whom the policy trusts, and it is for this image.", ""},
	{signatures.ReasonAttestationVerified, "The attestation is by a signer whom the policy trusts, and it is about this image.", ""},
	{signatures.ReasonDigestMatches, "The signature names the digest of this image.", ""},
	{signatures.ReasonIndexVerified, "An index in this repository is verified, and it lists this image.", ""},
	{signatures.ReasonExcepted, "An exception of the policy lets the image through.", "`kubectl get clusterimagepolicies -o wide` shows when it ends."},
	{evidence.NoMatchingKey, "No key and no certificate authority of the policy made this signature. A cosign signature that was changed looks the same.", "Compare the key in the policy with the signer's. If the key was replaced, add the new one to the policy. " + newPolicy},
	{evidence.InvalidSignature, "The signature is malformed, or it names a key of the policy and does not verify under this key.", "Sign the image again. If you did not expect this, find out who wrote the signature."},
	{evidence.UnsupportedFormat, "The signature may be in order, but this server cannot check its format.", "Sign the image in a format that this server checks, for example with cosign. The other signature can stay."},
	{evidence.SubjectMismatch, "The signature is good, but the policy does not name its signer, or the repository or build that its certificate shows.", "If this signer may sign the image, add the name to the policy. " + newPolicy},
	{signatures.ReasonSignedIdentityMismatch, "The signature is good, and it was made for another image name.", "Sign the image under the name that is pulled, or change `signedIdentity.matchPolicy` in the policy: `RemapIdentity` is for mirrors."},
	{signatures.ReasonNoSignedIdentity, "The signature names a digest and no image name, as bundles do. The policy demands a name.", "Set `signedIdentity.matchPolicy` in the policy to `DigestOnly`, or sign in a format that names the image."},
	{signatures.ReasonDigestMismatch, "The signature is valid, but for another digest. Another image may have been pushed after the signing.", "Compare the digests in `tidewaiter describe REF`. If the new image is wanted, sign it."},
	{signatures.ReasonNotEvaluated, "No signer whom the policy trusts vouches for the digest, so it is unknown whether the signature is for this image.", ""},
	{evidence.CertificateExpired, "The signer's certificate was not valid at the time that counts: the time of the log or of the timestamp if the policy trusts one, otherwise now.", "Sign with a timestamp or a log entry that the policy trusts, or sign again with a valid certificate."},
	{evidence.CertificateRevoked, "The signer's certificate, or one above it or of the timestamp, is in a revocation list of the policy.", "Sign again with another certificate. The message says since when and why the certificate is revoked."},
	{evidence.RevocationUnknown, "The policy has revocation lists, but no list that is valid now covers one of the certificates.", "The message names the authority, and the list that has ended. Get the authority's newest list, and give it to the policy."},
	{evidence.KeyExpired, "The OpenPGP key has expired, or the signature has.", "Extend the key, give the policy its new public part, or sign again."},
	{evidence.KeyRevoked, "The OpenPGP key was revoked.", "Sign again with another key, and add that key to the policy. `tidewaiter impact --revoke-key KEY` shows what runs by signatures of the revoked one."},
	{evidence.NotYetValid, "The OpenPGP key or the signature becomes valid only later.", "Compare the clocks of the signer and of this server."},
	{evidence.TransparencyLogEntryMissing, "The policy demands an entry in a transparency log, and the signature has none.", "Sign with the log, or leave `rekorKeyData` out of the policy."},
	{evidence.TransparencyLogEntryInvalid, "The entry of the transparency log does not prove that this signature was logged.", "Compare `rekorKeyData` in the policy with the key of the log in use. If the key is right, sign again."},
	{evidence.TimestampInvalid, "The policy demands a signed time, and no timestamp authority that it trusts vouches for one.", "Sign with that authority, or add the authority's certificates to the policy."},
	{evidence.CertificateLogInvalid, "The policy demands a proof that the certificate was logged (SCT). The signature has none that is valid.", "Compare the keys of the certificate log in the policy with those in use."},
	{signatures.ReasonPredicateRefused, "The attestation is by a trusted signer, and what it states does not meet the policy's demand.", "`tidewaiter describe REF` shows what the demand found. Change the build, or the demand."},
	{signatures.ReasonAttestationMissing, "The policy demands an attestation of this type, and there is none by a trusted signer.", "Attach it, for example with `cosign attest`."},
	{signatures.ReasonAttestationLeftOut, "An attestation is too large to be kept, so it was not judged.", "Make it smaller than 512 KiB."},
	{signatures.ReasonOnlyAttestations, "There are attestations and no signature. An attestation is about an image, and does not sign it.", "Sign the image, too."},
	{signatures.ReasonIndexUnreadable, "An index may vouch for this image, and it could not be read.", "`tidewaiter import REF` reads it again."},
	{signatures.ReasonSignaturesLeftOut, "The signatures found in this repository are too many or too large, and none is kept.", "Remove unneeded signatures from the registry."},
	{signatures.ReasonSearchIncomplete, "The registry did not show all places where a signature may be.", "`tidewaiter import REF` looks again and shows the registry's answer."},
	{signatures.ReasonSignaturesUnusable, "Something that may be a signature is there, and it cannot be read as one.", describe},
	{signatures.ReasonNotJudged, "The image is in more repositories than an Image has room for verdicts. It was not judged in the others.", "Ask about one reference: `tidewaiter verify REF` judges it."},
	{signatures.ReasonNoMatchingPolicy, "No policy covers this reference.", "`tidewaiter explain NoPolicy`"},
	{answers.ReasonTagTooOld, "The policy has a maximum tag age, and the registry last confirmed the tag longer ago than that.", "`tidewaiter import REF` asks the registry. A shorter `sweep.every` asks more often."},
	{answers.ReasonTagMoved, "The policy forbids this tag to move, and it no longer leads to its first image. The image to which it leads is not verified under this tag. `Unknown`, if the tag's history no longer shows whether the tag led to the image that runs.", "`tidewaiter history REF` shows who moved it. If the move is wanted, `tidewaiter accept REF` accepts it. If not, push the former image under the tag again."},
	{answers.ReasonNotImported, "A pod runs or names an image that the server does not know under that name, so it was not judged.", "`tidewaiter pods REF -o wide` shows why it could not be imported. `tidewaiter import REF` imports it."},
	{answers.ReasonUnreadable, "The server could not read its stored data about the image.", "The message says why. `tidewaiter db check` checks the database."},
	{verdicts.ReasonNotVerified, "The tag of a stream waits: it moves only to verified images, and the new image is not verified yet.", describe},
}

var ofImports = []meaning[pull.Reason]{
	{pull.NotFound, "The registry has no such repository, tag, digest or platform, by GET as well as by HEAD.", "Compare the name with the registry's list: `crane ls REPOSITORY`."},
	{pull.Incomplete, "The registry has the manifest and lacks what it names: the config, a layer, or all images of an index.", "Push the image again. A registry's garbage collection, or a copy that broke off, may have removed a part."},
	{pull.Unauthorized, "The registry wants credentials, or other ones.", "Log in: `tidewaiter` reads the files that `docker login` and `podman login` write. A server has its own: see `registries` in the configuration."},
	{pull.Denied, "The registry knows the credentials, and they do not suffice. Or it leads to an address that the configuration forbids.", "Give the account the right to pull. For private addresses see `allowedNetworks`."},
	{pull.Misconfigured, "A file with credentials or certificates for this registry, or a helper that it names, cannot be read here.", "The message names the file. Correct it."},
	{pull.RateLimited, "The registry answered 429, or its quota is spent.", "Wait: a server tries again by itself. `tidewaiter spool list` shows when, `tidewaiter spool retry` tries now."},
	{pull.DigestMismatch, "The registry sent other bytes than the digest names.", "Compare with `crane manifest REF`. A proxy between may have changed the answer."},
	{pull.TooLarge, "A manifest, a config, an index or a list is beyond its limit.", "The message names the limit."},
	{pull.OverBudget, "The import would ask more of registries than one import may.", "Import parts of it, for example with `--include`."},
	{pull.NotAnImage, "The reference leads to an artifact, such as a signature or a chart, and not to an image.", ""},
	{pull.InvalidImage, "A manifest or config breaks the rules of its own format.", "Build or push the image again."},
	{pull.TLS, "The registry's certificate is not trusted here, or the registry speaks no TLS.", "Put the authority's certificate into `certs.d/HOST/ca.crt`."},
	{pull.Insecure, "The connection would be plain HTTP, which is not allowed for this host.", "If that is intended, mark the host as insecure in `registries.conf`, or use `--tls-verify=false`."},
	{pull.Unreachable, "No connection to the registry was possible, or it broke.", "Check the name and the network from this machine: `curl -I https://HOST/v2/`."},
	{pull.Timeout, "The registry did not send its answer in time.", "Try again. A server tries again by itself."},
	{pull.Unavailable, "The registry answered with an error of its own (5xx).", "Look at the registry. A server tries again by itself."},
	{pull.Unexpected, "The host answered, but not as a registry does.", "Check host and port. A proxy or a login page may have answered."},
	{pull.Canceled, "The caller cancelled the import.", "Import it again."},
	{pull.Failed, "The registry is not the cause, for example the server could not store the image.", "The message says what failed."},
}
