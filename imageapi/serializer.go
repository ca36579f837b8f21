package imageapi

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// NewSerializer returns what reads and writes the group's requests: codecs, except that an Image in
// JSON is read once and not the three times that the API machinery reads a document.
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
