// Package follower creates the service account that a server uses to follow a cluster. The account
// may list and watch pods, nodes and workloads, and nothing else.
package follower

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applyrbacv1 "k8s.io/client-go/applyconfigurations/rbac/v1"
	"k8s.io/client-go/discovery"
	typedauthorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typedrbacv1 "k8s.io/client-go/kubernetes/typed/rbac/v1"
	restclient "k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/internal/cli"
)

// Name is the name of the account, of its role and of their binding.
const Name = "tidewaiter-follower"

// verbs are the account's verbs.
var verbs = []string{"list", "watch"}

// Account is the account in a cluster that a server will follow.
type Account struct {
	// Admin is the configuration of a client that may create the account.
	Admin *restclient.Config
	// Namespace is the account's namespace.
	Namespace string
	// Kinds are the resources that the account may list and watch.
	Kinds []schema.GroupResource
}

// Find sets Kinds: pods, nodes, and the workloads whose group the cluster serves.
func (a *Account) Find(workloads []clusters.Workload) error {
	client, err := discovery.NewDiscoveryClientForConfig(a.Admin)
	if err != nil {
		return err
	}
	served, err := client.ServerGroups()
	if err != nil {
		return err
	}
	serves := func(group string) bool {
		return slices.ContainsFunc(served.Groups, func(g metav1.APIGroup) bool { return g.Name == group })
	}
	// An APIService may add these kinds to a cluster.
	if serves(clusters.GroupVersion.Group) && !serves("apiregistration.k8s.io") {
		return cli.WithHint(fmt.Errorf("%s is a tidewaiter server, and no cluster", a.Admin.Host), "--kubeconfig names the file with the cluster's context")
	}
	a.Kinds = []schema.GroupResource{{Resource: "pods"}, {Resource: "nodes"}}
	for _, w := range workloads {
		if w.Group == "" || serves(w.Group) {
			a.Kinds = append(a.Kinds, schema.GroupResource{Group: w.Group, Resource: w.Resource})
		}
	}
	return nil
}

// KindNames returns the names of the kinds in kubectl.
func (a *Account) KindNames() []string {
	names := make([]string, len(a.Kinds))
	for i, kind := range a.Kinds {
		names[i] = kind.String()
	}
	return names
}

// needed returns the rights that Create needs.
func (a *Account) needed() []authorizationv1.ResourceAttributes {
	all := []authorizationv1.ResourceAttributes{{Verb: "create", Resource: "serviceaccounts", Subresource: "token", Namespace: a.Namespace}}
	for _, verb := range []string{"create", "patch"} {
		all = append(all, authorizationv1.ResourceAttributes{Verb: verb, Resource: "serviceaccounts", Namespace: a.Namespace},
			authorizationv1.ResourceAttributes{Verb: verb, Group: rbacv1.GroupName, Resource: "clusterroles"},
			authorizationv1.ResourceAttributes{Verb: verb, Group: rbacv1.GroupName, Resource: "clusterrolebindings"})
	}
	return append(all, a.reads()...) // a user cannot grant rights that the user lacks
}

// reads returns the rights of the account.
func (a *Account) reads() (all []authorizationv1.ResourceAttributes) {
	for _, kind := range a.Kinds {
		for _, verb := range verbs {
			all = append(all, authorizationv1.ResourceAttributes{Verb: verb, Group: kind.Group, Resource: kind.Resource})
		}
	}
	return all
}

// missing returns, in words, the rights that a caller lacks by the cluster's
// SelfSubjectAccessReviews.
func missing(ctx context.Context, caller *restclient.Config, rights []authorizationv1.ResourceAttributes) (lacks []string, err error) {
	client, err := typedauthorizationv1.NewForConfig(caller)
	if err != nil {
		return nil, err
	}
	lacking, order := map[string][]string{}, []string{}
	for _, right := range rights {
		review, err := client.SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &right},
		}, metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		if !review.Status.Allowed {
			what := schema.GroupResource{Group: right.Group, Resource: right.Resource}.String()
			if right.Subresource != "" {
				what += "/" + right.Subresource
			}
			if right.Namespace != "" {
				what += " in " + right.Namespace
			}
			if lacking[what] == nil {
				order = append(order, what)
			}
			lacking[what] = append(lacking[what], right.Verb)
		}
	}
	places := map[string]int{}
	for _, what := range order {
		does := strings.Join(lacking[what], " and ")
		if at, known := places[does]; known {
			lacks[at] += ", " + what
			continue
		}
		places[does], lacks = len(lacks), append(lacks, does+" "+what)
	}
	return lacks, nil
}

// Missing returns what Admin lacks to create the account.
func (a *Account) Missing(ctx context.Context) ([]string, error) {
	lacks, err := missing(ctx, a.Admin, a.needed())
	if err != nil || len(lacks) == 0 {
		return nil, err
	}
	escalate := authorizationv1.ResourceAttributes{Verb: "escalate", Group: rbacv1.GroupName, Resource: "clusterroles"}
	if may, err := missing(ctx, a.Admin, []authorizationv1.ResourceAttributes{escalate}); err == nil && len(may) == 0 {
		return missing(ctx, a.Admin, a.needed()[:len(a.needed())-len(a.reads())])
	}
	return lacks, nil
}

// Create creates or updates the account, and returns a token for it with its expiry.
func (a *Account) Create(ctx context.Context, duration time.Duration) (token string, end time.Time, err error) {
	accounts, err := typedcorev1.NewForConfig(a.Admin)
	if err != nil {
		return "", end, err
	}
	roles, err := typedrbacv1.NewForConfig(a.Admin)
	if err != nil {
		return "", end, err
	}
	// If kubectl create made the account, kubectl is another manager of the same fields.
	options := metav1.ApplyOptions{FieldManager: Name, Force: true}
	if _, err := accounts.ServiceAccounts(a.Namespace).Apply(ctx, applycorev1.ServiceAccount(Name, a.Namespace), options); err != nil {
		return "", end, err
	}
	role := applyrbacv1.ClusterRole(Name)
	for _, kind := range a.Kinds {
		role.WithRules(applyrbacv1.PolicyRule().WithAPIGroups(kind.Group).WithResources(kind.Resource).WithVerbs(verbs...))
	}
	if _, err := roles.ClusterRoles().Apply(ctx, role, options); err != nil {
		return "", end, err
	}
	binding := applyrbacv1.ClusterRoleBinding(Name).
		WithRoleRef(applyrbacv1.RoleRef().WithAPIGroup(rbacv1.GroupName).WithKind("ClusterRole").WithName(Name)).
		WithSubjects(applyrbacv1.Subject().WithKind(rbacv1.ServiceAccountKind).WithNamespace(a.Namespace).WithName(Name))
	if _, err := roles.ClusterRoleBindings().Apply(ctx, binding, options); err != nil {
		return "", end, err
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(duration.Seconds()))}}
	granted, err := accounts.ServiceAccounts(a.Namespace).CreateToken(ctx, Name, request, metav1.CreateOptions{})
	if err != nil {
		return "", end, err
	}
	return granted.Status.Token, granted.Status.ExpirationTimestamp.Time, nil
}

// Bounds of the wait until a new role is in force.
const (
	lookEvery = 100 * time.Millisecond
	lookFor   = 10 * time.Second
)

// Unseen returns the resources that the account cannot read with a token, after the role is in
// force.
func (a *Account) Unseen(ctx context.Context, token string) (lacks []string, err error) {
	caller := restclient.AnonymousClientConfig(a.Admin)
	caller.BearerToken = token
	err = wait.PollUntilContextTimeout(ctx, lookEvery, lookFor, true, func(ctx context.Context) (bool, error) {
		var err error
		lacks, err = missing(ctx, caller, a.reads())
		return len(lacks) == 0, err
	})
	if len(lacks) > 0 && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return lacks, nil
	}
	return lacks, err
}

// Commands returns the commands that create the account, for a user who may.
func (a *Account) Commands(kubectl string) string {
	return fmt.Sprintf(`%[1]s create serviceaccount %[2]s -n %[3]s
%[1]s create clusterrole %[2]s --verb=%[4]s --resource=%[5]s
%[1]s create clusterrolebinding %[2]s --clusterrole=%[2]s --serviceaccount=%[3]s:%[2]s
`, kubectl, Name, a.Namespace, strings.Join(verbs, ","), strings.Join(a.KindNames(), ","))
}
