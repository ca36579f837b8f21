package imageapi

import (
	"encoding/json"
	"reflect"
	"slices"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// NewSerializer returns what reads and writes the group's requests: codecs, except that the long
// fields of an Image in JSON, which are most of it, are read once and not the three times that the
// API machinery reads a document.
func NewSerializer(codecs serializer.CodecFactory) runtime.NegotiatedSerializer {
	infos := slices.Clone(codecs.SupportedMediaTypes())
	for i := range infos {
		if infos[i].MediaType == runtime.ContentTypeJSON {
			infos[i].Serializer = imageReader{infos[i].Serializer}
			infos[i].StrictSerializer = imageReader{infos[i].StrictSerializer}
		}
	}
	return imageSerializer{codecs, infos}
}

type imageSerializer struct {
	serializer.CodecFactory
	infos []runtime.SerializerInfo
}

// SupportedMediaTypes is part of runtime.NegotiatedSerializer.
func (s imageSerializer) SupportedMediaTypes() []runtime.SerializerInfo { return s.infos }

// imageReader is a serializer of JSON. It takes an Image's long fields out of the document, reads
// them itself and leaves the rest to the serializer. In doubt it leaves everything to it, so that
// what is accepted, and every error and warning, is the serializer's.
type imageReader struct{ runtime.Serializer }

// Decode is part of runtime.Decoder.
func (r imageReader) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	image, ok := into.(*imagev1.Image)
	if !ok || !reflect.ValueOf(image).Elem().IsZero() {
		return r.Serializer.Decode(data, defaults, into)
	}
	rest, long, ok := takeLongFields(data)
	if !ok {
		return r.Serializer.Decode(data, defaults, into)
	}
	obj, gvk, err := r.Serializer.Decode(rest, defaults, image)
	if err != nil || obj != runtime.Object(image) {
		*image = imagev1.Image{}
		return r.Serializer.Decode(data, defaults, into)
	}
	image.DockerImageManifest, image.DockerImageConfig = long.manifest, long.config
	image.DockerImageMetadata.Raw = long.metadata
	return obj, gvk, nil
}

// longFields are the fields that hold most of an Image.
type longFields struct {
	manifest, config string
	metadata         []byte
}

// takeLongFields splits an Image in JSON: its long fields, and a document of all others as they
// stand. What is wrong with those is still wrong in rest. ok is false when there is nothing to take,
// or when what there is needs more care than is taken here.
func takeLongFields(data []byte) (rest []byte, long longFields, ok bool) {
	s := jsonScanner{data: data}
	if !s.take('{') {
		return nil, long, false
	}
	rest = append(make([]byte, 0, len(data)/2), '{')
	var haveManifest, haveConfig, haveMetadata bool
	for first := true; first || s.take(','); first = false {
		s.space()
		start := s.pos
		key, ok := s.text()
		if !ok || slices.Contains(key, '\\') || !s.take(':') {
			return nil, long, false
		}
		s.space()
		switch string(key) {
		case "dockerImageManifest":
			ok = !haveManifest && s.unquote(&long.manifest)
			haveManifest = true
		case "dockerImageConfig":
			ok = !haveConfig && s.unquote(&long.config)
			haveConfig = true
		case "dockerImageMetadata":
			from := s.pos
			ok = !haveMetadata && s.at('{') && s.skip() && json.Valid(data[from:s.pos])
			long.metadata = slices.Clone(data[from:s.pos])
			haveMetadata = true
		default:
			if ok = s.skip(); ok {
				if len(rest) > 1 {
					rest = append(rest, ',')
				}
				rest = append(rest, data[start:s.pos]...)
			}
		}
		if !ok {
			return nil, long, false
		}
	}
	if !s.take('}') {
		return nil, long, false
	}
	s.space()
	return append(rest, '}'), long, s.pos == len(data) && (haveManifest || haveConfig || haveMetadata)
}
