package web

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apiserver/pkg/endpoints/request"
)

// A client who prunes blobs by a list of images is told of everything that has blobs. Nobody else's
// list changes.
func TestRegistryListsArtifacts(t *testing.T) {
	t.Parallel()
	images := request.RequestInfo{IsResourceRequest: true, Verb: "list", APIGroup: "image.openshift.io", Resource: "images"}
	streams, get := images, images
	streams.Resource, get.Verb = "imagestreams", "get"
	for _, tt := range []struct {
		agent, query, want string
		info               request.RequestInfo
	}{
		{"dockerregistry/v0.0.0 (linux/amd64) kubernetes/$Format", "", "fieldSelector=artifact%3Dany", images},
		{"dockerregistry/v0.0.0", "limit=5", "fieldSelector=artifact%3Dany&limit=5", images},
		{"dockerregistry/v0.0.0", "fieldSelector=artifact%3Dtrue", "fieldSelector=artifact%3Dtrue", images},
		{"dockerregistry/v0.0.0", "limit=5", "limit=5", streams},
		{"dockerregistry/v0.0.0", "", "", get},
		{"oc/4.22 (linux/amd64)", "limit=5000", "limit=5000", images},
		{"", "", "", images},
	} {
		r := httptest.NewRequest(http.MethodGet, "/apis/image.openshift.io/v1/images?"+tt.query, nil)
		r.Header.Set("User-Agent", tt.agent)
		got := "nothing"
		withArtifacts(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.URL.RawQuery })).
			ServeHTTP(httptest.NewRecorder(), r.WithContext(request.WithRequestInfo(r.Context(), &tt.info)))
		if got != tt.want {
			t.Errorf("%s asks for %s %s?%s: passed on is %q, want %q", tt.agent, tt.info.Verb, tt.info.Resource, tt.query, got, tt.want)
		}
	}
}
