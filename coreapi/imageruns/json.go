package imageruns

import (
	"math"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/recognizer"

	"github.com/tidewaiter/tidewaiter/internal/plainjson"
)

// NewStorageSerializer returns a serializer for the stored objects of the group of ImageRuns. It
// has the formats of codecs, and reads ImageRuns in JSON once, where the API machinery reads them
// three times: a page of stretches is mostly decoding.
func NewStorageSerializer(codecs serializer.CodecFactory) runtime.StorageSerializer {
	infos := slices.Clone(codecs.SupportedMediaTypes())
	for i := range infos {
		if infos[i].MediaType == runtime.ContentTypeJSON {
			infos[i].Serializer, infos[i].StrictSerializer = runReader{infos[i].Serializer}, runReader{infos[i].StrictSerializer}
		}
	}
	return storageSerializer{codecs, infos}
}

type storageSerializer struct {
	serializer.CodecFactory
	infos []runtime.SerializerInfo
}

// SupportedMediaTypes is part of runtime.StorageSerializer.
func (s storageSerializer) SupportedMediaTypes() []runtime.SerializerInfo { return s.infos }

// runReader is a serializer of JSON. It reads the fields of an ImageRun itself, and leaves what is
// not plain, kind and version to the serializer, so every error and warning is the serializer's.
type runReader struct{ runtime.Serializer }

var _ recognizer.RecognizingDecoder = runReader{}

// RecognizesData is part of recognizer.RecognizingDecoder.
func (r runReader) RecognizesData(data []byte) (ok, unknown bool, err error) {
	if d, is := r.Serializer.(recognizer.RecognizingDecoder); is {
		return d.RecognizesData(data)
	}
	return false, true, nil
}

// Decode is part of runtime.Decoder.
func (r runReader) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	run, ok := into.(*ImageRun)
	if !ok || !reflect.ValueOf(run).Elem().IsZero() {
		return r.Serializer.Decode(data, defaults, into)
	}
	rest := append(make([]byte, 0, 128), '{')
	document := plainjson.New(data)
	for key := range runKeys.Of(document) {
		before := *document
		if readRun(document, key, run); !document.Failed() {
			continue
		}
		*document = before
		if len(rest) > 1 {
			rest = append(rest, ',')
		}
		rest = append(append(append(append(rest, '"'), key...), '"', ':'), document.Raw()...)
	}
	if document.Done() {
		obj, gvk, err := r.Serializer.Decode(append(rest, '}'), defaults, run)
		if err == nil && obj == runtime.Object(run) {
			return obj, gvk, nil
		}
	}
	*run = ImageRun{}
	return r.Serializer.Decode(data, defaults, into)
}

func readTime(r *plainjson.Reader) metav1.Time { return metav1.Time{Time: r.Time()} }

func readInt32(r *plainjson.Reader) int32 {
	n := r.Number()
	if n < math.MinInt32 || n > math.MaxInt32 {
		r.Fail()
		return 0
	}
	return int32(n)
}
