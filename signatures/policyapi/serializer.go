package policyapi

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// NewSerializer returns the serializer of the group's requests. Its codecs leave out
// protobuf, which the types of policies do not have. A client that asks for protobuf
// and takes JSON as well, as the namespace controller does, gets JSON.
func NewSerializer(codecs serializer.CodecFactory) runtime.NegotiatedSerializer {
	return policySerializer{codecs, slices.DeleteFunc(slices.Clone(codecs.SupportedMediaTypes()), func(i runtime.SerializerInfo) bool {
		return i.MediaType == runtime.ContentTypeProtobuf
	})}
}

type policySerializer struct {
	serializer.CodecFactory
	infos []runtime.SerializerInfo
}

// SupportedMediaTypes is part of runtime.NegotiatedSerializer.
func (s policySerializer) SupportedMediaTypes() []runtime.SerializerInfo { return s.infos }
