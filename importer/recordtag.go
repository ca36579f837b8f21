package importer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/tidewaiter/tidewaiter/coreapi/pages"
	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/selectors"
	"github.com/tidewaiter/tidewaiter/imageapi/tags"
	"github.com/tidewaiter/tidewaiter/importer/pull"
)

// Tagged are Images with a record of where tags lead. An import into other Images records a tag
// only on the Image that it leads to.
type Tagged interface {
	ListedImages
	GetTag(ctx context.Context, name string, options metav1.GetOptions) (*imagev1.ImageTag, error)
	// UpdateTag writes the status of an ImageTag, and makes an ImageTag that does not exist.
	UpdateTag(ctx context.Context, tag *imagev1.ImageTag, options metav1.UpdateOptions) (*imagev1.ImageTag, error)
	ListTags(ctx context.Context, options metav1.ListOptions) (*imagev1.ImageTagList, error)
}

// Confirmer gets the references whose registries confirmed where they lead. Images that are none
// keep no such record.
type Confirmer interface {
	ConfirmTags(ctx context.Context, checks []tags.Check) error
}

// confirm tells images that the registry, asked at a time, confirmed where a reference leads. If
// that fails, what is known is only older.
func (im *Importer) confirm(ctx context.Context, images Images, ref reference.Reference, digest string, asked time.Time) {
	check := tags.Check{Reference: ref.String(), Digest: digest, At: asked}
	if prefetcher, ok := images.(*Prefetcher); ok {
		prefetcher.confirm(ctx, check)
	} else if c, ok := images.(Confirmer); ok {
		_ = c.ConfirmTags(ctx, []tags.Check{check})
	}
}

// tagAnswer is the registry's last answer about a tag.
type tagAnswer struct {
	// the digest that it leads to, whose manifest was read there; "" if that is not known
	digest string
	absent bool  // the registry does not have it
	err    error // why the registry could not be asked, or the image not be imported
}

type causeKey struct{}

// WithCause returns a context whose writes to tags record a cause for people, such as "sweep". The
// default is "import".
func WithCause(ctx context.Context, cause string) context.Context {
	return context.WithValue(ctx, causeKey{}, cause)
}

// recordTag calls look to ask the registry about a tag, and records the result.
//
// It writes only if the tag was not written since before the registry was asked; else it asks
// again. So a history is in the order in which the registry was asked, by whomever and however
// slowly, and its newest item is what the registry said last. A tag that [Prefetcher] has listed is
// older than one that is read now, and that is safe: if somebody has written of it since, its
// version has changed, and the write is refused. left are the Images that the tag has left, or that
// are marked because the registry no longer has it.
func (im *Importer) recordTag(ctx context.Context, ref reference.Reference, images Tagged, look func() tagAnswer) (left []string, err error) {
	backoff := conflictBackoff
	for n := 0; backoff.Steps > 0; n++ {
		if n > 0 {
			select {
			case <-time.After(backoff.Step()):
			case <-ctx.Done():
				return left, context.Cause(ctx)
			}
		}
		var before prefetchedTag
		if prefetcher, ok := images.(*Prefetcher); ok && n == 0 {
			before = prefetcher.takeTag(ctx, ref)
		}
		var tag *imagev1.ImageTag
		if !before.known {
			if tag, err = getTag(ctx, ref, images); err != nil {
				return left, err
			}
		}
		asked := im.Now()
		seen := look()
		if before.version != "" {
			if seen.err == nil && seen.digest == before.digest {
				im.confirm(ctx, images, ref, seen.digest, asked)
				return left, nil // there is nothing to write
			}
			if tag, err = getTag(ctx, ref, images); err != nil {
				return left, err
			}
			if tag == nil || tag.ResourceVersion != before.version {
				continue
			}
		}
		led, _ := tags.Now(tag)
		also, again, err := im.remember(ctx, ref, images, tag, seen, n > 0, before.emptyRepository)
		left = append(left, also...)
		if !again {
			if err == nil && seen.err == nil && led != "" && led == seen.digest {
				im.confirm(ctx, images, ref, led, asked)
			}
			return left, err
		}
	}
	return left, fmt.Errorf("others updated where %s leads %d times in the meantime: import it again", ref, conflictBackoff.Steps)
}

// getTag reads the ImageTag of a reference; nil if it has none.
func getTag(ctx context.Context, ref reference.Reference, images Tagged) (*imagev1.ImageTag, error) {
	tag, err := images.GetTag(ctx, tags.Name(ref), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking up where %s led: %w", ref, err)
	}
	return tag, nil
}

// remember records what was seen of a tag since its ImageTag, if any, was read. again is true if
// others have written of the tag meanwhile. contested says that the tag may have led elsewhere in
// an earlier round, and empty that before the first round no Image was recorded under the
// repository.
func (im *Importer) remember(ctx context.Context, ref reference.Reference, images Tagged, tag *imagev1.ImageTag, seen tagAnswer, contested, empty bool) (left []string, again bool, err error) {
	if ctx.Err() != nil || seen.digest == "" && !seen.absent && (tag == nil || seen.err == nil) {
		return left, false, nil // nothing was learnt
	}
	if tag == nil && pull.ReasonOf(seen.err) == pull.NotAnImage {
		return left, false, nil // a chart, say: its tag matters only if it was an image's
	}
	now := metav1.NewTime(im.Now().UTC().Truncate(time.Second))
	led, known := tags.Now(tag)
	if seen.absent || seen.digest != "" {
		if moved := !known || led != seen.digest; moved || contested {
			if !empty || contested {
				if left, err = im.leaveOthers(ctx, ref, images, led, seen, now); err != nil {
					return left, false, err
				}
			}
			if tag == nil && seen.absent && len(left) == 0 {
				return left, false, nil // the registry never had it
			}
		}
	}
	if tag == nil {
		tag = tags.New(ref)
	}
	if tag.Status == nil {
		tag.Status = &imagev1.NamedTagEventList{Tag: ref.Tag}
	}
	changed := false
	if seen.absent || seen.digest != "" {
		changed = tags.Lead(tag, ref, seen.digest, now)
	}
	reason, message := "", ""
	if seen.err != nil && !seen.absent {
		reason, message = string(pull.ReasonOf(seen.err)), pull.Clean(seen.err.Error())
		reason = cmp.Or(reason, string(pull.Failed))
	}
	if reason != string(pull.RateLimited) { // a pause is not a failure yet
		changed = tags.Fail(tag, reason, message, now) || changed
	}
	if !changed {
		return left, false, nil
	}
	metav1.SetMetaDataAnnotation(&tag.ObjectMeta, tags.Cause, "import")
	if cause, ok := ctx.Value(causeKey{}).(string); ok {
		tag.Annotations[tags.Cause] = cause
	}
	made := tag.ResourceVersion == ""
	_, err = images.UpdateTag(ctx, tag, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || made && apierrors.IsInvalid(err) {
		return left, true, nil // if it did not exist, somebody has made it meanwhile
	}
	if err != nil {
		return left, false, fmt.Errorf("recording where %s leads: %w", ref, err)
	}
	return left, false, nil
}

// leaveOthers takes a reference off all Images that are known by it and that it does not lead to.
// If the registry no longer has the reference, it marks them, and the Image that it led to: that
// need not be known by it, since an Image shows but the given number of references. left are their
// names.
func (im *Importer) leaveOthers(ctx context.Context, ref reference.Reference, images Tagged, led string, seen tagAnswer, now metav1.Time) (left []string, err error) {
	var names []string
	if seen.absent && led != "" {
		names = append(names, led)
	}
	err = eachImage(ctx, images, fields.OneTermEqualSelector(selectors.RecordedReferences, ref.String()).String(), func(image *imagev1.Image) {
		if image.Name != seen.digest && !slices.Contains(names, image.Name) {
			names = append(names, image.Name)
		}
	})
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		changed, err := im.Change(ctx, images, name, func(image *imagev1.Image) bool { return leave(image, seen.absent, now.Time, ref) })
		if err != nil {
			return left, err
		}
		if changed {
			left = append(left, name)
		}
	}
	return left, nil
}

// leave takes a tag off an Image. The Image stays known by its digest in the tag's repository,
// which still has it as far as is known. gone says that the registry no longer has the tag, and
// marks that; else the tag leads elsewhere now.
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

// MarkGone records on an Image that the registry no longer has a reference. The Image is no longer
// known by that reference if it is a tag. It reports whether that is a change.
func MarkGone(image *imagev1.Image, at time.Time, ref reference.Reference) (changed bool) {
	if ref.Tag == "" {
		return markMissing(image, at, ref)
	}
	return leave(image, true, at, ref)
}

// eachImage calls visit with each Image that a field selector selects.
func eachImage(ctx context.Context, images ListedImages, selector string, visit func(*imagev1.Image)) error {
	err := pages.Each(ctx, metav1.ListOptions{Limit: renewPage, FieldSelector: selector}, images.List, func(list *imagev1.ImageList) error {
		for i := range list.Items {
			visit(&list.Items[i])
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("listing images by %s: %w", selector, err)
	}
	return nil
}

// RefreshTag asks the registry where a tag leads now, without importing anything, and records if
// the registry does not have the tag. Where else the tag leads is for an import to record, which
// reads what is there. Look returns the digest, "" when the registry does not have the tag, and the
// Images that are marked because it is gone. Errors are those of Import.
func (im *Importer) RefreshTag(ctx context.Context, ref reference.Reference, images Tagged) (digest string, left []string, err error) {
	var failed error
	asked := im.Now()
	left, err = im.recordTag(ctx, ref, images, func() tagAnswer {
		asked = im.Now()
		digest, failed = im.Resolve(ctx, ref)
		return tagAnswer{absent: failed == nil && digest == "", err: failed}
	})
	if failed == nil && digest != "" {
		im.confirm(ctx, images, ref, digest, asked)
	}
	return digest, left, errors.Join(failed, err)
}
