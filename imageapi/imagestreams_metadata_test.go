package imageapi_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestream"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
)

// A read that is answered with the metadata of streams does not read their tags. Any other does.
func TestMetadataOfStreams(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	s.lead(tags.New(s.ref), digestOf(1), "push")
	s.mustCreateStream(stream("app", repository))
	const metadata, list = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	for _, test := range []struct {
		accept, verb, resource, subresource string
		tags                                int
	}{
		{metadata, "get", "imagestreams", "", 0},
		{list, "list", "imagestreams", "", 0},
		{"application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1," + list + ",application/json", "list", "imagestreams", "", 0},
		{metadata, "watch", "imagestreams", "", 0},
		{"", "watch", "imagestreams", "", 1},
		{"application/json", "list", "imagestreams", "", 1},
		{"application/json," + list, "list", "imagestreams", "", 1},
		{list + ";q=0.5,application/json", "list", "imagestreams", "", 1},
		{"application/json;as=Table;g=meta.k8s.io;v=v1", "list", "imagestreams", "", 1},
		{"application/json;as=PartialObjectMetadataList;g=example.com;v=v1,application/json", "list", "imagestreams", "", 1},
		{metadata, "get", "imagestreams", "status", 1},
		{metadata, "get", "imagestreamtags", "", 1},
		{metadata, "patch", "imagestreams", "", 1},
	} {
		request := httptest.NewRequest(http.MethodGet, "/", nil)
		request.Header.Set("Accept", test.accept)
		info := &genericapirequest.RequestInfo{APIGroup: imagev1.GroupName, Resource: test.resource, Subresource: test.subresource, Verb: test.verb}
		request = request.WithContext(genericapirequest.WithRequestInfo(inNamespace("team", s.asUser), info))
		called := false
		imagestream.WithMetadataReads(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			called = true
			obj, err := s.streams.Get(r.Context(), "app", &metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			listed, err := s.streams.List(r.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			watched, err := s.streams.(rest.Watcher).Watch(r.Context(), &internalversion.ListOptions{ResourceVersion: "0"})
			if err != nil {
				t.Fatal(err)
			}
			defer watched.Stop()
			event := <-watched.ResultChan()
			for how, got := range map[string]imagev1.ImageStream{"get": *obj.(*imagev1.ImageStream), "list": listed.(*imagev1.ImageStreamList).Items[0], "watch": *event.Object.(*imagev1.ImageStream)} {
				if got.Name != "app" || len(got.Status.Tags) != test.tags {
					t.Errorf("%+v: by %s it has %d tags", test, how, len(got.Status.Tags))
				}
			}
		}), legacyscheme.Codecs).ServeHTTP(httptest.NewRecorder(), request)
		if !called {
			t.Errorf("%+v is not answered", test)
		}
	}
}
