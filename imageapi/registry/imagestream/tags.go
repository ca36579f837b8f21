package imagestream

import (
	"context"
	"iter"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"

	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagetag"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// TagsAfter yields the known tags of a repository that come after one, in the order of their names.
// It reads a few at a time.
func (r *Reader) TagsAfter(ctx context.Context, repository, after string, atOnce int) iter.Seq2[*imagev1.ImageTag, error] {
	return func(yield func(*imagev1.ImageTag, error) bool) {
		ref, err := reference.Parse(repository)
		if err != nil {
			return // it was stored without validation
		}
		from := tags.Stream(ref) + ":"
		if after != "" {
			from += after + "\x00"
		}
		options := internalversion.ListOptions{Limit: int64(atOnce)}
		predicate := imagetag.Predicate(labels.Everything(), fields.OneTermEqualSelector(selectors.TagRepository, ref.Name()))
		options.Continue, err = imageregistry.Position(from)
		for more := true; more && err == nil; {
			more, err = r.tagsPage(ctx, predicate, &options, yield)
		}
		if err != nil {
			yield(nil, err)
		}
	}
}

// tagsPage yields some ImageTags, and sets options to the next. It returns false when there are
// none, or when no more are wanted.
func (r *Reader) tagsPage(ctx context.Context, predicate storage.SelectionPredicate, options *internalversion.ListOptions, yield func(*imagev1.ImageTag, error) bool) (more bool, err error) {
	ctx, done := context.WithCancel(genericapirequest.WithNamespace(ctx, tags.Namespace))
	defer done()
	obj, err := r.Tags.ListPredicate(ctx, predicate, options)
	if err != nil {
		return false, err
	}
	list := obj.(*imagev1.ImageTagList)
	for i := range list.Items {
		if !yield(&list.Items[i], nil) {
			return false, nil
		}
	}
	options.Continue = list.Continue
	return list.Continue != "", nil
}
