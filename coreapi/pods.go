package coreapi

import (
	"context"
	"fmt"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	policyclient "k8s.io/client-go/kubernetes/typed/policy/v1"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"

	"github.com/tidewaiter/tidewaiter/coreapi/podlogs"
)

// pods is the pod resource with its subresources.
type pods struct {
	rest *podstore.REST
	all  podstore.PodStorage
	log  *podlogs.REST
	in   *namespaces
}

func newPods(g generic.RESTOptionsGetter, in *namespaces, logs podlogs.Options) (*pods, error) {
	// exec, attach, port-forward and proxy are not served. They would need a connection
	// to kubelets, a transport and an authorizer, which are nil here.
	all, err := podstore.NewStorage(g, nil, nil, noBudgets{}, nil)
	if err != nil {
		return nil, fmt.Errorf("pods: %w", err)
	}
	log, err := podlogs.NewREST(all.Pod.Store, logs)
	if err != nil {
		return nil, fmt.Errorf("pod logs: %w", err)
	}
	return &pods{rest: all.Pod, all: all, log: log, in: in}, nil
}

func (p *pods) storage() map[string]rest.Storage {
	return map[string]rest.Storage{
		"pods":                     p.all.Pod,
		"pods/status":              p.all.Status,
		"pods/log":                 p.log,
		"pods/ephemeralcontainers": p.all.EphemeralContainers,
		"pods/resize":              p.all.Resize,
		"pods/binding":             binding{p.all.Binding, p.in},
		"pods/eviction":            eviction{p.all.Eviction, p.in},
		"bindings":                 legacyBinding{p.all.LegacyBinding, p.in},
	}
}

// Pods are neither bound nor evicted in a namespace that is being deleted.

type binding struct {
	*podstore.BindingREST
	in *namespaces
}

// Create binds the named pod.
func (b binding) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, opts *metav1.CreateOptions) (runtime.Object, error) {
	if _, err := b.in.open(ctx, name); err != nil {
		return nil, err
	}
	return b.BindingREST.Create(ctx, name, obj, validate, opts)
}

type legacyBinding struct {
	*podstore.LegacyBindingREST
	in *namespaces
}

// Create binds the pod that has the binding's name.
func (b legacyBinding) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, opts *metav1.CreateOptions) (runtime.Object, error) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	if _, err := b.in.open(ctx, object.GetName()); err != nil {
		return nil, err
	}
	return b.LegacyBindingREST.Create(ctx, obj, validate, opts)
}

type eviction struct {
	*podstore.EvictionREST
	in *namespaces
}

// Create evicts the named pod.
func (e eviction) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, opts *metav1.CreateOptions) (runtime.Object, error) {
	if _, err := e.in.open(ctx, name); err != nil {
		return nil, err
	}
	return e.EvictionREST.Create(ctx, name, obj, validate, opts)
}

// noBudgets answers evictions that no PodDisruptionBudget exists, which is true, since
// none is served.
type noBudgets struct {
	policyclient.PodDisruptionBudgetInterface // nil: without a budget, only the lister is used
}

// PodDisruptionBudgets returns the receiver, for any namespace.
func (n noBudgets) PodDisruptionBudgets(string) policyclient.PodDisruptionBudgetInterface { return n }

// List returns no budgets.
func (noBudgets) List(context.Context, metav1.ListOptions) (*policyv1.PodDisruptionBudgetList, error) {
	return &policyv1.PodDisruptionBudgetList{}, nil
}
