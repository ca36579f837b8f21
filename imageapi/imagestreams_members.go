package imageapi

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/manifest"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/table"
)

// maxMembers is how many images of a stream are read, the newest first.
const maxMembers = 5000

// member is an image that belongs to a stream: a tag's history has it, or an index in one lists it.
type member struct {
	name      string
	reference string         // by which the stream knows it
	image     *imagev1.Image // nil if it is not stored, or not known to be there
}

// members yields the images of a stream, each once.
func (r *streamReader) members(ctx context.Context, stream *imagev1.ImageStream) iter.Seq2[member, error] {
	return func(yield func(member, error) bool) {
		var events []*imagev1.TagEvent
		for i := range stream.Status.Tags {
			for j := range stream.Status.Tags[i].Items {
				events = append(events, &stream.Status.Tags[i].Items[j])
			}
		}
		slices.SortStableFunc(events, func(a, b *imagev1.TagEvent) int {
			return cmp.Or(b.Created.Compare(a.Created.Time), strings.Compare(a.Image, b.Image))
		})
		seen := map[string]bool{"": true}
		// take yields one image, and returns what it lists.
		take := func(name, reference string) (lists []string, more bool) {
			if seen[name] {
				return nil, true
			}
			if len(seen) > maxMembers {
				warning.AddWarning(ctx, "", fmt.Sprintf("only the newest %d images of the stream were looked at", maxMembers))
				return nil, false
			}
			seen[name] = true
			image, err := r.stored(ctx, name, reference)
			if image != nil {
				lists = childrenOf(image)
			}
			return lists, yield(member{name, reference, image}, err) && err == nil
		}
		for _, event := range events {
			lists, more := take(event.Image, event.DockerImageReference)
			for i := 0; more && i < len(lists); i++ {
				if ref, err := reference.Parse(event.DockerImageReference); err == nil && reference.IsDigest(lists[i]) {
					_, more = take(lists[i], ref.WithDigest(lists[i]).String())
				}
			}
			if !more {
				return
			}
		}
	}
}

// childrenOf returns the digests of what an index lists: images, and BuildKit's attestations of them, which are pulled
// with it.
func childrenOf(image *imagev1.Image) (digests []string) {
	for i := range image.DockerImageManifests {
		digests = append(digests, image.DockerImageManifests[i].Digest)
	}
	return append(digests, attestationsOf(image)...)
}

// attestationsOf returns the digests of the attestations that an index lists.
func attestationsOf(image *imagev1.Image) (digests []string) {
	if image.DockerImageManifest == "" {
		return strings.FieldsFunc(image.Annotations[annotation.AttestationManifests], func(r rune) bool { return r == ',' })
	}
	if isArtifact(image) || len(image.DockerImageManifests) == 0 {
		return nil // dockerImageManifests has all, or it is no index of images
	}
	m, err := manifest.Of(image)
	if err != nil {
		return nil
	}
	for _, d := range m.Children {
		if d.IsAttestation() && !slices.Contains(digests, d.Digest) && len(digests) < maxAttestations {
			digests = append(digests, d.Digest)
		}
	}
	return digests
}

// maxAttestations bounds how many attestations of an index are known.
const maxAttestations = 256

// find returns the image of a stream with a digest, or with the beginning of one.
func (r *streamReader) find(ctx context.Context, stream *imagev1.ImageStream, id string) (*member, error) {
	event, err := imageEvent(stream, id)
	if err == nil {
		image, err := r.stored(ctx, event.Image, event.DockerImageReference)
		return &member{event.Image, event.DockerImageReference, image}, err
	}
	if !apierrors.IsNotFound(err) {
		return nil, err
	}
	notFound := err
	var found *member // listed by an index
	for m, err := range r.members(ctx, stream) {
		switch {
		case err != nil:
			return nil, err
		case !begins(m.name, id):
		case found != nil:
			return nil, ambiguous(stream, id, found.name, m.name)
		case reference.IsDigest(id):
			return &m, nil
		default:
			found = &m
		}
	}
	if found == nil {
		return nil, notFound
	}
	return found, nil
}

// begins reports whether a digest begins with a text, with or without its algorithm.
func begins(digest, with string) bool {
	return with != "" && (strings.HasPrefix(digest, with) || strings.HasPrefix(strings.TrimPrefix(digest, "sha256:"), with))
}

func ambiguous(stream *imagev1.ImageStream, id, one, other string) error {
	return apierrors.NewConflict(imagev1.Resource("imagestreamimages"), stream.Name+"@"+id, fmt.Errorf("it is the beginning of %s and of %s: give more of the digest", one, other))
}

// streamImagesREST serves the images of streams, <stream>@<digest>, one by one.
type streamImagesREST struct {
	rest.TableConvertor
	shown *streamReader
}

var (
	_ rest.Getter               = &streamImagesREST{}
	_ rest.Scoper               = &streamImagesREST{}
	_ rest.ShortNamesProvider   = &streamImagesREST{}
	_ rest.SingularNameProvider = &streamImagesREST{}
)

// New is part of rest.Storage.
func (*streamImagesREST) New() runtime.Object { return &imagev1.ImageStreamImage{} }

// Destroy is part of rest.Storage. The storage is that of streams and images.
func (*streamImagesREST) Destroy() {}

// NamespaceScoped is part of rest.Scoper.
func (*streamImagesREST) NamespaceScoped() bool { return true }

// GetSingularName is part of rest.SingularNameProvider.
func (*streamImagesREST) GetSingularName() string { return "imagestreamimage" }

// ShortNames is part of rest.ShortNamesProvider.
func (*streamImagesREST) ShortNames() []string { return []string{"isimage"} }

// Get is part of rest.Getter. The image is one that a tag of the stream leads or has led to, or one that such an index
// lists.
func (r *streamImagesREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	streamName, id, ok := strings.Cut(name, "@")
	if !ok || streamName == "" || id == "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%q is no name of an image of a stream: it must be <stream>@<digest>, and the beginning of the digest is enough", name))
	}
	obj, err := r.shown.streams.Get(ctx, streamName, options)
	if apierrors.IsNotFound(err) {
		return nil, apierrors.NewNotFound(imagev1.Resource("imagestreamimages"), name)
	}
	if err != nil {
		return nil, err
	}
	stream, err := r.shown.show(ctx, obj.(*imagev1.ImageStream))
	if err != nil {
		return nil, err
	}
	found, err := r.shown.find(ctx, stream, id)
	if err != nil {
		return nil, err
	}
	if found.image == nil {
		return nil, apierrors.NewNotFound(imagev1.Resource("images"), found.name)
	}
	found.image.DockerImageManifest, found.image.DockerImageConfig, found.image.DockerImageReference = "", "", found.reference
	return &imagev1.ImageStreamImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: stream.Namespace, Name: stream.Name + "@" + found.name, CreationTimestamp: found.image.CreationTimestamp, Annotations: stream.Annotations},
		Image:      *found.image,
	}, nil
}

// streamImageTable prints ImageStreamImages. The columns are OpenShift's.
var streamImageTable = table.Of[*imagev1.ImageStreamImage]{
	Columns: []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: "The stream and the digest."},
		{Name: "Updated", Type: "string", Description: "Time since the image was stored."},
		{Name: "Image Reference", Type: "string", Priority: 1, Description: "The reference that the image can be pulled by."},
		{Name: "Image Name", Type: "string", Priority: 1, Description: "The Image."},
	},
	Rows: func(image *imagev1.ImageStreamImage) [][]any {
		return [][]any{{image.Name, ago(image.CreationTimestamp), image.Image.DockerImageReference, image.Image.Name}}
	},
}

// streamLayersREST is the subresource layers: the blobs that a registry may serve to whoever may pull from the stream.
// OpenShift's registry asks for it before it serves a blob of another repository.
type streamLayersREST struct{ shown *streamReader }

var _ rest.Getter = &streamLayersREST{}

// New is part of rest.Storage.
func (*streamLayersREST) New() runtime.Object { return &imagev1.ImageStreamLayers{} }

// Destroy is part of rest.Storage. The storage is that of streams and images.
func (*streamLayersREST) Destroy() {}

// Get is part of rest.Getter.
func (r *streamLayersREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	obj, err := r.shown.streams.Get(ctx, name, options)
	if err != nil {
		return nil, err
	}
	stream, err := r.shown.show(ctx, obj.(*imagev1.ImageStream))
	if err != nil {
		return nil, err
	}
	layers := &imagev1.ImageStreamLayers{ObjectMeta: stream.ObjectMeta, Blobs: map[string]imagev1.ImageLayerData{}, Images: map[string]imagev1.ImageBlobReferences{}}
	for m, err := range r.shown.members(ctx, stream) {
		if err != nil {
			return nil, err
		}
		layers.Images[m.name] = blobs(m, layers.Blobs)
	}
	return layers, nil
}

// blobs adds the blobs of an image to all: its manifest, its config and its layers.
func blobs(m member, all map[string]imagev1.ImageLayerData) (out imagev1.ImageBlobReferences) {
	if m.image == nil {
		return imagev1.ImageBlobReferences{ImageMissing: true}
	}
	add := func(name, mediaType string, size *int64) {
		if had, ok := all[name]; !ok || had.LayerSize == nil {
			all[name] = imagev1.ImageLayerData{MediaType: mediaType, LayerSize: size}
		}
	}
	add(m.name, m.image.DockerImageManifestMediaType, nil)
	for i := range m.image.DockerImageLayers {
		layer := &m.image.DockerImageLayers[i]
		out.Layers = append(out.Layers, layer.Name)
		add(layer.Name, layer.MediaType, &layer.LayerSize)
	}
	out.Manifests = childrenOf(m.image)
	if parsed, err := manifest.Of(m.image); err == nil && parsed.Config != nil {
		config := *parsed.Config // shared
		out.Config = &config.Digest
		add(config.Digest, config.MediaType, &config.Size)
	} else if metadata, err := manifest.Metadata(m.image); err == nil && len(out.Manifests) == 0 && reference.IsDigest(metadata.ID) { // its manifest was left out
		out.Config = &metadata.ID
		add(metadata.ID, "", nil)
	}
	return out
}

// streamSecretsREST is the subresource secrets, by which OpenShift's registry asks for the credentials of what a stream
// follows elsewhere. No Secrets are kept here, so there are none.
type streamSecretsREST struct{ shown *streamReader }

var _ rest.Getter = &streamSecretsREST{}

// New is part of rest.Storage.
func (*streamSecretsREST) New() runtime.Object { return &imagev1.SecretList{} }

// Destroy is part of rest.Storage.
func (*streamSecretsREST) Destroy() {}

// Get is part of rest.Getter. As in OpenShift, the stream must exist.
func (r *streamSecretsREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	if _, err := r.shown.streams.Get(ctx, name, options); err != nil {
		return nil, err
	}
	return &imagev1.SecretList{}, nil
}
