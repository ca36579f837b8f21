package access

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/kubernetes/pkg/controller/clusterroleaggregation"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"

	"github.com/tidewaiter/tidewaiter/internal/pages"
)

// Access decides who may do what on a server.
type Access struct {
	// Authorizer lets system:masters do everything. The configured authorizers decide about all other
	// users.
	Authorizer authorizer.Authorizer
	// Rules lists what a user may do in a namespace.
	Rules authorizer.RuleResolver
	// Informers read the roles and bindings for RBAC. The server starts them, and is not
	// ready before they have read everything.
	Informers informers.SharedInformerFactory

	rbac   bool     // roles decide
	others []string // what else decides
}

// New returns the Access that opts describe; nil stands for the defaults. It reads roles and
// bindings with c, which reaches the server itself, once Informers are started. A file of
// --authorization-config is watched until ctx is done; identity names the server in its
// metrics.
func New(ctx context.Context, opts *Options, c *rest.Config, identity string) (*Access, error) {
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, err
	}
	if opts == nil {
		opts = NewOptions()
	}
	a := &Access{Informers: informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(withoutManagedFields))}
	config, err := opts.config(a.Informers)
	if err != nil {
		return nil, err
	}
	for _, decides := range config.AuthorizationConfiguration.Authorizers {
		if string(decides.Type) == modes.ModeRBAC {
			a.rbac = true
		} else {
			a.others = append(a.others, string(decides.Type))
		}
	}
	if a.rbac {
		a.passOverDamage(client.RbacV1().RESTClient())
	}
	if a.Authorizer, a.Rules, err = config.New(ctx, identity); err != nil {
		return nil, fmt.Errorf("authorization: %w", err)
	}
	return a, nil
}

// passOverDamage makes RBAC's informers skip the objects that cannot be read. These grant
// nothing; all others count.
func (a *Access) passOverDamage(client rest.Interface) {
	for resource, example := range map[string]runtime.Object{
		"roles": &rbacv1.Role{}, "rolebindings": &rbacv1.RoleBinding{}, "clusterroles": &rbacv1.ClusterRole{}, "clusterrolebindings": &rbacv1.ClusterRoleBinding{},
	} {
		a.Informers.InformerFor(example, pages.Informer[kubernetes.Interface](client, resource, example, func(err error) {
			slog.Error("Roles or bindings that cannot be read grant nothing", "resource", resource, "err", err)
		}))
	}
}

// withoutManagedFields keeps managed fields out of the informers' memory.
func withoutManagedFields(obj any) (any, error) {
	if m, err := meta.Accessor(obj); err == nil {
		m.SetManagedFields(nil)
	}
	return obj, nil
}

// Hooks run once the server answers requests. There are none unless roles decide.
func (a *Access) Hooks() map[string]genericapiserver.PostStartHookFunc {
	if !a.rbac {
		return nil
	}
	// This makes the informer now, so that it is started with the others.
	roles := a.Informers.Rbac().V1().ClusterRoles()
	roles.Informer()
	return map[string]genericapiserver.PostStartHookFunc{
		"access-bootstrap-roles": a.ensureBootstrapRoles,
		"access-role-aggregation": func(ctx genericapiserver.PostStartHookContext) error {
			client, err := kubernetes.NewForConfig(ctx.LoopbackClientConfig)
			if err != nil {
				return err
			}
			go clusterroleaggregation.NewClusterRoleAggregation(roles, client.RbacV1()).Run(ctx, aggregationWorkers)
			return nil
		},
	}
}

// aggregationWorkers is how many aggregated roles are computed at once.
const aggregationWorkers = 1

// bootstrapRetry is how long to wait after bootstrap roles could not be written, and
// bootstrapPatience how long to wait for the informers to see them.
const (
	bootstrapRetry    = time.Second
	bootstrapPatience = 30 * time.Second
)

// ensureBootstrapRoles writes the bootstrap roles and bindings, and waits until RBAC uses
// them. If it fails, as on a full disk, it tries again while the server is ready: roles from
// before are in force.
func (a *Access) ensureBootstrapRoles(ctx genericapiserver.PostStartHookContext) error {
	// Kubernetes' code for this repeats refused requests, whatever becomes of the server.
	config := rest.CopyConfig(ctx.LoopbackClientConfig)
	config.Wrap(transport.ContextCanceller(ctx, context.Canceled))
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if err = reconcile(ctx, client); err == nil {
		return a.awaitBootstrap(ctx)
	}
	if ctx.Err() != nil {
		return nil // the server stops
	}
	slog.Error("Writing the bootstrap roles failed, will retry", "err", err)
	go func() {
		_ = wait.PollUntilContextCancel(ctx, bootstrapRetry, false, func(ctx context.Context) (bool, error) {
			return reconcile(ctx, client) == nil, nil
		})
	}()
	return nil
}

// awaitBootstrap waits until the informers have seen what was reconciled, at most for
// bootstrapPatience: a client may have deleted a role at once.
func (a *Access) awaitBootstrap(ctx context.Context) error {
	roles, bindings := a.Informers.Rbac().V1().ClusterRoles().Lister(), a.Informers.Rbac().V1().ClusterRoleBindings().Lister()
	wantRoles, wantBindings := Roles(), bootstrapBindings()
	_ = wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, bootstrapPatience, true, func(context.Context) (bool, error) {
		for _, r := range wantRoles {
			if _, err := roles.Get(r.Name); err != nil {
				return false, nil
			}
		}
		for _, b := range wantBindings {
			if _, err := bindings.Get(b.Name); err != nil {
				return false, nil
			}
		}
		return true, nil
	})
	return nil
}
