package coreapi_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/ptr"

	"github.com/tidewaiter/tidewaiter/coreapi"
	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
)

func (s *server) createService(t *testing.T, namespace string, svc *corev1.Service) *corev1.Service {
	t.Helper()
	made, err := s.CoreV1().Services(namespace).Create(t.Context(), svc, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestServiceTypes(t *testing.T) {
	t.Parallel()
	s := start(t, coreapi.Options{ServiceCIDRs: []string{"10.7.0.0/28"}, NodePorts: "31000-31003"})
	services := s.CoreV1().Services("default")
	cidr := netip.MustParsePrefix("10.7.0.0/28")

	plain := s.createService(t, "default", service("plain", nil))
	if ip := netip.MustParseAddr(plain.Spec.ClusterIP); !cidr.Contains(ip) {
		t.Errorf("cluster IP %s is not in %s", ip, cidr)
	}
	headless := s.createService(t, "default", service("headless", func(spec *corev1.ServiceSpec) { spec.ClusterIP = corev1.ClusterIPNone }))
	if headless.Spec.ClusterIP != corev1.ClusterIPNone {
		t.Errorf("headless service has cluster IP %q", headless.Spec.ClusterIP)
	}
	external := s.createService(t, "default", service("external", func(spec *corev1.ServiceSpec) {
		spec.Type, spec.ExternalName, spec.Ports = corev1.ServiceTypeExternalName, "example.com", nil
	}))
	if external.Spec.ClusterIP != "" {
		t.Errorf("external name has cluster IP %q", external.Spec.ClusterIP)
	}

	// ClusterIP → NodePort → ClusterIP gives a port and takes it back.
	plain.Spec.Type = corev1.ServiceTypeNodePort
	changed, err := services.Update(t.Context(), plain, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	port := changed.Spec.Ports[0].NodePort
	if port < 31000 || port > 31003 {
		t.Errorf("node port %d is not in the range", port)
	}
	_, err = services.Create(t.Context(), service("clash", func(spec *corev1.ServiceSpec) {
		spec.Type, spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, port
	}), metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "already allocated") {
		t.Errorf("a second service with node port %d: %v", port, err)
	}
	changed.Spec.Type = corev1.ServiceTypeClusterIP
	changed.Spec.Ports[0].NodePort = 0
	if _, err := services.Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.createService(t, "default", service("takes-port", func(spec *corev1.ServiceSpec) {
		spec.Type, spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, port
	}))

	// The status is a resource of its own.
	plain.Status.LoadBalancer.Ingress = nil
	plain.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Test", LastTransitionTime: metav1.Now()}}
	plain.ResourceVersion = ""
	if got, err := services.UpdateStatus(t.Context(), plain, metav1.UpdateOptions{}); err != nil || len(got.Status.Conditions) != 1 {
		t.Errorf("status: %v, %v", got, err)
	}

	for name, ip := range map[string]string{"outside": "10.8.0.1", "taken": plain.Spec.ClusterIP} {
		_, err := services.Create(t.Context(), service(name, func(spec *corev1.ServiceSpec) { spec.ClusterIP = ip }), metav1.CreateOptions{})
		if !apierrors.IsInvalid(err) {
			t.Errorf("cluster IP %s (%s): %v, want 422", ip, name, err)
		}
	}

	// A dry run and a refused service take nothing: the range still fills to its end.
	for i := range 40 {
		if _, err := services.Create(t.Context(), service(fmt.Sprint("dry-", i), nil), metav1.CreateOptions{DryRun: []string{"All"}}); err != nil {
			t.Fatal(err)
		}
		if _, err := services.Create(t.Context(), service("Refused_"+fmt.Sprint(i), nil), metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
			t.Fatal(err)
		}
	}
	seen := map[string]string{}
	for i := 0; ; i++ {
		made, err := services.Create(t.Context(), service(fmt.Sprint("fill-", i), nil), metav1.CreateOptions{})
		if err != nil {
			if !strings.Contains(err.Error(), "range is full") {
				t.Errorf("past the end of the range: %v", err)
			}
			break
		}
		if other, dup := seen[made.Spec.ClusterIP]; dup {
			t.Fatalf("%s and %s both have %s", other, made.Name, made.Spec.ClusterIP)
		}
		seen[made.Spec.ClusterIP] = made.Name
	}
	if len(seen) != 14-2 {
		// 16 addresses without the first and last; plain and takes-port have one each
		t.Errorf("the range filled after %d services, want 12", len(seen))
	}
	if err := services.Delete(t.Context(), "plain", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if again := s.createService(t, "default", service("again", nil)); again.Spec.ClusterIP != plain.Spec.ClusterIP {
		t.Errorf("got %s, want the freed %s", again.Spec.ClusterIP, plain.Spec.ClusterIP)
	}
}

func TestServicesAreDualStackByOption(t *testing.T) {
	t.Parallel()
	s := start(t, coreapi.Options{ServiceCIDRs: []string{"fd00:7::/112", "10.7.0.0/24"}})
	both := corev1.IPFamilyPolicyRequireDualStack
	made := s.createService(t, "default", service("both", func(spec *corev1.ServiceSpec) { spec.IPFamilyPolicy = &both }))
	if len(made.Spec.ClusterIPs) != 2 || !strings.HasPrefix(made.Spec.ClusterIPs[0], "fd00:7::") || !strings.HasPrefix(made.Spec.ClusterIPs[1], "10.7.0.") {
		t.Errorf("cluster IPs %v, want one of each family, IPv6 first", made.Spec.ClusterIPs)
	}
	single := start(t, coreapi.Options{})
	if _, err := single.CoreV1().Services("default").Create(t.Context(), service("both", func(spec *corev1.ServiceSpec) { spec.IPFamilyPolicy = &both }), metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("dual stack on a server of one family: %v, want 422", err)
	}
}

func TestServiceAddressesAreKeptAcrossRestarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := func() *db.DB {
		d, err := db.Open(db.Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	opts := coreapi.Options{ServiceCIDRs: []string{"10.7.0.0/28"}, NodePorts: "31000-31001"}
	node := func(spec *corev1.ServiceSpec) { spec.Type = corev1.ServiceTypeNodePort }

	d := open()
	s := startOn(t, d, opts)
	first := s.createService(t, "default", service("first", node))
	s.stop()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}

	d = open()
	t.Cleanup(func() { d.Close() })
	s = startOn(t, d, opts)
	kept, err := s.CoreV1().Services("default").Get(t.Context(), "first", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if kept.Spec.ClusterIP != first.Spec.ClusterIP || kept.Spec.Ports[0].NodePort != first.Spec.Ports[0].NodePort {
		t.Errorf("after a restart %s:%d, before %s:%d", kept.Spec.ClusterIP, kept.Spec.Ports[0].NodePort, first.Spec.ClusterIP, first.Spec.Ports[0].NodePort)
	}
	second := s.createService(t, "default", service("second", node))
	if second.Spec.ClusterIP == first.Spec.ClusterIP || second.Spec.Ports[0].NodePort == first.Spec.Ports[0].NodePort {
		t.Errorf("second got what first has: %v", second.Spec)
	}
	if _, err := s.CoreV1().Services("default").Create(t.Context(), service("third", node), metav1.CreateOptions{}); err == nil {
		t.Error("a third node port out of a range of two")
	}
}

// Updates that come too late take back what was theirs once: here of a service
// that was deleted, and of one that the other server has changed.
func TestLateUpdatesTakeNothingBack(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t)
	opts := coreapi.Options{ServiceCIDRs: []string{"10.7.0.0/28"}, NodePorts: "31000-31003"}
	here, there := startOn(t, d, opts), startOn(t, d, opts)
	services := here.CoreV1().Services("default")
	patch := func(s *server, name, spec string) error {
		_, err := s.CoreV1().Services("default").Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":`+spec+`}`), metav1.PatchOptions{})
		return err
	}
	const (
		address, port = "10.7.0.5", 31002
		inside        = `{"type":"ClusterIP"}`
		external      = `{"type":"ExternalName","externalName":"example.com","clusterIP":"","clusterIPs":null}`
	)
	exposed := func(spec *corev1.ServiceSpec) {
		spec.Type, spec.ClusterIP, spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, address, port
	}
	for name, lost := range map[string]func(name string) error{
		"deleted": func(name string) error { return services.Delete(t.Context(), name, metav1.DeleteOptions{}) },
		"changed": func(name string) error { return patch(there, name, external) },
	} {
		here.createService(t, "default", service(name, exposed))
		if err := lost(name); err != nil {
			t.Fatal(err)
		}
		heir := here.createService(t, "default", service("heir", exposed))
		for _, spec := range []string{inside, external} {
			if err := patch(here, name, spec); err != nil && !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
		}
		for what, claim := range map[string]func(*corev1.ServiceSpec){
			"cluster IP": func(spec *corev1.ServiceSpec) { spec.ClusterIP = address },
			"node port": func(spec *corev1.ServiceSpec) {
				spec.Type, spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, port
			},
		} {
			_, err := services.Create(t.Context(), service("claim", claim), metav1.CreateOptions{})
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "already allocated") {
				t.Errorf("the %s of the heir of a service that was %s: %v, want 422", what, name, err)
			}
		}
		if err := services.Delete(t.Context(), heir.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// Two servers over one storage race for every address of a small range.
func TestTwoServersNeverHandOutOneAddressTwice(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t)
	opts := coreapi.Options{ServiceCIDRs: []string{"10.7.0.0/26"}, RepairInterval: 50 * time.Millisecond}
	servers := []*server{startOn(t, d, opts), startOn(t, d, opts)}
	const wanted = 60 // of 62

	var mu sync.Mutex
	owners := map[string]string{}
	var group sync.WaitGroup
	for worker := range 6 {
		group.Go(func() {
			for i := range wanted / 6 {
				name := fmt.Sprintf("s-%d-%d", worker, i)
				made, err := servers[worker%2].CoreV1().Services("default").Create(context.Background(), service(name, nil), metav1.CreateOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if other, taken := owners[made.Spec.ClusterIP]; taken {
					t.Errorf("%s and %s both have %s", other, name, made.Spec.ClusterIP)
				}
				owners[made.Spec.ClusterIP] = name
				mu.Unlock()
			}
		})
	}
	group.Wait()
	if len(owners) != wanted {
		t.Errorf("%d addresses for %d services", len(owners), wanted)
	}
}

// Services that an earlier release stored with an internalTrafficPolicy lose it when the server
// starts, so that watches do not show it either.
func TestStoredExternalNameLosesItsTrafficPolicy(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t)
	options, err := kubestore.NewGetter(d, legacyscheme.Codecs, kubestore.Options{}).GetRESTOptions(api.Resource("services"), &api.Service{})
	if err != nil {
		t.Fatal(err)
	}
	store, destroy, err := options.Decorator(options.StorageConfig, options.ResourcePrefix, nil, func() runtime.Object { return &api.Service{} }, func() runtime.Object { return &api.ServiceList{} }, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer destroy()
	write := func(name string, spec api.ServiceSpec) {
		t.Helper()
		service := &api.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)}, Spec: spec}
		if err := store.Create(t.Context(), options.ResourcePrefix+"/default/"+name, service, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	write("old", api.ServiceSpec{Type: api.ServiceTypeExternalName, ExternalName: "example.com", SessionAffinity: api.ServiceAffinityNone, InternalTrafficPolicy: ptr.To(api.ServiceInternalTrafficPolicyCluster)})
	write("new", api.ServiceSpec{Type: api.ServiceTypeExternalName, ExternalName: "example.com", SessionAffinity: api.ServiceAffinityNone})

	services := startOn(t, d, coreapi.Options{}).CoreV1().Services("default")
	read := func(name string) *api.Service {
		t.Helper()
		var stored api.Service
		if err := store.Get(t.Context(), options.ResourcePrefix+"/default/"+name, storage.GetOptions{}, &stored); err != nil {
			t.Fatal(err)
		}
		return &stored
	}
	unchanged := read("new").ResourceVersion
	for deadline := time.Now().Add(time.Minute); read("old").Spec.InternalTrafficPolicy != nil; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it is stored still")
		}
	}
	if got := read("new").ResourceVersion; got != unchanged {
		t.Error("a service that has nothing of the kind was written, too")
	}
	s, err := services.Get(t.Context(), "old", metav1.GetOptions{})
	if err != nil || s.Spec.ExternalName != "example.com" || s.UID != "old" {
		t.Errorf("%+v, %v", s, err)
	}
}

// A service of type ExternalName has no internalTrafficPolicy, whichever way it is read.
func TestExternalNameHasNoTrafficPolicy(t *testing.T) {
	t.Parallel()
	services := start(t, coreapi.Options{}).CoreV1().Services("default")
	watched, err := services.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watched.Stop()
	var version string
	none := func(how string, s *corev1.Service, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if version = s.ResourceVersion; s.Spec.InternalTrafficPolicy != nil {
			t.Errorf("%s: %s", how, *s.Spec.InternalTrafficPolicy)
		}
	}
	s, err := services.Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "created"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com", InternalTrafficPolicy: ptr.To(corev1.ServiceInternalTrafficPolicyLocal)},
	}, metav1.CreateOptions{})
	none("created", s, err)
	if s, err = services.Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "changed"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
	s, err = services.Update(t.Context(), s, metav1.UpdateOptions{})
	none("changed", s, err)
	s.Status.Conditions = []metav1.Condition{{Type: "Seen", Status: metav1.ConditionTrue, Reason: "Test", LastTransitionTime: metav1.Now()}}
	s, err = services.UpdateStatus(t.Context(), s, metav1.UpdateOptions{})
	none("with another status", s, err)
	for last := version; ; {
		s, ok := (<-watched.ResultChan()).Object.(*corev1.Service)
		if !ok {
			t.Fatal("the watch broke")
		}
		if s.Spec.Type == corev1.ServiceTypeExternalName {
			none("watched", s, nil)
		}
		if s.ResourceVersion == last {
			return
		}
	}
}
