package record

import (
	"cmp"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// An answer has 100 results. It leaves out an index with a longer manifest, in bytes, and an image
// with more signatures: the importer reads these itself.
const (
	maxAnsweredManifest   = 64 << 10
	maxAnsweredSignatures = 256
)

// Answer returns the result for an image that the client claims to be known in repository. stored
// is the stored Image, nil if it is missing or lacks content. Of its content, only the manifest of
// an index is needed.
func (i *Image) Answer(stored *imagev1.Image, repository reference.Reference) *Result {
	result := &Result{Action: Unchanged}
	if !result.fill(stored, repository) || !IsKnown(stored, i.Fresh(), repository, i.Searched) {
		return &Result{Unread: true}
	}
	delete(result.Metadata.Annotations, annotation.Repositories)
	result.Signatures = nil
	return result
}

// Answer returns the result for a tag with Asked. tag is its ImageTag, nil if there is none. stored
// is the Image to which the tag leads, as in [Image.Answer].
func (seen *Tag) Answer(ref reference.Reference, tag *imagev1.ImageTag, stored *imagev1.Image) *Result {
	result := &Result{}
	if tag == nil {
		return result
	}
	if led, known := tags.Now(tag); !known || len(tag.Status.Conditions) > 0 {
		result.Unread = true
	} else {
		result.Led, result.Version = led, tag.ResourceVersion
		result.fill(stored, ref.Bare())
	}
	return result
}

// Answer returns the result for a repository. known are its first ImageTags, at most MaxTags of
// them, and hasNoImage is true if no Image is recorded under it.
func (asked *Repository) Answer(repository reference.Reference, known *imagev1.ImageTagList, hasNoImage bool) *Result {
	if known.Continue != "" {
		return &Result{Unread: true}
	}
	result := &Result{Alone: hasNoImage && len(known.Items) == 0, Tags: make(map[string]string, len(known.Items))}
	for i := range known.Items {
		led, _ := tags.Now(&known.Items[i])
		if ref, ok := tags.Reference(&known.Items[i]); ok && led != "" && ref.Bare() == repository {
			result.Tags[ref.Tag] = led
		}
	}
	return result
}

// fill sets the fields of a result about an image in repository. It returns false if the stored
// Image lacks anything that an import needs.
func (r *Result) fill(stored *imagev1.Image, repository reference.Reference) bool {
	if stored == nil || !annotation.WasIn(stored.Annotations, stored.DockerImageReference, repository) || stored.Annotations[annotation.Limited] != "" || !Carries(stored) {
		return false
	}
	isIndex := len(stored.DockerImageManifests) > 0
	if isIndex && len(stored.DockerImageManifest) > maxAnsweredManifest || len(stored.Signatures) > maxAnsweredSignatures {
		return false
	}
	annotations := map[string]string{}
	var known []reference.Reference
	for _, ref := range annotation.Known(stored.Annotations) {
		if ref.Bare() == repository {
			known = append(known, ref)
		}
	}
	annotation.SetKnown(annotations, known)
	for _, key := range []string{annotation.Platform, annotation.OSVersion, annotation.Gone} {
		if value, ok := stored.Annotations[key]; ok {
			annotations[key] = value
		}
	}
	if _, ok := stored.Annotations[annotation.Repositories]; ok {
		all := annotation.Found(stored.Annotations)
		found := map[string]annotation.Repository{annotation.Clients: all[annotation.Clients], repository.String(): all[repository.String()]}
		annotation.SetFound(annotations, found)
		if found[repository.String()].LeftOutBy != "" {
			for _, key := range []string{annotation.Policy, annotation.NamespacePolicy} {
				annotations[key] = stored.Annotations[key]
			}
		}
	}
	r.Metadata = &metav1.ObjectMeta{Name: stored.Name, UID: stored.UID, ResourceVersion: stored.ResourceVersion, Annotations: annotations}
	for i := range stored.Signatures {
		r.Signatures = append(r.Signatures, stored.Signatures[i].Name)
	}
	if isIndex {
		r.Manifest, r.MediaType = stored.DockerImageManifest, stored.DockerImageManifestMediaType
	}
	return true
}

// Knows reports whether nothing about an image is new, given the result for a tag that led to it.
// It returns false for a nil result.
func (r *Result) Knows(fresh *imagev1.Image, repository reference.Reference, searched bool) bool {
	if r == nil || r.Metadata == nil || r.Metadata.Name != fresh.Name {
		return false
	}
	stored := &imagev1.Image{ObjectMeta: *r.Metadata, DockerImageReference: cmp.Or(fresh.DockerImageReference, fresh.Name)}
	for _, name := range r.Signatures {
		stored.Signatures = append(stored.Signatures, imagev1.ImageSignature{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return IsKnown(stored, fresh, repository, searched)
}
