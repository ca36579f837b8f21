package storedjson

import (
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/apitesting"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
)

var (
	scheme = runtime.NewScheme()
	codecs = serializer.NewCodecFactory(scheme)
)

func init() {
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
}

// podKind makes pods a kind that is served as stored. Pods are namespaced, so here their names have
// a slash.
var podKind = Kind{Resource: examplev1.SchemeGroupVersion.WithResource("pods"), Kind: "Pod"}

// fixture is a store of example Pods.
type fixture struct {
	*kubestore.Store
	db *db.DB
	// transformer counts reads.
	transformer *storagetesting.PrefixTransformer
	config      kubestore.Config
}

func setup(t testing.TB, change ...func(*db.Options)) *fixture {
	t.Helper()
	change = append([]func(*db.Options){func(o *db.Options) { o.MaintenanceInterval = 20 * time.Millisecond }}, change...)
	f := &fixture{db: dbtest.Open(t, change...), transformer: storagetesting.NewPrefixTransformer([]byte("test!"), false)}
	f.config = kubestore.Config{
		DB:             f.db,
		Codec:          apitesting.TestCodec(codecs, examplev1.SchemeGroupVersion),
		New:            func() runtime.Object { return &example.Pod{} },
		NewList:        func() runtime.Object { return &example.PodList{} },
		ResourcePrefix: "/pods/",
		GroupResource:  schema.GroupResource{Group: example.GroupName, Resource: "pods"},
		Transformer:    f.transformer,
	}
	var err error
	if f.Store, err = kubestore.New(f.config); err != nil {
		t.Fatal(err)
	}
	return f
}

// newKind serves the fixture's pods.
func (f *fixture) newKind(t testing.TB) *kind {
	t.Helper()
	k := &kind{codec: f.config.Codec, newFunc: f.config.New, source: f.Store}
	if err := k.serveAsStored(podKind, codecs, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.close)
	return k
}

// remove removes an object that may be damaged, with its history, so that the check at the end of
// the test finds an intact file.
func (f *fixture) remove(t testing.TB, key string) {
	t.Helper()
	kv, _, _, err := f.db.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.db.Delete(t.Context(), key, kv.Rev); err != nil {
		t.Fatal(err)
	}
	if err := f.db.Compact(t.Context(), f.db.Revision()); err != nil {
		t.Fatal(err)
	}
}

// count adds one to an annotation.
func count(obj runtime.Object) (runtime.Object, error) {
	pod := obj.(*example.Pod)
	n, _ := strconv.Atoi(pod.Annotations["count"])
	pod.Annotations = map[string]string{"count": strconv.Itoa(n + 1)}
	return pod, nil
}
