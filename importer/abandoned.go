package importer

import (
	"context"
	"errors"
	"maps"
	"slices"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/record"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/pages"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

const (
	// maxAbandoned bounds the digests that are checked after one tag was deleted or has moved.
	maxAbandoned = 1000
	// leadingPage is how many tags are listed at a time.
	leadingPage = 100
)

// Abandoned asks the registry whether it still has digests that a tag no longer leads to. Many
// registries delete a manifest together with its tag, but report only the tag. Abandoned skips a
// digest to which another tag in the repository leads. If an index is gone, it also checks the
// images that the index lists. gone are the Images that it marked because the registry no longer
// has them.
func (im *Importer) Abandoned(ctx context.Context, images Tagged, repository reference.Reference, digests []string) (gone []string, err error) {
	seen := map[string]bool{"": true}
	for n := 0; len(digests) > 0 && n < maxAbandoned; n++ {
		digest := digests[0]
		digests = digests[1:]
		if seen[digest] {
			continue
		}
		seen[digest] = true
		own := repository.WithDigest(digest)
		image, err := images.Get(ctx, digest, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return gone, err
		}
		if !annotation.WasIn(image.Annotations, image.DockerImageReference, repository) {
			continue // no import has ever found the image in this repository
		}
		if leads, err := isLedTo(ctx, images, own); leads || err != nil {
			if err != nil {
				return gone, err
			}
			continue
		}
		now, err := im.Resolve(ctx, own)
		if err != nil {
			return gone, err
		}
		if now != "" {
			continue
		}
		marked, err := im.Change(ctx, images, digest, func(image *imagev1.Image) bool { return record.MarkGone(image, im.Now(), own) })
		if err != nil {
			return gone, err
		}
		if marked {
			gone = append(gone, digest)
		}
		digests = append(digests, Listed(image)...)
	}
	return gone, nil
}

// isLedTo reports whether a known tag of the same repository leads to the digest.
func isLedTo(ctx context.Context, images Tagged, ref reference.Reference) (leads bool, err error) {
	err = EachLeading(ctx, images, ref, func(reference.Reference) error {
		leads = true
		return nil
	})
	return leads, err
}

// EachLeading calls visit with each known tag of the same repository that leads to the digest.
func EachLeading(ctx context.Context, images Tagged, to reference.Reference, visit func(tag reference.Reference) error) error {
	return eachTag(ctx, images, to.Bare(), fields.OneTermEqualSelector(selectors.TagImage, to.Digest), func(ref reference.Reference, digest string) error {
		if digest != to.Digest {
			return nil
		}
		return visit(ref)
	})
}

// EachUnlisted calls visit with each known tag of a repository for which listed returns false, and
// with the digest that it leads to. A registry's list is a claim: a proxy lists what it has
// fetched, and others list a part. So callers ask the registry about each tag that a list lacks.
//
// A server with ImageRecords answers for many repositories in one request, and for one with few
// tags it sends no more than their names and digests.
func EachUnlisted(ctx context.Context, images Tagged, repository reference.Reference, listed func(tag reference.Reference) bool, visit func(tag reference.Reference, digest string) error) error {
	if recorder, ok := images.(Recorder); ok {
		known, err := recorder.Record(ctx, &record.Item{Repository: &record.Repository{Name: repository.String()}})
		switch isRefused := errors.Is(err, record.ErrUnsupported) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err); {
		case isRefused: // lists may be allowed
		case err != nil:
			return err
		case !known.Unread:
			if prefetcher, ok := images.(*Prefetcher); ok && known.Alone {
				prefetcher.isVacant(repository)
			}
			for _, tag := range slices.Sorted(maps.Keys(known.Tags)) {
				if ref := repository.WithTag(tag); !listed(ref) {
					if err := visit(ref, known.Tags[tag]); err != nil {
						return err
					}
				}
			}
			return nil
		}
	}
	return eachTag(ctx, images, repository, fields.Everything(), func(ref reference.Reference, digest string) error {
		if listed(ref) {
			return nil
		}
		return visit(ref, digest)
	})
}

// EachOfRegistry calls visit with each known tag of a registry that leads to a digest. The server
// reads all tags to find them.
func EachOfRegistry(ctx context.Context, images Tagged, host string, visit func(tag reference.Reference, digest string) error) error {
	return eachSelected(ctx, images, fields.OneTermEqualSelector(selectors.Named, host+"/"), func(ref reference.Reference, digest string) error {
		if ref.Host != host {
			return nil
		}
		return visit(ref, digest)
	})
}

// eachTag calls visit with each known tag of a repository that leads to a digest, among those that
// a selector chooses.
func eachTag(ctx context.Context, images Tagged, repository reference.Reference, chosen fields.Selector, visit func(tag reference.Reference, digest string) error) error {
	selector := fields.AndSelectors(fields.OneTermEqualSelector(selectors.TagRepository, repository.String()), chosen)
	return eachSelected(ctx, images, selector, func(ref reference.Reference, digest string) error {
		if ref.Bare() != repository {
			return nil
		}
		return visit(ref, digest)
	})
}

// eachSelected calls visit with each known tag that leads to a digest, among those that a selector
// chooses.
func eachSelected(ctx context.Context, images Tagged, selector fields.Selector, visit func(tag reference.Reference, digest string) error) error {
	return pages.Each(ctx, metav1.ListOptions{Limit: leadingPage, FieldSelector: selector.String()}, images.ListTags, func(list *imagev1.ImageTagList) error {
		for i := range list.Items {
			ref, ok := tags.Reference(&list.Items[i])
			if now, _ := tags.Now(&list.Items[i]); ok && now != "" {
				if err := visit(ref, now); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// Listed returns the digests that a stored index lists, and none for any other Image.
func Listed(image *imagev1.Image) (digests []string) {
	m, err := manifest.Parse([]byte(image.DockerImageManifest), image.DockerImageManifestMediaType)
	if err != nil || m.Kind != manifest.KindIndex {
		return nil // not an index, or the Image is not stored
	}
	for _, child := range m.Children {
		digests = append(digests, child.Digest)
	}
	return digests
}
