package coreapi

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	api "k8s.io/kubernetes/pkg/apis/core"
	serviceaccountcontroller "k8s.io/kubernetes/pkg/controller/serviceaccount"
	accountstore "k8s.io/kubernetes/pkg/registry/core/serviceaccount/storage"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/tidewaiter/tidewaiter/internal/pages"
)

// defaultAccount is the service account that Kubernetes' controller makes in each
// namespace.
const defaultAccount = "default"

// accountWorkers is how many namespaces are given their service account at once.
const accountWorkers = 1

// Tokens configures how tokens of service accounts are made. The zero value makes none.
type Tokens struct {
	// Generator signs tokens; without one serviceaccounts/token is not served.
	Generator serviceaccount.TokenGenerator
	// Audiences are the audiences of a token whose request names none.
	Audiences []string
	// MaxExpiration is the longest life of a token; 0 for no bound.
	MaxExpiration time.Duration
	// ExtendExpiration lets a pod's token that was requested for 3607 seconds live for
	// MaxExtendedExpiration, as in Kubernetes.
	ExtendExpiration      bool
	MaxExtendedExpiration time.Duration
}

func newServiceAccounts(g generic.RESTOptionsGetter, t Tokens, pods rest.Getter) (*accountstore.REST, error) {
	// Secrets, nodes and admission webhooks are not served, so no token is bound to one. The registry
	// uses the authorizer for webhooks only.
	accounts, err := accountstore.NewREST(g, t.Generator, t.Audiences, authorizerfactory.NewAlwaysDenyAuthorizer(), t.MaxExpiration,
		pods, notServed("secrets"), notServed("nodes"),
		noWebhooks[*admissionregistrationv1.ValidatingWebhookConfiguration]("validatingwebhookconfigurations"),
		noWebhooks[*admissionregistrationv1.MutatingWebhookConfiguration]("mutatingwebhookconfigurations"),
		t.ExtendExpiration, t.MaxExtendedExpiration)
	if err != nil {
		return nil, fmt.Errorf("service accounts: %w", err)
	}
	return accounts, nil
}

func accountStorage(accounts *accountstore.REST) map[string]rest.Storage {
	storage := map[string]rest.Storage{"serviceaccounts": accounts}
	if accounts.Token != nil {
		storage["serviceaccounts/token"] = accounts.Token
	}
	return storage
}

// ensureBeforeAccount is ensureBefore for all service accounts except the one that the
// controller makes. The controller follows the namespaces and may be late: it would bring
// back a namespace that was just deleted.
func (n *namespaces) ensureBeforeAccount(ctx context.Context, obj runtime.Object, opts *metav1.CreateOptions) error {
	account, ok := obj.(*api.ServiceAccount)
	if !ok || account.Name != defaultAccount {
		return n.ensure(ctx, obj, opts)
	}
	exists, err := n.open(ctx, account.Name)
	if err == nil && !exists {
		err = apierrors.NewNotFound(api.Resource("namespaces"), genericapirequest.NamespaceValue(ctx))
	}
	return err
}

// runServiceAccountController runs Kubernetes' controller that makes the service
// account "default" in each namespace.
func runServiceAccountController(ctx genericapiserver.PostStartHookContext) error {
	client, err := kubernetes.NewForConfig(ctx.LoopbackClientConfig)
	if err != nil {
		return err
	}
	shared := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(onlyIdentity))
	for resource, example := range map[string]runtime.Object{"serviceaccounts": &corev1.ServiceAccount{}, "namespaces": &corev1.Namespace{}} {
		shared.InformerFor(example, pages.Informer[kubernetes.Interface](client.CoreV1().RESTClient(), resource, example, func(err error) {
			slog.Error("A namespace cannot be read, so it gets no default service account", "resource", resource, "err", err)
		}))
	}
	controller, err := serviceaccountcontroller.NewServiceAccountsController(klog.FromContext(ctx), shared.Core().V1().ServiceAccounts(), shared.Core().V1().Namespaces(),
		client, serviceaccountcontroller.DefaultServiceAccountsControllerOptions())
	if err != nil {
		return err
	}
	shared.Start(ctx.Done())
	go controller.Run(ctx, accountWorkers)
	return nil
}

// AccountGetter looks up the object that a token of a service account is bound to, in the
// storage itself, where a deleted object is gone at once.
type AccountGetter struct {
	accounts, pods rest.Getter
}

var _ serviceaccount.ServiceAccountTokenGetter = AccountGetter{}

// GetServiceAccount returns a service account.
func (a AccountGetter) GetServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	account := &corev1.ServiceAccount{}
	return account, get(ctx, a.accounts, namespace, name, account)
}

// GetPod returns a pod.
func (a AccountGetter) GetPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	return pod, get(ctx, a.pods, namespace, name, pod)
}

// GetSecret finds none: secrets are not served.
func (AccountGetter) GetSecret(_ context.Context, _, name string) (*corev1.Secret, error) {
	return nil, notServed("secrets").error(name)
}

// GetNode finds none: nodes are not served.
func (AccountGetter) GetNode(_ context.Context, name string) (*corev1.Node, error) {
	return nil, notServed("nodes").error(name)
}

// GetValidatingWebhookConfiguration finds none: they are not served.
func (AccountGetter) GetValidatingWebhookConfiguration(_ context.Context, name string) (*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	return nil, notServed("validatingwebhookconfigurations").error(name)
}

// GetMutatingWebhookConfiguration finds none: they are not served.
func (AccountGetter) GetMutatingWebhookConfiguration(_ context.Context, name string) (*admissionregistrationv1.MutatingWebhookConfiguration, error) {
	return nil, notServed("mutatingwebhookconfigurations").error(name)
}

// get reads an object of a registry into its v1 form.
func get(ctx context.Context, from rest.Getter, namespace, name string, into runtime.Object) error {
	internal, err := from.Get(genericapirequest.WithNamespace(ctx, namespace), name, &metav1.GetOptions{})
	if err != nil {
		return err
	}
	return legacyscheme.Scheme.Convert(internal, into, nil)
}

// notServed is a resource that has no objects, since it is not served.
type notServed string

func (n notServed) error(name string) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: string(n)}, name)
}

// Get finds nothing.
func (n notServed) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	return nil, n.error(name)
}

// noWebhooks is notServed for a kind of admission webhooks.
type noWebhooks[T any] string

// Get finds nothing.
func (n noWebhooks[T]) Get(_ context.Context, name string, _ metav1.GetOptions) (none T, err error) {
	return none, notServed(n).error(name)
}

// onlyIdentity drops the fields that the controller does not use.
func onlyIdentity(obj any) (any, error) {
	if object, err := meta.Accessor(obj); err == nil {
		object.SetLabels(nil)
		object.SetAnnotations(nil)
		object.SetManagedFields(nil)
	}
	return obj, nil
}
