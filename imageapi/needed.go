package imageapi

import (
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
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/printable"
	"github.com/tidewaiter/tidewaiter/imageapi/selectors"
	"github.com/tidewaiter/tidewaiter/imageapi/tags"
)

const (
	// tagsPage is how many tags are read at a time.
	tagsPage = 500
	// noRegistry is the host of repositories where there is no registry. Nothing can be pulled from it.
	noRegistry = "tidewaiter.invalid"
)

const neededDescription = "Controls nothing. It names the images of the image stream of this name that a tag leads to now or that pods use, here or in the clusters that are followed, " +
	"so that oc adm prune images keeps them."

// Needed tells which images of streams are needed: those that a tag leads to now, and those that pods use. DELETE of an image goes
// by the same rules. Needed is for clients that delete from a registry before they delete the Image, when a refusal comes too late.
//
// It tells by ReplicationControllers, since such clients look for images in pod templates: one for each stream, with the name and the
// UID of that. Each image is named by its digest in the stream, as namespace/name@digest of a registry.
type Needed struct{ streams *streamsREST }

// NeededOf returns what tells it of the storage that [Storage] has returned.
func NeededOf(images map[string]rest.Storage) *Needed {
	return &Needed{images["imagestreams"].(*streamsREST)}
}

// List reads a list of streams, and names what is needed of each. A stream of which nothing is needed has no controller.
//
// It fails while it is unknown what pods use. A list of all namespaces also fails while the registry whose image API this server is
// has images that are needed and that no stream has: clients that go by streams would take them for unused.
func (n *Needed) List(ctx context.Context, options *internalversion.ListOptions) (*corev1.ReplicationControllerList, error) {
	if options != nil && options.FieldSelector != nil {
		for _, term := range options.FieldSelector.Requirements() {
			if !strings.HasPrefix(term.Field, "metadata.") {
				return nil, apierrors.NewBadRequest(fmt.Sprintf("field label %q is not supported here: select by metadata.name or metadata.namespace", term.Field))
			}
		}
	}
	used, err := n.used(ctx)
	if err != nil {
		return nil, err
	}
	if genericapirequest.NamespaceValue(ctx) == "" && (options == nil || options.Continue == "") {
		if err := n.streams.shown.everyNeeded(ctx, used); err != nil {
			return nil, err
		}
	}
	obj, err := n.streams.List(ctx, options)
	if err != nil {
		return nil, err
	}
	streams := obj.(*imagev1.ImageStreamList)
	list := &corev1.ReplicationControllerList{ListMeta: streams.ListMeta, Items: []corev1.ReplicationController{}}
	for i := range streams.Items {
		if one := n.of(&streams.Items[i], used); one != nil {
			list.Items = append(list.Items, *one)
		}
	}
	return list, nil
}

// Get names what is needed of one stream.
func (n *Needed) Get(ctx context.Context, name string) (*corev1.ReplicationController, error) {
	used, err := n.used(ctx)
	if err != nil {
		return nil, err
	}
	obj, err := n.streams.Get(ctx, name, &metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	if err == nil {
		if one := n.of(obj.(*imagev1.ImageStream), used); one != nil {
			return one, nil
		}
	}
	return nil, apierrors.NewNotFound(corev1.Resource("replicationcontrollers"), name)
}

// of names what is needed of a stream; nil if that is nothing.
func (n *Needed) of(stream *imagev1.ImageStream, used map[string]bool) *corev1.ReplicationController {
	images := map[string]bool{}
	for i := range stream.Status.Tags {
		for j, event := range stream.Status.Tags[i].Items {
			if event.Image != "" && (j == 0 || used[event.Image]) {
				images[event.Image] = true
			}
		}
	}
	if len(images) == 0 {
		return nil
	}
	rc := &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: stream.Namespace, Name: stream.Name, UID: stream.UID, ResourceVersion: stream.ResourceVersion,
			CreationTimestamp: stream.CreationTimestamp, Labels: stream.Labels,
			Annotations: map[string]string{"kubernetes.io/description": neededDescription},
		},
		Spec: corev1.ReplicationControllerSpec{Replicas: new(int32), Template: &corev1.PodTemplateSpec{}},
	}
	host := n.streams.shown.registry
	if host == "" {
		host = noRegistry
	}
	for i, image := range slices.Sorted(maps.Keys(images)) {
		rc.Spec.Template.Spec.Containers = append(rc.Spec.Template.Spec.Containers, corev1.Container{
			Name: fmt.Sprintf("image-%d", i), Image: host + "/" + stream.Namespace + "/" + stream.Name + "@" + image,
		})
	}
	return rc
}

// usersOf are the clusters and namespaces, as cluster/namespace, of pods that use an image, sorted.
func (f *facts) usersOf(image string) []string {
	return f.usage.UsedBy(append(f.indexes.of(image), image), nil)
}

// used are the names of the images that pods use. It fails while that is unknown. Why it is, is told to who reads all namespaces: it
// names clusters.
func (n *Needed) used(ctx context.Context) (map[string]bool, error) {
	used, doubts, err := n.streams.shown.images.inUse(ctx)
	if err != nil || len(doubts) == 0 {
		return used, err
	}
	why := ""
	if genericapirequest.NamespaceValue(ctx) == "" {
		why = ": " + strings.Join(doubts, "; ")
	}
	return nil, apierrors.NewServiceUnavailable(printable.Line("it is unknown which images pods use"+why+
		". Who prunes by this list could delete what runs: try again when that is known (kubectl get clusters), or take the cluster out of the configuration", 2*maxWhy))
}

// everyNeeded fails if the registry whose image API this server is has images that are needed and that no stream has.
func (r *streamReader) everyNeeded(ctx context.Context, used map[string]bool) error {
	if r.registry == "" {
		return nil
	}
	ctx = genericapirequest.WithNamespace(ctx, metav1.NamespaceNone)
	within := map[string][]string{} // by the repository, images that are used
	for _, name := range slices.Sorted(maps.Keys(used)) {
		obj, err := r.images.Store.Get(ctx, name, &metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		for _, ref := range references(obj.(*imagev1.Image)) {
			if repository := ref.Repository; ref.Host == r.registry && !slices.Contains(within[repository], name) {
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
				above, err := r.images.above(ctx, name)
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
func (r *streamReader) histories(ctx context.Context, repository string) (map[string]bool, error) {
	namespace, name, _ := strings.Cut(repository, "/")
	stream, err := r.get(ctx, namespace, name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	has := map[string]bool{}
	for i := range stream.Status.Tags {
		for _, event := range stream.Status.Tags[i].Items {
			has[event.Image] = true
		}
	}
	return has, nil
}

// wouldGo says that images which pods use are in no stream, and what to do.
func (r *streamReader) wouldGo(lacking map[string]string) error {
	names := slices.Sorted(maps.Keys(lacking))
	var said []string
	for _, name := range names[:min(len(names), maxNamed)] {
		said = append(said, fmt.Sprintf("%s (pods of %s)", name, strings.Join(r.images.facts.usersOf(name), ", ")))
	}
	if more := len(names) - len(said); more > 0 {
		said = append(said, fmt.Sprintf("and %d more", more))
	}
	first := lacking[names[0]]
	return conflicts(fmt.Sprintf("pods use images of %s that are in the history of no tag, so who prunes by streams would delete them there: %s. Give each a tag, as in: oc tag --source=docker %s/%s@%s %s:in-use",
		r.registry, strings.Join(said, "; "), r.registry, first, names[0], first))
}

// everyTagShown fails if a tag of the own registry leads to an image, and no stream shows it.
func (r *streamReader) everyTagShown(ctx context.Context) error {
	shown := map[string]bool{} // by repository
	options := &internalversion.ListOptions{Limit: tagsPage}
	for {
		obj, err := r.tags.ListPredicate(genericapirequest.WithNamespace(ctx, tags.Namespace), tagPredicate(labels.Everything(), fields.Everything()), options)
		if err != nil {
			return err
		}
		list := obj.(*imagev1.ImageTagList)
		for i := range list.Items {
			ref, ok := tags.Reference(&list.Items[i])
			if image, _ := tags.Now(&list.Items[i]); !ok || ref.Host != r.registry || image == "" {
				continue
			}
			if _, known := shown[ref.Name()]; !known {
				if shown[ref.Name()], err = r.showsAll(ctx, ref.Name()); err != nil {
					return err
				}
			}
			if !shown[ref.Name()] {
				return conflicts(fmt.Sprintf("the tag %s leads to an image, and no image stream shows the tags of its repository, so who prunes by streams would delete that in the registry. Make the image stream %s, or delete the imagetag %s in namespace %s",
					ref, ref.Repository, list.Items[i].Name, tags.Namespace))
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return nil
		}
	}
}

// showsAll reports whether a stream shows the tags of a repository.
func (r *streamReader) showsAll(ctx context.Context, repository string) (bool, error) {
	field := fields.OneTermEqualSelector(selectors.StreamRepository, repository)
	obj, err := r.streams.ListPredicate(genericapirequest.WithNamespace(ctx, metav1.NamespaceAll), streamPredicate(labels.Everything(), field), nil)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(obj.(*imagev1.ImageStreamList).Items, func(stream imagev1.ImageStream) bool {
		return stream.Spec.DockerImageRepository == repository
	}), nil
}

func conflicts(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusConflict, Reason: metav1.StatusReasonConflict, Message: printable.Line(message, 2*maxWhy),
	}}
}
