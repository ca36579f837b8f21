package coreapi_test

import (
	"context"
	"fmt"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tidewaiter/tidewaiter/coreapi"
)

// Pages of all namespaces of which one is selected end, and have each object of that one once. (The
// generic registry narrows the first page alone.)
func TestPagesOfASelectedNamespaceEnd(t *testing.T) {
	t.Parallel()
	s := start(t, coreapi.Options{})
	const objects = 5
	namespaces := []string{"aaa", "team", "zzz"}
	for _, namespace := range namespaces {
		for i := range objects {
			name := fmt.Sprint("one-", i)
			s.createPod(t, namespace, pod(name))
			_, err := s.CoreV1().Services(namespace).Create(t.Context(), service(name, nil), metav1.CreateOptions{})
			if err == nil {
				_, err = s.CoordinationV1().Leases(namespace).Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			}
			if err == nil {
				_, err = s.CoreV1().Events(namespace).Create(t.Context(), &corev1.Event{
					ObjectMeta: metav1.ObjectMeta{Name: name}, InvolvedObject: corev1.ObjectReference{Namespace: namespace, Name: name}}, metav1.CreateOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for kind, list := range map[string]func(context.Context, metav1.ListOptions) (runtime.Object, error){
		"pods": func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return s.CoreV1().Pods("").List(ctx, o)
		},
		"services": func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return s.CoreV1().Services("").List(ctx, o)
		},
		"events": func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return s.CoreV1().Events("").List(ctx, o)
		},
		"leases": func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return s.CoordinationV1().Leases("").List(ctx, o)
		},
	} {
		for _, namespace := range namespaces {
			inPages(t, kind+" of "+namespace, namespace, objects, list)
		}
	}
}

// inPages reads pages of two of the objects of a namespace, which are so many and have the names of
// the test.
func inPages(t *testing.T, kind, namespace string, objects int, list func(context.Context, metav1.ListOptions) (runtime.Object, error)) {
	t.Helper()
	seen := map[string]int{}
	o := metav1.ListOptions{FieldSelector: "metadata.namespace=" + namespace, Limit: 2}
	for pages := 0; ; pages++ {
		page, err := list(t.Context(), o)
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		_ = meta.EachListItem(page, func(obj runtime.Object) error {
			m, err := meta.Accessor(obj)
			if err == nil {
				seen[m.GetNamespace()+"/"+m.GetName()]++
			}
			return err
		})
		m, err := meta.ListAccessor(page)
		if err != nil {
			t.Fatal(err)
		}
		if o.Continue = m.GetContinue(); o.Continue == "" {
			break
		}
		if pages > objects {
			t.Errorf("%s: %d pages, and no end", kind, pages)
			break
		}
	}
	for i := range objects {
		if name := fmt.Sprint(namespace, "/one-", i); seen[name] != 1 {
			t.Errorf("%s: %s is there %d times", kind, name, seen[name])
		}
	}
	if len(seen) != objects {
		t.Errorf("%s: pages have %v", kind, seen)
	}
}
