package coreapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	api "k8s.io/kubernetes/pkg/apis/core"

	"github.com/tidewaiter/tidewaiter/coreapi"
)

// The kinds that make pods can be read, also as tables, and there are none of any; nobody writes
// one.
func TestNothingMakesPods(t *testing.T) {
	t.Parallel()
	s := start(t, coreapi.Options{})
	for version, resources := range map[string][]string{
		"api/v1":        {"limitranges"},
		"apis/apps/v1":  {"daemonsets", "deployments", "replicasets", "statefulsets"},
		"apis/batch/v1": {"cronjobs", "jobs"},
	} {
		served, err := s.Discovery().ServerResourcesForGroupVersion(version[strings.Index(version, "/")+1:])
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range resources {
			verbs := ""
			for _, r := range served.APIResources {
				if r.Name == name {
					verbs = fmt.Sprint(r.Verbs, r.Categories, r.Namespaced)
				}
			}
			if verbs != "[get list] [] true" {
				t.Errorf("%s: %s", name, verbs)
			}
			ask := func(verb, path, accept string) (string, error) {
				text, err := s.RESTClient().Verb(verb).AbsPath("/"+version, path).SetHeader("Accept", accept).Body([]byte("{}")).DoRaw(t.Context())
				return string(text), err
			}
			for _, path := range []string{name, "namespaces/team/" + name} {
				text, err := ask("GET", path, "application/json")
				var list struct {
					Kind  string
					Items []any
				}
				if err != nil || json.Unmarshal([]byte(text), &list) != nil || list.Items == nil || len(list.Items) > 0 || !strings.HasSuffix(list.Kind, "List") {
					t.Errorf("%s: %s, %v", path, text, err)
				}
				if text, err := ask("GET", path, "application/json;as=Table;v=v1;g=meta.k8s.io"); err != nil || !strings.Contains(text, `"name":"Name"`) {
					t.Errorf("%s as a table: %s, %v", path, text, err)
				}
			}
			if _, err := ask("GET", "namespaces/team/"+name+"/a", "application/json"); !apierrors.IsNotFound(err) {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := ask("POST", "namespaces/team/"+name, "application/json"); !apierrors.IsMethodNotSupported(err) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// known are controllers that somebody knows.
type known []corev1.ReplicationController

func (k known) List(context.Context, *internalversion.ListOptions) (*corev1.ReplicationControllerList, error) {
	return &corev1.ReplicationControllerList{ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: "more"}, Items: k}, nil
}

func (k known) Get(_ context.Context, name string) (*corev1.ReplicationController, error) {
	if len(k) == 0 {
		return nil, apierrors.NewNotFound(corev1.Resource("replicationcontrollers"), name)
	}
	return &k[0], nil
}

// What somebody knows is read as Kubernetes' kind.
func TestReplicationControllers(t *testing.T) {
	t.Parallel()
	rc := corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "app", UID: "1"},
		Spec:       corev1.ReplicationControllerSpec{Replicas: new(int32), Template: &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "b"}}}}},
	}
	storage := coreapi.ReplicationControllers(known{rc})
	obj, err := storage.(rest.Lister).List(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	list := obj.(*api.ReplicationControllerList)
	one, err := storage.(rest.Getter).Get(t.Context(), "app", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, got := range []api.ReplicationController{list.Items[0], *one.(*api.ReplicationController)} {
		if got.Namespace != "team" || got.UID != "1" || *got.Spec.Replicas != 0 || got.Spec.Template.Spec.Containers[0].Image != "b" {
			t.Errorf("%+v", got)
		}
	}
	if len(list.Items) != 1 || list.ResourceVersion != "7" || list.Continue != "more" {
		t.Errorf("%+v", list.ListMeta)
	}
	if _, err := coreapi.ReplicationControllers(known{}).(rest.Getter).Get(t.Context(), "app", nil); !apierrors.IsNotFound(err) {
		t.Errorf("%v", err)
	}
}
