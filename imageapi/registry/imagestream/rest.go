// Package imagestream stores ImageStreams and shows them with where their tags lead: a stream keeps
// its own tags, and follows the ImageTags of its repository.
package imagestream

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/tidewaiter/tidewaiter/imageapi/internal/virtual"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/internal/strategy"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/relay"
)

// NewReader returns what reads streams, with the store over g that it reads them from. A stream is
// stored with what its users write and with the histories of tags that follow no registry. Where
// its other tags lead is read from the ImageTags whenever a stream is shown.
func NewReader(g generic.RESTOptionsGetter, scheme *runtime.Scheme, o Options) (*Reader, error) {
	shown := &Reader{Options: o}
	s := Strategy{Namespaced: strategy.NewNamespaced(scheme), shown: shown}
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &imagev1.ImageStream{} },
		NewListFunc:               func() runtime.Object { return &imagev1.ImageStreamList{} },
		PredicateFunc:             shown.predicate,
		DefaultQualifiedResource:  imagev1.Resource("imagestreams"),
		SingularQualifiedResource: imagev1.Resource("imagestream"),
		CreateStrategy:            s,
		UpdateStrategy:            s,
		DeleteStrategy:            s,
		ResetFieldsStrategy:       s,
		TableConvertor:            streamTable,
	}
	indexers := cache.Indexers{}
	for field, values := range map[string]func(*imagev1.ImageStream) []string{selectors.StreamRepository: repositoriesOf, selectors.StreamLeads: ledTo} {
		key := storage.FieldIndex(field)
		switch field {
		case selectors.StreamRepository:
			key += "#" + reference.FormVersion
		case selectors.StreamLeads:
			key += "#2" // since it has what tags refer to by digest
		}
		indexers[key] = func(obj any) ([]string, error) {
			stream, ok := obj.(*imagev1.ImageStream)
			if !ok {
				return nil, fmt.Errorf("%T is not an ImageStream", obj)
			}
			return values(stream), nil
		}
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: g, AttrFunc: shown.attributes, Indexers: &indexers}); err != nil {
		return nil, fmt.Errorf("imageapi: %w", err)
	}
	store.AfterDelete = func(obj runtime.Object, options *metav1.DeleteOptions) {
		if options == nil || len(options.DryRun) == 0 {
			shown.forgetPushes(obj.(*imagev1.ImageStream))
		}
	}
	store.BeginCreate = func(_ context.Context, obj runtime.Object, options *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
		return shown.written(obj, nil, options.DryRun), nil
	}
	store.BeginUpdate = func(_ context.Context, obj, old runtime.Object, options *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
		return shown.written(obj, old, options.DryRun), nil
	}
	shown.Streams = store
	return shown, nil
}

// NewREST returns the storage of imagestreams, and the storage of their status.
func NewREST(shown *Reader) (*REST, *StatusREST) {
	ofStatus := *shown.Streams
	status := streamStatusStrategy{ofStatus.UpdateStrategy.(Strategy)}
	ofStatus.UpdateStrategy, ofStatus.ResetFieldsStrategy = status, status
	return &REST{shown.Streams, shown}, &StatusREST{virtual.Status{Store: &ofStatus}, shown}
}

// REST is the storage of imagestreams: the generic one, which it completes with where the tags
// lead.
type REST struct {
	*genericregistry.Store
	shown *Reader
}

var (
	_ rest.StandardStorage    = &REST{}
	_ rest.ShortNamesProvider = &REST{}
	_ rest.CategoriesProvider = &REST{}
)

// ShortNames is part of rest.ShortNamesProvider.
func (*REST) ShortNames() []string { return []string{"is"} }

// Categories is part of rest.CategoriesProvider.
func (*REST) Categories() []string { return []string{"all"} }

// Get is part of rest.Getter.
func (r *REST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	obj, err := r.Store.Get(ctx, name, options)
	return r.shown.object(ctx, obj, err)
}

// maxListedEvents bounds the items of all histories in a list together. A single stream is listed
// however long its histories are.
const maxListedEvents = 50000

// List is part of rest.Lister. Where histories are long, a page may be shorter than its limit, and
// a list without a limit is refused.
func (r *REST) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	ctx = Narrowed(ctx, options)
	obj, err := r.Store.List(ctx, options)
	if err != nil {
		return nil, err
	}
	list, events := obj.(*imagev1.ImageStreamList), 0
	for i := range list.Items {
		shown, err := r.shown.Show(ctx, &list.Items[i])
		if err != nil {
			return nil, err
		}
		for j := range shown.Status.Tags {
			events += len(shown.Status.Tags[j].Items)
		}
		if i > 0 && events > maxListedEvents {
			return cutStreams(ctx, list, i, options)
		}
		list.Items[i] = *shown
	}
	return list, nil
}

// Narrowed returns a context for a list whose selector names one namespace. The generic storage
// narrows only the first page, so its continue token would start the list again.
func Narrowed(ctx context.Context, options *internalversion.ListOptions) context.Context {
	if options == nil || options.FieldSelector == nil || genericapirequest.NamespaceValue(ctx) != "" {
		return ctx
	}
	if namespace, ok := options.FieldSelector.RequiresExactMatch("metadata.namespace"); ok && len(content.IsPathSegmentName(namespace)) == 0 {
		return genericapirequest.WithNamespace(ctx, namespace)
	}
	return ctx
}

// cutStreams cuts a list before one of its streams.
func cutStreams(ctx context.Context, list *imagev1.ImageStreamList, before int, options *internalversion.ListOptions) (runtime.Object, error) {
	if options == nil || options.Limit == 0 {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the histories of these image streams are longer than %d items: list them in pages (limit and continue; kubectl get --chunk-size)", maxListedEvents))
	}
	version, err := strconv.ParseInt(list.ResourceVersion, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("imageapi: resourceVersion of a list: %w", err)
	}
	next := &list.Items[before]
	key := next.Name
	if genericapirequest.NamespaceValue(ctx) == "" {
		key = next.Namespace + "/" + next.Name
	}
	list.Items, list.RemainingItemCount = list.Items[:before], nil
	list.Continue, err = storage.EncodeContinue("/"+key, "/", version)
	return list, err
}

// Create is part of rest.Creater.
func (r *REST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	out, err := r.Store.Create(ctx, obj, validate, options)
	return r.shown.object(ctx, out, err)
}

// Update is part of rest.Updater.
func (r *REST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, force bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	obj, created, err := r.Store.Update(ctx, name, info, create, update, force, options)
	obj, err = r.shown.object(ctx, obj, err)
	return obj, created, err
}

// Delete is part of rest.GracefulDeleter. The knowledge about the tags of a registry's repository
// does not depend on the stream, and stays. The records of pushes to the stream itself go with it,
// so that a new stream of the same name does not get them.
func (r *REST) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	obj, now, err := r.Store.Delete(ctx, name, validate, options)
	obj, err = r.shown.object(ctx, obj, err)
	return obj, now, err
}

// DeleteCollection is part of rest.CollectionDeleter.
func (r *REST) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, list *internalversion.ListOptions) (runtime.Object, error) {
	obj, err := r.Store.DeleteCollection(ctx, validate, options, list)
	return r.shown.object(ctx, obj, err)
}

// Watch is part of rest.Watcher. It reports a stream when the stream is written, which package
// streams also does after a tag has moved. The event shows where the tags lead at that moment.
func (r *REST) Watch(ctx context.Context, options *internalversion.ListOptions) (watch.Interface, error) {
	stored, err := r.Store.Watch(ctx, options)
	if err != nil {
		return nil, err
	}
	return relay.New(stored, func(event watch.Event) watch.Event { return r.shown.event(ctx, event) }, func() {}), nil
}

// repositoriesOf returns the repositories that a stream follows, sorted, each once.
func repositoriesOf(stream *imagev1.ImageStream) (repositories []string) {
	add := func(s string) {
		if ref, err := reference.Parse(s); err == nil {
			repositories = append(repositories, ref.Name())
		}
	}
	if stream.Spec.DockerImageRepository != "" {
		add(stream.Spec.DockerImageRepository)
	}
	for i := range stream.Spec.Tags {
		if from := stream.Spec.Tags[i].From; from != nil && from.Kind == "DockerImage" {
			add(from.Name)
		}
	}
	slices.Sort(repositories)
	return slices.Compact(repositories)
}

// ledTo returns the images that those tags of a stream led to last that follow no registry, and
// those that its tags refer to by digest, sorted, each once. A tag that follows another may lead
// elsewhere now.
func ledTo(stream *imagev1.ImageStream) (images []string) {
	for i := range stream.Status.Tags {
		if items := stream.Status.Tags[i].Items; len(items) > 0 && items[0].Image != "" {
			images = append(images, items[0].Image)
		}
	}
	for i := range stream.Spec.Tags {
		if image := referredTo(&stream.Spec.Tags[i]); image != "" {
			images = append(images, image)
		}
	}
	slices.Sort(images)
	return slices.Compact(images)
}

// referredTo returns the image that a tag of a stream names by its digest without importing it
// (reference: true); "" for any other tag. It has no history.
func referredTo(tag *imagev1.TagReference) string {
	if !tag.Reference || tag.From == nil {
		return ""
	}
	if _, digest, _ := strings.Cut(tag.From.Name, "@"); reference.IsDigest(digest) {
		return digest
	}
	return ""
}

const (
	// Fields that streams are selected by as OpenShift's are.
	streamSpecField   = "spec.dockerImageRepository"
	streamStatusField = "status.dockerImageRepository"
)

func (r *Reader) attributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	stream, ok := obj.(*imagev1.ImageStream)
	if !ok {
		return nil, nil, fmt.Errorf("%T is not an ImageStream", obj)
	}
	set := fields.Set{streamSpecField: stream.Spec.DockerImageRepository, streamStatusField: r.registryRepository(stream)}
	repositories := repositoriesOf(stream)
	if len(repositories) == 0 {
		repositories = []string{""}
	}
	for _, repository := range repositories {
		key, value := selectors.Term(selectors.StreamRepository, repository)
		set[key] = value
	}
	for _, image := range ledTo(stream) {
		key, value := selectors.Term(selectors.StreamLeads, image)
		set[key] = value
	}
	return stream.Labels, generic.AddObjectMetaFieldsSet(set, &stream.ObjectMeta, true), nil
}

func (r *Reader) predicate(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
	indexed := []string{selectors.StreamLeads, selectors.StreamRepository}
	for _, r := range field.Requirements() {
		if r.Value == "" {
			indexed = nil // streams without a repository have no entry
		}
	}
	return storage.SelectionPredicate{Label: label, Field: selectors.NewSelector(field), GetAttrs: r.attributes, IndexFields: indexed}
}

// ConvertFieldLabel accepts the selectable fields of streams, and repositories as people write
// them.
func ConvertFieldLabel(label, value string) (string, string, error) {
	switch label {
	case "metadata.name", "metadata.namespace", streamSpecField, streamStatusField:
		return label, value, nil
	case selectors.StreamRepository:
		if value == "" {
			return label, value, nil
		}
		ref, err := reference.Parse(value)
		if err != nil {
			return "", "", err
		}
		return label, ref.Name(), nil
	}
	return "", "", fmt.Errorf("field label %q is not supported for image streams: select by metadata.name, metadata.namespace, %s, %s or %s", label, selectors.StreamRepository, streamSpecField, streamStatusField)
}
