package policyapi

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"sigs.k8s.io/yaml"
)

// NewSerializer returns the serializer of the group's requests. Its codecs do not include protobuf,
// which the types of policies do not support. A client that prefers protobuf and also accepts JSON,
// such as the namespace controller, gets JSON.
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

// policyDecoder adds the name of a field that is not base64 to the error of the wrapped decoder.
type policyDecoder struct{ runtime.Decoder }

// Decode is part of runtime.Decoder.
func (d policyDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, kind, err := d.Decoder.Decode(data, defaults, into)
	if err != nil && strings.Contains(err.Error(), "base64") {
		if wrong := notBase64In(data); wrong != "" {
			err = fmt.Errorf("%s: "+isNotBase64+": %w", wrong, err)
		}
	}
	return obj, kind, err
}

const isNotBase64 = "is not base64 (encode the file with `base64 -w0`)"

// maxPatch bounds the patches that NameFields checks, in bytes. The API server refuses longer ones.
const maxPatch = 3 << 20

// NameFields refuses patches of policies in which a field that must be base64 is not, and names the
// field. The API server merges patches without our decoder: its own error does not name the field
// and, for server-side apply, is an internal error. NameFields must run after authorization.
func NameFields(api http.Handler, codecs runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		format, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
		merged := []types.PatchType{types.ApplyYAMLPatchType, types.StrategicMergePatchType}
		if !ok || info.APIGroup != GroupVersion.Group || r.Method != http.MethodPatch || !slices.Contains(merged, types.PatchType(format)) {
			api.ServeHTTP(w, r)
			return
		}
		patch, err := io.ReadAll(io.LimitReader(r.Body, maxPatch))
		wrong := ""
		if err == nil {
			wrong = notBase64In(patch)
		}
		if wrong != "" {
			refused := field.ErrorList{{Type: field.ErrorTypeInvalid, Field: wrong, BadValue: field.OmitValueType{}, Detail: isNotBase64}}
			responsewriters.ErrorNegotiated(apierrors.NewInvalid(GroupVersion.WithKind("Policy").GroupKind(), info.Name, refused), codecs, GroupVersion, w, r)
			return
		}
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(patch), r.Body), r.Body}
		api.ServeHTTP(w, r)
	})
}

// notBase64In is notBase64 for a document in YAML or JSON.
func notBase64In(data []byte) string {
	var document map[string]any
	if text, err := yaml.YAMLToJSON(data); err != nil || json.Unmarshal(text, &document) != nil {
		return ""
	}
	return notBase64(document, "")
}

// notBase64 returns the path of a field that must be base64 and is not; "" if there is none.
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
