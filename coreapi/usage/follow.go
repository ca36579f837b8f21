package usage

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
	"unique"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/internal/pages"
	"github.com/tidewaiter/tidewaiter/internal/reconcile"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Pods is a storage of pods that an index follows, as a registry offers it.
type Pods interface {
	rest.Lister
	rest.Watcher
}

// Local is the cluster of this server's own pods.
const Local = "local"

// Pod is a pod with the images that it uses.
type Pod struct {
	// Cluster is Local for a pod of this server.
	Cluster, Namespace, Name string
	// Platform is its node's, as os/architecture; empty if that is not known.
	Platform string
	// Since is when the pod was created.
	Since time.Time
	// Images are the references of its containers, for pulling them; a zero Reference stands for a
	// text that is not a reference.
	Images []reference.Reference
	// Keys are the keys of the images that its containers use; see [podimages.Keys].
	Keys []string
	// Tagged are the containers that name a tag.
	Tagged []Tagged
}

// Source is a storage of pods.
type Source struct {
	Pods Pods
	// Read converts an object of the storage.
	Read func(runtime.Object) (Pod, error)
}

// Run reads the pods of all sources and follows their changes until ctx ends. When a
// watch breaks or is too old, it reads the pods again; meanwhile the index keeps what it
// knew. (client-go's reflector would hold every pod in memory while it reads; only the
// names of images are wanted here.)
func (x *Index) Run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	for _, s := range x.sources {
		all.Go(func() {
			reconcile.Keep(ctx, "following pods for their images", nil, func(ctx context.Context) error { return x.watchPods(ctx, s) })
		})
	}
}

// watchPods reads all pods and then watches them until the watch ends.
func (x *Index) watchPods(ctx context.Context, s *source) error {
	version, err := x.readAll(ctx, s)
	if err != nil {
		return fmt.Errorf("listing pods: %w", err)
	}
	w, err := s.Pods.Watch(ctx, &internalversion.ListOptions{ResourceVersion: version})
	if err != nil {
		return fmt.Errorf("watching pods: %w", err)
	}
	defer w.Stop()
	s.synced.Store(true)
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-w.ResultChan():
			if !ok {
				return nil
			}
			if err := x.apply(s, event); err != nil {
				return err
			}
		}
	}
}

// readAll replaces what is known by the pods that exist, and returns their resource
// version.
func (x *Index) readAll(ctx context.Context, s *source) (version string, err error) {
	alive := map[podID]struct{}{}
	version, err = s.each(ctx, func(pod Pod) {
		alive[s.id(pod)] = struct{}{}
		x.follows(s, pod)
	})
	if err != nil {
		return "", err
	}
	x.retain(s, alive)
	return version, nil
}

// Each reads all pods of all sources, page by page, and calls visit with each.
func (x *Index) Each(ctx context.Context, visit func(Pod)) error {
	for _, s := range x.sources {
		if _, err := s.each(ctx, visit); err != nil {
			return fmt.Errorf("listing pods: %w", err)
		}
	}
	return nil
}

// each calls visit with each pod, page by page. A pod that cannot be read uses nothing;
// the log names it.
func (s *source) each(ctx context.Context, visit func(Pod)) (version string, err error) {
	var list runtime.Object
	err = pages.EachReadable(ctx, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (_ metav1.ListInterface, err error) {
		if list, err = s.Pods.List(ctx, &internalversion.ListOptions{Limit: o.Limit, Continue: o.Continue}); err != nil {
			return nil, err
		}
		return meta.ListAccessor(list)
	}, func(m metav1.ListInterface) error {
		version = cmp.Or(version, m.GetResourceVersion())
		return meta.EachListItem(list, func(obj runtime.Object) error {
			pod, err := s.read(obj)
			if err != nil {
				return err
			}
			visit(pod)
			return nil
		})
	}, func(err error) {
		slog.Error("A pod cannot be read, so its images are not counted", "err", err)
	})
	return version, err
}

func (x *Index) apply(s *source, event watch.Event) error {
	switch event.Type {
	case watch.Added, watch.Modified, watch.Deleted:
		pod, err := s.read(event.Object)
		if err != nil {
			return err
		}
		if event.Type == watch.Deleted {
			x.tagged.set(s.id(pod), nil)
			x.set(s.id(pod), nil, "", 0)
			return nil
		}
		x.follows(s, pod)
		return nil
	case watch.Bookmark:
		return nil
	}
	return fmt.Errorf("watching pods: %w", apierrors.FromObject(event.Object))
}

// follows records what an existing pod uses.
func (x *Index) follows(s *source, pod Pod) {
	used, platform, since := slices.Compact(slices.Sorted(slices.Values(pod.Keys))), pod.Platform, pod.Since.Unix()
	if len(used) == 0 {
		platform, since = "", 0
	}
	x.tagged.set(s.id(pod), pod.Tagged)
	if x.set(s.id(pod), used, platform, since) {
		x.onUse(pod)
	}
}

func (s *source) id(pod Pod) podID {
	return podID{unique.Make(podNamespace{s, pod.Cluster, pod.Namespace}), pod.Name}
}

// read converts an object of the storage.
func (s *source) read(obj runtime.Object) (Pod, error) {
	// A storage may send one object, together with its encodings, to many watchers.
	if shared, ok := obj.(runtime.CacheableObject); ok {
		obj = shared.GetObject()
	}
	return s.Read(obj)
}
