package imagestream

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagetag"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/pages"
	"github.com/tidewaiter/tidewaiter/internal/printable"
)

const (
	// tagsPage is how many tags are read at a time.
	tagsPage = 500
	// noRegistry is the host of repositories where there is no registry. Nothing can be pulled from
	// it.
	noRegistry = "tidewaiter.invalid"
	// InUseNamespace is the only namespace that has the controllers of [InUseControllers]. They are
	// for clients that list all namespaces. A list of a user's namespace neither shows them nor
	// fails while use is unknown.
	InUseNamespace = "tidewaiter-in-use"
)

const inUseDescription = "Controls nothing. Its name is the namespace and the name of an image stream. It names the images of this stream that a tag leads to now or first led to, that pods use or workloads need, here or in the followed clusters, or that an index of the stream lists, " +
	"so that oc adm prune images keeps them."

// InUseControllers shows which images of streams are needed: those to which a tag leads now, and
// those that pods use or may use, or workloads need. DELETE of an image applies the same rules.
// InUseControllers is for clients that delete from a registry before they delete the Image: for
// them, a refusal of the DELETE would come too late.
//
// It returns ReplicationControllers, since such clients look for images in pod templates: one for
// each stream, in [InUseNamespace], with the name namespace.name and the UID of the stream. Each
// image is named by its digest in the stream, as namespace/name@digest of a registry.
type InUseControllers struct{ streams *REST }

// NewInUseControllers returns the InUseControllers of streams.
func NewInUseControllers(streams *REST) *InUseControllers { return &InUseControllers{streams} }

// List reads the streams of all namespaces, and returns a controller with the needed images of
// each. A stream without needed images has no controller. A list of a namespace other than
// InUseNamespace is empty.
//
// It fails while it is unknown what pods use or workloads need. It also fails while a needed image
// of the registry that uses this server is in no stream: clients that compare with streams would
// take it for unused.
func (n *InUseControllers) List(ctx context.Context, options *internalversion.ListOptions) (*corev1.ReplicationControllerList, error) {
	selected := fields.Everything()
	if options != nil && options.FieldSelector != nil {
		for _, term := range options.FieldSelector.Requirements() {
			if term.Field != "metadata.name" && term.Field != "metadata.namespace" {
				return nil, apierrors.NewBadRequest(fmt.Sprintf("field label %q is not supported here: select by metadata.name or metadata.namespace", term.Field))
			}
		}
		selected = options.FieldSelector
		options = options.DeepCopy() // streams have other names
		options.FieldSelector = nil
	}
	list := &corev1.ReplicationControllerList{Items: []corev1.ReplicationController{}}
	if namespace := genericapirequest.NamespaceValue(ctx); namespace != "" && namespace != InUseNamespace {
		return list, nil
	}
	used, err := n.used(ctx)
	if err != nil {
		return nil, err
	}
	ctx = genericapirequest.WithNamespace(ctx, metav1.NamespaceAll)
	if options == nil || options.Continue == "" {
		if err := n.streams.shown.everyNeeded(ctx, used); err != nil {
			return nil, err
		}
	}
	obj, err := n.streams.List(ctx, options)
	if err != nil {
		return nil, err
	}
	streams := obj.(*imagev1.ImageStreamList)
	list.ListMeta = streams.ListMeta
	known := newLookups()
	for i := range streams.Items {
		one, err := n.controller(ctx, &streams.Items[i], used, known)
		if err != nil {
			return nil, err
		}
		if one != nil && selected.Matches(fields.Set{"metadata.name": one.Name, "metadata.namespace": one.Namespace}) {
			list.Items = append(list.Items, *one)
		}
	}
	return list, nil
}

// Get names what is needed of one stream. name is namespace.name of the stream.
func (n *InUseControllers) Get(ctx context.Context, name string) (*corev1.ReplicationController, error) {
	namespace, stream, ok := strings.Cut(name, ".")
	if !ok || genericapirequest.NamespaceValue(ctx) != InUseNamespace {
		return nil, apierrors.NewNotFound(corev1.Resource("replicationcontrollers"), name)
	}
	used, err := n.used(ctx)
	if err != nil {
		return nil, err
	}
	ctx = genericapirequest.WithNamespace(ctx, namespace)
	obj, err := n.streams.Get(ctx, stream, &metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	if err == nil {
		if one, err := n.controller(ctx, obj.(*imagev1.ImageStream), used, newLookups()); one != nil || err != nil {
			return one, err
		}
	}
	return nil, apierrors.NewNotFound(corev1.Resource("replicationcontrollers"), name)
}

// lookups remembers what was looked up of images that are in many histories.
type lookups struct {
	begins map[string]bool     // whether a tag begins with it
	above  map[string][]string // the indexes that list it
}

func newLookups() *lookups { return &lookups{begins: map[string]bool{}, above: map[string][]string{}} }

// controller names what is needed of a stream; nil if that is nothing. That stays in its histories
// when a client shortens them: a client that takes an item for gone deletes in the registry what
// the stream still has. It is also what indexes in its histories list, since the registry refuses
// to delete that (405): an index goes before what it lists.
func (n *InUseControllers) controller(ctx context.Context, stream *imagev1.ImageStream, used map[string]bool, known *lookups) (*corev1.ReplicationController, error) {
	covered, err := n.streams.shown.covered(ctx, stream)
	if err != nil {
		return nil, err
	}
	images := map[string]bool{}
	for _, image := range covered {
		images[image] = true
	}
	has := historyOf(stream)
	for i := range stream.Status.Tags {
		for j, event := range stream.Status.Tags[i].Items {
			if event.Image == "" || images[event.Image] {
				continue
			}
			stays := j == 0 || used[event.Image]
			if !stays {
				if stays, err = n.streams.shown.stays(ctx, event.Image, has, known); err != nil {
					return nil, err
				}
			}
			if stays {
				images[event.Image] = true
			}
		}
	}
	if len(images) == 0 {
		return nil, nil
	}
	rc := &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: InUseNamespace, Name: stream.Namespace + "." + stream.Name, UID: stream.UID, ResourceVersion: stream.ResourceVersion,
			CreationTimestamp: stream.CreationTimestamp, Labels: stream.Labels,
			Annotations: map[string]string{"kubernetes.io/description": inUseDescription},
		},
		Spec: corev1.ReplicationControllerSpec{Replicas: new(int32), Template: &corev1.PodTemplateSpec{}},
	}
	host := cmp.Or(n.streams.shown.Registry, noRegistry)
	for i, image := range slices.Sorted(maps.Keys(images)) {
		rc.Spec.Template.Spec.Containers = append(rc.Spec.Template.Spec.Containers, corev1.Container{
			Name: fmt.Sprintf("image-%d", i), Image: host + "/" + stream.Namespace + "/" + stream.Name + "@" + image,
		})
	}
	return rc, nil
}

// stays reports whether a tag begins with an image, or an index lists it that the stream has, too.
func (r *Reader) stays(ctx context.Context, image string, has map[string]bool, known *lookups) (bool, error) {
	begins, ok := known.begins[image]
	if !ok {
		var err error
		if begins, err = r.begins(ctx, image); err != nil {
			return false, err
		}
		known.begins[image] = begins
	}
	if begins {
		return true, nil
	}
	above, ok := known.above[image]
	if !ok {
		var err error
		if above, err = r.Images.Above(genericapirequest.WithNamespace(ctx, metav1.NamespaceNone), image); err != nil {
			return false, err
		}
		known.above[image] = above
	}
	return slices.ContainsFunc(above, func(index string) bool { return has[index] }), nil
}

// used are the names of the images that pods use or may use, or workloads need. It fails while that
// is unknown. Only callers that read all namespaces learn why: it names clusters.
func (n *InUseControllers) used(ctx context.Context) (map[string]bool, error) {
	used, doubts, err := n.streams.shown.Images.InUse(ctx)
	if err != nil || len(doubts) == 0 {
		return used, err
	}
	why := ""
	if genericapirequest.NamespaceValue(ctx) == "" {
		why = ": " + strings.Join(doubts, "; ")
	}
	return nil, apierrors.NewServiceUnavailable(printable.Line("it is unknown which images pods use or workloads need"+why+
		". Pruning by this list could delete images in use: try again when they are known (kubectl get clusters), or remove the cluster from the configuration", 2*imageregistry.MaxWhy))
}

// everyNeeded fails if the registry whose image API this server is has images that are needed and
// that no stream has.
func (r *Reader) everyNeeded(ctx context.Context, used map[string]bool) error {
	if r.Registry == "" {
		return nil
	}
	ctx = genericapirequest.WithNamespace(ctx, metav1.NamespaceNone)
	within := map[string][]string{} // by the repository, images that are used
	for _, name := range slices.Sorted(maps.Keys(used)) {
		obj, err := r.Images.Store.Get(ctx, name, &metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		for _, ref := range imageregistry.References(obj.(*imagev1.Image)) {
			if repository := ref.Repository; ref.Host == r.Registry && !slices.Contains(within[repository], name) {
				within[repository] = append(within[repository], name)
			}
		}
	}
	lacking := map[string]string{} // by the image, a repository that has it
	had := map[string]bool{}
	for _, repository := range slices.Sorted(maps.Keys(within)) {
		has, err := r.histories(ctx, repository)
		if err != nil {
			return err
		}
		for _, name := range within[repository] {
			keeps := has[name]
			if !keeps {
				above, err := r.Images.Above(ctx, name)
				if err != nil {
					return err
				}
				keeps = slices.ContainsFunc(above, func(index string) bool { return used[index] && has[index] })
			}
			had[name] = had[name] || keeps
			lacking[name] = repository
		}
	}
	maps.DeleteFunc(lacking, func(name, _ string) bool { return had[name] })
	if len(lacking) > 0 {
		return r.wouldGo(lacking)
	}
	return r.everyTagShown(ctx)
}

// histories are the images in the histories of the stream of a repository of the own registry.
func (r *Reader) histories(ctx context.Context, repository string) (map[string]bool, error) {
	namespace, name, _ := strings.Cut(repository, "/")
	stream, err := r.get(ctx, namespace, name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return historyOf(stream), nil
}

func historyOf(stream *imagev1.ImageStream) map[string]bool {
	has := map[string]bool{}
	for i := range stream.Status.Tags {
		for _, event := range stream.Status.Tags[i].Items {
			has[event.Image] = true
		}
	}
	return has
}

// wouldGo is the error for images in no stream that pods use or workloads need, with what to do.
func (r *Reader) wouldGo(lacking map[string]string) error {
	names := slices.Sorted(maps.Keys(lacking))
	var said []string
	for _, name := range names[:min(len(names), imageregistry.MaxNamed)] {
		users := cmp.Or(strings.Join(r.Images.Facts.UsersOf(name), ", "), "perhaps by pods that do not tell what they run")
		said = append(said, fmt.Sprintf("%s (%s)", name, users))
	}
	if more := len(names) - len(said); more > 0 {
		said = append(said, fmt.Sprintf("and %d more", more))
	}
	first := lacking[names[0]]
	return conflicts(fmt.Sprintf("pods use, or workloads need, images of %s that are not in the history of any tag, so pruning by streams would delete them there: %s. Give each a tag, as in: oc tag --source=docker %s/%s@%s %s:in-use",
		r.Registry, strings.Join(said, "; "), r.Registry, first, names[0], first))
}

// everyTagShown fails if a tag of the own registry leads to an image, and no stream shows it.
func (r *Reader) everyTagShown(ctx context.Context) error {
	shown := map[string]bool{} // by repository
	return pages.Each(ctx, metav1.ListOptions{Limit: tagsPage}, func(ctx context.Context, o metav1.ListOptions) (*imagev1.ImageTagList, error) {
		options := &internalversion.ListOptions{Limit: o.Limit, Continue: o.Continue}
		obj, err := r.Tags.ListPredicate(genericapirequest.WithNamespace(ctx, tags.Namespace), imagetag.Predicate(labels.Everything(), fields.Everything()), options)
		if err != nil {
			return nil, err
		}
		return obj.(*imagev1.ImageTagList), nil
	}, func(list *imagev1.ImageTagList) (err error) {
		for i := range list.Items {
			ref, ok := tags.Reference(&list.Items[i])
			if image, _ := tags.Now(&list.Items[i]); !ok || ref.Host != r.Registry || image == "" {
				continue
			}
			if _, known := shown[ref.Name()]; !known {
				if shown[ref.Name()], err = r.showsAll(ctx, ref.Name()); err != nil {
					return err
				}
			}
			if !shown[ref.Name()] {
				return conflicts(fmt.Sprintf("the tag %s leads to an image, but no image stream shows the tags of its repository, so pruning by streams would delete that image in the registry. Create the image stream %s, or delete the imagetag %s in namespace %s",
					ref, ref.Repository, list.Items[i].Name, tags.Namespace))
			}
		}
		return nil
	})
}

// showsAll reports whether a stream shows the tags of a repository.
func (r *Reader) showsAll(ctx context.Context, repository string) (bool, error) {
	field := fields.OneTermEqualSelector(selectors.StreamRepository, repository)
	obj, err := r.Streams.ListPredicate(genericapirequest.WithNamespace(ctx, metav1.NamespaceAll), r.predicate(labels.Everything(), field), nil)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(obj.(*imagev1.ImageStreamList).Items, func(stream imagev1.ImageStream) bool {
		return stream.Spec.DockerImageRepository == repository
	}), nil
}

func conflicts(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusConflict, Reason: metav1.StatusReasonConflict, Message: printable.Line(message, 2*imageregistry.MaxWhy),
	}}
}
