package answers

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/internal/virtual"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// reviewers are the users whose reviews of acts are being answered, one at a time for each user.
// Requests in flight bound them.
type reviewers struct {
	mu    sync.Mutex
	asked map[string]bool
}

// NewImpactStorage returns the storage of reviews of acts that an Answerer answers.
func NewImpactStorage(a *Answerer) rest.Storage {
	r := &reviewers{asked: map[string]bool{}}
	return &reviewREST[*ImpactReview]{
		virtual.Resource{Object: &ImpactReview{}, Singular: "impactreview"}, impactTable, ImpactKind,
		func(_ context.Context, review *ImpactReview) field.ErrorList { return checkAct(&review.Spec) },
		func(ctx context.Context, review *ImpactReview) (runtime.Object, error) {
			done, err := r.begin(ctx)
			if err != nil {
				return nil, err
			}
			defer done()
			status, err := a.Impact(ctx, &review.Spec)
			if err != nil {
				return nil, err
			}
			return &ImpactReview{Spec: review.Spec, Status: *status}, nil
		},
	}
}

// begin refuses a second review of a user while the first is being answered.
func (r *reviewers) begin(ctx context.Context) (done func(), err error) {
	caller, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return func() {}, nil
	}
	name := caller.GetName()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked[name] {
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("a review of an act reads all images: that of user %q is still being answered", name), 1)
	}
	r.asked[name] = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.asked, name)
	}, nil
}

// checkAct brings an act into its canonical form and returns its faults, as far as they can be
// found without stored objects.
func checkAct(spec *ImpactReviewSpec) (errs field.ErrorList) {
	path := field.NewPath("spec")
	acts := 0
	for name, text := range map[string]string{"removePolicy": spec.RemovePolicy, "revokeSigner": spec.RevokeSigner, "loseRegistry": spec.LoseRegistry, "delete": spec.Delete, "layer": spec.Layer, "base": spec.Base, "package": spec.Package} {
		most := maxText
		if name == "revokeSigner" {
			most = maxSigner
		}
		if len(text) > most {
			errs = append(errs, field.TooLong(path.Child(name), "", most))
		}
		if text != "" {
			acts++
		}
	}
	if n := len(spec.ApplyPolicies); n > 0 {
		acts++
		if n > maxImpactPolicies {
			errs = append(errs, field.TooMany(path.Child("applyPolicies"), n, maxImpactPolicies))
		}
	}
	if n := len(spec.Advisories); n > 0 {
		if acts++; n > maxAdvisoryBytes {
			errs = append(errs, field.TooLong(path.Child("advisories"), "", maxAdvisoryBytes))
		}
	}
	if spec.At != nil {
		acts++
	}
	if len(spec.Image) > maxText {
		errs = append(errs, field.TooLong(path.Child("image"), "", maxText))
	}
	if spec.Image != "" && len(spec.Advisories) == 0 {
		errs = append(errs, field.Invalid(path.Child("image"), field.OmitValueType{}, "limits a review of advisories"))
	}
	if spec.Continue != "" && (len(spec.Advisories) == 0 || !reference.IsDigest(spec.Continue)) {
		errs = append(errs, field.Invalid(path.Child("continue"), field.OmitValueType{}, "is not that of an answer about these advisories"))
	}
	if acts != 1 {
		errs = append(errs, field.Invalid(path, field.OmitValueType{}, "needs exactly one act: applyPolicies, removePolicy, revokeSigner, loseRegistry, delete, layer, base, package, advisories or at"))
	}
	if spec.MaxRows < 0 || spec.MaxRows > maxRows {
		errs = append(errs, field.Invalid(path.Child("maxRows"), spec.MaxRows, fmt.Sprintf("is from 1 to %d, or left out for %d", maxRows, defaultRows)))
	}
	if spec.Layer != "" && !reference.IsDigest(spec.Layer) {
		errs = append(errs, field.Invalid(path.Child("layer"), spec.Layer, "is not a digest, such as sha256: and 64 hex digits"))
	}
	if spec.Package != "" {
		if _, _, err := parsePackage(spec.Package); err != nil {
			errs = append(errs, field.Invalid(path.Child("package"), spec.Package, err.Error()))
		}
	}
	if spec.LoseRegistry != "" {
		host, err := reference.ParseHost(spec.LoseRegistry)
		if err != nil {
			errs = append(errs, field.Invalid(path.Child("loseRegistry"), spec.LoseRegistry, err.Error()))
		}
		spec.LoseRegistry = host
	}
	return errs
}
