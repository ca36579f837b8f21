package web

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	registryrest "k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	apiregistration "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
)

// apiServiceInterval is how often the cluster's APIServices are checked.
const apiServiceInterval = 10 * time.Second

// Cluster makes a server one of the API servers of a cluster, whose kube-apiserver passes on the
// requests for the groups of [Config.Groups]
// (https://kubernetes.io/docs/concepts/extend-kubernetes/api-extension/apiserver-aggregation/). The
// cluster says who callers are and what they may do. The credentials of the data directory work as
// well, on the server's own port.
type Cluster struct {
	// Client is the configuration with which this server reaches the cluster.
	Client *rest.Config
	// Kubeconfig is the file that Client comes from; empty for the service account of a pod.
	Kubeconfig string
	// Namespace, Name and Port are the cluster's Service that leads to this server.
	Namespace, Name string
	Port            int32

	apiServices []string // names of the APIServices of the server's groups
}

// Host is the name by which kube-apiserver reaches the server. The server's certificate must have
// it.
func (c *Cluster) Host() string { return c.Name + "." + c.Namespace + ".svc" }

// applyAuthentication makes cfg know callers in three ways: by what kube-apiserver says in headers,
// by the cluster's client certificates, and by tokens, which the cluster reviews. The cluster says
// whose headers and certificates to trust. Changes of that are followed.
func (c *Cluster) applyAuthentication(cfg *genericapiserver.Config) error {
	client, err := kubernetes.NewForConfig(c.Client)
	if err != nil {
		return err
	}
	authorities, err := dynamiccertificates.NewDynamicCAFromConfigMapController("client-ca", metav1.NamespaceSystem, "extension-apiserver-authentication", "client-ca-file", client)
	if err != nil {
		return err
	}
	o := options.NewDelegatingAuthenticationOptions()
	o.RemoteKubeConfigFile, o.ClientCert.CAContentProvider = c.Kubeconfig, authorities
	if err := o.ApplyTo(&cfg.Authentication, cfg.SecureServing, cfg.OpenAPIConfig); err != nil {
		return fmt.Errorf("authenticating through the cluster: %w", err)
	}
	// Whatever the options say, ApplyTo would take everybody else for system:anonymous.
	known := authenticatorfactory.DelegatingAuthenticatorConfig{
		TokenAccessReviewClient: client.AuthenticationV1(), TokenAccessReviewTimeout: o.TokenRequestTimeout, WebhookRetryBackoff: o.WebhookRetryBackoff, CacheTTL: tokenCacheTime,
		ClientCertificateCAContentProvider: authorities, RequestHeaderConfig: cfg.Authentication.RequestHeaderConfig,
	}
	callers, _, err := known.New()
	cfg.Authentication.Authenticator = asking{callers}
	return err
}

// Authorizer asks the cluster what callers may do, and remembers its answers for ten seconds.
func (c *Cluster) Authorizer() (authorizer.Authorizer, error) {
	o := options.NewDelegatingAuthorizationOptions()
	o.RemoteKubeConfigFile = c.Kubeconfig
	o.AlwaysAllowPaths = nil // newAuthorizer has these paths, exactly
	var info genericapiserver.AuthorizationInfo
	if err := o.ApplyTo(&info); err != nil {
		return nil, fmt.Errorf("authorizing through the cluster: %w", err)
	}
	return info.Authorizer, nil
}

// namespaces returns Kubernetes' admission that refuses to create objects in a namespace that the
// cluster lacks or is deleting. kube-apiserver does not apply its own to requests that it passes
// on, and an object that is created after its namespace would never be deleted. It reads from the
// informers.
func (c *Cluster) namespaces() (admission.Interface, informers.SharedInformerFactory, error) {
	client, err := kubernetes.NewForConfig(c.Client)
	if err != nil {
		return nil, nil, err
	}
	plugin, err := lifecycle.NewLifecycle(sets.New(metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic))
	if err != nil {
		return nil, nil, err
	}
	read := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(onlyPhase))
	plugin.SetExternalKubeClientSet(client)
	plugin.SetExternalKubeInformerFactory(read)
	return whenRead{plugin, read.Core().V1().Namespaces().Informer().HasSynced}, read, plugin.ValidateInitialization()
}

// whenRead refuses with 503 while the cluster's namespaces are not read yet. The admission itself
// would wait for ten seconds, and then say 403, after which clients do not try again.
type whenRead struct {
	*lifecycle.Lifecycle
	read cache.InformerSynced
}

// Admit is part of admission.MutationInterface.
func (w whenRead) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if a.GetOperation() == admission.Create && a.GetNamespace() != "" && !w.read() {
		return apierrors.NewServiceUnavailable("the cluster's namespaces are not read yet: try again in a moment")
	}
	return w.Lifecycle.Admit(ctx, a, o)
}

// onlyPhase keeps only those fields of a namespace that the admission reads.
func onlyPhase(obj any) (any, error) {
	if namespace, ok := obj.(*corev1.Namespace); ok {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace.Name, UID: namespace.UID, ResourceVersion: namespace.ResourceVersion}, Status: corev1.NamespaceStatus{Phase: namespace.Status.Phase}}, nil
	}
	return obj, nil
}

// lead says which groups lead to the server.
func (c *Cluster) lead(groups map[schema.GroupVersion]map[string]registryrest.Storage) {
	for gv := range groups {
		c.apiServices = append(c.apiServices, gv.Version+"."+gv.Group)
	}
	slices.Sort(c.apiServices)
}

// KeepAPIServices makes the APIServices of the server's groups lead to it, with the authority to
// trust, until ctx ends. It creates and deletes none: the installation chooses which of its groups
// the cluster has. An APIService that leads elsewhere is left alone, because the cluster has that
// group already.
func (s *Server) KeepAPIServices(ctx context.Context) error {
	client, err := apiregistration.NewForConfig(s.cluster.Client)
	if err != nil {
		return err
	}
	said := map[string]string{}
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		for _, name := range s.cluster.apiServices {
			outcome := "it leads here"
			if err := s.keepAPIService(ctx, client.APIServices(), name); err != nil {
				outcome = err.Error()
			}
			if said[name] != outcome && ctx.Err() == nil {
				slog.Info("The cluster's APIService was looked at", "name", name, "outcome", outcome)
				said[name] = outcome
			}
		}
	}, apiServiceInterval)
	return nil
}

// errElsewhere is the error if another server serves a group.
var errElsewhere = errors.New("it leads to another server, which serves the group: this server serves it on its own port only")

func (s *Server) keepAPIService(ctx context.Context, client apiregistration.APIServiceInterface, name string) error {
	have, err := client.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return errors.New("it does not exist, so the cluster does not serve the group: deploy/ creates it")
	}
	if err != nil {
		return err
	}
	want := have.DeepCopy()
	to := want.Spec.Service
	if to == nil || to.Namespace != s.cluster.Namespace || to.Name != s.cluster.Name {
		return errElsewhere
	}
	to.Port, want.Spec.InsecureSkipTLSVerify = &s.cluster.Port, false
	if want.Spec.CABundle, err = s.credentials.trust("https://" + s.cluster.Host()); err != nil {
		return err
	}
	if equality.Semantic.DeepEqual(have.Spec, want.Spec) {
		return nil
	}
	_, err = client.Update(ctx, want, metav1.UpdateOptions{FieldManager: "tidewaiter"})
	return err
}
