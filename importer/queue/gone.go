package queue

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/importer"
)

// GoneAnnotation marks an Image some of whose references the registry no longer
// has. It holds a JSON object of reference to the time (RFC 3339) this was found.
// A tag in it is no longer in ReferencesAnnotation; what comes back to the
// registry leaves it. Nothing removes an Image for being gone.
const GoneAnnotation = "tidewaiter.dev/gone-from-registry"

// maxGone bounds the references in the mark; the one that has been gone for longest
// leaves it first.
const maxGone = 256

// Gone are the references of an Image that were found gone.
func Gone(image *imagev1.Image) map[string]string {
	var gone map[string]string
	// Anybody may write annotations; what is no object counts as none.
	_ = json.Unmarshal([]byte(image.Annotations[GoneAnnotation]), &gone)
	return gone
}

// gone asks the registry about a tag or a digest that was deleted. When it is not
// there, it marks the Images it is recorded on: those of digests, if any, which the
// registry says a tag led to, and else those that we remember. It was told of then.
func (w *Worker) gone(ctx context.Context, ref importer.Reference, digests []string, then time.Time) (bool, error) {
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
	return true, w.Finder.FindImages(ctx, ref.String(), func(image *imagev1.Image) error {
		if !slices.Contains(importer.References(image), ref.String()) {
			return nil
		}
		return w.markGone(ctx, image.Name, ref)
	})
}

// goneRepository asks about every reference in the repository.
func (w *Worker) goneRepository(ctx context.Context, repository importer.Reference) error {
	if w.Finder == nil {
		return nil
	}
	return w.Finder.FindImages(ctx, repository.Name(), func(image *imagev1.Image) error {
		references := []importer.Reference{repository.WithDigest(image.Name)}
		for _, s := range importer.References(image) {
			if ref, err := importer.ParseReference(s); err == nil && ref.Name() == repository.Name() && ref.Tag != "" {
				references = append(references, ref)
			}
		}
		var gone []importer.Reference
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
func (w *Worker) markGone(ctx context.Context, name string, references ...importer.Reference) error {
	if len(references) == 0 {
		return nil
	}
	marked, err := importer.Change(ctx, w.Images, name, func(image *imagev1.Image) bool {
		gone, known, changed := Gone(image), importer.References(image), false
		if gone == nil {
			gone = map[string]string{}
		}
		for _, ref := range references {
			s := ref.String()
			if gone[s] == "" {
				gone[s], changed = w.Clock.Now().UTC().Format(time.RFC3339), true
			}
			if i := slices.Index(known, s); i >= 0 && ref.Tag != "" {
				known, changed = slices.Delete(known, i, i+1), true
			}
		}
		for len(gone) > maxGone {
			delete(gone, oldestGone(gone))
		}
		setGone(image, gone)
		importer.SetReferences(image, known)
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
func (w *Worker) unmarkGone(ctx context.Context, image *imagev1.Image, references ...importer.Reference) error {
	isBack := func(image *imagev1.Image) bool {
		gone, changed := Gone(image), false
		for _, ref := range references {
			if _, marked := gone[ref.String()]; marked {
				delete(gone, ref.String())
				changed = true
			}
		}
		if changed {
			setGone(image, gone)
		}
		return changed
	}
	if !isBack(image.DeepCopy()) {
		return nil
	}
	_, err := importer.Change(ctx, w.Images, image.Name, isBack)
	return err
}

// setGone writes the mark, or removes it when nothing is gone.
func setGone(image *imagev1.Image, gone map[string]string) {
	if image.Annotations == nil {
		image.Annotations = map[string]string{}
	}
	if len(gone) == 0 {
		delete(image.Annotations, GoneAnnotation)
		return
	}
	b, _ := json.Marshal(gone) // strings always marshal
	image.Annotations[GoneAnnotation] = string(b)
}

func oldestGone(gone map[string]string) string {
	oldest := ""
	for ref, at := range gone {
		if oldest == "" || at < gone[oldest] || at == gone[oldest] && ref < oldest {
			oldest = ref
		}
	}
	return oldest
}
