package policyapi

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// NewSerializer returns what reads and writes the group's requests: codecs without
// protobuf, which the types of policies do not have. Who asks for it and takes JSON as
// well, as the namespace controller does, gets JSON.
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
