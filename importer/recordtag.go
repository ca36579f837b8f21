package importer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/image/record"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Tagged are Images with a record of where tags lead. An import into other Images records a tag
// only on the Image that it leads to.
type Tagged interface {
	record.Tagged
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

// recordTag calls look, which asks the registry about a tag, and records the answer. look gets the
// stored tag.
//
// recordTag reads the stored tag before it asks the registry, and records the answer only if the
// tag has not been written since; otherwise it starts again. So a history has the order in which
// the registry was asked, however many clients ask and however slowly, and its newest item is the
// registry's last answer. It may use a tag that [Prefetcher] listed earlier: if the tag has been
// written since, its version has changed, and the server refuses the record. led is the digest to
// which the tag led before, "" if unknown. left are the Images to which the tag no longer leads, or
// that are marked because the registry no longer has the tag.
func (im *Importer) recordTag(ctx context.Context, ref reference.Reference, images Tagged, look func(before prefetchedTag) tagAnswer) (led string, left []string, err error) {
	backoff := record.Backoff
	for n := 0; backoff.Steps > 0; n++ {
		if n > 0 {
			select {
			case <-time.After(backoff.Step()):
			case <-ctx.Done():
				return led, left, context.Cause(ctx)
			}
		}
		var before prefetchedTag
		if prefetcher, ok := images.(*Prefetcher); ok && n == 0 {
			var leave func()
			before, leave = prefetcher.takeTag(ctx, ref)
			defer leave()
		}
		if !before.known {
			tag, err := record.GetTag(ctx, ref, images)
			if err != nil {
				return led, left, err
			}
			if before.digest, _ = tags.Now(tag); tag != nil {
				before.version, before.tag = tag.ResourceVersion, tag
			}
		}
		asked := im.Now()
		seen := look(before)
		led = before.digest
		again := false
		if item := before.learnt(ref, seen, n > 0); item != nil && ctx.Err() == nil {
			item.Cause = cause(ctx)
			result, err := im.storeTag(ctx, ref, images, before.tag, item)
			if err != nil {
				return led, left, fmt.Errorf("recording where %s leads: %w", ref, err)
			}
			led, left, again = result.Led, append(left, result.Left...), result.Again
		}
		if !again {
			if seen.err == nil && led != "" && led == seen.digest {
				im.confirm(ctx, images, ref, led, asked)
			}
			return led, left, nil
		}
	}
	return led, left, fmt.Errorf("others updated where %s leads %d times in the meantime: import it again", ref, record.Backoff.Steps)
}

// learnt returns the change that an answer makes to the stored tag; nil if it makes none. contested
// is true if the tag may have led elsewhere in an earlier round.
func (before *prefetchedTag) learnt(ref reference.Reference, seen tagAnswer, contested bool) *record.Tag {
	reason := pull.ReasonOf(seen.err)
	switch {
	case seen.digest == "" && !seen.absent && (before.version == "" || seen.err == nil):
		return nil
	case seen.digest == "" && reason == pull.RateLimited:
		return nil
	case before.version == "" && reason == pull.NotAnImage:
		return nil // a chart, say: its tag matters only if it was an image's
	case !contested && seen.err == nil && seen.digest != "" && seen.digest == before.digest && (before.tag == nil || tags.Failure(before.tag) == nil):
		return nil
	}
	item := &record.Tag{Reference: ref.String(), Version: before.version, Digest: seen.digest, Absent: seen.absent, Contested: contested, Alone: before.emptyRepository && !contested}
	if seen.err != nil && !seen.absent {
		item.Reason, item.Message = string(cmp.Or(reason, pull.Failed)), pull.Clean(seen.err.Error())
		item.Paused = reason == pull.RateLimited // a pause is not a failure yet
	}
	return item
}

// storeTag writes what was learnt of a tag. tag is its ImageTag, if it was read.
func (im *Importer) storeTag(ctx context.Context, ref reference.Reference, images Tagged, tag *imagev1.ImageTag, item *record.Tag) (*record.Result, error) {
	if recorder, ok := images.(Recorder); ok {
		if result, err := recorder.Record(ctx, &record.Item{Tag: item}); !errors.Is(err, record.ErrUnsupported) {
			return result, err
		}
	}
	if tag == nil && item.Version != "" {
		var err error
		if tag, err = record.GetTag(ctx, ref, images); err != nil {
			return nil, err
		}
	}
	return item.Store(ctx, images, ref, tag, im.Now())
}

// cause is what a write to a tag records as its cause.
func cause(ctx context.Context) string {
	if cause, ok := ctx.Value(causeKey{}).(string); ok {
		return cause
	}
	return "import"
}

// RefreshTag asks the registry where a tag leads now, without importing anything. If the registry
// does not have the tag, it records that. If the tag leads to another digest, it records nothing:
// an import does, which reads the manifest. It returns the digest, "" if the registry does not have
// the tag, and the Images that are marked because the tag is gone. Errors are those of Import.
func (im *Importer) RefreshTag(ctx context.Context, ref reference.Reference, images Tagged) (digest string, left []string, err error) {
	var failed error
	asked := im.Now()
	_, left, err = im.recordTag(ctx, ref, images, func(prefetchedTag) tagAnswer {
		asked = im.Now()
		digest, failed = im.Resolve(ctx, ref)
		return tagAnswer{absent: failed == nil && digest == "", err: failed}
	})
	if failed == nil && digest != "" {
		im.confirm(ctx, images, ref, digest, asked)
	}
	return digest, left, errors.Join(failed, err)
}
