package web

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
)

// withCheckedPatches answers 400 to a strategic merge patch whose directives, such as
// $patch, have values that they cannot have. What merges patches takes those for
// faults of the server. A body of more than limit bytes is left to what reads it.
func withCheckedPatches(next http.Handler, limit int64, s runtime.NegotiatedSerializer) http.Handler {
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
		next.ServeHTTP(w, r)
	})
}

func isStrategicPatch(r *http.Request) bool {
	if r.Method != http.MethodPatch || r.Body == nil {
		return false
	}
	mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && mediaType == string(types.StrategicMergePatchType)
}

// checkDirectives checks the directives of a strategic merge patch, as
// k8s.io/apimachinery/pkg/util/strategicpatch knows them. What is no JSON is left to
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
