package clusters

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-containerregistry/pkg/authn"
	pullsecrets "github.com/google/go-containerregistry/pkg/authn/kubernetes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Bounds of Keychains.
const (
	maxPuller   = 8    // service accounts whose pull secrets are read
	maxSecrets  = 10   // that are read for a service account
	usersPage   = 1000 // pods that are searched for service accounts at a time
	maxUsers    = 10 * usersPage
	pullTimeout = 10 * time.Second // for a service account
)

// Puller is a pod that represents its service account.
type Puller struct {
	Namespace, ServiceAccount string
	// Secrets are the pull secrets that it names.
	Secrets []string

	pod string // the pod whose secrets are yet to be read; empty for none
}

// Keychains returns the credentials with which pods of a cluster that use ref now pull it: the pull
// secrets of a pod and of its service account, for at most eight service accounts and ten secrets
// of each. If there are more accounts, it takes any of them, and of as many namespaces as it can.
// Accounts are read at once and each in its own time, so none keeps out another. more are pods that
// are not followed yet. The secrets are read from the cluster for each call and kept nowhere.
// unread is why some could not be read. err is why the cluster did not answer about some. This
// server's own pods have no credentials: it serves no secrets.
func (c *Clusters) Keychains(ctx context.Context, cluster string, ref reference.Reference, more ...Puller) (all []authn.Keychain, unread, err error) {
	var f *follower
	for _, other := range c.followers {
		if other.source.Name == cluster && other.source.own == nil {
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
	config = restclient.CopyConfig(config)
	config.QPS = -1 // the bounds above are the limit
	client, err := clientOf(config)
	if err != nil {
		return nil, nil, err
	}
	// at verbosity 8 answers would be logged
	ctx = klog.NewContext(ctx, logr.Discard())
	keychains, failures := make([]authn.Keychain, len(pullers)), make([]error, len(pullers))
	var reading sync.WaitGroup
	for i, p := range pullers {
		reading.Go(func() {
			ctx, done := context.WithTimeout(ctx, pullTimeout)
			defer done()
			keychains[i], failures[i] = p.keychain(ctx, client)
		})
	}
	reading.Wait()
	for i, p := range pullers {
		if keychains[i] != nil {
			all = append(all, keychains[i])
		}
		if failures[i] == nil {
			continue
		}
		why, away := p.why(cluster, failures[i])
		if unread = cmp.Or(unread, why); away {
			err = failures[i]
		}
	}
	return all, unread, err
}

// errTooManySecrets is the error if a puller has more secrets than are read.
var errTooManySecrets = fmt.Errorf("only the first %d pull secrets of a pod and its service account are read", maxSecrets)

// why returns, in words for people, why secrets of a puller were not read. away is true if the
// cluster did not answer, which a pod's creator cannot cause.
func (p Puller) why(cluster string, err error) (why error, away bool) {
	of := fmt.Sprintf("those of service account %s in namespace %s of cluster %s", cmp.Or(p.ServiceAccount, defaultAccount), p.Namespace, cluster)
	var answered apierrors.APIStatus
	var asked *url.Error
	switch {
	case errors.Is(err, errTooManySecrets):
		return fmt.Errorf("%s are too many: %w", of, err), false
	case apierrors.IsForbidden(err):
		return fmt.Errorf("the credential for cluster %s may not read them: %w; give it a role that may get secrets and serviceaccounts in namespace %s", cluster, err, p.Namespace), false
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &asked) && asked.Timeout():
		return fmt.Errorf("%s could not be read in %s", of, pullTimeout), false
	case errors.As(err, &answered):
		return fmt.Errorf("%s could not be read: %w", of, err), apierrors.IsTooManyRequests(err) || answered.Status().Code >= http.StatusInternalServerError
	case errors.As(err, &asked) && asked.Op != "parse", errors.Is(err, context.Canceled):
		return fmt.Errorf("%s could not be read: %w", of, err), true
	}
	// the error's text may hold a part of a secret
	return fmt.Errorf("%s do not have the format of kubectl create secret docker-registry", of), false
}

// pullers returns pods of different service accounts that use ref, and more: any, in turns of their
// namespaces.
func (c *Clusters) pullers(ctx context.Context, cluster string, ref reference.Reference, more []Puller) ([]Puller, error) {
	image := cmp.Or(ref.Digest, ref.String())
	ctx = genericapirequest.WithNamespace(ctx, metav1.NamespaceNone)
	selected := fields.SelectorFromSet(fields.Set{imageField: image, clusterField: cluster})
	found := slices.Clone(more)
	seen := map[[2]string]bool{}
	for next, n := "", 0; n < maxUsers; n += usersPage {
		obj, err := c.pods.List(ctx, &internalversion.ListOptions{FieldSelector: selected, Limit: usersPage, Continue: next})
		if err != nil {
			return nil, err
		}
		list := obj.(*ClusterPodList)
		for _, p := range list.Items {
			if one := [2]string{p.Spec.Namespace, p.Spec.ServiceAccountName}; !seen[one] {
				seen[one] = true
				found = append(found, Puller{Namespace: p.Spec.Namespace, ServiceAccount: p.Spec.ServiceAccountName, pod: p.Spec.Name})
			}
		}
		if next = list.Continue; next == "" {
			break
		}
	}
	rand.Shuffle(len(found), func(i, j int) { found[i], found[j] = found[j], found[i] })
	before := map[string]int{} // of a namespace
	turns := map[int][]Puller{}
	for _, p := range found {
		turns[before[p.Namespace]] = append(turns[before[p.Namespace]], p)
		before[p.Namespace]++
	}
	found = found[:0]
	for turn := 0; len(turns[turn]) > 0; turn++ {
		found = append(found, turns[turn]...)
	}
	return found[:min(len(found), maxPuller)], nil
}

// defaultAccount is the service account of a pod that names none.
const defaultAccount = "default"

// keychain reads the pull secrets. It finds the pod with a list, which the credential may do
// anyway. It may return a keychain along with errTooManySecrets.
func (p Puller) keychain(ctx context.Context, client kubernetes.Interface) (authn.Keychain, error) {
	names := slices.Clone(p.Secrets)
	if p.pod != "" {
		pods, err := client.CoreV1().Pods(p.Namespace).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", p.pod).String(), Limit: 1})
		if err != nil {
			return nil, err
		}
		for i := range pods.Items {
			names = appendNames(names, pods.Items[i].Spec.ImagePullSecrets)
		}
	}
	account, err := client.CoreV1().ServiceAccounts(p.Namespace).Get(ctx, cmp.Or(p.ServiceAccount, defaultAccount), metav1.GetOptions{})
	switch {
	case err == nil:
		names = appendNames(names, account.ImagePullSecrets)
	case !apierrors.IsNotFound(err):
		return nil, err
	}
	var secrets []corev1.Secret
	read, tooMany := map[string]bool{}, error(nil)
	for _, name := range names {
		if read[name] || len(validation.NameIsDNSSubdomain(name, false)) > 0 {
			continue // no secret has such a name
		}
		if len(read) == maxSecrets {
			tooMany = errTooManySecrets
			break
		}
		read[name] = true
		secret, err := client.CoreV1().Secrets(p.Namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case err == nil:
			secrets = append(secrets, *secret)
		case !apierrors.IsNotFound(err):
			return nil, err
		}
	}
	found, err := pullsecrets.NewFromPullSecrets(ctx, secrets)
	if err != nil {
		return nil, err
	}
	return anyName{found}, tooMany
}

func appendNames(names []string, secrets []corev1.LocalObjectReference) []string {
	for _, s := range secrets {
		names = append(names, s.Name)
	}
	return names
}

// anyName is a keychain that knows a host by its other names, too.
type anyName struct{ authn.Keychain }

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
