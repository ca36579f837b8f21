package clusters

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/warning"

	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/internal/relay"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// Images knows the images that pods run.
type Images interface {
	// About returns the known facts about the image that a container names and the one that runs.
	About(cluster, namespace, image, imageID string) podimages.Known
	// Selects returns the stored values of the field "image" of the pods that name or run the image of
	// a text: a reference, a digest or its beginning. A value that is a key of package podimages may
	// be followed by a platform, as in sha256:…@linux/arm64. With naming, it returns only the values
	// of pods that name a tag. It fails if the text means no image or several.
	Selects(ctx context.Context, text string, naming bool) (values []string, err error)
}

// PodsREST is the storage of pods for clients: each pod is completed when it is read.
type PodsREST struct {
	*ReadOnlyREST
	clusters *Clusters
	images   Images
	verdicts []string
}

// NewPodsREST returns the storage of the pods of clusters. verdicts are the words that images has
// for verdicts.
func NewPodsREST(c *Clusters, images Images, verdicts []string) *PodsREST {
	return &PodsREST{ReadOnly(c.pods, "cpod"), c, images, verdicts}
}

// warn warns a client about clusters whose pods are missing or out of date.
func (r *PodsREST) warn(ctx context.Context) {
	if unfollowed := r.clusters.Unfollowed(); unfollowed != "" {
		warning.AddWarning(ctx, "", unfollowed)
	}
	for _, doubt := range r.clusters.StaleReasons() {
		warning.AddWarning(ctx, "", doubt)
	}
}

// selectImage takes the field "image" out of a selector, and returns the values that are stored for
// what it means. asked is false if it is not in the selector, or only with !=.
func (r *PodsREST) selectImage(ctx context.Context, o *internalversion.ListOptions, outdated bool) (_ *internalversion.ListOptions, values []string, asked bool, err error) {
	if o == nil || o.FieldSelector == nil {
		return o, nil, false, nil
	}
	rest := fields.Everything()
	for _, q := range o.FieldSelector.Requirements() {
		switch {
		case q.Field == imageField:
			stored, err := r.images.Selects(ctx, q.Value, outdated)
			if err != nil {
				return nil, nil, false, apierrors.NewBadRequest(fmt.Sprintf("field label %q: %v", imageField, err))
			}
			if q.Operator != selection.NotEquals && !asked {
				values, asked = stored, true
				continue
			}
			term := fields.OneTermEqualSelector
			if q.Operator == selection.NotEquals {
				term = fields.OneTermNotEqualSelector
			}
			rest = fields.AndSelectors(rest, term(imageField, strings.Join(stored, ValueSeparator)))
		case q.Operator == selection.NotEquals:
			rest = fields.AndSelectors(rest, fields.OneTermNotEqualSelector(q.Field, q.Value))
		default:
			rest = fields.AndSelectors(rest, fields.OneTermEqualSelector(q.Field, q.Value))
		}
	}
	out := *o
	out.FieldSelector = rest
	return &out, values, asked, nil
}

// Get is part of rest.Getter.
func (r *PodsREST) Get(ctx context.Context, name string, o *metav1.GetOptions) (runtime.Object, error) {
	obj, err := r.ReadOnlyREST.Get(ctx, name, o)
	if err != nil {
		return nil, err
	}
	return r.describer()(obj), nil
}

// List is part of rest.Lister. Whether a container is outdated, its verdict with the reason, and
// parts of names are found out when a pod is read: a page of pods that are selected by them may be
// short, or empty, although more follow. Clusters whose pods are not known as of now are warned of.
func (r *PodsREST) List(ctx context.Context, o *internalversion.ListOptions) (runtime.Object, error) {
	o, verified := without(o, verifiedField)
	if err := areVerdicts(verified, r.verdicts); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	o, reasons := without(o, reasonField)
	o, outdated := without(o, outdatedField)
	o, named := without(o, namedField)
	o, values, asked, err := r.selectImage(ctx, o, len(outdated) > 0)
	if err != nil {
		return nil, err
	}
	var list *ClusterPodList
	if asked {
		list, err = r.clusters.listByImage(ctx, o, values)
	} else {
		var obj runtime.Object
		if obj, err = r.ReadOnlyREST.List(ctx, o); err == nil {
			list = obj.(*ClusterPodList)
		}
	}
	if err != nil {
		return nil, err
	}
	r.warn(ctx)
	describe := r.describer()
	kept, unknown := list.Items[:0], false
	for i := range list.Items {
		if !isNamedSo(&list.Items[i], named) {
			continue
		}
		p := describe(&list.Items[i]).(*ClusterPod)
		if !isVerifiedSo(p, verified, reasons) {
			continue
		}
		drift := driftOf(p, values)
		if isDriftSo(drift, outdated) {
			kept = append(kept, *p)
		} else if drift == driftUnknown {
			unknown = true
		}
	}
	list.Items = kept
	if len(outdated) > 0 || len(verified) > 0 || len(reasons) > 0 || len(named) > 0 {
		list.RemainingItemCount = nil // it counts all pods
	}
	if unknown {
		warning.AddWarning(ctx, "", "it is not known of all pods whether they are outdated: outdated=unknown selects the others")
	}
	return list, nil
}

// Watch is part of rest.Watcher. An event shows what is known when it is sent.
func (r *PodsREST) Watch(ctx context.Context, o *internalversion.ListOptions) (watch.Interface, error) {
	for _, field := range []string{outdatedField, verifiedField, reasonField, namedField} {
		if _, demanded := without(o, field); len(demanded) > 0 {
			return nil, apierrors.NewBadRequest(`the field "` + field + `" cannot be watched, because it is computed when a pod is read: list pods by it`)
		}
	}
	o, values, asked, err := r.selectImage(ctx, o, false)
	if err != nil {
		return nil, err
	}
	if asked {
		o.FieldSelector = fields.AndSelectors(o.FieldSelector, fields.OneTermEqualSelector(imageField, strings.Join(values, ValueSeparator)))
	}
	w, err := r.ReadOnlyREST.Watch(ctx, o)
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

// describer returns a function that completes pods, and leaves other objects alone. It answers
// about each reference once: many pods run one image, and each answer reads an Image.
func (r *PodsREST) describer() func(runtime.Object) runtime.Object {
	type asked struct{ cluster, namespace, image, imageID string }
	known := map[asked]podimages.Known{}
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
			a := asked{p.Spec.Cluster, p.Spec.Namespace, c.Image, c.ImageID}
			found, ok := known[a]
			if !ok {
				found = r.images.About(a.cluster, a.namespace, a.image, a.imageID)
				known[a] = found
			}
			c.Digest, c.NotImported, c.Outdated, c.OutdatedUnknown = found.Digest, found.NotImported, found.Now, found.OutdatedUnknown
			c.Verified, c.Reason, c.VerdictMessage = cmp.Or(found.Verified, table.Unknown), found.Reason, found.Message
		}
		return p
	}
}
