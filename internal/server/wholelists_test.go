package server

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
)

// No kind is listed as a whole, as there may be many objects of each: a million records of what ran
// took gigabytes.
func TestListsOfEachKindAreReadInPages(t *testing.T) {
	for _, resource := range []string{"images", "pods", imageruns.Resource, "services", "leases"} {
		pages := 0
		h := wholeLists(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if pages++; r.URL.Query().Get("limit") == "" {
				t.Errorf("%s: %s has no limit", resource, r.URL)
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[{"a":1}]}`+"\n")
		}))
		r := httptest.NewRequest(http.MethodGet, "/apis/g/v1/"+resource, nil)
		info := &request.RequestInfo{IsResourceRequest: true, Verb: "list", APIGroup: clusters.GroupVersion.Group, APIVersion: "v1", Resource: resource}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r.WithContext(request.WithRequestInfo(r.Context(), info)))
		if w.Code != http.StatusOK || pages != 1 {
			t.Errorf("%s: %d, %d pages: %s", resource, w.Code, pages, w.Body)
		}
	}
}
