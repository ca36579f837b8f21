package coreapi

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/kubernetes/pkg/controller/namespace"
	"k8s.io/utils/clock"
)

// namespaceWorkers is how many namespaces are emptied at once.
const namespaceWorkers = 2

// namespaceResync is how often namespaces are looked at again, as in
// Kubernetes.
const namespaceResync = 5 * time.Minute

// controllerClients returns the clients of Kubernetes' controllers: a typed one, and one
// for metadata only.
func controllerClients(ctx genericapiserver.PostStartHookContext) (kubernetes.Interface, metadata.Interface, error) {
	client, err := kubernetes.NewForConfig(ctx.LoopbackClientConfig)
	if err != nil {
		return nil, nil, err
	}
	objects, err := metadata.NewForConfig(ctx.LoopbackClientConfig)
	return client, objects, err
}

// runNamespaceController runs Kubernetes' namespace controller. Five seconds after a
// namespace was deleted, it deletes the namespace's objects of every resource in the
// server's discovery, and writes into the status what remains. When nothing remains, it removes the
// namespace.
func runNamespaceController(ctx genericapiserver.PostStartHookContext) error {
	client, objects, err := controllerClients(ctx)
	if err != nil {
		return err
	}
	go func() {
		// The controller ends the process if discovery has no answer when it is made. So
		// it is made once there is an answer, which it is given again if there is none
		// later, as when the server stops at that moment.
		var first []*metav1.APIResourceList
		err := wait.PollUntilContextCancel(ctx, time.Second, true, func(context.Context) (bool, error) {
			found, err := client.Discovery().ServerPreferredNamespacedResources()
			first = found
			return err == nil && len(found) > 0, nil
		})
		if err != nil {
			return // the server stops
		}
		discover := func() ([]*metav1.APIResourceList, error) {
			found, err := client.Discovery().ServerPreferredNamespacedResources()
			if len(found) == 0 {
				found = first
			}
			return found, err
		}
		shared := informers.NewSharedInformerFactory(client, namespaceResync)
		controller := namespace.NewNamespaceController(ctx, client, objects, discover,
			shared.Core().V1().Namespaces(), namespaceResync, corev1.FinalizerKubernetes)
		shared.Start(ctx.Done())
		controller.Run(ctx, namespaceWorkers)
	}()
	return nil
}

// The server's Lease is renewed like a node's: if it was not renewed for its duration,
// the server is gone.
const (
	serverLeaseSeconds = 40
	serverLeaseRenewal = 10 * time.Second
)

// serverLeasePrefix begins the names of the servers' Leases in kube-system.
const serverLeasePrefix = "tidewaiter-"

// keepServerLease holds the Lease of the server called identity until the server stops.
// Then the Lease expires.
func keepServerLease(identity string) genericapiserver.PostStartHookFunc {
	return func(ctx genericapiserver.PostStartHookContext) error {
		client, err := kubernetes.NewForConfig(ctx.LoopbackClientConfig)
		if err != nil {
			return err
		}
		holder := lease.NewController(clock.RealClock{}, client, identity, serverLeaseSeconds, nil,
			serverLeaseRenewal, serverLeasePrefix+identity, metav1.NamespaceSystem, nil)
		go holder.Run(ctx)
		return nil
	}
}

// leaseSafe turns a host name into part of a Lease's name.
func leaseSafe(host string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '.' {
			return r
		}
		return '-'
	}, strings.ToLower(host)), "-.")
}
