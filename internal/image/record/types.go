package record

import (
	"errors"
	"fmt"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// GroupVersion is the group and version of ImageRecords.
var GroupVersion = schema.GroupVersion{Group: "tidewaiter.dev", Version: "v1"}

// Resource is the resource of ImageRecords, and Kind their kind.
const (
	Resource = "imagerecords"
	Kind     = "ImageRecord"
)

// MaxItems bounds the images and tags of a record.
const MaxItems = 100

// MaxTags bounds the tags in an answer about a repository. A request reads at most 32 such lists at
// a time.
const MaxTags = 200

// MaxBytes bounds the items of a record, in bytes of JSON. The server takes requests of 3 MiB.
const MaxBytes = 23 << 17

// ErrUnsupported says that an item cannot be recorded by an ImageRecord: the server takes none, or
// the item is too large for one.
var ErrUnsupported = errors.New("the server does not record it")

// Install registers ImageRecord with scheme. The API machinery works with the Go type that is
// served, so nothing is ever converted.
func Install(scheme *runtime.Scheme) error {
	for _, gv := range []schema.GroupVersion{{Group: GroupVersion.Group, Version: runtime.APIVersionInternal}, GroupVersion} {
		scheme.AddKnownTypes(gv, &ImageRecord{})
	}
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}

// ImageRecord says what registries said of images and tags. The server merges it with what it
// stores, and answers for each item.
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.imageapi.record
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type ImageRecord struct {
	metav1.TypeMeta `json:",inline"`
	// Metadata means nothing: a record is not stored.
	// +optional
	Metadata metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec     ImageRecordSpec   `json:"spec"`
	// +optional
	Status ImageRecordStatus `json:"status,omitempty"`
}

// Audited are the images, tags and repositories of a record, as the audit has them: at most
// MaxItems, and of bounded length.
func (r *ImageRecord) Audited() (names []string) {
	for i := range r.Spec.Items[:min(len(r.Spec.Items), MaxItems)] {
		item, name := &r.Spec.Items[i], ""
		if item.Image != nil {
			name = item.Image.Name
		} else if item.Tag != nil {
			name = item.Tag.Reference
		} else if item.Repository != nil {
			name = item.Repository.Name
		}
		names = append(names, printable.Line(name, maxAudited))
	}
	return names
}

// maxAudited bounds a name in the audit, in bytes.
const maxAudited = 512

// ImageRecordSpec is what registries said.
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.imageapi.record
type ImageRecordSpec struct {
	// Items are up to 100 images and tags.
	// +listType=atomic
	Items []Item `json:"items"`
}

// Item is what a registry said of an image, or of a tag, or a question about a repository.
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.imageapi.record
type Item struct {
	// Image is what was read of an image.
	// +optional
	Image *Image `json:"image,omitempty"`
	// Tag is where a tag leads.
	// +optional
	Tag *Tag `json:"tag,omitempty"`
	// Repository asks which tags of a repository are known.
	// +optional
	Repository *Repository `json:"repository,omitempty"`
}

// Image is what was read of an image in a repository. The server derives layers, sizes and
// platforms from the bytes, checks them against the digest and judges signatures.
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.imageapi.record
type Image struct {
	// Name is the digest of the manifest.
	Name string `json:"name"`
	// Repository is the repository in which the image was read.
	Repository string `json:"repository"`
	// DockerImageReference is the repository and the digest.
	DockerImageReference string `json:"dockerImageReference"`
	// DockerImageManifest is the raw manifest.
	// +optional
	DockerImageManifest string `json:"dockerImageManifest,omitempty"`
	// DockerImageManifestMediaType is the media type that the registry gave with the manifest.
	// +optional
	DockerImageManifestMediaType string `json:"dockerImageManifestMediaType,omitempty"`
	// DockerImageConfig is the raw config.
	// +optional
	DockerImageConfig string `json:"dockerImageConfig,omitempty"`
	// Annotations are those of the Image: by which references the registry knows it, and what was
	// found beside it.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
	// Stored says that the image was stored when it was read. Otherwise the server first tries to
	// create it.
	// +optional
	Stored bool `json:"stored,omitempty"`
	// Known says that the registry has the image as before, and that nothing new is known of it. Such
	// an item has no content, neither of the image nor of signatures. If anything is new to the
	// server, it changes nothing and answers unread.
	// +optional
	Known bool `json:"known,omitempty"`
	// Searched says that signatures and attestations were looked for. What an earlier search of the
	// repository found, and this one did not, is removed.
	// +optional
	Searched bool `json:"searched,omitempty"`
	// Signatures are those that were found.
	// +optional
	// +listType=atomic
	Signatures []Signature `json:"signatures,omitempty"`
}

// Signature is a signature or an attestation, which is judged by nobody yet.
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.imageapi.record
type Signature struct {
	// Name is the name of the image, "@" and a name of its own.
	Name    string `json:"name"`
	Type    string `json:"type"`
	Content []byte `json:"content"`
}

// Tag is what a registry said of a tag.
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.imageapi.record
type Tag struct {
	// Reference is the registry's host, the repository and the tag.
	Reference string `json:"reference"`
	// Asked asks where the tag leads, and what is stored of that image in the repository. Nothing is
	// recorded.
	// +optional
	Asked bool `json:"asked,omitempty"`
	// Version is the resourceVersion of the ImageTag before the registry was asked, empty if there
	// was none. If somebody has written of the tag since, nothing is recorded.
	// +optional
	Version string `json:"version,omitempty"`
	// Digest is what the tag leads to, empty if that is not known.
	// +optional
	Digest string `json:"digest,omitempty"`
	// Absent says that the registry does not have the tag.
	// +optional
	Absent bool `json:"absent,omitempty"`
	// Reason says in a word why the registry could not be asked, or the image not be imported.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message is the reason in words for people.
	// +optional
	Message string `json:"message,omitempty"`
	// Paused says that the registry asked for a pause, which is no failure.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// Contested says that the tag may have led elsewhere in an earlier round.
	// +optional
	Contested bool `json:"contested,omitempty"`
	// Alone says that no Image was recorded under the repository before the registry was asked, so
	// that none is known by the tag.
	// +optional
	Alone bool `json:"alone,omitempty"`
	// Cause is why the registry was asked, in a word for people.
	// +optional
	Cause string `json:"cause,omitempty"`
}

// Repository asks which tags of a repository are known to lead to an image. Nothing is recorded.
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.imageapi.record
type Repository struct {
	// Name is the registry's host and the repository.
	Name string `json:"name"`
}

// ImageRecordStatus is the server's answer.
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.imageapi.record
type ImageRecordStatus struct {
	// Items are the results, in the order of the items.
	// +optional
	// +listType=atomic
	Items []Result `json:"items,omitempty"`
}

// Result is what became of an item.
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.imageapi.record
type Result struct {
	// Action is what happened to the image: Created, Updated or Unchanged.
	// +optional
	Action Action `json:"action,omitempty"`
	// Metadata is that of the Image. Of an image that was said to be known, or to which a tag leads
	// that was asked for, it has the name, the UID, the resourceVersion, and annotations about its
	// platform, where it is gone, and what is known of it in the repository.
	// +optional
	Metadata *metav1.ObjectMeta `json:"metadata,omitempty"`
	// Manifest is the stored manifest of an index that was said to be known.
	// +optional
	Manifest string `json:"manifest,omitempty"`
	// MediaType is the media type of the manifest.
	// +optional
	MediaType string `json:"mediaType,omitempty"`
	// Unread says that the server does not know the image in that repository, or that something is
	// new of it: send what the registry has. Of a tag that was asked for it says that where it leads
	// is not known, or that the last look at it failed: read the ImageTag. Of a repository it says
	// that more than 200 of its tags are known: list its ImageTags.
	// +optional
	Unread bool `json:"unread,omitempty"`
	// Signatures are the names of the signatures of the image to which a tag leads that was asked for.
	// +optional
	// +listType=atomic
	Signatures []string `json:"signatures,omitempty"`
	// Version is the resourceVersion of an ImageTag that was asked for.
	// +optional
	Version string `json:"version,omitempty"`
	// Alone says that neither a tag nor an Image is recorded under the repository that was asked for,
	// or whose tag was.
	// +optional
	Alone bool `json:"alone,omitempty"`
	// Tags are the known tags of a repository that was asked for, and the digest to which each leads.
	// +optional
	Tags map[string]string `json:"tags,omitempty"`
	// Led is the digest to which the tag led before.
	// +optional
	Led string `json:"led,omitempty"`
	// Left are the Images that the tag has left, or that are marked because the registry no longer
	// has it.
	// +optional
	// +listType=atomic
	Left []string `json:"left,omitempty"`
	// Again says that somebody has written of the tag since the registry was asked, so that nothing
	// was recorded.
	// +optional
	Again bool `json:"again,omitempty"`
	// Error says why nothing was recorded.
	// +optional
	Error *metav1.Status `json:"error,omitempty"`
}

// Carries reports whether an item has all that a server needs to store an image. It does not where
// content was left out: only the importer has read that, and what is derived from it.
func Carries(fresh *imagev1.Image) bool {
	_, leftOut := fresh.Annotations[annotation.LeftOut]
	return !leftOut
}

// OfImage is the item of what is known of an image in a repository. stored is the Image that was
// read before, nil if there was none.
func OfImage(stored, fresh *imagev1.Image, repository reference.Reference, searched bool) *Item {
	image := &Image{
		Name: fresh.Name, Repository: repository.String(), DockerImageReference: fresh.DockerImageReference,
		DockerImageManifest: fresh.DockerImageManifest, DockerImageManifestMediaType: fresh.DockerImageManifestMediaType, DockerImageConfig: fresh.DockerImageConfig,
		Annotations: fresh.Annotations, Stored: stored != nil, Searched: searched,
	}
	for _, s := range fresh.Signatures {
		image.Signatures = append(image.Signatures, Signature{s.Name, s.Type, s.Content})
	}
	return &Item{Image: image}
}

// OfKnown is the item of an image of which nothing new is known.
func OfKnown(fresh *imagev1.Image, repository reference.Reference, searched bool) *Item {
	item := OfImage(fresh, fresh, repository, searched)
	item.Image.Known = true
	for i := range item.Image.Signatures {
		item.Image.Signatures[i].Content = nil
	}
	return item
}

// Fresh is the Image of an item, as its importer read it.
func (i *Image) Fresh() *imagev1.Image {
	image := &imagev1.Image{
		ObjectMeta:           metav1.ObjectMeta{Name: i.Name, Annotations: i.Annotations},
		DockerImageReference: i.DockerImageReference, DockerImageManifest: i.DockerImageManifest, DockerImageManifestMediaType: i.DockerImageManifestMediaType, DockerImageConfig: i.DockerImageConfig,
	}
	for _, s := range i.Signatures {
		image.Signatures = append(image.Signatures, imagev1.ImageSignature{ObjectMeta: metav1.ObjectMeta{Name: s.Name}, Type: s.Type, Content: s.Content})
	}
	return image
}

// Stored is the Image of a result: as it is stored, but without what the server derives.
func (r *Result) Stored(fresh *imagev1.Image) *imagev1.Image {
	image := *fresh
	image.Signatures = nil
	if r.Metadata != nil {
		image.ObjectMeta = *r.Metadata
	}
	return &image
}

// Validate returns what is wrong with a record. What is wrong with an image is said when it is
// stored.
func (s *ImageRecordSpec) Validate() (errs field.ErrorList) {
	items := field.NewPath("spec", "items")
	switch n := len(s.Items); {
	case n == 0:
		return field.ErrorList{field.Required(items, "what registries said")}
	case n > MaxItems:
		return field.ErrorList{field.TooMany(items, n, MaxItems)}
	}
	for i := range s.Items {
		item, at := &s.Items[i], items.Index(i)
		switch {
		case item.Image != nil && item.Tag == nil && item.Repository == nil:
			errs = append(errs, item.Image.validate(at.Child("image"))...)
		case item.Tag != nil && item.Image == nil && item.Repository == nil:
			errs = append(errs, item.Tag.validate(at.Child("tag"))...)
		case item.Repository != nil && item.Image == nil && item.Tag == nil:
			if _, err := item.Repository.Parse(); err != nil {
				errs = append(errs, field.Invalid(at.Child("repository", "name"), item.Repository.Name, err.Error()))
			}
		default:
			errs = append(errs, field.Invalid(at, field.OmitValueType{}, "must have either an image, a tag or a repository"))
		}
	}
	return errs
}

func (i *Image) validate(at *field.Path) (errs field.ErrorList) {
	if !reference.IsDigest(i.Name) {
		errs = append(errs, field.Invalid(at.Child("name"), i.Name, "must be a digest"))
	}
	repository, err := reference.ParseRepository(i.Repository)
	if err != nil || repository.String() != i.Repository {
		errs = append(errs, field.Invalid(at.Child("repository"), i.Repository, "must be a repository in canonical form"))
	}
	if i.Known && i.DockerImageManifest+i.DockerImageConfig != "" {
		errs = append(errs, field.Invalid(at.Child("known"), true, "what is known has no content"))
	}
	for _, ref := range annotation.Known(i.Annotations) {
		if ref.Bare() != repository {
			errs = append(errs, field.Invalid(at.Child("annotations").Key(annotation.References), ref.String(), "must be in the repository"))
			break
		}
	}
	return errs
}

func (seen *Tag) validate(at *field.Path) (errs field.ErrorList) {
	if _, err := seen.Parse(); err != nil {
		errs = append(errs, field.Invalid(at.Child("reference"), seen.Reference, err.Error()))
	}
	if seen.Digest != "" && !reference.IsDigest(seen.Digest) {
		errs = append(errs, field.Invalid(at.Child("digest"), seen.Digest, "must be a digest"))
	}
	if seen.Asked && (seen.Absent || seen.Digest != "" || seen.Reason != "") {
		errs = append(errs, field.Invalid(at.Child("asked"), true, "what is asked for is not known"))
	}
	if seen.Absent && seen.Digest != "" {
		errs = append(errs, field.Invalid(at.Child("absent"), true, "a tag that leads to a digest is there"))
	}
	return errs
}

// Parse returns the repository.
func (asked *Repository) Parse() (reference.Reference, error) {
	repository, err := reference.ParseRepository(asked.Name)
	if err == nil && repository.String() != asked.Name {
		err = errors.New("must be a repository in canonical form")
	}
	return repository, err
}

// Parse returns the reference of a tag.
func (seen *Tag) Parse() (reference.Reference, error) {
	ref, err := reference.Parse(seen.Reference)
	if err == nil && (ref.Tag == "" || ref.Digest != "" || ref.String() != seen.Reference) {
		err = fmt.Errorf("must have a registry, a repository and a tag, and no digest, in canonical form")
	}
	return ref, err
}
