package imageapi

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// NewSerializer returns what reads and writes the group's requests: codecs, except that an Image in
// JSON is read once and not the three times that the API machinery reads a document.
func NewSerializer(codecs serializer.CodecFactory) runtime.NegotiatedSerializer {
	return imageSerializer{codecs, imageInfos(codecs)}
}

// NewStorageSerializer returns what reads and writes the group's stored objects, which are read the
// same way.
func NewStorageSerializer(codecs serializer.CodecFactory) runtime.StorageSerializer {
	return imageSerializer{codecs, imageInfos(codecs)}
}

// NewClientSerializer returns what reads and writes a client's requests, without conversion; Images are read the same
// way. It is for clients that read many.
func NewClientSerializer(codecs serializer.CodecFactory) runtime.NegotiatedSerializer {
	return clientSerializer{codecs.WithoutConversion(), imageInfos(codecs)}
}

type clientSerializer struct {
	runtime.NegotiatedSerializer
	infos []runtime.SerializerInfo
}

// SupportedMediaTypes is part of runtime.NegotiatedSerializer.
func (s clientSerializer) SupportedMediaTypes() []runtime.SerializerInfo { return s.infos }

// imageInfos are the serializers of codecs, with a reader of Images for that of JSON.
func imageInfos(codecs serializer.CodecFactory) []runtime.SerializerInfo {
	infos := slices.Clone(codecs.SupportedMediaTypes())
	for i := range infos {
		if infos[i].MediaType == runtime.ContentTypeJSON {
			infos[i].Serializer = imageReader{infos[i].Serializer}
			infos[i].StrictSerializer = imageReader{infos[i].StrictSerializer}
		}
	}
	return infos
}

type imageSerializer struct {
	serializer.CodecFactory
	infos []runtime.SerializerInfo
}

// SupportedMediaTypes is part of runtime.NegotiatedSerializer.
func (s imageSerializer) SupportedMediaTypes() []runtime.SerializerInfo { return s.infos }
