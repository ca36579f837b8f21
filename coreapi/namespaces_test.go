package coreapi_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/tidewaiter/tidewaiter/coreapi"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
)

func (s *server) namespaceNames(t *testing.T) []string {
	t.Helper()
	list, err := s.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, n := range list.Items {
		if n.Labels[corev1.LabelMetadataName] != n.Name {
			t.Errorf("namespace %s has labels %v", n.Name, n.Labels)
		}
		names = append(names, n.Name)
	}
	return names
}

func TestNamespacesComeWithTheirObjects(t *testing.T) {
	t.Parallel()
	s := start(t, coreapi.Options{})
	if got, want := s.namespaceNames(t), []string{"default", "kube-system"}; !slices.Equal(got, want) {
		t.Errorf("at the start there are %v, want %v", got, want)
	}
	create := map[string]func(namespace string) error{
		"pods": func(ns string) error {
			_, err := s.CoreV1().Pods(ns).Create(t.Context(), pod("a"), metav1.CreateOptions{})
			return err
		},
		"services": func(ns string) error {
			_, err := s.CoreV1().Services(ns).Create(t.Context(), service("a", nil), metav1.CreateOptions{})
			return err
		},
		"leases": func(ns string) error {
			_, err := s.CoordinationV1().Leases(ns).Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
			return err
		},
		"events": func(ns string) error {
			_, err := s.CoreV1().Events(ns).Create(t.Context(), &corev1.Event{
				ObjectMeta:     metav1.ObjectMeta{Name: "a"},
				InvolvedObject: corev1.ObjectReference{Namespace: ns, Name: "a"},
			}, metav1.CreateOptions{})
			return err
		},
		"applied": func(ns string) error { // creation by server-side apply
			_, err := s.CoreV1().Pods(ns).Patch(t.Context(), "b", types.ApplyPatchType,
				[]byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"},"spec":{"containers":[{"name":"c","image":"a"}]}}`), metav1.PatchOptions{FieldManager: "test"})
			return err
		},
	}
	want := []string{"default", "kube-system"}
	for kind, f := range create {
		if err := f("of-" + kind); err != nil {
			t.Errorf("%s in a namespace nobody created: %v", kind, err)
		}
		want = append(want, "of-"+kind)
	}
	slices.Sort(want)
	if got := s.namespaceNames(t); !slices.Equal(got, want) {
		t.Errorf("namespaces %v, want %v", got, want)
	}

	if _, err := s.CoreV1().Pods("dry").Create(t.Context(), pod("a"), metav1.CreateOptions{DryRun: []string{"All"}}); err != nil {
		t.Errorf("dry run: %v", err)
	}
	_, err := s.CoreV1().Pods("Not_A_Name").Create(t.Context(), pod("a"), metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "metadata.namespace") {
		t.Errorf("a pod in an impossible namespace: %v, want 422 for metadata.namespace", err)
	}
	if got := s.namespaceNames(t); !slices.Equal(got, want) {
		t.Errorf("after a dry run and a refused pod there are %v, want %v", got, want)
	}
	if err := s.CoreV1().Namespaces().Delete(t.Context(), "default", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("deleting default: %v, want 403", err)
	}
}

func TestDeletingANamespaceDeletesItsContents(t *testing.T) {
	t.Parallel()
	s := start(t, coreapi.Options{ServiceCIDRs: []string{"10.7.0.0/29"}})
	held := pod("held")
	held.Finalizers = []string{"example.com/hold"}
	if _, err := s.CoreV1().Pods("team").Create(t.Context(), held, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CoreV1().Pods("team").Create(t.Context(), pod("free"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range 6 { // all addresses there are
		s.createService(t, "team", service("s"+string(rune('a'+i)), nil))
	}
	if _, err := s.CoordinationV1().Leases("team").Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CoreV1().Pods("other").Create(t.Context(), pod("stays"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.CoreV1().Namespaces().Delete(t.Context(), "team", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}

	_, err := s.CoreV1().Pods("team").Create(t.Context(), pod("late"), metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		t.Errorf("a pod in a namespace that is being deleted: %v, want 403 with the cause NamespaceTerminating", err)
	}
	_, err = s.EventsV1().Events("team").Create(t.Context(), &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Name: "late"}}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.HasPrefix(err.Error(), `events.events.k8s.io "late" is forbidden: `) {
		t.Errorf("an event there: %v, want 403 for events.events.k8s.io", err)
	}
	to := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "held"}, Target: corev1.ObjectReference{Kind: "Node", Name: "worker-1"}}
	for what, act := range map[string]func() error{
		"binding": func() error { return s.CoreV1().Pods("team").Bind(t.Context(), to, metav1.CreateOptions{}) },
		"binding by the old way": func() error {
			return s.CoreV1().RESTClient().Post().Namespace("team").Resource("bindings").Body(to).Do(t.Context()).Error()
		},
		"eviction": func() error {
			return s.PolicyV1().Evictions("team").Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "held", Namespace: "team"}})
		},
	} {
		if err := act(); !apierrors.IsForbidden(err) || !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			t.Errorf("%s of a pod there: %v, want 403 with the cause NamespaceTerminating", what, err)
		}
	}
	eventually(t, "the namespace says what it waits for", func() (bool, any) {
		ns, err := s.CoreV1().Namespaces().Get(t.Context(), "team", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		left, err := s.CoreV1().Pods("team").List(t.Context(), metav1.ListOptions{})
		return err == nil && ns.Status.Phase == corev1.NamespaceTerminating && len(left.Items) == 1, left
	})
	if _, err := s.CoreV1().Pods("team").Patch(t.Context(), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the namespace goes", func() (bool, any) {
		ns, err := s.CoreV1().Namespaces().Get(t.Context(), "team", metav1.GetOptions{})
		return apierrors.IsNotFound(err), ns
	})
	for kind, count := range map[string]func() (int, error){
		"pods": func() (int, error) {
			l, err := s.CoreV1().Pods("team").List(t.Context(), metav1.ListOptions{})
			return len(l.Items), err
		},
		"services": func() (int, error) {
			l, err := s.CoreV1().Services("team").List(t.Context(), metav1.ListOptions{})
			return len(l.Items), err
		},
		"leases": func() (int, error) {
			l, err := s.CoordinationV1().Leases("team").List(t.Context(), metav1.ListOptions{})
			return len(l.Items), err
		},
	} {
		if n, err := count(); err != nil || n != 0 {
			t.Errorf("%d %s are left: %v", n, kind, err)
		}
	}
	if _, err := s.CoreV1().Pods("other").Get(t.Context(), "stays", metav1.GetOptions{}); err != nil {
		t.Errorf("a pod of another namespace: %v", err)
	}
	for i := range 6 {
		// the addresses are free again, and so is the name
		s.createService(t, "team", service("again"+string(rune('a'+i)), nil))
	}
}

// A damaged namespace can be deleted like any damaged object; a system namespace
// comes back with what is created in it.
func TestDamagedNamespacesCanBeDeleted(t *testing.T) {
	t.Parallel()
	s := start(t, coreapi.Options{})
	if _, err := s.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "wreck"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	unsafe := true
	opts := metav1.DeleteOptions{IgnoreStoreReadErrorWithClusterBreakingPotential: &unsafe}
	for _, name := range []string{"wreck", metav1.NamespaceDefault} {
		if err := s.CoreV1().Namespaces().Delete(t.Context(), name, opts); err == nil {
			t.Errorf("%s was whole and is gone", name)
		}
		dbtest.Damage(t, s.db, "/core/namespaces/"+name)
		if err := s.CoreV1().Namespaces().Delete(t.Context(), name, opts); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.CoreV1().Pods(metav1.NamespaceDefault).Create(t.Context(), pod("survivor"), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	list, err := s.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, ns := range list.Items {
		if ns.Name == "wreck" {
			t.Error("wreck is still there")
		}
	}
	s.stop()
	if err := s.db.Compact(t.Context(), s.db.Revision()); err != nil {
		// so that the check at the end finds a whole file
		t.Fatal(err)
	}
}

// While nothing can be written the system namespaces are tried again: an error
// of a start hook would end the process.
func TestSystemNamespacesAreTriedAgain(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t)
	api, err := coreapi.New(kubestore.NewGetter(d, legacyscheme.Codecs, kubestore.Options{}), coreapi.Options{Identity: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	if err := api.PostStartHooks["coreapi-system-namespaces"](genericapiserver.PostStartHookContext{Context: ctx}); err != nil {
		t.Error(err)
	}
}
