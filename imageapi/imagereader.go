package imageapi

import (
	"bytes"
	"reflect"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"tidewaiter/imageapi/plainjson"
)

// imageReader is a serializer of JSON. It takes the fields that it knows out of an Image's document,
// reads them itself and leaves the rest to the serializer. In doubt it leaves everything to it, so
// that what is accepted, and every error and warning, is the serializer's.
type imageReader struct{ runtime.Serializer }

// Decode is part of runtime.Decoder.
func (r imageReader) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	image, ok := into.(*imagev1.Image)
	if !ok || !reflect.ValueOf(image).Elem().IsZero() {
		return r.Serializer.Decode(data, defaults, into)
	}
	rest, ok := takeFields(data, image)
	if ok {
		obj, gvk, err := r.Serializer.Decode(rest, defaults, image)
		if err == nil && obj == runtime.Object(image) {
			holdMetadata(image)
			return obj, gvk, nil
		}
	}
	*image = imagev1.Image{}
	return r.Serializer.Decode(data, defaults, into)
}

// imageFields are the fields of an Image that are taken.
var imageFields = plainjson.Fields{
	"metadata", "dockerImageReference", "dockerImageMetadata", "dockerImageMetadataVersion", "dockerImageManifest",
	"dockerImageLayers", "signatures", "dockerImageManifestMediaType", "dockerImageConfig",
}

// takeFields splits an Image in JSON: fields that are plain are read into image, and rest is a
// document of all others as they stand. What is wrong with those is still wrong in rest. It is false
// of a document that is not plain.
func takeFields(data []byte, image *imagev1.Image) (rest []byte, ok bool) {
	rest = append(make([]byte, 0, 256), '{')
	r := plainjson.New(data)
	var seen uint64
	for more := r.Open('{'); more; more = r.More('}') {
		key := imageFields.Key(r, &seen)
		before := *r
		if takeField(r, key, image); !r.Failed() {
			continue
		}
		*r = before
		value := r.Raw()
		if len(rest) > 1 {
			rest = append(rest, ',')
		}
		rest = append(append(append(append(rest, '"'), key...), '"', ':'), value...)
	}
	return append(rest, '}'), r.Done()
}

// takeField reads a field into image. It sets nothing where it fails.
func takeField(r *plainjson.Reader, key string, image *imagev1.Image) {
	switch key {
	case "metadata":
		set(r, &image.ObjectMeta, readMeta)
	case "dockerImageReference":
		set(r, &image.DockerImageReference, (*plainjson.Reader).Text)
	case "dockerImageMetadata":
		set(r, &image.DockerImageMetadata, readExtension)
	case "dockerImageMetadataVersion":
		set(r, &image.DockerImageMetadataVersion, (*plainjson.Reader).Text)
	case "dockerImageManifest":
		set(r, &image.DockerImageManifest, (*plainjson.Reader).Text)
	case "dockerImageLayers":
		set(r, &image.DockerImageLayers, readLayers)
	case "signatures":
		set(r, &image.Signatures, readSignatures)
	case "dockerImageManifestMediaType":
		set(r, &image.DockerImageManifestMediaType, (*plainjson.Reader).Text)
	case "dockerImageConfig":
		set(r, &image.DockerImageConfig, (*plainjson.Reader).Text)
	default:
		r.Fail()
	}
}

func set[T any](r *plainjson.Reader, to *T, read func(*plainjson.Reader) T) {
	if v := read(r); !r.Failed() {
		*to = v
	}
}

// readExtension reads any value as it stands.
func readExtension(r *plainjson.Reader) (e runtime.RawExtension) {
	if !r.Null() {
		e.Raw = bytes.Clone(r.Raw())
	}
	return e
}

var metaFields = plainjson.Fields{
	"name", "generateName", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "labels", "annotations",
}

// readMeta reads metadata as clients write it.
func readMeta(r *plainjson.Reader) (m metav1.ObjectMeta) {
	if r.Null() {
		return m
	}
	var seen uint64
	for more := r.Open('{'); more; more = r.More('}') {
		switch metaFields.Key(r, &seen) {
		case "name":
			m.Name = r.Text()
		case "generateName":
			m.GenerateName = r.Text()
		case "namespace":
			m.Namespace = r.Text()
		case "uid":
			m.UID = types.UID(r.Text())
		case "resourceVersion":
			m.ResourceVersion = r.Text()
		case "generation":
			m.Generation = r.Number()
		case "creationTimestamp":
			if !r.Null() {
				r.Fail()
			}
		case "labels":
			m.Labels = plainjson.Map(r, (*plainjson.Reader).Text)
		case "annotations":
			m.Annotations = plainjson.Map(r, (*plainjson.Reader).Text)
		default:
			r.Fail()
		}
	}
	return m
}

var layerFields = plainjson.Fields{"name", "size", "mediaType"}

func readLayers(r *plainjson.Reader) []imagev1.ImageLayer { return plainjson.List(r, readLayer) }

func readLayer(r *plainjson.Reader) (l imagev1.ImageLayer) {
	var seen uint64
	for more := r.Open('{'); more; more = r.More('}') {
		switch layerFields.Key(r, &seen) {
		case "name":
			l.Name = r.Text()
		case "size":
			l.LayerSize = r.Number()
		case "mediaType":
			l.MediaType = r.Text()
		default:
			r.Fail()
		}
	}
	return l
}

var signatureFields = plainjson.Fields{"kind", "apiVersion", "metadata", "type", "content"}

func readSignatures(r *plainjson.Reader) []imagev1.ImageSignature {
	return plainjson.List(r, readSignature)
}

// readSignature reads a signature as clients write it: the rest of its fields are verdicts.
func readSignature(r *plainjson.Reader) (s imagev1.ImageSignature) {
	var seen uint64
	for more := r.Open('{'); more; more = r.More('}') {
		switch signatureFields.Key(r, &seen) {
		case "kind":
			s.Kind = r.Text()
		case "apiVersion":
			s.APIVersion = r.Text()
		case "metadata":
			s.ObjectMeta = readMeta(r)
		case "type":
			s.Type = r.Text()
		case "content":
			s.Content = r.Base64()
		default:
			r.Fail()
		}
	}
	return s
}
