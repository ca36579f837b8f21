// Package selectors has the names of the selectable fields of Images, and the values that several
// rooms use.
package selectors

import "strings"

// Fields of an Image for a field selector, such as
// kubectl get images --field-selector warnings=ConfigLeftOut.
const (
	// Artifact is "true" for objects of kind Image that are not images, such as signatures and
	// charts. Lists and watches have them only with this selector.
	Artifact = "artifact"
	// Digest is the beginning of an image's digest, sha256:9f86 or 9f86. It selects at most 20 images;
	// more are an error. Or it is several full digests, at most MaxDigests, separated by
	// DigestSeparator.
	Digest = "digest"
	// References has the canonical references of an image, and their repositories. A reference with a
	// tag selects the image to which the tag leads now, if that is known, otherwise the images on
	// which the tag is recorded.
	References = "references"
	// RecordedReferences has the references that are recorded on an image, whether they lead to it now
	// or not.
	RecordedReferences = "references.recorded"
	// Signer has the signers of trusted signatures.
	Signer = "signatures.signer"
	// Verdicts has each repository of the image, with the verdict there.
	Verdicts = "verdicts"
	// UsedBy has each cluster, and each namespace as cluster/namespace, with pods that use the image.
	UsedBy = "used-by"
	// Warnings has the kinds of warnings about an image.
	Warnings = "warnings"
	// IndexVerdicts has the images that are verified through an index, each as <key>@<digest> with the
	// key of the index's verdict.
	IndexVerdicts = "vouches"
	// Lists has the images that an index lists.
	Lists = "lists"
	// Layer has the digests of an image's layers.
	Layer = "layer"
	// Config is the digest of an image's config, which some container runtimes report.
	Config = "config"
	// Package has the packages of an image, by name or by package URL, from the attached SBOMs.
	Package = "package"
	// Gone is "true" for an image if a repository no longer has its digest, and for a tag that its
	// registry no longer has. The registry must have answered so.
	Gone = "gone"
	// TagMoved is "true" for a tag that no longer leads to its first digest, or to the digest that was
	// accepted last, whether it may move or not.
	TagMoved = "moved"
	// Base has the base of an image: the base's digest, reference, or repository.
	Base = "base"
	// Unprintable is "true" for an image that was stored with unprintable text, or text that YAML
	// cannot hold. A server replaces such text when it starts.
	Unprintable = "unprintable"
)

// DigestSeparator separates full digests in a value of [Digest], and MaxDigests is the largest
// number of them.
const (
	DigestSeparator = "|"
	MaxDigests      = 100
)

// Digests returns the selector of two or more Images by full digests.
func Digests(digests []string) string { return Digest + "=" + strings.Join(digests, DigestSeparator) }

// Fields of an ImageTag for a field selector, such as
// kubectl get imagetags --field-selector repository=registry.example.com/team/app.
const (
	// TagImage is the digest to which a tag leads now.
	TagImage = "image"
	// TagReference is the reference that a tag follows, and TagRepository its repository.
	TagReference  = "reference"
	TagRepository = "repository"
	// TagShort has the short forms of the reference: its path and tag without the registry, the
	// path's last part and tag, and the path's last part alone, as team/app:v1, app:v1 and app.
	TagShort = "short"
	// Named is a part of the reference that a tag follows, in upper or lower case.
	Named = "named"
)

// StreamRepository is a repository that an ImageStream follows, for a field selector, such as
// kubectl get imagestreams --field-selector repository=registry.example.com/team/app.
const StreamRepository = "repository"

// StreamLeads has the images to which an ImageStream's own tags lead. Only the server selects by
// it.
const StreamLeads = "leads"

// WarningOldReferences is a value of [Warnings]: references of the image are stored in another form
// than the canonical one. For an ImageTag, it means that the name has another form. A server
// rewrites both when it starts.
const WarningOldReferences = "OldReferences"
