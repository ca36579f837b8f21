package queue

import (
	"bytes"
	"context"
	"slices"
	"time"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/importer"
)

// gone asks the registry about a tag or a digest that was deleted. When it is not
// there, it marks the Images it is recorded on: those of digests, if any, which the
// registry says a tag led to, and else those that we remember. It was told of then.
func (w *Worker) gone(ctx context.Context, ref reference.Reference, digests []string, then time.Time) (bool, error) {
	now, err := w.settle(ctx, ref, then, func(digest string) bool { return digest == "" })
	if err != nil || now != "" {
		return false, err
	}
	if ref.Digest != "" {
		digests = []string{ref.Digest}
	}
	for _, digest := range digests {
		if err := w.markGone(ctx, digest, ref); err != nil {
			return true, err
		}
	}
	if len(digests) > 0 || w.Finder == nil {
		return true, nil
	}
	return true, w.Finder.FindImages(ctx, ref, func(image *imagev1.Image) error {
		if !slices.Contains(annotation.Known(image.Annotations), ref) {
			return nil
		}
		return w.markGone(ctx, image.Name, ref)
	})
}

// searchSigned looks for signatures again of the images of which the manifest, now gone, held some, or attestations. It can no longer
// be asked which these are.
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

// goneRepository asks about every reference in the repository.
func (w *Worker) goneRepository(ctx context.Context, repository reference.Reference) error {
	if w.Finder == nil {
		return nil
	}
	return w.Finder.FindImages(ctx, repository, func(image *imagev1.Image) error {
		references := []reference.Reference{repository.WithDigest(image.Name)}
		for _, ref := range annotation.Known(image.Annotations) {
			if ref.Bare() == repository && ref.Tag != "" {
				references = append(references, ref)
			}
		}
		var gone []reference.Reference
		for _, ref := range references {
			digest, err := w.Importer.Resolve(ctx, ref)
			if err != nil {
				return err
			}
			if digest == "" {
				gone = append(gone, ref)
			}
		}
		return w.markGone(ctx, image.Name, gone...)
	})
}

// markGone records on an Image that references are gone.
func (w *Worker) markGone(ctx context.Context, name string, references ...reference.Reference) error {
	if len(references) == 0 {
		return nil
	}
	marked, err := importer.Change(ctx, w.Images, name, func(image *imagev1.Image) bool {
		gone, known, changed := annotation.Missing(image.Annotations), annotation.Known(image.Annotations), false
		for _, ref := range references {
			if gone[ref] == "" {
				gone[ref], changed = w.Clock.Now().UTC().Format(time.RFC3339), true
			}
			if i := slices.Index(known, ref); i >= 0 && ref.Tag != "" {
				known, changed = slices.Delete(known, i, i+1), true
			}
		}
		if image.Annotations == nil {
			image.Annotations = map[string]string{}
		}
		annotation.SetMissing(image.Annotations, gone)
		annotation.SetKnown(image.Annotations, known)
		return changed
	})
	if err == nil && marked {
		for _, ref := range references {
			w.notify(ctx, Notice{Reason: NoticeGoneFromRegistry, Image: name, Reference: ref.String(), Message: ref.String() + " is no longer in the registry"})
		}
	}
	return err
}

// unmarkGone takes references off the mark that are in the registry after all.
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
