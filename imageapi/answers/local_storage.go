package answers

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/internal/virtual"
)

// NewLocalStorage returns the storage of reviews of namespaces that an Answerer answers.
func NewLocalStorage(a *Answerer) rest.Storage {
	return &reviewREST[*LocalReferenceReview]{
		virtual.Resource{Object: &LocalReferenceReview{}, Namespaced: true, Singular: "localreferencereview"}, localTable, LocalKind, checkLocal,
		func(ctx context.Context, review *LocalReferenceReview) (runtime.Object, error) {
			namespace := genericapirequest.NamespaceValue(ctx)
			status, err := a.Local(ctx, namespace, &review.Spec)
			if err != nil {
				return nil, err
			}
			return &LocalReferenceReview{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, Spec: review.Spec, Status: *status}, nil
		},
	}
}

// checkLocal returns what is wrong with the questions of a review of a namespace.
func checkLocal(ctx context.Context, review *LocalReferenceReview) field.ErrorList {
	namespace := genericapirequest.NamespaceValue(ctx)
	path := field.NewPath("spec", "references")
	errs := checkQuestions(path, review.Spec.References)
	for i, q := range review.Spec.References {
		if q.Namespace != "" && q.Namespace != namespace {
			errs = append(errs, field.Invalid(path.Index(i).Child("namespace"), q.Namespace, "is not that of the review, "+namespace))
		}
	}
	return errs
}
