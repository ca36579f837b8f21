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

// ErrUnsupported says that an ImageRecord cannot record an item: the server does not accept
// ImageRecords, or the item is too large.
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

// ImageRecord has what an importer read about images and tags. The server merges it into the stored
// objects, and returns a result for each item.
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.imageapi.record
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type ImageRecord struct {
	metav1.TypeMeta `json:",inline"`
	// Metadata is ignored, because a record is not stored.
	// +optional
	Metadata metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec     ImageRecordSpec   `json:"spec"`
	// +optional
	Status ImageRecordStatus `json:"status,omitempty"`
}

// Audited returns the names of a record's images, tags and repositories for the audit log: at most
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

// ImageRecordSpec has what an importer read.
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.imageapi.record
type ImageRecordSpec struct {
	// Items are up to 100 images and tags.
	// +listType=atomic
	Items []Item `json:"items"`
}

// Item is about an image or a tag, or it is a question about a repository.
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.imageapi.record
type Item struct {
	// Image is an image that was read.
	// +optional
	Image *Image `json:"image,omitempty"`
	// Tag is where a tag leads.
	// +optional
	Tag *Tag `json:"tag,omitempty"`
	// Repository is a question: which tags of a repository are known?
	// +optional
	Repository *Repository `json:"repository,omitempty"`
}

// Image is an image as the importer read it in a repository. The server checks its bytes against
// the digest, derives layers, sizes and platforms from them, and judges signatures.
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
	// Annotations are annotations for the Image: its references in the registry, and the attached
	// artifacts.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
	// Stored is true if the image was stored when it was read. Otherwise the server first tries to
	// create it.
	// +optional
	Stored bool `json:"stored,omitempty"`
	// Known is true if the registry has the image as before and nothing about it is new. Such an item
	// has no content of the image or of signatures. If anything in it is new to the server, the server
	// changes nothing and sets unread in the result.
	// +optional
	Known bool `json:"known,omitempty"`
	// Searched is true if the importer searched for signatures and attestations. The server then
	// removes the findings of earlier searches of the repository that are missing here.
	// +optional
	Searched bool `json:"searched,omitempty"`
	// Signatures are the signatures that were found.
	// +optional
	// +listType=atomic
	Signatures []Signature `json:"signatures,omitempty"`
}

// Signature is a signature or an attestation that has not been judged.
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.imageapi.record
type Signature struct {
	// Name is the name of the image, "@" and a name of its own.
	Name    string `json:"name"`
	Type    string `json:"type"`
	Content []byte `json:"content"`
}

// Tag is a registry's answer about a tag.
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.imageapi.record
type Tag struct {
	// Reference is the registry's host, the repository and the tag.
	Reference string `json:"reference"`
	// Asked makes the item a question: where does the tag lead, and what is stored about that image in
	// the repository? Nothing is recorded.
	// +optional
	Asked bool `json:"asked,omitempty"`
	// Version is the resourceVersion of the ImageTag before the registry was asked, empty if there was
	// none. If another writer has changed the ImageTag since, nothing is recorded.
	// +optional
	Version string `json:"version,omitempty"`
	// Digest is the digest to which the tag leads, empty if that is not known.
	// +optional
	Digest string `json:"digest,omitempty"`
	// Absent is true if the registry does not have the tag.
	// +optional
	Absent bool `json:"absent,omitempty"`
	// Reason is a word for why the registry gave no answer, or why the image could not be imported.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message is the reason in words for people.
	// +optional
	Message string `json:"message,omitempty"`
	// Paused is true if the registry demanded a pause, which is not a failure.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// Contested is true if the tag may have led elsewhere in an earlier round.
	// +optional
	Contested bool `json:"contested,omitempty"`
	// Alone is true if no Image was recorded under the repository before the registry was asked, so
	// that no Image has the tag.
	// +optional
	Alone bool `json:"alone,omitempty"`
	// Cause is why the registry was asked, as a word for people.
	// +optional
	Cause string `json:"cause,omitempty"`
}

// Repository is a question: which tags of a repository are known to lead to an image? Nothing is
// recorded.
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

// Result is the result for an item.
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=com.github.tidewaiter.tidewaiter.imageapi.record
type Result struct {
	// Action is what happened to the image: Created, Updated or Unchanged.
	// +optional
	Action Action `json:"action,omitempty"`
	// Metadata is the metadata of the Image. For an item with known, and for the Image to which a tag
	// with asked leads, it has the name, the UID, the resourceVersion, and the annotations about its
	// platform, about where it is gone, and about the repository.
	// +optional
	Metadata *metav1.ObjectMeta `json:"metadata,omitempty"`
	// Manifest is the stored manifest of an index, for an item with known.
	// +optional
	Manifest string `json:"manifest,omitempty"`
	// MediaType is the media type of the manifest.
	// +optional
	MediaType string `json:"mediaType,omitempty"`
	// Unread is true if the server does not have the image in that repository, or if something about
	// it is new: send what the registry has. For a tag with asked, it is true if its target is not
	// known, or if the last request for it failed: read the ImageTag. For a repository, it is true if
	// more than 200 of its tags are known: list its ImageTags.
	// +optional
	Unread bool `json:"unread,omitempty"`
	// Signatures are the names of the signatures of the image to which a tag with asked leads.
	// +optional
	// +listType=atomic
	Signatures []string `json:"signatures,omitempty"`
	// Version is the resourceVersion of the ImageTag, for a tag with asked.
	// +optional
	Version string `json:"version,omitempty"`
	// Alone is true if neither a tag nor an Image is recorded under the repository in the question.
	// +optional
	Alone bool `json:"alone,omitempty"`
	// Tags are the known tags of the repository in the question, and the digest to which each leads.
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
	// Again is true if another writer has changed the ImageTag since the registry was asked, so that
	// nothing was recorded.
	// +optional
	Again bool `json:"again,omitempty"`
	// Error is why nothing was recorded.
	// +optional
	Error *metav1.Status `json:"error,omitempty"`
}

// Carries reports whether an item can have everything that a server needs to store an image. It
// cannot if content was left out: only the importer has read this content and derived fields from
// it.
func Carries(fresh *imagev1.Image) bool {
	_, leftOut := fresh.Annotations[annotation.LeftOut]
	return !leftOut
}

// OfImage returns the item for an image in a repository, as fresh has it. stored is the Image that
// was read before, nil if there was none.
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

// OfKnown returns the item for an image about which nothing is new.
func OfKnown(fresh *imagev1.Image, repository reference.Reference, searched bool) *Item {
	item := OfImage(fresh, fresh, repository, searched)
	item.Image.Known = true
	for i := range item.Image.Signatures {
		item.Image.Signatures[i].Content = nil
	}
	return item
}

// Fresh returns the Image in an item, as its importer read it.
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

// Stored returns the Image of a result: as it is stored, but without the fields that the server
// derives.
func (r *Result) Stored(fresh *imagev1.Image) *imagev1.Image {
	image := *fresh
	image.Signatures = nil
	if r.Metadata != nil {
		image.ObjectMeta = *r.Metadata
	}
	return &image
}

// Validate returns the errors in a record. Errors in an image are reported when it is stored.
func (s *ImageRecordSpec) Validate() (errs field.ErrorList) {
	items := field.NewPath("spec", "items")
	switch n := len(s.Items); {
	case n == 0:
		return field.ErrorList{field.Required(items, "images, tags or questions")}
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
		errs = append(errs, field.Invalid(at.Child("asked"), true, "a question has no digest, reason or absence"))
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
