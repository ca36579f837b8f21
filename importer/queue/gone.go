package queue

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/record"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// gone asks the registry about a tag or a digest that was deleted according to an event at then. If
// the registry does not have it, gone marks the Images on which it is recorded, and the Images of
// digests, to which the tag led according to the registry. If a digest is gone, so are the tags
// that led to it: many registries report only the digest.
func (w *Worker) gone(ctx context.Context, ref reference.Reference, digests []string, then time.Time) (bool, error) {
	now, err := w.settle(ctx, ref, then, func(digest string) bool { return digest == "" })
	if err != nil || now != "" {
		return false, err
	}
	if ref.Digest != "" {
		digests = []string{ref.Digest}
	} else if now, err := w.refreshTag(ctx, ref); err != nil || now != "" {
		return false, err
	}
	for _, digest := range digests {
		if err := w.markGone(ctx, digest, ref); err != nil {
			return true, err
		}
	}
	if ref.Digest == "" {
		led, err := w.ledTo(ctx, ref, "")
		if err != nil {
			return true, err
		}
		return true, w.abandoned(ctx, ref.Bare(), append(slices.Clone(digests), led))
	}
	if err := w.goneTags(ctx, ref); err != nil {
		return true, err
	}
	children, err := w.childrenOf(ctx, ref.Digest)
	if err != nil {
		return true, err
	}
	return true, w.abandoned(ctx, ref.Bare(), children)
}

// ledTo returns the digest that a tag led to last, other than now; "" if none is known.
func (w *Worker) ledTo(ctx context.Context, ref reference.Reference, now string) (digest string, err error) {
	tag, err := w.Images.GetTag(ctx, tags.Name(ref), metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && tag.Status == nil {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	for _, item := range tag.Status.Items {
		if item.Image != "" && item.Image != now {
			return item.Image, nil
		}
	}
	return "", nil
}

// abandoned calls [importer.Importer.Abandoned] and sends notices about the images that are gone.
func (w *Worker) abandoned(ctx context.Context, repository reference.Reference, digests []string) error {
	gone, err := w.Importer().Abandoned(ctx, w.Images, repository, digests)
	w.notifyAbandoned(ctx, repository, gone)
	return err
}

func (w *Worker) notifyAbandoned(ctx context.Context, repository reference.Reference, gone []string) {
	for _, digest := range gone {
		w.notifyGone(ctx, digest, repository.WithDigest(digest))
	}
}

// childrenOf returns what the stored Image of a digest lists, if that is an index.
func (w *Worker) childrenOf(ctx context.Context, digest string) ([]string, error) {
	image, err := w.Images.Get(ctx, digest, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return importer.Listed(image), nil
}

// goneTags asks about each tag that is known to lead to a digest that is gone. A tag that leads
// elsewhere now is imported.
func (w *Worker) goneTags(ctx context.Context, gone reference.Reference) error {
	return importer.EachLeading(ctx, w.Images, gone, func(ref reference.Reference) error { return w.askTag(ctx, ref, gone.Digest) })
}

// refreshTag asks the registry where a tag leads, and records that.
func (w *Worker) refreshTag(ctx context.Context, ref reference.Reference) (digest string, err error) {
	digest, left, err := w.Importer().RefreshTag(ctx, ref, w.Images)
	if digest == "" && err == nil {
		for _, name := range left {
			w.notifyGone(ctx, name, ref)
		}
	}
	return digest, err
}

func (w *Worker) notifyGone(ctx context.Context, image string, ref reference.Reference) {
	n := Notice{Reason: NoticeGoneFromRegistry, Image: image, Reference: ref.String(), Message: ref.String() + " is no longer in the registry"}
	if w.Running != nil {
		if pods := w.Running.PodsRunning(image); pods > 0 {
			n.Warning, n.Message = true, fmt.Sprintf("%s, and %s known to run the image", n.Message, table.Clause(pods, "pod", "are"))
		}
	}
	w.notify(ctx, n)
}

// searchSigned searches signatures again for the images whose signatures or attestations were in a
// manifest that is now gone. The manifest can no longer be read to find these images.
func (w *Worker) searchSigned(ctx context.Context, manifest reference.Reference) error {
	if w.Finder == nil {
		return nil
	}
	repository := manifest.Bare()
	var signed []string
	err := w.Finder.FindImages(ctx, repository, func(image *imagev1.Image) error {
		r := annotation.Found(image.Annotations)[repository.String()]
		if slices.Contains(r.Manifests, manifest.Digest) || bytes.Contains(r.Attestations, []byte(manifest.Digest)) {
			signed = append(signed, image.Name)
		}
		return nil
	})
	for _, image := range signed {
		if err == nil {
			err = w.searchSignatures(ctx, repository.WithDigest(image))
		}
	}
	return err
}

// goneRepository asks about every known reference in the repository that was not asked about
// before. A tag that leads elsewhere now is imported.
func (w *Worker) goneRepository(ctx context.Context, repository reference.Reference, asked *askedOf) error {
	ask := func(ref reference.Reference, led string) error {
		if asked.has(ref) {
			return nil
		}
		err := w.askTag(ctx, ref, led)
		if err != nil && !importer.Unsearched(err) { // the next sweep searches
			return err
		}
		asked.add(ref)
		return nil
	}
	if err := w.goneImages(ctx, repository, asked, ask); err != nil {
		return err
	}
	return importer.EachUnlisted(ctx, w.Images, repository, asked.has, ask)
}

// askTag asks the registry about a tag that led to a digest. If it leads elsewhere now, askTag
// imports it.
func (w *Worker) askTag(ctx context.Context, ref reference.Reference, led string) error {
	now, err := w.refreshTag(ctx, ref)
	if err == nil && now != "" && now != led {
		_, err = w.importPresent(ctx, w.Importer(), ref, w.Images)
	}
	if pull.ReasonOf(err) == pull.NotAnImage || pull.ReasonOf(err) == pull.NotFound {
		return nil // replaced or deleted since
	}
	return err
}

// goneImages asks about each Image in the repository, and about the tags that it is known by.
func (w *Worker) goneImages(ctx context.Context, repository reference.Reference, asked *askedOf, ask func(tag reference.Reference, led string) error) error {
	if w.Finder == nil {
		return nil
	}
	return w.Finder.FindImages(ctx, repository, func(image *imagev1.Image) error {
		own := repository.WithDigest(image.Name)
		if !asked.has(own) {
			digest, err := w.Importer().Resolve(ctx, own)
			if err == nil && digest == "" {
				err = w.markGone(ctx, image.Name, own)
			}
			if err != nil {
				return err
			}
		}
		for _, ref := range annotation.Known(image.Annotations) {
			if ref.Bare() == repository && ref.Tag != "" {
				if err := ask(ref, image.Name); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// markGone records on an Image that a reference is gone.
func (w *Worker) markGone(ctx context.Context, name string, ref reference.Reference) error {
	marked, err := w.Importer().Change(ctx, w.Images, name, func(image *imagev1.Image) bool {
		return record.MarkGone(image, w.Clock.Now(), ref)
	})
	if err == nil && marked {
		w.notifyGone(ctx, name, ref)
	}
	return err
}

// unmarkGone unmarks references that the registry has after all.
func (w *Worker) unmarkGone(ctx context.Context, image *imagev1.Image, references ...reference.Reference) error {
	isBack := func(image *imagev1.Image) bool {
		gone, changed := annotation.Missing(image.Annotations), false
		for _, ref := range references {
			if _, marked := gone[ref]; marked {
				delete(gone, ref)
				changed = true
			}
		}
		if changed {
			annotation.SetMissing(image.Annotations, gone)
		}
		return changed
	}
	if !isBack(image.DeepCopy()) {
		return nil
	}
	_, err := w.Importer().Change(ctx, w.Images, image.Name, isBack)
	return err
}

// importPresent imports an image that the registry has and removes the mark that it is gone. On an
// error the Result is nil, unless only the search for signatures failed, or may find more soon (see
// [importer.Unsearched]).
func (w *Worker) importPresent(ctx context.Context, im *importer.Importer, ref reference.Reference, images importer.Images) (*importer.Result, error) {
	result, err := im.Import(ctx, ref, images)
	if result != nil {
		w.notifyAbandoned(ctx, ref.Bare(), result.Gone)
	}
	if err != nil && !importer.Unsearched(err) {
		return nil, err
	}
	for _, i := range result.Images {
		if err := w.unmarkGone(ctx, i.Image, ref, ref.WithDigest(i.Image.Name)); err != nil {
			return nil, err
		}
	}
	return result, cmp.Or(err, result.Again)
}
