package filters

import (
	"context"
	"fmt"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
)

// maxLabels bounds the labels of one object. Each label is indexed, twice, so the cost
// of a write grows with their number. Kubernetes bounds the length of a label, and
// annotations as a whole, but not the number of labels.
const maxLabels = 256

// LabelBound refuses objects with more labels than maxLabels.
type LabelBound struct{}

var _ admission.ValidationInterface = LabelBound{}

// Handles implements admission.Interface.
func (LabelBound) Handles(operation admission.Operation) bool {
	return operation == admission.Create || operation == admission.Update
}

// Validate implements admission.ValidationInterface. It lets an object that already has
// too many labels change in other ways.
func (LabelBound) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	object, err := meta.Accessor(a.GetObject())
	if err != nil || len(object.GetLabels()) <= maxLabels {
		return nil // an object without metadata has no labels
	}
	if old, err := meta.Accessor(a.GetOldObject()); err == nil && maps.Equal(old.GetLabels(), object.GetLabels()) {
		return nil
	}
	return apierrors.NewInvalid(a.GetKind().GroupKind(), object.GetName(), field.ErrorList{
		field.Invalid(field.NewPath("metadata", "labels"), fmt.Sprintf("%d labels", len(object.GetLabels())),
			fmt.Sprintf("an object has at most %d: use annotations for data that selectors do not need", maxLabels)),
	})
}
