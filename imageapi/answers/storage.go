package answers

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

// storageREST answers reviews. Nothing is stored.
type storageREST struct {
	rest.TableConvertor
	answerer *Answerer
}

var (
	_ rest.Creater              = &storageREST{}
	_ rest.Scoper               = &storageREST{}
	_ rest.SingularNameProvider = &storageREST{}
	_ rest.TableConvertor       = &storageREST{}
)

// NewStorage returns the storage of reviews that an Answerer answers.
func NewStorage(a *Answerer) rest.Storage { return &storageREST{reviewTable, a} }

// New is part of rest.Storage.
func (*storageREST) New() runtime.Object { return &ReferenceReview{} }

// Destroy is part of rest.Storage.
func (*storageREST) Destroy() {}

// NamespaceScoped is part of rest.Scoper.
func (*storageREST) NamespaceScoped() bool { return false }

// GetSingularName is part of rest.SingularNameProvider.
func (*storageREST) GetSingularName() string { return "referencereview" }

// Create answers a review.
func (r *storageREST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	review, ok := obj.(*ReferenceReview)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("expected a ReferenceReview, got a %T", obj))
	}
	if errs := check(&review.Spec); len(errs) > 0 {
		return nil, apierrors.NewInvalid(GroupVersion.WithKind(Kind).GroupKind(), "", errs)
	}
	if validate != nil {
		if err := validate(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	status, err := r.answerer.Answer(ctx, &review.Spec)
	if err != nil {
		return nil, err
	}
	return &ReferenceReview{Spec: review.Spec, Status: *status}, nil
}

// check returns what is wrong with the questions. A text that is not a reference is not: its answer
// says so.
func check(spec *ReferenceReviewSpec) (errs field.ErrorList) {
	path := field.NewPath("spec", "references")
	switch n := len(spec.References); {
	case n == 0:
		return field.ErrorList{field.Required(path, "at least one reference")}
	case n > maxReferences:
		return field.ErrorList{field.TooMany(path, n, maxReferences)}
	}
	for i, q := range spec.References {
		at := path.Index(i)
		if q.Reference == "" {
			errs = append(errs, field.Required(at.Child("reference"), "a tag, a repository, a digest or its beginning"))
		}
		for name, text := range map[string]string{"reference": q.Reference, "namespace": q.Namespace, "platform": q.Platform} {
			if len(text) > maxText {
				errs = append(errs, field.TooLong(at.Child(name), "", maxText))
			}
		}
	}
	return errs
}
