package imagestream

import (
	"context"
	"fmt"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/pages"
)

// StoredStreams reads and marks streams as they are stored, and moves their guarded tags. To show a
// stream costs a read of all tags of its repository, and each push has its streams found and
// marked.
type StoredStreams struct {
	status *genericregistry.Store
	shown  *Reader
}

// NewStoredStreams returns the streams whose status is given.
func NewStoredStreams(status *StatusREST) *StoredStreams {
	return &StoredStreams{status.Store, status.shown}
}

// ListStreams lists the streams of all namespaces that a field selector selects, without where
// their tags lead. Of the other options it honours limit and continue.
func (s *StoredStreams) ListStreams(ctx context.Context, options metav1.ListOptions) (*imagev1.ImageStreamList, error) {
	field, err := fields.ParseSelector(options.FieldSelector)
	if err != nil {
		return nil, err
	}
	obj, err := s.status.ListPredicate(genericapirequest.WithNamespace(ctx, metav1.NamespaceAll), s.status.PredicateFunc(labels.Everything(), field),
		&internalversion.ListOptions{Limit: options.Limit, Continue: options.Continue})
	if err != nil {
		return nil, err
	}
	return obj.(*imagev1.ImageStreamList), nil
}

// MarkStream writes the version of the tag that moved last into a stream, so that its watchers get
// an event. Guarded tags of it move, too, or wait.
func (s *StoredStreams) MarkStream(ctx context.Context, namespace, name, version string) error {
	return s.write(ctx, namespace, name, func(stream *imagev1.ImageStream) {
		metav1.SetMetaDataAnnotation(&stream.ObjectMeta, tags.Moved, version)
	})
}

const promotionPage = 100 // streams read at a time

// Promote moves the guarded tags of streams that wait for an image, as far as they may; with "",
// for any image.
func (s *StoredStreams) Promote(ctx context.Context, image string) error {
	if image == "" {
		return s.promoteAll(ctx, "")
	}
	obj, err := s.shown.Images.Get(genericapirequest.WithNamespace(ctx, metav1.NamespaceNone), image, &metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	// a tag may follow one that leads there
	selected := []string{fields.OneTermEqualSelector(selectors.StreamLeads, image).String()}
	of := obj.(*imagev1.Image)
	for _, repository := range annotation.In(of.Annotations, of.DockerImageReference, image) {
		selected = append(selected, fields.OneTermEqualSelector(selectors.StreamRepository, repository.Name()).String())
	}
	for _, selector := range selected {
		if err := s.promoteAll(ctx, selector); err != nil {
			return err
		}
	}
	return nil
}

// promoteAll moves the guarded tags of the streams that a field selector selects.
func (s *StoredStreams) promoteAll(ctx context.Context, selector string) error {
	return pages.Each(ctx, metav1.ListOptions{Limit: promotionPage, FieldSelector: selector}, s.ListStreams, func(list *imagev1.ImageStreamList) error {
		for i := range list.Items {
			stream := &list.Items[i]
			if !HasGuarded(stream) {
				continue
			}
			if err := s.write(ctx, stream.Namespace, stream.Name, func(*imagev1.ImageStream) {}); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("moving the tags of the image stream %s/%s: %w", stream.Namespace, stream.Name, err)
			}
		}
		return nil
	})
}

// write changes a stream as it is stored, and moves its guarded tags. If nothing changes, nothing
// is written.
func (s *StoredStreams) write(ctx context.Context, namespace, name string, change func(*imagev1.ImageStream)) error {
	mark := func(ctx context.Context, _, old runtime.Object) (runtime.Object, error) {
		stream := old.(*imagev1.ImageStream).DeepCopy()
		change(stream)
		return stream, s.shown.promote(ctx, stream, nil)
	}
	_, _, err := s.status.Update(genericapirequest.WithNamespace(ctx, namespace), name, rest.DefaultUpdatedObjectInfo(nil, mark), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	return err
}
