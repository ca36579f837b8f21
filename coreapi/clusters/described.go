package clusters

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/warning"

	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/relay"
)

// Known describes a container's image, as far as it is known.
type Known struct {
	// Verified is the verdict for the reference that the container names; "" if the image is not
	// known to be there.
	Verified string
	// NotImported is why the image could not be imported; "" before that was tried.
	NotImported string
	// Now is what the tag leads to that the container names, if the container runs something else.
	Now string
}

// About returns what is known of the image that a container of a cluster's pod in a namespace
// names, and of what runs.
type About func(cluster, namespace, image string, runs reference.Reference) Known

// podsREST is the storage of pods for clients: each pod is completed when it is read.
type podsREST struct {
	*readOnlyREST
	about        About
	staleReasons func() []string
}

// Get is part of rest.Getter.
func (r *podsREST) Get(ctx context.Context, name string, o *metav1.GetOptions) (runtime.Object, error) {
	obj, err := r.readOnlyREST.Get(ctx, name, o)
	if err != nil {
		return nil, err
	}
	return r.describer()(obj), nil
}

// List is part of rest.Lister. Whether a container is outdated is found out when a pod is read: a
// page of outdated pods may be short, or empty, although more follow. Clusters whose pods are not
// known as of now are warned of.
func (r *podsREST) List(ctx context.Context, o *internalversion.ListOptions) (runtime.Object, error) {
	o, wanted := withoutOutdated(o)
	obj, err := r.readOnlyREST.List(ctx, o)
	if err != nil {
		return nil, err
	}
	for _, doubt := range r.staleReasons() {
		warning.AddWarning(ctx, "", doubt)
	}
	list, describe := obj.(*ClusterPodList), r.describer()
	kept := list.Items[:0]
	for i := range list.Items {
		p := describe(&list.Items[i]).(*ClusterPod)
		if wanted == "" || fmt.Sprint(isOutdated(p)) == wanted {
			kept = append(kept, *p)
		}
	}
	list.Items = kept
	if wanted != "" {
		list.RemainingItemCount = nil // it counts all pods
	}
	return list, nil
}

// isOutdated reports whether a container of a pod runs something else than its tag leads to now.
func isOutdated(p *ClusterPod) bool {
	return slices.ContainsFunc(p.Spec.Containers, func(c ClusterPodContainer) bool { return c.Outdated != "" })
}

// withoutOutdated takes the field "outdated" out of a selector, and returns the value that is
// wanted of it.
func withoutOutdated(o *internalversion.ListOptions) (_ *internalversion.ListOptions, wanted string) {
	if o == nil || o.FieldSelector == nil {
		return o, ""
	}
	for _, r := range o.FieldSelector.Requirements() {
		if r.Field == outdatedField {
			if wanted = r.Value; r.Operator == selection.NotEquals {
				wanted = map[string]string{"true": "false", "false": "true"}[wanted]
			}
		}
	}
	if wanted == "" {
		return o, ""
	}
	out := *o
	out.FieldSelector, _ = o.FieldSelector.Transform(func(field, value string) (string, string, error) {
		if field == outdatedField {
			return "", "", nil
		}
		return field, value, nil
	})
	return &out, wanted
}

// Watch is part of rest.Watcher. An event shows what is known when it is sent.
func (r *podsREST) Watch(ctx context.Context, o *internalversion.ListOptions) (watch.Interface, error) {
	if _, wanted := withoutOutdated(o); wanted != "" {
		return nil, apierrors.NewBadRequest(`the field "` + outdatedField + `" cannot be watched, because it changes without a change of the pod: list pods by it`)
	}
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

// describer returns a function that completes pods, and leaves other objects alone. It asks about
// each reference once: many pods run one image, and each answer reads an Image.
func (r *podsREST) describer() func(runtime.Object) runtime.Object {
	type asked struct {
		cluster, namespace, image string
		runs                      reference.Reference
	}
	known := map[asked]Known{}
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
			ref := podimages.Runs(c.Image, c.ImageID)
			a := asked{p.Spec.Cluster, p.Spec.Namespace, c.Image, ref}
			found, ok := known[a]
			if !ok {
				found = r.about(a.cluster, a.namespace, a.image, ref)
				known[a] = found
			}
			c.Digest, c.Verified, c.NotImported, c.Outdated = ref.Digest, found.Verified, found.NotImported, found.Now
		}
		return p
	}
}
