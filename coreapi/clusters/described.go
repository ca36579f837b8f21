package clusters

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/relay"
)

// About returns the verdict about the image that pods of a cluster use by a reference, "" if it is not known to be in
// that repository. notImported then says why it could not be imported; it is "" before that was tried.
type About func(cluster string, ref reference.Reference) (verdict, notImported string)

// podsREST is the storage of pods for clients: each pod is completed when it is read.
type podsREST struct {
	*readOnlyREST
	about About
}

// Get is part of rest.Getter.
func (r *podsREST) Get(ctx context.Context, name string, o *metav1.GetOptions) (runtime.Object, error) {
	obj, err := r.readOnlyREST.Get(ctx, name, o)
	if err != nil {
		return nil, err
	}
	return r.describer()(obj), nil
}

// List is part of rest.Lister.
func (r *podsREST) List(ctx context.Context, o *internalversion.ListOptions) (runtime.Object, error) {
	obj, err := r.readOnlyREST.List(ctx, o)
	if err != nil {
		return nil, err
	}
	list, describe := obj.(*ClusterPodList), r.describer()
	for i := range list.Items {
		list.Items[i] = *describe(&list.Items[i]).(*ClusterPod)
	}
	return list, nil
}

// Watch is part of rest.Watcher. An event shows what is known when it is sent.
func (r *podsREST) Watch(ctx context.Context, o *internalversion.ListOptions) (watch.Interface, error) {
	w, err := r.readOnlyREST.Watch(ctx, o)
	if err != nil {
		return nil, err
	}
	return relay.New(w, func(e watch.Event) watch.Event {
		if e.Type != watch.Bookmark {
			e.Object = r.describer()(e.Object)
		}
		return e
	}, func() {}), nil
}

// describer returns a function that completes pods, and leaves other objects alone. It asks about each reference once:
// many pods run one image, and each answer reads an Image.
func (r *podsREST) describer() func(runtime.Object) runtime.Object {
	type asked struct {
		cluster string
		ref     reference.Reference
	}
	type answer struct{ verdict, notImported string }
	known := map[asked]answer{}
	return func(obj runtime.Object) runtime.Object {
		if shared, ok := obj.(runtime.CacheableObject); ok {
			obj = shared.GetObject()
		}
		p, ok := obj.(*ClusterPod)
		if !ok {
			return obj
		}
		p = p.DeepCopy() // watchers may share it
		for i := range p.Spec.Containers {
			c := &p.Spec.Containers[i]
			ref := usage.Runs(c.Image, c.ImageID)
			a := asked{p.Spec.Cluster, ref}
			if _, ok := known[a]; !ok {
				var found answer
				found.verdict, found.notImported = r.about(a.cluster, ref)
				known[a] = found
			}
			c.Digest, c.Verified, c.NotImported = ref.Digest, known[a].verdict, known[a].notImported
		}
		return p
	}
}
