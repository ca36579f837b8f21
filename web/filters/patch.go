package filters

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"github.com/tidewaiter/tidewaiter/imageapi/printable"
)

// WithCheckedPatches answers 400 to a strategic merge patch that cannot be merged.
// There are two kinds: patches whose directives, such as $patch, have impossible
// values, and patches that do not fit the object, for instance because an element of a
// list lacks the key by which the list is merged. Kubernetes takes most of these for
// faults of the server. A body of more than limit bytes is passed on unchecked.
func WithCheckedPatches(next http.Handler, limit int64, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isStrategicPatch(r) {
			next.ServeHTTP(w, r)
			return
		}
		// An error of the reader comes again when the rest is read.
		body, _ := io.ReadAll(io.LimitReader(r.Body, limit+1))
		if err := checkDirectives(body); err != nil {
			responsewriters.ErrorNegotiated(apierrors.NewBadRequest(err.Error()), s, schema.GroupVersion{}, w, r)
			return
		}
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(body), r.Body), r.Body}
		answer := &heldFault{ResponseWriter: w}
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			// The merge compares what cannot be compared, such as a merge key that is a
			// map.
			if trace, ok := p.(string); !ok || !strings.Contains(trace, "k8s.io/apimachinery/pkg/util/strategicpatch.") {
				panic(p)
			}
			refuse(w, r, s, "a key of a list's element, or an element of $retainKeys, is no text")
		}()
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(answer), r)
		answer.end(s, r)
	})
}

// maxFault is how many bytes of an answer of 500 are held. maxFaultMessage is how many
// bytes of its message are shown: the message contains the merged objects.
const (
	maxFault        = 64 << 10
	maxFaultMessage = 1 << 10
)

// heldFault holds back an answer of 500 to a strategic merge patch until its end, to
// see whose fault it is.
type heldFault struct {
	http.ResponseWriter
	held bool
	body []byte // at most maxFault bytes
}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (a *heldFault) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (a *heldFault) WriteHeader(code int) {
	if a.held = code == http.StatusInternalServerError; !a.held {
		a.ResponseWriter.WriteHeader(code)
	}
}

// Write implements http.ResponseWriter.
func (a *heldFault) Write(p []byte) (int, error) {
	if !a.held {
		return a.ResponseWriter.Write(p)
	}
	if len(a.body)+len(p) <= maxFault {
		a.body = append(a.body, p...)
		return len(p), nil
	}
	a.held = false
	a.ResponseWriter.WriteHeader(http.StatusInternalServerError)
	if _, err := a.ResponseWriter.Write(a.body); err != nil {
		return 0, err
	}
	return a.ResponseWriter.Write(p)
}

// end sends the held answer, as 400 if it says that the patch cannot be merged.
func (a *heldFault) end(s runtime.NegotiatedSerializer, r *http.Request) {
	if !a.held {
		return
	}
	if message := unmergeable(a.body, a.Header().Get("Content-Type"), s); message != "" {
		a.Header().Del("Content-Length")
		refuse(a.ResponseWriter, r, s, message)
		return
	}
	a.ResponseWriter.WriteHeader(http.StatusInternalServerError)
	_, _ = a.ResponseWriter.Write(a.body) // the client may be gone
}

func refuse(w http.ResponseWriter, r *http.Request, s runtime.NegotiatedSerializer, message string) {
	responsewriters.ErrorNegotiated(apierrors.NewBadRequest("the patch cannot be merged: "+message), s, schema.GroupVersion{}, w, r)
}

// unmergeable returns the message of a Status if an error of
// k8s.io/apimachinery/pkg/util/strategicpatch is in it, else "". Those errors have no
// types, and the Status that Kubernetes makes of them has no reason.
func unmergeable(body []byte, contentType string, s runtime.NegotiatedSerializer) string {
	mediaType, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return ""
	}
	info, ok := runtime.SerializerInfoForMediaType(s.SupportedMediaTypes(), mediaType)
	if !ok {
		return ""
	}
	var status metav1.Status
	if _, _, err := info.Serializer.Decode(body, nil, &status); err != nil || status.Reason != metav1.StatusReasonUnknown {
		return ""
	}
	if !slices.ContainsFunc(mergeErrors, func(part string) bool { return strings.Contains(status.Message, part) }) {
		return ""
	}
	return printable.Line(status.Message, maxFaultMessage)
}

// mergeErrors are parts of the errors of strategicpatch, and of the package with which
// it looks up types, in k8s.io/apimachinery v0.37. Errors that upstream makes 4xx are
// not among them.
var mergeErrors = []string{
	"does not contain declared merge key", "cannot find merge key", "cannot merge lists without merge key",
	"invalid element type in merging list", "list element types are not identical", "no elements in any of the given slices",
	"unable to find api field", "data type is not struct", "expected slice or array type", "unexpected slice of slice",
	"but received a", "unknown patch type", "invalid value for special key", "is not a map", "are not deep equal",
	"The order in patch list", "unexpected patch strategy", "merging lists cannot yet be specified", "unknown type: ",
}

func isStrategicPatch(r *http.Request) bool {
	if r.Method != http.MethodPatch || r.Body == nil {
		return false
	}
	mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && mediaType == string(types.StrategicMergePatchType)
}

// checkDirectives checks the directives of a strategic merge patch, by the rules of
// k8s.io/apimachinery/pkg/util/strategicpatch. It leaves text that is not JSON to
// others.
func checkDirectives(patch []byte) error {
	if !bytes.ContainsRune(patch, '$') && !bytes.Contains(patch, []byte(`\u0024`)) {
		return nil
	}
	var v any
	if err := json.Unmarshal(patch, &v); err != nil {
		return nil
	}
	return checkDirective("", v)
}

func checkDirective(key string, value any) error {
	list, isList := value.([]any)
	switch {
	case key == "$patch":
		if value != "delete" && value != "replace" {
			return fmt.Errorf("$patch is %q: it is delete or replace", fmt.Sprint(value))
		}
	case key == "$retainKeys" || strings.HasPrefix(key, "$setElementOrder/") || strings.HasPrefix(key, "$deleteFromPrimitiveList/"):
		if !isList {
			return fmt.Errorf("%s is no list", key)
		}
	}
	for _, element := range list {
		if err := checkDirective("", element); err != nil {
			return err
		}
	}
	object, _ := value.(map[string]any)
	for k, v := range object {
		if err := checkDirective(k, v); err != nil {
			return err
		}
	}
	return nil
}
