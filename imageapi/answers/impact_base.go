package answers

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/warning"

	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
)

// selector selects the images that have the layer of the act, or that are built on its base. nil
// means that the act may be about any image.
func (f *projection) selector(ctx context.Context) (fields.Selector, error) {
	switch {
	case f.spec.Layer != "":
		return fields.OneTermEqualSelector(selectors.Layer, f.spec.Layer), nil
	case f.spec.Base != "":
		return f.onBase(ctx)
	}
	return nil, nil
}

// onBase selects the images that are built on the base of the act. A repository without a tag
// stands for all its revisions.
func (f *projection) onBase(ctx context.Context) (fields.Selector, error) {
	m, err := f.before.resolve(ctx, Question{Reference: f.spec.Base})
	if err != nil {
		return nil, err
	}
	value := m.digest
	switch {
	case m.whole && m.ref.Host != "":
		value = m.ref.Name()
	case m.ref.Tag != "":
		// The list compares layers with those of the image to which the tag leads.
		led := m.ref
		led.Digest = m.digest
		value = led.String()
	}
	if value == "" { // it may be several, or is none
		return nil, apierrors.NewBadRequest(f.meaningOf(m))
	}
	if m.state == Absent {
		f.meansNothing(m)
	}
	return fields.OneTermEqualSelector(selectors.Base, value), nil
}

// content reports whether the act asks which images have a layer or a base.
func (s *ImpactReviewSpec) content() bool { return s.Layer != "" || s.Base != "" }

// baseDoubts has a review say, as unknown, what a list of the images on a base warns of.
type baseDoubts struct{ *projection }

// AddWarning is part of warning.Recorder.
func (d baseDoubts) AddWarning(_, text string) {
	d.doubt("act", errors.New(text))
	d.complete = false
}

var _ warning.Recorder = baseDoubts{}
