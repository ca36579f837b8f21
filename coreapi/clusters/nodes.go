package clusters

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// nodesPatience is how long a cluster may take to list its nodes. After that its pods are followed
// without platforms at first.
const nodesPatience = 30 * time.Second

// followNodes follows the nodes of the cluster until ctx is done. It returns them when all are
// known, or nil if the credential may not read them. moved is called with the name of a node whose
// platform changes after that.
func (f *follower) followNodes(ctx context.Context, client kubernetes.Interface, running *sync.WaitGroup, moved func(node string)) (cache.Store, error) {
	nodes := client.CoreV1().Nodes()
	patient, done := context.WithTimeout(ctx, nodesPatience)
	defer done()
	switch _, err := nodes.List(patient, metav1.ListOptions{Limit: 1}); {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
		slog.Warn("The nodes of a cluster cannot be read, so a pod that runs one platform of an image counts for all its platforms", "cluster", f.source.Name, "err", err,
			"do", "allow the credential to list and watch nodes")
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("listing its nodes: %w", err)
	}
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return nodes.List(ctx, o) },
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return nodes.Watch(ctx, o)
			},
		},
		ObjectType: &corev1.Node{},
		Handler: cache.ResourceEventHandlerDetailedFuncs{
			AddFunc: func(obj any, initial bool) {
				if node, ok := obj.(*corev1.Node); ok && !initial {
					moved(node.Name)
				}
			},
			UpdateFunc: func(before, after any) {
				was, ok := before.(*corev1.Node)
				if is, isNode := after.(*corev1.Node); ok && isNode && platformOf(was) != platformOf(is) {
					moved(is.Name)
				}
			},
		},
		Transform: reduceNode,
	})
	running.Go(func() { informer.RunWithContext(ctx) })
	cache.WaitForCacheSync(patient.Done(), informer.HasSynced) // nodes that come later are added
	return store, nil
}

// platform returns the platform of a node, "" if it is not known.
func (w *writer) platform(node string) string {
	if w.nodes == nil || node == "" {
		return ""
	}
	if obj, ok, err := w.nodes.GetByKey(node); ok && err == nil {
		return platformOf(obj.(*corev1.Node))
	}
	return ""
}

// moved stores the pods of a node again, after its platform has changed.
func (w *writer) moved(node string) {
	for _, obj := range w.store.List() {
		if p, ok := obj.(*pod); ok && p.node.Value() == node {
			w.queue.Add(key(p))
		}
	}
}
