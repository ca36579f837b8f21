package answers

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/internal/virtual"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// reviewREST answers reviews of a kind. Nothing is stored.
type reviewREST[R runtime.Object] struct {
	virtual.Resource
	rest.TableConvertor
	kind   string
	check  func(ctx context.Context, review R) field.ErrorList
	answer func(ctx context.Context, review R) (runtime.Object, error)
}

var (
	_ rest.Creater              = &reviewREST[*ReferenceReview]{}
	_ rest.Scoper               = &reviewREST[*ReferenceReview]{}
	_ rest.SingularNameProvider = &reviewREST[*ReferenceReview]{}
	_ rest.TableConvertor       = &reviewREST[*ReferenceReview]{}
)

// Create answers a review.
func (r *reviewREST[R]) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	review, ok := obj.(R)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("a %T is not the kind %s", obj, r.kind))
	}
	if errs := r.check(ctx, review); len(errs) > 0 {
		return nil, apierrors.NewInvalid(GroupVersion.WithKind(r.kind).GroupKind(), "", errs)
	}
	if validate != nil {
		if err := validate(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	return r.answer(ctx, review)
}

// NewStorage returns the storage of reviews that an Answerer answers.
func NewStorage(a *Answerer) rest.Storage {
	return &reviewREST[*ReferenceReview]{
		virtual.Resource{Object: &ReferenceReview{}, Singular: "referencereview"}, reviewTable, Kind,
		func(_ context.Context, review *ReferenceReview) field.ErrorList { return check(&review.Spec) },
		func(ctx context.Context, review *ReferenceReview) (runtime.Object, error) {
			status, err := a.Answer(ctx, &review.Spec)
			if err != nil {
				return nil, err
			}
			return &ReferenceReview{Spec: review.Spec, Status: *status}, nil
		},
	}
}

// check returns what is wrong with the questions of a review.
func check(spec *ReferenceReviewSpec) field.ErrorList {
	path := field.NewPath("spec", "references")
	if len(spec.References) == 0 {
		return field.ErrorList{field.Required(path, "at least one reference")}
	}
	return checkQuestions(path, spec.References)
}

// checkQuestions returns the faults of questions. A text that is not a reference is no fault: the
// answer to it says so.
func checkQuestions(path *field.Path, questions []Question) (errs field.ErrorList) {
	if n := len(questions); n > maxReferences {
		return field.ErrorList{field.TooMany(path, n, maxReferences)}
	}
	for i, q := range questions {
		at := path.Index(i)
		if q.Runs != "" && !reference.IsDigest(q.Runs) {
			errs = append(errs, field.Invalid(at.Child("runs"), field.OmitValueType{}, "must be a digest"))
		}
		if q.Reference == "" {
			errs = append(errs, field.Required(at.Child("reference"), "a tag, a repository, a digest or its beginning"))
		}
		for name, text := range map[string]string{"reference": q.Reference, "namespace": q.Namespace, "platform": q.Platform, "runs": q.Runs} {
			if len(text) > maxText {
				errs = append(errs, field.TooLong(at.Child(name), "", maxText))
			}
		}
	}
	return errs
}
