package image

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"
	"unicode/utf8"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// FuzzUnprintableText: what is found by reading bytes and escapes is what is found in the texts and
// names of the document, and a document that was made printable has none.
func FuzzUnprintableText(f *testing.F) {
	for _, s := range []string{`{"a":"plain & \u0026 \n \t \"\\\/"}`, `{"a":"\u009b"}`, `{"\u202e":[1.0,9007199254740993,null,true]}`, "{\"a\":\"\u009b\"}", `{"a":"\b"}`,
		`{"a":"\ud83d\ude80 \ud83d"}`, `{"a":"\ud800\ude00"}`, `{"a":"\ud800\u009b"}`, `{"a":"�"}`, `{"a":"\ufffd"}`, "\n{}\t", `{"a":{"b":["\r"]}}`, "\"\xff\"", `{"Author":"Zoë"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		var value any
		if json.Unmarshal(doc, &value) != nil {
			hasUnprintableText(doc) // must end
			return
		}
		want := !utf8.Valid(doc) || slices.ContainsFunc(texts(value), func(s string) bool { return printable.Text(s) != s })
		if got := hasUnprintableText(doc); got != want {
			t.Errorf("%q has unprintable text: %v, want %v", doc, got, want)
		}
		image := &imagev1.Image{DockerImageMetadata: runtime.RawExtension{Raw: slices.Clone(doc)}}
		if err := makePrintable(image); err != nil || hasUnprintable(image) {
			t.Errorf("%q was made %q, %v", doc, image.DockerImageMetadata.Raw, err)
		}
	})
}

// texts are the texts and names in a JSON value.
func texts(value any) (all []string) {
	switch v := value.(type) {
	case string:
		all = append(all, v)
	case []any:
		for _, e := range v {
			all = append(all, texts(e)...)
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			all = append(append(all, name), texts(v[name])...)
		}
	}
	return all
}
