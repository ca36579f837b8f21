package importer

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/util/retry"
)

// GoneAnnotation marks an Image some of whose references the registry no longer
// has. It holds a JSON object of reference to the time (RFC 3339) this was found.
// A tag in it is no longer in ReferencesAnnotation; what comes back to the
// registry leaves it. Nothing removes an Image for being gone.
const GoneAnnotation = "tidewaiter.dev/gone-from-registry"

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
func (w *Worker) gone(ctx context.Context, ref Reference, digests []string, then time.Time) (bool, error) {
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
		if !slices.Contains(References(image), ref.String()) {
			return nil
		}
		return w.markGone(ctx, image.Name, ref)
	})
}

// goneRepository asks about every reference in the repository.
func (w *Worker) goneRepository(ctx context.Context, repository Reference) error {
	if w.Finder == nil {
		return nil
	}
	return w.Finder.FindImages(ctx, repository.name(), func(image *imagev1.Image) error {
		references := []Reference{repository.withDigest(image.Name)}
		for _, s := range References(image) {
			if ref, err := ParseReference(s); err == nil && ref.name() == repository.name() && ref.Tag != "" {
				references = append(references, ref)
			}
		}
		var gone []Reference
		for _, ref := range references {
			digest, err := w.Importer.resolve(ctx, ref)
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

// resolve asks the registry for the digest behind a tag or digest; "" is that
// there is none.
func (im *Importer) resolve(ctx context.Context, ref Reference) (string, error) {
	s, err := im.session(ctx, ref)
	if err != nil {
		return "", describe(ref, err)
	}
	identifier := ref.Digest
	if identifier == "" {
		identifier = ref.Tag
	}
	digest, err := s.head(ctx, identifier)
	if err == nil && digest == "" {
		// It does not tell in a HEAD.
		var m *fetched
		if m, err = s.manifest(ctx, identifier, ref.Digest); err == nil {
			digest = m.Digest
		}
	}
	if err == nil {
		return digest, nil
	}
	e := describe(ref, err)
	switch e.Reason {
	case NotFound:
		return "", nil
	case Unauthorized:
		im.forget(ref)
	}
	return "", e
}

// markGone records on an Image that references are gone.
func (w *Worker) markGone(ctx context.Context, name string, references ...Reference) error {
	if len(references) == 0 {
		return nil
	}
	marked, err := w.annotate(ctx, name, func(image *imagev1.Image) bool {
		gone, known, changed := Gone(image), References(image), false
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
		for len(gone) > maxReferences {
			delete(gone, oldestGone(gone))
		}
		setGone(image, gone)
		image.Annotations[ReferencesAnnotation] = encodeReferences(nil, known)
		return changed
	})
	if err == nil && marked {
		for _, ref := range references {
			w.notify(ctx, Notice{Reason: NoticeGoneFromRegistry, Image: name, Reference: ref.String(), Message: ref.String() + " is no longer in the registry"})
		}
	}
	return err
}

// back takes references off the mark that are in the registry after all.
func (w *Worker) back(ctx context.Context, image *imagev1.Image, references ...Reference) error {
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
	_, err := w.annotate(ctx, image.Name, isBack)
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

// annotate changes an Image unless change says that there is nothing to do. An
// Image that is not stored is left so.
func (w *Worker) annotate(ctx context.Context, name string, change func(*imagev1.Image) bool) (changed bool, err error) {
	err = retry.RetryOnConflict(conflictBackoff, func() error {
		changed = false
		image, err := w.Images.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if !change(image) {
			return nil
		}
		_, err = w.Images.Update(ctx, image, metav1.UpdateOptions{})
		changed = err == nil
		return err
	})
	return changed, storing(name, err)
}

// listPage is how many Images ListFinder has in memory at a time: one is up to
// 12 MiB, usually some 20 KiB.
const listPage = 100

// ListFinder is a Finder that lists the Images whose field ReferencesField has the
// reference among its values.
type ListFinder struct{ Images Lister }

// ReferencesField is what ListFinder selects Images by.
const ReferencesField = "references"

// FindImages implements Finder.
func (f ListFinder) FindImages(ctx context.Context, reference string, visit func(*imagev1.Image) error) error {
	options := metav1.ListOptions{Limit: listPage, FieldSelector: fields.OneTermEqualSelector(ReferencesField, reference).String()}
	for {
		list, err := f.Images.List(ctx, options)
		if err != nil {
			if apierrors.IsResourceExpired(err) && options.Continue != "" {
				options.Continue = "" // too slow for the history kept: start again
				continue
			}
			return fmt.Errorf("listing images: %w", err)
		}
		for i := range list.Items {
			if err := visit(&list.Items[i]); err != nil {
				return err
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return nil
		}
	}
}
