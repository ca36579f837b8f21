package coreapi

import (
	"context"
	"fmt"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	policyclient "k8s.io/client-go/kubernetes/typed/policy/v1"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"

	"tidewaiter/coreapi/podlogs"
)

// pods is the pod resource with its subresources.
type pods struct {
	rest *podstore.REST
	all  podstore.PodStorage
	log  *podlogs.REST
}

func newPods(g generic.RESTOptionsGetter, logs podlogs.Options) (*pods, error) {
	// exec, attach, port-forward and proxy are not served, so the connection
	// to kubelets, the transport and the authorizer that they need are not
	// given either.
	all, err := podstore.NewStorage(g, nil, nil, noBudgets{}, nil)
	if err != nil {
		return nil, fmt.Errorf("pods: %w", err)
	}
	log, err := podlogs.NewREST(all.Pod.Store, logs)
	if err != nil {
		return nil, fmt.Errorf("pod logs: %w", err)
	}
	return &pods{rest: all.Pod, all: all, log: log}, nil
}

func (p *pods) storage() map[string]rest.Storage {
	return map[string]rest.Storage{
		"pods":                     p.all.Pod,
		"pods/status":              p.all.Status,
		"pods/log":                 p.log,
		"pods/ephemeralcontainers": p.all.EphemeralContainers,
		"pods/resize":              p.all.Resize,
		"pods/binding":             p.all.Binding,
		"pods/eviction":            p.all.Eviction,
		"bindings":                 p.all.LegacyBinding,
	}
}

// noBudgets answers evictions with the truth that no PodDisruptionBudget
// exists, since none is served.
type noBudgets struct {
	policyclient.PodDisruptionBudgetInterface // nil: without a budget nothing else is asked
}

// PodDisruptionBudgets returns the receiver, for any namespace.
func (n noBudgets) PodDisruptionBudgets(string) policyclient.PodDisruptionBudgetInterface { return n }

// List returns no budgets.
func (noBudgets) List(context.Context, metav1.ListOptions) (*policyv1.PodDisruptionBudgetList, error) {
	return &policyv1.PodDisruptionBudgetList{}, nil
}
