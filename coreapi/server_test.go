package coreapi_test

import (
	"cmp"
	"context"
	"flag"
	"maps"
	"net"
	"os"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	k8sopenapi "k8s.io/kubernetes/pkg/generated/openapi"

	corev1 "k8s.io/api/core/v1"

	"github.com/tidewaiter/tidewaiter/coreapi"
	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	clusteropenapi "github.com/tidewaiter/tidewaiter/coreapi/clusters/openapi"
	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/web"
)

// patience bounds every wait for a condition; it measures nothing.
const patience = 3 * time.Minute

// server is this package's API behind the real web server and database.
type server struct {
	*kubernetes.Clientset
	config     *rest.Config
	kubeconfig string
	api        *coreapi.API
	db         *db.DB
	stop       func() // stops the server and waits; the database stays open
}

// noImages is a clusters.Images that knows nothing.
type noImages struct{}

func (noImages) About(_, _, image, imageID string) podimages.Known {
	return podimages.Known{Digest: podimages.Runs(image, imageID).Digest}
}

func (noImages) Selects(_ context.Context, text string, _ bool) ([]string, error) {
	if ref, err := reference.Parse(text); err == nil && !reference.IsDigest(text) {
		return []string{cmp.Or(ref.Digest, ref.String())}, nil
	}
	return []string{text}, nil
}

// start serves a fresh database until the test ends.
func start(t testing.TB, opts coreapi.Options) *server {
	t.Helper()
	return startOn(t, dbtest.Open(t), opts)
}

// startOn serves d, which may serve others at the same time.
func startOn(t testing.TB, d *db.DB, opts coreapi.Options) *server {
	t.Helper()
	if opts.Identity == "" {
		opts.Identity = "test"
	}
	getter := kubestore.NewGetter(d, legacyscheme.Codecs, kubestore.Options{})
	api, err := coreapi.New(getter, opts)
	if err != nil {
		t.Fatal(err)
	}
	credentials, err := web.LoadCredentials(t.TempDir(), web.ServingHosts(net.IPv4(127, 0, 0, 1)), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w, err := web.New(web.Config{
		Scheme:         legacyscheme.Scheme,
		Codecs:         legacyscheme.Codecs,
		ParameterCodec: legacyscheme.ParameterCodec,
		Groups:         api.Resources(clusters.NewPodsREST(api.Clusters, noImages{}, nil), nil),
		OpenAPI:        openAPI,
		PostStartHooks: api.PostStartHooks,
		Listener:       listener,
		Credentials:    credentials,
		Version:        "0.0.1-test",
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := credentials.WriteKubeconfig("https://" + listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", credentials.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1

	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- w.Run(ctx) }()
	once := false
	s := &server{
		Clientset:  kubernetes.NewForConfigOrDie(config),
		config:     config,
		kubeconfig: credentials.Kubeconfig,
		api:        api,
		db:         d,
		stop: func() {
			if once {
				return
			}
			once = true
			cancel()
			if err := <-stopped; err != nil {
				t.Errorf("the server did not stop cleanly: %v", err)
			}
		},
	}
	t.Cleanup(s.stop)
	ready, done := context.WithTimeout(ctx, patience)
	defer done()
	if err := w.Ready(ready); err != nil {
		t.Fatal(err)
	}
	return s
}

// openAPI describes what the servers of these tests serve.
func openAPI(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	all := k8sopenapi.GetOpenAPIDefinitions(ref)
	maps.Copy(all, clusteropenapi.GetOpenAPIDefinitions(ref))
	return all
}

func TestMain(m *testing.M) {
	utilruntime.Must(clusters.Install(legacyscheme.Scheme))
	utilruntime.Must(imageruns.Install(legacyscheme.Scheme))
	utilruntime.Must(coreapi.Install(legacyscheme.Scheme))
	// Most tests wait, for intervals of Kubernetes' controllers and clients, so more of them run at
	// a time than there are processors.
	flag.Parse()
	utilruntime.Must(flag.Set("test.parallel", "8"))
	os.Exit(m.Run())
}

// eventually waits until condition holds; what it returns last is the reason
// it does not.
func eventually(t *testing.T, what string, condition func() (ok bool, last any)) {
	t.Helper()
	var last any
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		var ok bool
		ok, last = condition()
		return ok, nil
	})
	if err != nil {
		t.Fatalf("%s: %v; last: %v", what, err, last)
	}
}

// pod is a pod that is valid as it is.
func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.example.com/app:1"}}},
	}
}

func service(name string, change func(*corev1.ServiceSpec)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if change != nil {
		change(&s.Spec)
	}
	return s
}
