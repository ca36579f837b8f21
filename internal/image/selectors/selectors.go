// Package selectors has the names of the fields that Images are selected by, and those values that
// several rooms use.
package selectors

import "strings"

// Fields of an Image for a field selector, such as
// kubectl get images --field-selector warnings=ConfigLeftOut.
const (
	// Artifact is "true" for objects of kind Image that are not images, such as signatures and
	// charts. Lists and watches have them only with this selector.
	Artifact = "artifact"
	// Digest is the beginning of an image's digest, sha256:9f86 or 9f86. It selects at most 20
	// images; if more have that beginning it is an error. Or it is several whole digests with
	// DigestSeparator between them, at most MaxDigests.
	Digest = "digest"
	// References has the canonical references that an image is known by, and their repositories. A
	// reference with a tag selects the image that the tag leads to now, if that is known, else the
	// images on which it is recorded.
	References = "references"
	// RecordedReferences has the references that are recorded on an image, wherever they lead now.
	RecordedReferences = "references.recorded"
	// Signer has the signers of trusted signatures.
	Signer = "signatures.signer"
	// Verdicts has each repository that the image is in, with the verdict there.
	Verdicts = "verdicts"
	// UsedBy has each cluster, and each namespace as cluster/namespace, that has pods which use the
	// image.
	UsedBy = "used-by"
	// Warnings has the kinds of warnings about an image.
	Warnings = "warnings"
	// IndexVerdicts has, of an index, the images that are verified through it, each as
	// <key>@<digest>, where the key is that of the index's verdict.
	IndexVerdicts = "vouches"
	// Lists has, of an index, the images that it lists.
	Lists = "lists"
	// Layer has the digests of an image's layers.
	Layer = "layer"
	// Config is the digest of an image's config, as some container runtimes tell it.
	Config = "config"
	// Package has the packages of an image, by name or by package URL, as the SBOMs list them that
	// are attached to it.
	Package = "package"
	// Gone is "true" for an image that a repository no longer has by its digest, and for a tag that
	// its registry no longer has, by the word of the registry.
	Gone = "gone"
	// TagMoved is "true" for a tag that leads elsewhere than it did first, or than was accepted last,
	// whether it may move or not.
	TagMoved = "moved"
	// Base has the base that an image is built on: its digest, its reference, or its repository.
	Base = "base"
	// Unprintable is "true" for an image that was stored with text in its fields that people cannot
	// read, or YAML cannot hold. A server makes it printable when it starts.
	Unprintable = "unprintable"
)

// DigestSeparator is between whole digests in a value of [Digest], and MaxDigests is how many there
// may be.
const (
	DigestSeparator = "|"
	MaxDigests      = 100
)

// Digests selects the Images of whole digests, two or more.
func Digests(digests []string) string { return Digest + "=" + strings.Join(digests, DigestSeparator) }

// Fields of an ImageTag for a field selector, such as
// kubectl get imagetags --field-selector repository=registry.example.com/team/app.
const (
	// TagImage is the digest that a tag leads to now.
	TagImage = "image"
	// TagReference is the reference that a tag follows, and TagRepository the repository of that.
	TagReference  = "reference"
	TagRepository = "repository"
	// TagShort has the short forms of the reference: its path and tag without the registry, the
	// path's last part and tag, and the path's last part alone, as team/app:v1, app:v1 and app.
	TagShort = "short"
	// Named is a part of the reference that a tag follows, in either case of letters.
	Named = "named"
)

// StreamRepository is a repository that an ImageStream follows, for a field selector, such as
// kubectl get imagestreams --field-selector repository=registry.example.com/team/app.
const StreamRepository = "repository"

// StreamLeads has the images that an ImageStream's own tags lead to. Only the server selects by it.
const StreamLeads = "leads"

// WarningOldReferences is a value of [Warnings]: references of the image are stored in another form
// than the canonical one. Of an ImageTag it says that its name is that of another form. A server
// rewrites both when it starts.
const WarningOldReferences = "OldReferences"
