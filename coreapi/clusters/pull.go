package clusters

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-containerregistry/pkg/authn"
	pullsecrets "github.com/google/go-containerregistry/pkg/authn/kubernetes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// Bounds of Keychains.
const (
	maxPuller   = 8    // service accounts whose pull secrets are read
	maxUsers    = 1000 // pods that are searched for service accounts
	pullTimeout = 10 * time.Second
)

// Puller is a pod that represents its service account.
type Puller struct {
	Namespace, ServiceAccount string
	// Secrets are the pull secrets that it names.
	Secrets []string

	pod string // the pod whose secrets are yet to be read; empty for none
}

// Keychains returns the credentials with which pods of a cluster that use ref now pull it: the pull
// secrets of a pod and of its service account, for at most eight service accounts. If there are
// more, it takes any eight: an account with wrong secrets cannot keep out another. more are pods
// that are not followed yet. The secrets are read from the cluster for each call and kept nowhere.
// unread is why some could not be read. err is why the cluster could not be asked. This server's
// own pods have no credentials: it serves no secrets.
func (c *Clusters) Keychains(ctx context.Context, cluster string, ref reference.Reference, more ...Puller) (all []authn.Keychain, unread, err error) {
	var f *follower
	for _, other := range c.followers {
		if other.source.Name == cluster {
			f = other
		}
	}
	if f == nil {
		return nil, nil, nil
	}
	pullers, err := c.pullers(ctx, cluster, ref, more)
	if err != nil || len(pullers) == 0 {
		return nil, nil, err
	}
	config, err := f.source.Connect()
	if err != nil {
		return nil, nil, err
	}
	client, err := clientOf(config)
	if err != nil {
		return nil, nil, err
	}
	// at verbosity 8 answers would be logged
	ctx, done := context.WithTimeout(klog.NewContext(ctx, logr.Discard()), pullTimeout)
	defer done()
	for _, p := range pullers {
		keychain, err := p.keychain(ctx, client)
		var answered apierrors.APIStatus
		var asked *url.Error
		switch {
		case err == nil:
			all = append(all, keychain)
		case apierrors.IsForbidden(err):
			unread = fmt.Errorf("the credential for cluster %s may not read them: %w; give it a role that may get secrets and serviceaccounts in namespace %s", cluster, err, p.Namespace)
		case errors.As(err, &answered), errors.As(err, &asked) && asked.Op != "parse", ctx.Err() != nil:
			return nil, nil, err
		default: // the error's text may hold a part of a secret
			unread = fmt.Errorf("those of service account %s in namespace %s of cluster %s do not have the format of kubectl create secret docker-registry", p.ServiceAccount, p.Namespace, cluster)
		}
	}
	return all, unread, nil
}

// pullers returns pods of different service accounts that use ref, and more.
func (c *Clusters) pullers(ctx context.Context, cluster string, ref reference.Reference, more []Puller) ([]Puller, error) {
	image := cmp.Or(ref.Digest, ref.String())
	ctx = genericapirequest.WithNamespace(ctx, metav1.NamespaceNone)
	selected := fields.SelectorFromSet(fields.Set{imageField: image, clusterField: cluster})
	list, err := c.pods.List(ctx, &internalversion.ListOptions{FieldSelector: selected, Limit: maxUsers})
	if err != nil {
		return nil, err
	}
	found := slices.Clone(more)
	seen := map[[2]string]bool{}
	for _, p := range list.(*ClusterPodList).Items {
		if one := [2]string{p.Spec.Namespace, p.Spec.ServiceAccountName}; !seen[one] {
			seen[one] = true
			found = append(found, Puller{Namespace: p.Spec.Namespace, ServiceAccount: p.Spec.ServiceAccountName, pod: p.Spec.Name})
		}
	}
	rand.Shuffle(len(found), func(i, j int) { found[i], found[j] = found[j], found[i] })
	return found[:min(len(found), maxPuller)], nil
}

// keychain reads the pull secrets. It finds the pod with a list, which the credential may do
// anyway.
func (p Puller) keychain(ctx context.Context, client kubernetes.Interface) (authn.Keychain, error) {
	o := pullsecrets.Options{Namespace: p.Namespace, ServiceAccountName: p.ServiceAccount, ImagePullSecrets: p.Secrets}
	if p.pod == "" {
		return named(pullsecrets.New(ctx, client, o))
	}
	pods, err := client.CoreV1().Pods(p.Namespace).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", p.pod).String(), Limit: 1})
	if err != nil {
		return nil, err
	}
	for i := range pods.Items {
		for _, secret := range pods.Items[i].Spec.ImagePullSecrets {
			o.ImagePullSecrets = append(o.ImagePullSecrets, secret.Name)
		}
	}
	return named(pullsecrets.New(ctx, client, o))
}

// anyName is a keychain that knows a host by its other names, too.
type anyName struct{ authn.Keychain }

func named(k authn.Keychain, err error) (authn.Keychain, error) {
	if err != nil {
		return nil, err
	}
	return anyName{k}, nil
}

// Resolve is part of authn.Keychain.
func (k anyName) Resolve(r authn.Resource) (authn.Authenticator, error) {
	found, err := k.Keychain.Resolve(r)
	host, path, below := strings.Cut(r.String(), "/")
	// go-containerregistry calls Docker Hub index.docker.io
	canonical, badHost := reference.ParseHost(host)
	if badHost != nil {
		return found, err
	}
	for _, other := range reference.OtherNames(canonical) {
		if err != nil || found != authn.Anonymous {
			return found, err
		}
		name := other
		if below {
			name += "/" + path
		}
		found, err = k.Keychain.Resolve(resource{name, other})
	}
	return found, err
}

// resource is a repository under the name of its host that a secret may have.
type resource struct{ name, host string }

func (r resource) String() string      { return r.name }
func (r resource) RegistryStr() string { return r.host }
