package clusters

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	api "k8s.io/kubernetes/pkg/apis/core"
	corev1conversion "k8s.io/kubernetes/pkg/apis/core/v1"

	"github.com/tidewaiter/tidewaiter/internal/relay"
)

// Own is the storage of this server's own pods.
type Own interface {
	rest.Lister
	rest.Watcher
}

// ownClient reads the server's own pods from their storage, as it would over the network.
func ownClient(own Own) podClient {
	options := func(ctx context.Context, o metav1.ListOptions) (context.Context, *internalversion.ListOptions, error) {
		in := &internalversion.ListOptions{}
		return genericapirequest.WithNamespace(ctx, metav1.NamespaceAll), in, internalversion.Convert_v1_ListOptions_To_internalversion_ListOptions(&o, in, nil)
	}
	return podClient{
		list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			ctx, in, err := options(ctx, o)
			if err != nil {
				return nil, err
			}
			obj, err := own.List(ctx, in)
			if err != nil {
				return nil, err
			}
			list, ok := obj.(*api.PodList)
			if !ok {
				return nil, fmt.Errorf("%T is not a list of pods", obj)
			}
			out := &corev1.PodList{}
			return out, corev1conversion.Convert_core_PodList_To_v1_PodList(list, out, nil)
		},
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			ctx, in, err := options(ctx, o)
			if err != nil {
				return nil, err
			}
			w, err := own.Watch(ctx, in)
			if err != nil {
				return nil, err
			}
			return relay.New(w, ownEvent, func() {}), nil
		},
	}
}

// ownEvent is an event of the server's own pods as a client gets it.
func ownEvent(e watch.Event) watch.Event {
	// A storage may send one object, together with its encodings, to many watchers.
	if shared, ok := e.Object.(runtime.CacheableObject); ok {
		e.Object = shared.GetObject()
	}
	in, ok := e.Object.(*api.Pod)
	if !ok {
		return e
	}
	out := &corev1.Pod{} // shares the memory of in, and is only read
	if err := corev1conversion.Convert_core_Pod_To_v1_Pod(in, out, nil); err != nil {
		return watch.Event{Type: watch.Error, Object: &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Message: err.Error()}}
	}
	e.Object = out
	return e
}
