package queue

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/selectors"
	"github.com/tidewaiter/tidewaiter/imageapi/tags"
	"github.com/tidewaiter/tidewaiter/importer"
)

// gone asks the registry about a tag or a digest that was deleted, as an event at then says. If the registry does not
// have it, gone marks the Images on which it is recorded, and the Images of digests, to which the registry says the tag
// led.
func (w *Worker) gone(ctx context.Context, ref reference.Reference, digests []string, then time.Time) (bool, error) {
	now, err := w.settle(ctx, ref, then, func(digest string) bool { return digest == "" })
	if err != nil || now != "" {
		return false, err
	}
	if ref.Digest != "" {
		digests = []string{ref.Digest}
	} else if now, err := w.look(ctx, ref); err != nil || now != "" {
		return false, err
	}
	for _, digest := range digests {
		if err := w.markGone(ctx, digest, ref); err != nil {
			return true, err
		}
	}
	return true, nil
}

// look asks the registry where a tag leads, and records that.
func (w *Worker) look(ctx context.Context, ref reference.Reference) (digest string, err error) {
	digest, left, err := w.Importer.Look(ctx, ref, w.Images)
	if digest == "" && err == nil {
		for _, name := range left {
			w.notifyGone(ctx, name, ref)
		}
	}
	return digest, err
}

func (w *Worker) notifyGone(ctx context.Context, image string, ref reference.Reference) {
	w.notify(ctx, Notice{Reason: NoticeGoneFromRegistry, Image: image, Reference: ref.String(), Message: ref.String() + " is no longer in the registry"})
}

// searchSigned searches signatures again for the images of which a manifest that is now gone held signatures or
// attestations. The manifest can no longer say which images these are.
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

// goneRepository asks about every known reference in the repository.
func (w *Worker) goneRepository(ctx context.Context, repository reference.Reference) error {
	asked := map[reference.Reference]bool{} // at most the tags of a repository
	ask := func(ref reference.Reference) error {
		if asked[ref] {
			return nil
		}
		asked[ref] = true
		_, err := w.look(ctx, ref)
		return err
	}
	if err := w.goneImages(ctx, repository, ask); err != nil {
		return err
	}
	options := metav1.ListOptions{Limit: tagsPage, FieldSelector: fields.OneTermEqualSelector(selectors.TagRepository, repository.String()).String()}
	for {
		list, err := w.Images.ListTags(ctx, options)
		if err != nil {
			return fmt.Errorf("listing the tags of %s: %w", repository, err)
		}
		for i := range list.Items {
			ref, ok := tags.Reference(&list.Items[i])
			if now, _ := tags.Now(&list.Items[i]); !ok || now == "" {
				continue
			}
			if err := ask(ref); err != nil {
				return err
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return nil
		}
	}
}

// goneImages asks about each Image in the repository, and about the tags that it is known by.
func (w *Worker) goneImages(ctx context.Context, repository reference.Reference, ask func(reference.Reference) error) error {
	if w.Finder == nil {
		return nil
	}
	return w.Finder.FindImages(ctx, repository, func(image *imagev1.Image) error {
		own := repository.WithDigest(image.Name)
		digest, err := w.Importer.Resolve(ctx, own)
		if err == nil && digest == "" {
			err = w.markGone(ctx, image.Name, own)
		}
		if err != nil {
			return err
		}
		for _, ref := range annotation.Known(image.Annotations) {
			if ref.Bare() == repository && ref.Tag != "" {
				if err := ask(ref); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// markGone records on an Image that a reference is gone.
func (w *Worker) markGone(ctx context.Context, name string, ref reference.Reference) error {
	marked, err := importer.Change(ctx, w.Images, name, func(image *imagev1.Image) bool {
		return importer.MarkGone(image, w.Clock.Now(), ref)
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
	_, err := importer.Change(ctx, w.Images, image.Name, isBack)
	return err
}
