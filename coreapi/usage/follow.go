package usage

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"
	api "k8s.io/kubernetes/pkg/apis/core"
	corev1conversion "k8s.io/kubernetes/pkg/apis/core/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/pages"
)

// Pods is the pod storage that an index follows, as a registry offers it.
type Pods interface {
	rest.Lister
	rest.Watcher
}

// Run reads the pods and follows their changes until ctx ends. When the watch
// breaks or is too old, the pods are read anew; in between the index keeps what
// it knew. (client-go's reflector would hold every pod in memory while it
// reads; only the names of images are wanted here.)
func (x *Index) Run(ctx context.Context) {
	// About one second between attempts, half a minute at most.
	backoff := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: 6, Cap: 30 * time.Second}
	delay := backoff.DelayFunc()
	for ctx.Err() == nil {
		started, err := x.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if started {
			delay = backoff.DelayFunc()
		}
		if err != nil {
			slog.Error("Following pods for their images broke off, reading them again", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay()):
		}
	}
}

// follow reads all pods and then watches them until the watch ends; started
// says whether it came to the watch.
func (x *Index) follow(ctx context.Context) (started bool, err error) {
	version, err := x.readAll(ctx)
	if err != nil {
		return false, fmt.Errorf("listing pods: %w", err)
	}
	w, err := x.pods.Watch(ctx, &internalversion.ListOptions{ResourceVersion: version})
	if err != nil {
		return false, fmt.Errorf("watching pods: %w", err)
	}
	defer w.Stop()
	x.synced.Store(true)
	for {
		select {
		case <-ctx.Done():
			return true, nil
		case event, ok := <-w.ResultChan():
			if !ok {
				return true, nil
			}
			if err := x.apply(event); err != nil {
				return true, err
			}
		}
	}
}

// readAll replaces what is known by the pods that exist, page by page, and
// returns the resource version that the pages show. A pod that cannot be read
// uses nothing; the log names it.
func (x *Index) readAll(ctx context.Context) (version string, err error) {
	alive := map[string]struct{}{}
	err = pages.Read(ctx, func(ctx context.Context, limit int64, token string) (next string, err error) {
		list, err := x.pods.List(ctx, &internalversion.ListOptions{Limit: limit, Continue: token})
		if err != nil {
			return "", err
		}
		err = meta.EachListItem(list, func(obj runtime.Object) error {
			pod, found, err := read(obj)
			if err != nil {
				return err
			}
			alive[pod] = struct{}{}
			x.set(pod, found)
			return nil
		})
		if err != nil {
			return "", err
		}
		m, err := meta.ListAccessor(list)
		if err != nil {
			return "", err
		}
		version = m.GetResourceVersion()
		return m.GetContinue(), nil
	}, func(err error) {
		slog.Error("The images of a pod that cannot be read are not counted", "err", err)
	})
	if err != nil {
		return "", err
	}
	x.retain(alive)
	return version, nil
}

// apply follows one event of the watch.
func (x *Index) apply(event watch.Event) error {
	switch event.Type {
	case watch.Added, watch.Modified, watch.Deleted:
		pod, found, err := read(event.Object)
		if err != nil {
			return err
		}
		if event.Type == watch.Deleted {
			found = nil
		}
		x.set(pod, found)
		return nil
	case watch.Bookmark:
		return nil
	}
	return fmt.Errorf("watching pods: %w", apierrors.FromObject(event.Object))
}

// read returns the name of a pod and the keys of its images.
func read(obj runtime.Object) (name string, found []string, err error) {
	// A storage may send one object to many watchers with its encodings.
	if shared, ok := obj.(runtime.CacheableObject); ok {
		obj = shared.GetObject()
	}
	in, ok := obj.(*api.Pod)
	if !ok {
		return "", nil, fmt.Errorf("%T is no pod", obj)
	}
	var pod corev1.Pod // shares the memory of in, and is only read
	if err := corev1conversion.Convert_core_Pod_To_v1_Pod(in, &pod, nil); err != nil {
		return "", nil, err
	}
	return in.Namespace + "/" + in.Name, keys(&pod), nil
}
