package web

import (
	"context"
	"fmt"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
)

// maxLabels bounds the labels of one object. Each is indexed, twice, so that every
// write costs as much as there are labels. Kubernetes bounds the length of a label,
// and annotations as a whole, but not the number of labels.
const maxLabels = 256

// labelBound refuses objects with more labels than maxLabels.
type labelBound struct{}

var _ admission.ValidationInterface = labelBound{}

// Handles implements admission.Interface.
func (labelBound) Handles(operation admission.Operation) bool {
	return operation == admission.Create || operation == admission.Update
}

// Validate implements admission.ValidationInterface. An object that has had too many
// for long may be changed otherwise.
func (labelBound) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	object, err := meta.Accessor(a.GetObject())
	if err != nil || len(object.GetLabels()) <= maxLabels {
		return nil // what has no metadata has no labels
	}
	if old, err := meta.Accessor(a.GetOldObject()); err == nil && maps.Equal(old.GetLabels(), object.GetLabels()) {
		return nil
	}
	return apierrors.NewInvalid(a.GetKind().GroupKind(), object.GetName(), field.ErrorList{
		field.Invalid(field.NewPath("metadata", "labels"), fmt.Sprintf("%d labels", len(object.GetLabels())),
			fmt.Sprintf("an object has at most %d: annotations are for what nobody selects by", maxLabels)),
	})
}
