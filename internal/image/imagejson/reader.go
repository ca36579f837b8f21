package imagejson

import (
	"bytes"
	"reflect"
	"slices"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/recognizer"

	"github.com/tidewaiter/tidewaiter/internal/image/record"
	"github.com/tidewaiter/tidewaiter/internal/plainjson"
)

// imageReader is a serializer of JSON. It reads the known fields of an Image, of each Image in a
// list, and of the items of an ImageRecord, and leaves the rest of the document to the serializer.
// In doubt it leaves the entire document to the serializer, so it accepts exactly what the
// serializer accepts, with the same errors and warnings.
type imageReader struct {
	runtime.Serializer
	requests bool // see dropDerived
	brief    bool // see NewBriefSerializer
}

var _ recognizer.RecognizingDecoder = imageReader{}

// RecognizesData is part of recognizer.RecognizingDecoder.
func (r imageReader) RecognizesData(data []byte) (ok, unknown bool, err error) {
	if d, is := r.Serializer.(recognizer.RecognizingDecoder); is {
		return d.RecognizesData(data)
	}
	return false, true, nil
}

// Decode is part of runtime.Decoder.
func (r imageReader) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, gvk, err := r.decode(data, defaults, into)
	if image, ok := obj.(*imagev1.Image); ok && r.requests && err == nil {
		dropDerived(image)
	}
	return obj, gvk, err
}

func (r imageReader) decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if list, ok := into.(*imagev1.ImageList); ok && reflect.ValueOf(list).Elem().IsZero() {
		return r.decodeList(data, defaults, list)
	}
	if told, ok := into.(*record.ImageRecord); ok && reflect.ValueOf(told).Elem().IsZero() {
		return r.decodeRecord(data, defaults, told)
	}
	image, ok := into.(*imagev1.Image)
	if !ok || !reflect.ValueOf(image).Elem().IsZero() {
		return r.Serializer.Decode(data, defaults, into)
	}
	rest, ok := takeFields(data, image)
	if ok {
		obj, gvk, err := r.Serializer.Decode(rest, defaults, image)
		if err == nil && obj == runtime.Object(image) {
			return obj, gvk, nil
		}
	}
	*image = imagev1.Image{}
	return r.Serializer.Decode(data, defaults, into)
}

// dropDerived leaves the dockerImageMetadata out of a request to create an Image with manifest and
// config. The server derives it from these, and ignores the client's value. Otherwise managed
// fields decode it twice, which takes a tenth of the creation's processor time.
func dropDerived(image *imagev1.Image) {
	if image.ResourceVersion == "" && image.DockerImageManifest != "" && image.DockerImageConfig != "" {
		image.DockerImageMetadata = runtime.RawExtension{}
	}
}

// decodeList is Decode into an empty list. In an item it reads the fields that takeFields takes,
// and kind and version.
func (r imageReader) decodeList(data []byte, defaults *schema.GroupVersionKind, list *imagev1.ImageList) (runtime.Object, *schema.GroupVersionKind, error) {
	var items []imagev1.Image
	obj, gvk, ok := r.decodeExcept(data, defaults, list, listKeys, "items", func(document *plainjson.Reader) { items = plainjson.List(document, r.readItem) })
	if ok {
		list.Items = items
		return obj, gvk, nil
	}
	*list = imagev1.ImageList{}
	return r.Serializer.Decode(data, defaults, list)
}

// decodeRecord is Decode into an empty record.
func (r imageReader) decodeRecord(data []byte, defaults *schema.GroupVersionKind, told *record.ImageRecord) (runtime.Object, *schema.GroupVersionKind, error) {
	var spec record.ImageRecordSpec
	obj, gvk, ok := r.decodeExcept(data, defaults, told, recordKeys, "spec", func(document *plainjson.Reader) { spec = readSpec(document) })
	if ok {
		told.Spec = spec
		return obj, gvk, nil
	}
	*told = record.ImageRecord{}
	return r.Serializer.Decode(data, defaults, told)
}

// decodeExcept makes the serializer decode a document without the value of a known key, which it
// reads with read. ok is false if the document is not plain, or invalid.
func (r imageReader) decodeExcept(data []byte, defaults *schema.GroupVersionKind, into runtime.Object, known plainjson.Fields, except string, read func(*plainjson.Reader)) (obj runtime.Object, gvk *schema.GroupVersionKind, ok bool) {
	rest := append(make([]byte, 0, 256), '{')
	document := plainjson.New(data)
	for key := range known.Of(document) {
		if key == except {
			read(document)
		} else {
			rest = appendField(rest, key, document.Raw())
		}
	}
	if !document.Done() {
		return nil, nil, false
	}
	obj, gvk, err := r.Serializer.Decode(append(rest, '}'), defaults, into)
	return obj, gvk, err == nil && obj == into
}

var (
	listKeys   = plainjson.Fields{"metadata", "items"}
	recordKeys = plainjson.Fields{"metadata", "spec", "status"}
	itemKeys   = append(slices.Clone(imageKeys), "kind", "apiVersion")
)

func (r imageReader) readItem(document *plainjson.Reader) (image imagev1.Image) {
	for key := range itemKeys.Of(document) {
		switch key {
		case "kind":
			image.Kind = document.Text()
		case "apiVersion":
			image.APIVersion = document.Text()
		case "dockerImageManifest", "dockerImageConfig", "dockerImageMetadata":
			if r.brief {
				document.Raw()
				continue
			}
			fallthrough
		default:
			readImage(document, key, &image)
		}
	}
	return image
}

// ReadKnown reads the parts of a stored Image that an import of a known image compares: all except
// config, metadata, layers and, unless it is an index, the manifest. ok is false if the Image lacks
// a manifest or, unless it is an index, a config, or if it is not plain JSON. This takes a third of
// the time of decoding all of it.
func ReadKnown(data []byte) (image *imagev1.Image, ok bool) {
	image = &imagev1.Image{}
	var manifest, config []byte
	r := plainjson.New(data)
	for key := range itemKeys.Of(r) {
		switch key {
		case "dockerImageManifest":
			manifest = r.Raw()
		case "dockerImageConfig":
			config = r.Raw()
		case "dockerImageMetadata", "dockerImageLayers", "kind", "apiVersion":
			r.Raw()
		default:
			readImage(r, key, image)
		}
	}
	isIndex := len(image.DockerImageManifests) > 0
	if !r.Done() || len(manifest) == 0 || len(config) == 0 && !isIndex {
		return nil, false
	}
	if isIndex {
		text := plainjson.New(manifest)
		image.DockerImageManifest = text.Text()
		ok = !text.Failed()
		return image, ok
	}
	return image, true
}

// takeFields splits an Image in JSON: it reads plain fields into image, and returns all others
// unchanged in rest, a document. Errors in these remain errors in rest. ok is false if the document
// is not plain.
func takeFields(data []byte, image *imagev1.Image) (rest []byte, ok bool) {
	rest = append(make([]byte, 0, 256), '{')
	r := plainjson.New(data)
	for key := range imageKeys.Of(r) {
		before := *r
		if readImage(r, key, image); !r.Failed() {
			continue
		}
		*r = before
		rest = appendField(rest, key, r.Raw())
	}
	return append(rest, '}'), r.Done()
}

// appendField appends a field to an object that is not closed yet.
func appendField(object []byte, key string, value []byte) []byte {
	if len(object) > 1 {
		object = append(object, ',')
	}
	return append(append(append(append(object, '"'), key...), '"', ':'), value...)
}

// readExtension reads any value without change.
func readExtension(r *plainjson.Reader) (e runtime.RawExtension) {
	if !r.Null() {
		e.Raw = bytes.Clone(r.Raw())
	}
	return e
}

func readTime(r *plainjson.Reader) metav1.Time { return metav1.Time{Time: r.Time()} }

// readFieldsV1 reads any value without change, or null.
func readFieldsV1(r *plainjson.Reader) *metav1.FieldsV1 {
	if r.Null() {
		return nil
	}
	return metav1.NewFieldsV1(string(r.Raw()))
}
