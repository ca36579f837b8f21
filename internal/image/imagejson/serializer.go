// Package imagejson reads Images in JSON once, and not three times as the API machinery does: the
// requests of clients, the answers of servers and stored objects.
package imagejson

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// NewSerializer returns a serializer for the requests of the group image.openshift.io. It has the
// formats of codecs.
func NewSerializer(codecs serializer.CodecFactory) runtime.NegotiatedSerializer {
	return imageSerializer{codecs, imageInfos(codecs, true)}
}

// NewStorageSerializer returns a serializer for the group's stored objects, which it reads in the
// same way.
func NewStorageSerializer(codecs serializer.CodecFactory) runtime.StorageSerializer {
	return imageSerializer{codecs, imageInfos(codecs, false)}
}

// NewClientSerializer returns a serializer for a client's requests, without conversion.
func NewClientSerializer(codecs serializer.CodecFactory) runtime.NegotiatedSerializer {
	return clientSerializer{codecs.WithoutConversion(), imageInfos(codecs, false)}
}

type clientSerializer struct {
	runtime.NegotiatedSerializer
	infos []runtime.SerializerInfo
}

// SupportedMediaTypes is part of runtime.NegotiatedSerializer.
func (s clientSerializer) SupportedMediaTypes() []runtime.SerializerInfo { return s.infos }

// imageInfos returns the serializers of codecs, the JSON one with a reader of Images, in requests
// or stored.
func imageInfos(codecs serializer.CodecFactory, requests bool) []runtime.SerializerInfo {
	infos := slices.Clone(codecs.SupportedMediaTypes())
	for i := range infos {
		if infos[i].MediaType == runtime.ContentTypeJSON {
			infos[i].Serializer = imageReader{infos[i].Serializer, requests}
			infos[i].StrictSerializer = imageReader{infos[i].StrictSerializer, requests}
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
