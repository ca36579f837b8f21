package web

import (
	"bytes"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	registryrest "k8s.io/apiserver/pkg/registry/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/fake"
)

// A cluster's APIService is made to lead here with the authority to trust, once. One of another
// server is left alone.
func TestKeepAPIService(t *testing.T) {
	t.Parallel()
	credentials, err := LoadCredentials(t.TempDir(), ServingHosts(net.IPv4(127, 0, 0, 1)), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(credentials.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{credentials: credentials, cluster: &Cluster{Namespace: "tidewaiter", Name: "tidewaiter", Port: 443}}
	s.cluster.lead(map[schema.GroupVersion]map[string]registryrest.Storage{{Group: "b", Version: "v1"}: nil, {Group: "a", Version: "v1"}: nil})
	if got := strings.Join(s.cluster.apiServices, " "); got != "v1.a v1.b" {
		t.Errorf("the APIServices are %s", got)
	}
	wrong := int32(1)
	of := func(service *apiregistrationv1.ServiceReference) *apiregistrationv1.APIService {
		return &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1.a"}, Spec: apiregistrationv1.APIServiceSpec{
			Group: "a", Version: "v1", GroupPriorityMinimum: 7, VersionPriority: 8, InsecureSkipTLSVerify: true, Service: service}}
	}
	for _, c := range []struct {
		what    string
		have    *apiregistrationv1.APIService
		refused string
	}{
		{"ours, as it was installed", of(&apiregistrationv1.ServiceReference{Namespace: "tidewaiter", Name: "tidewaiter", Port: &wrong}), ""},
		{"another's", of(&apiregistrationv1.ServiceReference{Namespace: "openshift-apiserver", Name: "api"}), "another server"},
		{"another's of the same name", of(&apiregistrationv1.ServiceReference{Namespace: "elsewhere", Name: "tidewaiter"}), "another server"},
		{"of kinds that are defined in the cluster", of(nil), "another server"},
		{"none", nil, "does not exist"},
	} {
		clients := fake.NewClientset()
		client := clients.ApiregistrationV1().APIServices()
		if c.have != nil {
			if _, err := client.Create(t.Context(), c.have, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		clients.ClearActions()
		for range 2 {
			err = s.keepAPIService(t.Context(), client, "v1.a")
			if c.refused == "" && err != nil || c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)) {
				t.Errorf("%s: %v, want %q", c.what, err, c.refused)
			}
		}
		writes := 0
		for _, a := range clients.Actions() {
			if a.GetVerb() != "get" {
				writes++
			}
		}
		if c.refused != "" {
			if writes != 0 {
				t.Errorf("%s: it was written %d times", c.what, writes)
			}
			continue
		}
		got, err := client.Get(t.Context(), "v1.a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if spec := got.Spec; writes != 1 || !bytes.Equal(spec.CABundle, ca) || spec.InsecureSkipTLSVerify || *spec.Service.Port != 443 || spec.GroupPriorityMinimum != 7 {
			t.Errorf("%s: %d writes made it %+v", c.what, writes, spec)
		}
	}
}
