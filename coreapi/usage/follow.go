package usage

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"
	api "k8s.io/kubernetes/pkg/apis/core"
	corev1conversion "k8s.io/kubernetes/pkg/apis/core/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/pages"
	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
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
	// Images are the images that its containers use; a zero Reference for a text that is
	// no reference.
	Images []reference.Reference
	// Tagged are the containers that name a tag and of which it is known what they run. Only pods
	// of followed clusters have it.
	Tagged []Tagged
}

// Source is a storage of pods.
type Source struct {
	Pods Pods
	// Read converts an object of the storage.
	Read func(runtime.Object) (Pod, error)
}

// LocalPods returns the source of this server's own pods.
func LocalPods(pods Pods) Source { return Source{Pods: pods, Read: readLocal} }

// Run reads the pods of all sources and follows their changes until ctx ends. When a
// watch breaks or is too old, it reads the pods again; meanwhile the index keeps what it
// knew. (client-go's reflector would hold every pod in memory while it reads; only the
// names of images are wanted here.)
func (x *Index) Run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	for _, s := range x.sources {
		all.Go(func() { x.run(ctx, s) })
	}
}

func (x *Index) run(ctx context.Context, s *source) {
	// About one second between attempts, half a minute at most.
	backoff := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: 6, Cap: 30 * time.Second}
	delay := backoff.DelayFunc()
	for ctx.Err() == nil {
		started, err := x.watchPods(ctx, s)
		if ctx.Err() != nil {
			return
		}
		if started {
			delay = backoff.DelayFunc()
		}
		if err != nil {
			slog.Error("Following pods for their images was interrupted, listing them again", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay()):
		}
	}
}

// watchPods reads all pods and then watches them until the watch ends. started reports
// whether the watch was begun.
func (x *Index) watchPods(ctx context.Context, s *source) (started bool, err error) {
	version, err := x.readAll(ctx, s)
	if err != nil {
		return false, fmt.Errorf("listing pods: %w", err)
	}
	w, err := s.Pods.Watch(ctx, &internalversion.ListOptions{ResourceVersion: version})
	if err != nil {
		return false, fmt.Errorf("watching pods: %w", err)
	}
	defer w.Stop()
	s.synced.Store(true)
	for {
		select {
		case <-ctx.Done():
			return true, nil
		case event, ok := <-w.ResultChan():
			if !ok {
				return true, nil
			}
			if err := x.apply(s, event); err != nil {
				return true, err
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
			x.set(s.id(pod), nil, "")
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
	used, platform := podimages.Keys(pod.Images), pod.Platform
	if len(used) == 0 {
		platform = ""
	}
	x.tagged.set(s.id(pod), pod.Tagged)
	if x.set(s.id(pod), used, platform) {
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

// readLocal is Read for LocalPods.
func readLocal(obj runtime.Object) (Pod, error) {
	in, ok := obj.(*api.Pod)
	if !ok {
		return Pod{}, fmt.Errorf("%T is not a pod", obj)
	}
	var pod corev1.Pod // shares the memory of in, and is only read
	if err := corev1conversion.Convert_core_Pod_To_v1_Pod(in, &pod, nil); err != nil {
		return Pod{}, err
	}
	return Pod{Cluster: Local, Namespace: in.Namespace, Name: in.Name, Images: podimages.Of(&pod)}, nil
}
