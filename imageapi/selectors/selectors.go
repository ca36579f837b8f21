// Package selectors has the names of the fields that Images are selected by, and
// of the values that mean something to more than one room.
package selectors

// Fields of an Image for a field selector, such as
// kubectl get images --field-selector warnings=ConfigLeftOut.
const (
	// Artifact is "true" of what is stored as an Image and is none, such as a signature or a chart. Without it lists and
	// watches of images have none of these.
	Artifact = "artifact"
	// Digest is the beginning of an image's digest, sha256:9f86 or 9f86. It selects at most 20 images; it is an error if
	// more begin so.
	Digest = "digest"
	// References has the canonical references that an image is known by, and their
	// repositories. By a reference with a tag it selects the image that the tag leads to
	// now, if that is known, and else those that it is recorded on.
	References = "references"
	// RecordedReferences has those that are recorded on an image, wherever they lead.
	RecordedReferences = "references.recorded"
	// Warnings has the kinds of warnings about an image.
	Warnings = "warnings"
	// Unprintable is "true" of an image that was stored with text in its fields that people
	// cannot read, or YAML not hold. A server makes it printable when it starts.
	Unprintable = "unprintable"
)

// Fields of an ImageTag for a field selector, such as
// kubectl get imagetags --field-selector repository=registry.example.com/team/app.
const (
	// TagImage is the digest that a tag leads to now.
	TagImage = "image"
	// TagReference is what a tag follows, TagRepository the repository of that.
	TagReference  = "reference"
	TagRepository = "repository"
	// TagShort has what the reference is called for short: its path and tag without the registry, and the path's last part
	// and tag, team/app:v1 and app:v1.
	TagShort = "short"
)

// StreamRepository is a repository that an ImageStream follows, for a field selector, such as
// kubectl get imagestreams --field-selector repository=registry.example.com/team/app.
const StreamRepository = "repository"

// WarningOldReferences is a value of [Warnings]: references of the image are
// stored in another form than the canonical one. A server brings them to it when
// it starts.
const WarningOldReferences = "OldReferences"
