package imagestream

import (
	"context"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/tags"
)

// StoredStreams reads and marks streams as they are stored. To show a stream costs a read of all tags of its
// repository, and each push has its streams found and marked.
type StoredStreams struct{ status *genericregistry.Store }

// StoredStreamsOf returns the StoredStreams of the storage that Storage returned.
func StoredStreamsOf(storage map[string]rest.Storage) *StoredStreams {
	return &StoredStreams{storage["imagestreams/status"].(*StatusREST).store}
}

// ListStreams lists the streams of all namespaces that a field selector selects, without where their tags lead. Of the
// other options it honours limit and continue.
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

// MarkStream writes the version of the tag that moved last into a stream, so that its watchers get an event.
func (s *StoredStreams) MarkStream(ctx context.Context, namespace, name, version string) error {
	mark := func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		stream := old.(*imagev1.ImageStream).DeepCopy()
		metav1.SetMetaDataAnnotation(&stream.ObjectMeta, tags.Moved, version)
		return stream, nil
	}
	_, _, err := s.status.Update(genericapirequest.WithNamespace(ctx, namespace), name, rest.DefaultUpdatedObjectInfo(nil, mark), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	return err
}
