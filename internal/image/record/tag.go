package record

import (
	"context"
	"fmt"
	"slices"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/pages"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Tagged are Images with a record of where tags lead.
type Tagged interface {
	Images
	List(ctx context.Context, options metav1.ListOptions) (*imagev1.ImageList, error)
	GetTag(ctx context.Context, name string, options metav1.GetOptions) (*imagev1.ImageTag, error)
	// UpdateTag writes the status of an ImageTag, and makes an ImageTag that does not exist.
	UpdateTag(ctx context.Context, tag *imagev1.ImageTag, options metav1.UpdateOptions) (*imagev1.ImageTag, error)
}

// Store records the registry's answer about a tag, unless others have written the ImageTag since
// the request began. tag is the latest known ImageTag.
func (seen *Tag) Store(ctx context.Context, images Tagged, ref reference.Reference, tag *imagev1.ImageTag, at time.Time) (*Result, error) {
	result := &Result{}
	if result.Led, _ = tags.Now(tag); tag != nil && tag.ResourceVersion != seen.Version || tag == nil && seen.Version != "" {
		result.Again = true
		return result, nil
	}
	var err error
	result.Left, result.Again, err = storeTag(ctx, images, ref, tag, seen, at)
	return result, err
}

// imagesPage is how many Images are in memory at a time: an Image is up to 12 MiB, usually some
// 20 KiB.
const imagesPage = 10

// GetTag reads the ImageTag of a reference; nil if it has none.
func GetTag(ctx context.Context, ref reference.Reference, images Tagged) (*imagev1.ImageTag, error) {
	tag, err := images.GetTag(ctx, tags.Name(ref), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking up where %s led: %w", ref, err)
	}
	return tag, nil
}

// storeTag records the registry's answer about a tag, given since the ImageTag, if any, was read.
// left are the Images that the tag has left, or that are marked because the registry no longer has
// it. again is true if others have written the ImageTag meanwhile: the caller must ask the registry
// again.
func storeTag(ctx context.Context, images Tagged, ref reference.Reference, tag *imagev1.ImageTag, seen *Tag, at time.Time) (left []string, again bool, err error) {
	now := metav1.NewTime(at.UTC().Truncate(time.Second))
	led, known := tags.Now(tag)
	learnt := seen.Absent || seen.Digest != ""
	if !learnt && (tag == nil || seen.Reason == "") {
		return nil, false, nil
	}
	if learnt && (!known || led != seen.Digest || seen.Contested) {
		if !seen.Alone {
			if left, err = leaveOthers(ctx, ref, images, led, seen, now); err != nil {
				return left, false, err
			}
		}
		if tag == nil && seen.Absent && len(left) == 0 {
			return left, false, nil // the registry never had it
		}
	}
	if tag = tag.DeepCopy(); tag == nil {
		tag = tags.New(ref)
	}
	if tag.Status == nil {
		tag.Status = &imagev1.NamedTagEventList{Tag: ref.Tag}
	}
	changed := learnt && tags.Lead(tag, ref, seen.Digest, now)
	if !seen.Paused {
		changed = tags.Fail(tag, seen.Reason, seen.Message, now) || changed
	}
	if !changed {
		return left, false, nil
	}
	metav1.SetMetaDataAnnotation(&tag.ObjectMeta, tags.Cause, seen.Cause)
	made := tag.ResourceVersion == ""
	_, err = images.UpdateTag(ctx, tag, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || made && apierrors.IsInvalid(err) {
		return left, true, nil // another writer has created or updated it meanwhile
	}
	if err != nil {
		return left, false, err
	}
	return left, false, nil
}

// leaveOthers removes a reference from all Images on which it is recorded, except the one to which
// it leads. If the registry no longer has the reference, leaveOthers marks them and the Image to
// which it led. That Image may lack the reference, since the number of references on an Image is
// bounded. left are the names of the changed Images.
func leaveOthers(ctx context.Context, ref reference.Reference, images Tagged, led string, seen *Tag, now metav1.Time) (left []string, err error) {
	var names []string
	if seen.Absent && led != "" {
		names = append(names, led)
	}
	selector := fields.OneTermEqualSelector(selectors.RecordedReferences, ref.String()).String()
	err = pages.Each(ctx, metav1.ListOptions{Limit: imagesPage, FieldSelector: selector}, images.List, func(list *imagev1.ImageList) error {
		for i := range list.Items {
			if name := list.Items[i].Name; name != seen.Digest && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing images by %s: %w", selector, err)
	}
	for _, name := range names {
		changed, err := Change(ctx, images, name, func(image *imagev1.Image) bool { return leave(image, seen.Absent, now.Time, ref) })
		if err != nil {
			return left, err
		}
		if changed {
			left = append(left, name)
		}
	}
	return left, nil
}

// leave removes a tag from an Image. The Image stays recorded by digest in the tag's repository,
// which presumably still has it. If gone is true, the registry no longer has the tag, and leave
// marks that; otherwise the tag leads elsewhere now.
func leave(image *imagev1.Image, gone bool, at time.Time, ref reference.Reference) (changed bool) {
	if changed = annotation.Leave(image.Annotations, ref); changed {
		own := ref.WithDigest(image.Name)
		isIn := slices.Contains(annotation.In(image.Annotations, image.DockerImageReference, image.Name), ref.Bare())
		if _, missing := annotation.Missing(image.Annotations)[own]; !isIn && !missing {
			annotation.SetKnown(image.Annotations, append(annotation.Known(image.Annotations), own))
		}
	}
	if !gone {
		return changed
	}
	return markMissing(image, at, ref) || changed
}

func markMissing(image *imagev1.Image, at time.Time, ref reference.Reference) bool {
	missing := annotation.Missing(image.Annotations)
	if missing[ref] != "" {
		return false
	}
	missing[ref] = at.UTC().Format(time.RFC3339)
	if image.Annotations == nil {
		image.Annotations = map[string]string{}
	}
	annotation.SetMissing(image.Annotations, missing)
	return true
}

// MarkGone records on an Image that the registry no longer has a reference. If the reference is a
// tag, it is removed from the Image. MarkGone reports whether the Image changed.
func MarkGone(image *imagev1.Image, at time.Time, ref reference.Reference) (changed bool) {
	if ref.Tag == "" {
		return markMissing(image, at, ref)
	}
	return leave(image, true, at, ref)
}
