package web

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/rest"
)

// Nothing is made in a namespace that the cluster does not have or is deleting. While that is not
// known, it is to be tried again.
func TestNamespacesOfTheCluster(t *testing.T) {
	t.Parallel()
	var there atomic.Bool
	cluster := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case !there.Load():
			w.WriteHeader(http.StatusForbidden)
		case r.URL.Path == "/api/v1/namespaces" && !r.URL.Query().Has("watch"):
			_, _ = w.Write([]byte(`{"kind":"NamespaceList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[
				{"metadata":{"name":"team","resourceVersion":"1","labels":{"a":"b"}},"status":{"phase":"Active"}},
				{"metadata":{"name":"going","resourceVersion":"1"},"status":{"phase":"Terminating"}}]}`))
		case r.URL.Path == "/api/v1/namespaces":
			if r.URL.Query().Has("sendInitialEvents") {
				w.WriteHeader(http.StatusUnprocessableEntity)
				return
			}
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":"namespaces \"gone\" not found"}`))
		}
	}))
	t.Cleanup(cluster.Close)
	c := &Cluster{Client: &rest.Config{Host: cluster.URL, ContentConfig: rest.ContentConfig{AcceptContentTypes: "application/json", ContentType: "application/json"}}}
	plugin, read, err := c.namespaces()
	if err != nil {
		t.Fatal(err)
	}
	admit := func(namespace string, operation admission.Operation) error {
		stream := imagev1.GroupVersion.WithKind("ImageStream")
		attributes := admission.NewAttributesRecord(&imagev1.ImageStream{}, nil, stream, namespace, "app", imagev1.GroupVersion.WithResource("imagestreams"), "", operation, &metav1.CreateOptions{}, false, nil)
		return plugin.(admission.MutationInterface).Admit(t.Context(), attributes, nil)
	}
	if err := admit("team", admission.Create); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("before the namespaces are read: %v", err)
	}
	if err := admit("", admission.Create); err != nil {
		t.Errorf("an object without a namespace: %v", err)
	}
	there.Store(true)
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop); read.Shutdown() })
	read.Start(stop)
	read.WaitForCacheSync(t.Context().Done())
	if err := admit("team", admission.Create); err != nil {
		t.Errorf("in a namespace: %v", err)
	}
	if err := admit("gone", admission.Create); !apierrors.IsNotFound(err) {
		t.Errorf("in a namespace that is not there: %v", err)
	}
	if err := admit("going", admission.Create); !apierrors.IsForbidden(err) || !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		t.Errorf("in a namespace that is being deleted: %v", err)
	}
	for _, operation := range []admission.Operation{admission.Update, admission.Delete} {
		if err := admit("going", operation); err != nil {
			t.Errorf("%s in a namespace that is being deleted: %v", operation, err)
		}
	}
}
