package answers

import (
	"context"
	"fmt"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Objects are the stored Images, or the ImageTags, as their storage offers them.
type Objects interface {
	Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error)
	List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error)
}

// Packages knows which packages images have.
type Packages interface {
	// Get reads the ImagePackages of a digest.
	Get(ctx context.Context, digest string, options *metav1.GetOptions) (runtime.Object, error)
	// Known reports whether it is known which packages the image of a digest has.
	Known(ctx context.Context, digest string) (bool, error)
	// With returns images that have a package, sorted by name: those whose names are not before
	// from, about limit of them, at a revision or, if that is 0, now. more is the name from which
	// there may be more.
	With(ctx context.Context, value, from string, revision int64, limit int) (names []string, at int64, more string, err error)
	// Lists returns the lists of images whose digests come after one, sorted by them, about limit of
	// them; none if there are no more.
	Lists(ctx context.Context, after string, limit int) ([]packages.ImagePackages, error)
	// Count is how many images have a list of packages, and Partly reports whether one lacks
	// packages of its image.
	Count(ctx context.Context) (int64, error)
	Partly(ctx context.Context) (bool, error)
}

// source reads what is stored, as far as the caller may see it, and counts what it reads.
type source struct {
	images, tags Objects
	rights       rights
	read         int // bytes of Images
	// given is an Image that need not be read; nil for none. in are its repositories; nil before they
	// are needed.
	given *imagev1.Image
	in    []reference.Reference
}

// errBudget ends the answers of a review that has read too much.
var errBudget = fmt.Errorf("this review has read more than %d MiB of Images: ask about fewer references at once", maxRead>>20)

// unpermitted is the error for an object that the caller may not see.
type unpermitted struct{ reason string }

func (e *unpermitted) Error() string { return e.reason }

// image returns the Image of a digest, nil if it is not stored.
func (s *source) image(ctx context.Context, digest string) (*imagev1.Image, error) {
	if err := s.mayRead(s.rights.getImages); err != nil {
		return nil, err
	}
	if s.given != nil && s.given.Name == digest {
		return s.given, nil
	}
	obj, err := s.images.Get(genericapirequest.WithNamespace(ctx, metav1.NamespaceNone), digest, &metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	image := obj.(*imagev1.Image)
	s.count(image)
	return image, nil
}

// list lists Images.
func (s *source) list(ctx context.Context, limit int, terms ...fields.Selector) ([]imagev1.Image, error) {
	if err := s.mayRead(s.rights.listImages); err != nil {
		return nil, err
	}
	obj, err := s.images.List(genericapirequest.WithNamespace(ctx, metav1.NamespaceNone), &internalversion.ListOptions{FieldSelector: fields.AndSelectors(terms...), Limit: int64(limit)})
	if err != nil {
		return nil, err
	}
	all := obj.(*imagev1.ImageList).Items
	for i := range all {
		s.count(&all[i])
	}
	return all, nil
}

// mayRead fails if the caller may not, or if the review has read enough.
func (s *source) mayRead(right string) error {
	if right != "" {
		return &unpermitted{right}
	}
	if s.read > maxRead {
		return errBudget
	}
	return nil
}

// count counts the bytes of an Image that are not small.
func (s *source) count(image *imagev1.Image) {
	s.read += 4<<10 + len(image.DockerImageManifest) + len(image.DockerImageConfig) + len(image.DockerImageMetadata.Raw)
	for i := range image.Signatures {
		s.read += len(image.Signatures[i].Content)
	}
	for _, text := range image.Annotations {
		s.read += len(text)
	}
}

// beginning lists the images, or else the artifacts, whose digest has a beginning: sha256:9f86.
func (s *source) beginning(ctx context.Context, digest string) ([]imagev1.Image, error) {
	field := fields.OneTermEqualSelector(selectors.Digest, digest)
	all, err := s.list(ctx, 0, field)
	if err == nil && len(all) == 0 {
		return s.list(ctx, 0, field, fields.OneTermEqualSelector(selectors.Artifact, "true"))
	}
	return all, err
}

// verifiedIndexes lists indexes that vouch for an image under a verdict's key. It shows the caller
// nothing of them.
func (s *source) verifiedIndexes(ctx context.Context, key, digest string) (all []*imagev1.Image, err error) {
	obj, err := s.images.List(genericapirequest.WithNamespace(ctx, metav1.NamespaceNone), &internalversion.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(selectors.IndexVerdicts, key+"@"+digest), Limit: maxVerifiedIndexes,
	})
	if err != nil {
		return nil, err
	}
	for i := range obj.(*imagev1.ImageList).Items {
		all = append(all, &obj.(*imagev1.ImageList).Items[i])
		s.count(all[i])
	}
	return all, nil
}

// listing lists the indexes that list an image; more is true if there are further ones.
func (s *source) listing(ctx context.Context, digest string) (all []imagev1.Image, more bool, err error) {
	all, err = s.list(ctx, maxOthers+1, fields.OneTermEqualSelector(selectors.Lists, digest))
	return all[:min(len(all), maxOthers)], len(all) > maxOthers, err
}

// recorded lists the images on which a reference is recorded that has no history.
func (s *source) recorded(ctx context.Context, ref reference.Reference) ([]imagev1.Image, error) {
	return s.list(ctx, 2, fields.OneTermEqualSelector(selectors.RecordedReferences, ref.String()))
}

// tag returns the ImageTag of a reference with a tag, nil if there is none.
func (s *source) tag(ctx context.Context, ref reference.Reference) (*imagev1.ImageTag, error) {
	if err := s.mayRead(s.rights.getTags); err != nil {
		return nil, err
	}
	obj, err := s.tags.Get(genericapirequest.WithNamespace(ctx, tags.Namespace), tags.Name(ref), &metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return obj.(*imagev1.ImageTag), nil
}

// tagged lists ImageTags by a field.
func (s *source) tagged(ctx context.Context, field, value string, limit int) (all []imagev1.ImageTag, more bool, err error) {
	if err := s.mayRead(s.rights.listTags); err != nil {
		return nil, false, err
	}
	obj, err := s.tags.List(genericapirequest.WithNamespace(ctx, tags.Namespace), &internalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector(field, value), Limit: int64(limit)})
	if err != nil {
		return nil, false, err
	}
	list := obj.(*imagev1.ImageTagList)
	for i := range list.Items {
		if status := list.Items[i].Status; status != nil {
			s.read += ofEvent * len(status.Items)
		}
	}
	return list.Items, list.Continue != "", nil
}
