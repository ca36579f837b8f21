package coreapi

import (
	"context"
	"fmt"
	"maps"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	leasestore "k8s.io/kubernetes/pkg/registry/coordination/lease/storage"
	eventstore "k8s.io/kubernetes/pkg/registry/core/event/storage"

	// The types served, in the scheme k8s.io/kubernetes/pkg/api/legacyscheme.
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/authentication/install" // TokenRequest
	_ "k8s.io/kubernetes/pkg/apis/authorization/install"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/events/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install" // Eviction
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/coreapi/usage"
)

// API is what a server installs: the storages that Resources returns, and hooks to run once it
// listens.
type API struct {
	own            map[schema.GroupVersion]map[string]rest.Storage // of all kinds but those of clusters
	PostStartHooks map[string]genericapiserver.PostStartHookFunc
	// Usage knows which pods use an image, once its hook has read the pods.
	Usage Usage
	// Accounts looks up the account of a token.
	Accounts AccountGetter
	// Clusters are the followed clusters; Run follows them.
	Clusters *clusters.Clusters
	// Runs is the storage of what ran when, for the server's own writes.
	Runs *genericregistry.Store
}

// Resources returns the storage of each resource and subresource by group and version, to be served
// with the scheme and codecs of k8s.io/kubernetes/pkg/api/legacyscheme. pods are the pods of
// clusters, and needed the ReplicationControllers that a server of its own shows; it may be nil.
func (a *API) Resources(pods *clusters.PodsREST, needed Controllers) map[schema.GroupVersion]map[string]rest.Storage {
	all := maps.Clone(a.own)
	all[clusters.GroupVersion] = map[string]rest.Storage{"clusters": a.Clusters.REST(), "clusterpods": pods}
	if core := all[corev1.SchemeGroupVersion]; core != nil && needed != nil {
		all[corev1.SchemeGroupVersion] = merge(core, map[string]rest.Storage{replicationControllers.Resource: ReplicationControllers(needed)})
	}
	return all
}

// Usage knows which pods of this server and of the followed clusters use an image.
type Usage struct {
	*usage.Index
	clusters *clusters.Clusters
}

// Complete reports whether every pod, also of each cluster, has been read once, so that a count of
// zero means that none uses the image.
func (u Usage) Complete() bool { return u.Synced() && u.clusters.Synced() }

// StaleReasons names the clusters whose pod data is missing or out of date, how old it is, and why.
func (u Usage) StaleReasons() []string { return u.clusters.StaleReasons() }

// Unfollowed returns why it is not known what runs elsewhere, if no cluster is followed; otherwise
// "".
func (u Usage) Unfollowed() string { return u.clusters.Unfollowed() }

// WorkloadStaleReasons lists the workloads that are missing or out of date in clusters whose pods
// are known, and why.
func (u Usage) WorkloadStaleReasons() []string { return u.clusters.WorkloadStaleReasons() }

// New builds the API over the storages that g gives.
func New(g generic.RESTOptionsGetter, opts Options) (*API, error) {
	s, err := opts.complete()
	if err != nil {
		return nil, fmt.Errorf("coreapi: %w", err)
	}
	namespaces, err := newNamespaces(collected{g})
	if err != nil {
		return nil, err
	}
	pods, err := newPods(collected{g}, namespaces, s.podLogs)
	if err != nil {
		return nil, err
	}
	services, err := newServices(collected{g}, s, pods.rest)
	if err != nil {
		return nil, err
	}
	accounts, err := newServiceAccounts(collected{g}, opts.Tokens, pods.rest)
	if err != nil {
		return nil, err
	}
	accounts.BeginCreate = func(ctx context.Context, obj runtime.Object, opts *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
		return func(context.Context, bool) {}, namespaces.ensureBeforeAccount(ctx, obj, opts)
	}
	events, err := eventstore.NewREST(g, s.eventTTL)
	if err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	leases, err := leasestore.NewREST(collected{g})
	if err != nil {
		return nil, fmt.Errorf("leases: %w", err)
	}
	stores := []*genericregistry.Store{pods.rest.Store, services.rest.Store, events.Store, leases.Store}
	served := eventsREST{events, opts.NewestFirst}
	groups := map[schema.GroupVersion]map[string]rest.Storage{
		corev1.SchemeGroupVersion: merge(
			namespaces.storage(), pods.storage(), map[string]rest.Storage{"services": services.rest, "services/status": services.status}, accountStorage(accounts),
			map[string]rest.Storage{"events": served}),
		eventsv1.SchemeGroupVersion:       {"events": sharedEvents{served}},
		coordinationv1.SchemeGroupVersion: {"leases": leases},
	}
	for gv, served := range workloads() {
		groups[gv] = merge(groups[gv], served)
	}
	if opts.Authorizer != nil {
		roles, err := newRoles(collected{g}, opts.Authorizer)
		if err != nil {
			return nil, err
		}
		stores = append(stores, roles.namespaced...)
		groups[rbacv1.SchemeGroupVersion] = roles.storage
		groups[authorizationv1.SchemeGroupVersion] = accessReviews(opts.Authorizer, opts.Rules)
	}
	for _, store := range stores {
		store.BeginCreate = namespaces.ensureBefore(store.BeginCreate)
	}
	if !opts.OnlyClusters {
		opts.Clusters.Own = pods.rest
	}
	followed, err := clusters.New(g, legacyscheme.Scheme, opts.Clusters)
	if err != nil {
		return nil, err
	}
	runs, err := imageruns.New(g, legacyscheme.Scheme)
	if err != nil {
		return nil, err
	}
	index := usage.NewIndex(followed.Uses())
	followed.ReportNeeds(index)
	if opts.OnlyClusters {
		return &API{
			own:            map[schema.GroupVersion]map[string]rest.Storage{},
			PostStartHooks: map[string]genericapiserver.PostStartHookFunc{usageHook: run(index)},
			Usage:          Usage{index, followed},
			Clusters:       followed,
			Runs:           runs,
		}, nil
	}
	hooks := map[string]genericapiserver.PostStartHookFunc{
		"coreapi-system-namespaces":    namespaces.createSystem,
		"coreapi-namespace-controller": runNamespaceController,
		"coreapi-service-accounts":     runServiceAccountController,
		"coreapi-garbage-collector":    runGarbageCollector(s.uncollected),
		"coreapi-service-repair":       services.runRepair,
		usageHook:                      run(index),
	}
	if !opts.NoLease {
		hooks["coreapi-server-lease"] = keepServerLease(s.identity)
	}
	return &API{
		own:            groups,
		PostStartHooks: hooks,
		Accounts:       AccountGetter{accounts, pods.rest},
		Usage:          Usage{index, followed},
		Clusters:       followed,
		Runs:           runs,
	}, nil
}

// usageHook is the name of the hook that finds out which pods use an image.
const usageHook = "coreapi-image-usage"

func run(index *usage.Index) genericapiserver.PostStartHookFunc {
	return func(ctx genericapiserver.PostStartHookContext) error {
		go index.Run(ctx)
		return nil
	}
}

func merge(parts ...map[string]rest.Storage) map[string]rest.Storage {
	all := map[string]rest.Storage{}
	for _, part := range parts {
		maps.Copy(all, part)
	}
	return all
}
