package imageapi

import (
	"slices"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// NewSerializer returns what reads and writes the group's requests: codecs, except that an Image in
// JSON is read once and not the three times that the API machinery reads a document.
func NewSerializer(codecs serializer.CodecFactory) runtime.NegotiatedSerializer {
	return imageSerializer{codecs, imageInfos(codecs, hold)}
}

// NewStorageSerializer returns what reads and writes the group's stored objects, which are read the
// same way.
func NewStorageSerializer(codecs serializer.CodecFactory) runtime.StorageSerializer {
	return imageSerializer{codecs, imageInfos(codecs, func(*imagev1.Image) {})}
}

// imageInfos are the serializers of codecs, with a reader of Images for that of JSON.
func imageInfos(codecs serializer.CodecFactory, then func(*imagev1.Image)) []runtime.SerializerInfo {
	infos := slices.Clone(codecs.SupportedMediaTypes())
	for i := range infos {
		if infos[i].MediaType == runtime.ContentTypeJSON {
			infos[i].Serializer = imageReader{infos[i].Serializer, then}
			infos[i].StrictSerializer = imageReader{infos[i].StrictSerializer, then}
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
