package coreapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"
	apistorage "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	api "k8s.io/kubernetes/pkg/apis/core"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"
	"k8s.io/kubernetes/pkg/registry/core/service/allocator"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"
	iprepair "k8s.io/kubernetes/pkg/registry/core/service/ipallocator/controller"
	"k8s.io/kubernetes/pkg/registry/core/service/portallocator"
	portrepair "k8s.io/kubernetes/pkg/registry/core/service/portallocator/controller"
	servicestore "k8s.io/kubernetes/pkg/registry/core/service/storage"

	"github.com/tidewaiter/tidewaiter/coreapi/internal/ranges"
	"github.com/tidewaiter/tidewaiter/internal/pages"
)

// Kubernetes can keep cluster IPs in a bitmap or in IPAddress objects of
// networking.k8s.io. The bitmap is used here: node ports need one anyway, whereas
// IPAddress objects would need two more resources, their informers and a client of this
// server to itself for each service.

// Names of the stored bitmaps, as in Kubernetes.
const (
	primaryIPs   = "serviceips"
	secondaryIPs = "secondaryserviceips"
	nodePorts    = "servicenodeports"
)

// services is the service resource with the allocators of its addresses.
type services struct {
	rest   settled
	status *servicestore.StatusREST

	ips      []family // the primary first
	ports    utilnet.PortRange
	taken    *ranges.Store // ports
	interval time.Duration
}

// family is one range of cluster IPs.
type family struct {
	cidr  *net.IPNet
	taken *ranges.Store
}

func newServices(g generic.RESTOptionsGetter, s *settings, pods *podstore.REST) (*services, error) {
	out := &services{ports: s.nodePorts, interval: s.repairInterval}

	byFamily := map[api.IPFamily]ipallocator.Interface{}
	var primary api.IPFamily
	for i, name := range []string{primaryIPs, secondaryIPs}[:len(s.cidrs)] {
		var taken *ranges.Store
		ips, err := ipallocator.New(s.cidrs[i], keptIn(g, name, &taken))
		if err != nil {
			return nil, fmt.Errorf("service IPs: %w", err)
		}
		ips.EnableMetrics()
		if i == 0 {
			primary = ips.IPFamily()
		}
		byFamily[ips.IPFamily()] = ips
		out.ips = append(out.ips, family{s.cidrs[i], taken})
	}
	ports, err := portallocator.New(s.nodePorts, keptIn(g, nodePorts, &out.taken))
	if err != nil {
		return nil, fmt.Errorf("node ports: %w", err)
	}
	ports.EnableMetrics()

	// The proxy subresource is not served, so no endpoints and no transport.
	registry, status, _, err := servicestore.NewREST(g, primary, byFamily, ports, nil, pods, nil)
	if err != nil {
		return nil, fmt.Errorf("services: %w", err)
	}
	out.rest, out.status = settleUpdates(registry, out.lastRefusals), status
	return out, nil
}

// lastRefusals returns the last refusal of each range, see ranges.Store.LastRefusal.
func (s *services) lastRefusals() [3]*apierrors.StatusError {
	all := [3]*apierrors.StatusError{s.taken.LastRefusal()}
	for i, f := range s.ips {
		all[i+1] = f.taken.LastRefusal()
	}
	return all
}

// keptIn returns an allocator factory that keeps what it hands out in the storage, under
// name.
func keptIn(g generic.RESTOptionsGetter, name string, kept **ranges.Store) allocator.AllocatorWithOffsetFactory {
	return func(size int, text string, offset int) (allocator.Interface, error) {
		s, err := ranges.New(g, name, allocator.NewAllocationMapWithOffset(size, text, offset))
		*kept = s
		return s, err
	}
}

// firstRepair is the pause between attempts at the first repair.
const firstRepair = 5 * time.Second

// runRepair compares services with the addresses that were handed out, once before it
// returns and then every interval, with Kubernetes' own repair controllers. Until the
// first time nothing is handed out. It tries until that succeeds, however long a disk
// cannot be written: an error would end the process.
func (s *services) runRepair(ctx genericapiserver.PostStartHookContext) error {
	client, err := kubernetes.NewForConfig(ctx.LoopbackClientConfig)
	if err != nil {
		return err
	}
	second := family{cidr: &net.IPNet{}}
	if len(s.ips) == 2 {
		second = s.ips[1]
	}
	readable := readableServices{client.CoreV1()}
	run := func(interval time.Duration, succeeded func(), stop chan struct{}) {
		go iprepair.NewRepair(interval, readable, client.EventsV1(), s.ips[0].cidr, s.ips[0].taken, second.cidr, second.taken).RunUntil(succeeded, stop)
		go portrepair.NewRepair(interval, readable, client.EventsV1(), s.ports, s.taken).RunUntil(succeeded, stop)
	}

	var first sync.WaitGroup
	first.Add(2)
	stopFirst, stop := make(chan struct{}), make(chan struct{})
	run(min(s.interval, firstRepair), first.Done, stopFirst)
	go func() {
		<-ctx.Done()
		close(stop)
	}()
	repaired := make(chan struct{})
	go func() {
		first.Wait()
		close(repaired)
	}()
	select {
	case <-repaired:
		run(s.interval, func() {}, stop)
		if err := s.dropStored(ctx, client.CoreV1()); err != nil && ctx.Err() == nil {
			slog.Warn("Not all ExternalName services of an earlier release were migrated; watches may show their internalTrafficPolicy", "err", err)
		}
	case <-ctx.Done():
	}
	close(stopFirst)
	return nil
}

// dropStored rewrites services that an earlier release stored with fields that their type does not
// use (see dropUnused): watches deliver what is stored.
func (s *services) dropStored(ctx context.Context, client corev1client.ServicesGetter) error {
	var failed error
	options := metav1.ListOptions{Limit: pages.Size, FieldSelector: fields.OneTermEqualSelector("spec.type", string(corev1.ServiceTypeExternalName)).String()}
	err := pages.EachReadable(ctx, options, client.Services("").List, func(page *corev1.ServiceList) error {
		for i := range page.Items {
			service := &page.Items[i]
			err := s.dropOne(ctx, client, service)
			if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				// another writer has done it
				failed = fmt.Errorf("service %s/%s: %w", service.Namespace, service.Name, err)
			}
		}
		return ctx.Err()
	}, func(error) {})
	return errors.Join(err, failed)
}

// dropOne is dropStored for one service, as it was read. It looks at what is stored, which no read
// through the API shows.
func (s *services) dropOne(ctx context.Context, client corev1client.ServicesGetter, service *corev1.Service) error {
	key, err := s.rest.KeyFunc(genericapirequest.WithNamespace(ctx, service.Namespace), service.Name)
	if err != nil {
		return err
	}
	var stored api.Service
	if err := s.rest.Storage.Get(ctx, key, storage.GetOptions{}, &stored); err != nil {
		return apistorage.InterpretGetError(err, api.Resource("services"), service.Name)
	}
	if stored.Spec.InternalTrafficPolicy == nil {
		return nil
	}
	_, err = client.Services(service.Namespace).Update(ctx, service, metav1.UpdateOptions{})
	return err
}

// readableServices lists the services without those that cannot be read; their addresses
// become free after a while. The log names them.
type readableServices struct{ corev1client.ServicesGetter }

// Services implements corev1client.ServicesGetter.
func (s readableServices) Services(namespace string) corev1client.ServiceInterface {
	return readableServicesIn{s.ServicesGetter.Services(namespace)}
}

type readableServicesIn struct{ corev1client.ServiceInterface }

// List implements corev1client.ServiceInterface.
func (s readableServicesIn) List(ctx context.Context, opts metav1.ListOptions) (*corev1.ServiceList, error) {
	all := &corev1.ServiceList{}
	opts.Limit = pages.Size
	err := pages.EachReadable(ctx, opts, s.ServiceInterface.List, func(page *corev1.ServiceList) error {
		all.ResourceVersion, all.Items = cmp.Or(all.ResourceVersion, page.ResourceVersion), append(all.Items, page.Items...)
		return nil
	}, func(err error) {
		slog.Error("A service cannot be read, so its addresses are not reserved for it", "err", err)
	})
	return all, err
}
