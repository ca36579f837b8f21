package storedjson

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/endpoints/request"
)

// changedSource is a source with other revisions or objects than the listed ones.
type changedSource struct {
	Source
	objects []stored
}

func (s changedSource) ScanStored(_ context.Context, _ string, rev int64, _, _ int, _ bool, each func(string, int64, []byte, error)) (int64, bool, int64, error) {
	for _, o := range s.objects {
		each(o.name, o.rev, o.data, o.err)
	}
	return rev, false, 0, nil
}

// TestReadIsWhatWasListed: a list that reads objects later gets the listed objects at the listed
// revisions, because encoded objects are cached by revision.
func TestReadIsWhatWasListed(t *testing.T) {
	t.Parallel()
	value := []byte("{}")
	for name, test := range map[string]struct {
		there []stored
		read  int // how many of the two listed objects
		fails bool
	}{
		"the same":            {[]stored{{"a", 1, value, nil}, {"b", 2, value, nil}}, 2, false},
		"a newer first":       {[]stored{{"a", 3, value, nil}, {"b", 2, value, nil}}, 0, true},
		"another first":       {[]stored{{"b", 1, value, nil}, {"b", 2, value, nil}}, 0, true},
		"a newer second":      {[]stored{{"a", 1, value, nil}, {"b", 3, value, nil}}, 1, true},
		"another in between":  {[]stored{{"a", 1, value, nil}, {"aa", 2, value, nil}}, 1, true},
		"fewer than expected": {[]stored{{"a", 1, value, nil}}, 1, false},
		"nothing":             {nil, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := &scan{k: &kind{source: changedSource{objects: test.there}}, rev: 2, run: watchRun}
			listed := []stored{{name: "a", rev: 1}, {name: "b", rev: 2}}
			err := p.read(t.Context(), listed)
			if (err != nil) != test.fails {
				t.Errorf("error %v, want one: %t", err, test.fails)
			}
			if err != nil && !strings.Contains(err.Error(), `"a"`) {
				t.Errorf("the error names no object: %v", err)
			}
			for i, o := range listed {
				if want := i < test.read; o.unread() == want {
					t.Errorf("object %d is read: %t, want %t", i, !o.unread(), want)
				}
			}
		})
	}
}

// TestCheapReads: reads that Serve answers with stored bytes are cheap. Answers that are computed
// from many objects, or decoded, are not.
func TestCheapReads(t *testing.T) {
	t.Parallel()
	image := request.RequestInfo{IsResourceRequest: true, Verb: "get", Resource: "images", Name: "x"}
	stream := request.RequestInfo{IsResourceRequest: true, Verb: "get", Namespace: "team", Resource: "imagestreams", Name: "x"}
	layers := stream
	layers.Subresource = "layers"
	for _, test := range []struct {
		info   request.RequestInfo
		accept string
		want   bool
	}{
		{image, "application/json", true},
		{image, "application/json;as=Table;v=v1;g=meta.k8s.io", false},
		{image, "application/yaml", false},
		{stream, "application/json", false},
		{layers, "application/json", false},
		{request.RequestInfo{Path: "/readyz"}, "text/plain", true},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Accept", test.accept)
		if got := Cheap(r, &test.info); got != test.want {
			t.Errorf("%+v as %s is cheap: %v", test.info, test.accept, got)
		}
	}
}
