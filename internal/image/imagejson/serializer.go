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
	return imageSerializer{codecs, imageInfos(codecs, imageReader{requests: true})}
}

// NewStorageSerializer returns a serializer for the group's stored objects, which it reads in the
// same way.
func NewStorageSerializer(codecs serializer.CodecFactory) runtime.StorageSerializer {
	return imageSerializer{codecs, imageInfos(codecs, imageReader{})}
}

// NewClientSerializer returns a serializer for a client's requests, without conversion.
func NewClientSerializer(codecs serializer.CodecFactory) runtime.NegotiatedSerializer {
	return clientSerializer{codecs.WithoutConversion(), imageInfos(codecs, imageReader{})}
}

// NewBriefSerializer is NewClientSerializer for a client that does not use the content of Images.
// If possible, it leaves manifest, config and metadata out of the Images of a list, because reading
// these costs most.
func NewBriefSerializer(codecs serializer.CodecFactory) runtime.NegotiatedSerializer {
	return clientSerializer{codecs.WithoutConversion(), imageInfos(codecs, imageReader{brief: true})}
}

type clientSerializer struct {
	runtime.NegotiatedSerializer
	infos []runtime.SerializerInfo
}

// SupportedMediaTypes is part of runtime.NegotiatedSerializer.
func (s clientSerializer) SupportedMediaTypes() []runtime.SerializerInfo { return s.infos }

// imageInfos returns the serializers of codecs. The JSON one reads Images as the given reader does.
func imageInfos(codecs serializer.CodecFactory, reader imageReader) []runtime.SerializerInfo {
	infos := slices.Clone(codecs.SupportedMediaTypes())
	for i := range infos {
		if infos[i].MediaType == runtime.ContentTypeJSON {
			lenient, strict := reader, reader
			lenient.Serializer, strict.Serializer = infos[i].Serializer, infos[i].StrictSerializer
			infos[i].Serializer, infos[i].StrictSerializer = lenient, strict
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
