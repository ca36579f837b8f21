package policyapi

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/yaml"
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

// DecoderToVersion is part of runtime.NegotiatedSerializer.
func (s policySerializer) DecoderToVersion(d runtime.Decoder, gv runtime.GroupVersioner) runtime.Decoder {
	return policyDecoder{s.CodecFactory.DecoderToVersion(d, gv)}
}

// policyDecoder names the field that is not base64, which the decoder beneath does not.
type policyDecoder struct{ runtime.Decoder }

// Decode is part of runtime.Decoder.
func (d policyDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, kind, err := d.Decoder.Decode(data, defaults, into)
	if err != nil && strings.Contains(err.Error(), "base64") {
		var document map[string]any
		if text, jsonErr := yaml.YAMLToJSON(data); jsonErr == nil && json.Unmarshal(text, &document) == nil {
			if field := notBase64(document, ""); field != "" {
				err = fmt.Errorf("%s: is not base64 (encode the file with `base64 -w0`): %w", field, err)
			}
		}
	}
	return obj, kind, err
}

// notBase64 returns the path of a field that should hold base64 and does not, "" if there is none.
func notBase64(document map[string]any, at string) string {
	for _, key := range slices.Sorted(maps.Keys(document)) {
		path := strings.TrimPrefix(at+"."+key, ".")
		switch value := document[key].(type) {
		case map[string]any:
			if found := notBase64(value, path); found != "" {
				return found
			}
		case string:
			if _, err := base64.StdEncoding.DecodeString(value); err != nil && strings.HasSuffix(key, "Data") {
				return path
			}
		}
	}
	return ""
}
