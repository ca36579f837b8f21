package image

import (
	"context"
	"fmt"
	"slices"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// asked is the reference that a selector names, and what it demands of the verdict for that very
// reference.
type asked struct {
	ref reference.Reference // the zero Reference if none is named, or several are
	// verdicts are the requirements on the verdict, if the reference has a tag or a digest. These
	// verdicts are computed on request, and no index has them.
	verdicts []fields.Requirement
}

// namedIn is the reference that a selector names with =, if it names one.
func namedIn(selector fields.Selector) (named reference.Reference) {
	for _, r := range selector.Requirements() {
		if r.Field != knownField && r.Field != recordedField || r.Operator == selection.NotEquals {
			continue
		}
		ref, err := reference.Parse(r.Value)
		if err != nil || named.Host != "" && named != ref {
			return reference.Reference{}
		}
		named = ref
	}
	return named
}

// ofVerdicts are the fields about verdicts.
var ofVerdicts = []string{verifiedField, attestedField, signerField}

// inRepository has the fields about verdicts mean the reference that the selector names beside
// them, and no other place of the image. It removes requirements on the verdict for a tag or a
// digest from the selector.
func inRepository(options *internalversion.ListOptions) (asked, *internalversion.ListOptions, error) {
	if options == nil || options.FieldSelector == nil {
		return asked{}, options, nil
	}
	a := asked{ref: namedIn(options.FieldSelector)}
	if a.ref.Host == "" {
		return a, options, nil
	}
	for _, r := range options.FieldSelector.Requirements() {
		if slices.Contains(ofVerdicts, r.Field) && (a.ref.Tag != "" || a.ref.Digest != "") {
			a.verdicts = append(a.verdicts, r)
		}
	}
	selector, err := options.FieldSelector.Transform(func(field, value string) (string, string, error) {
		switch {
		case !slices.Contains(ofVerdicts, field):
			return field, value, nil
		case len(a.verdicts) > 0:
			return "", "", nil
		case field == verifiedField:
			return verdictsField, value + "@" + a.ref.Name(), nil // there is an index
		}
		return selectors.InRepository(field, a.ref.Name()), value, nil
	})
	if err != nil {
		return a, nil, err
	}
	changed := *options
	changed.FieldSelector = selector
	return a, &changed, nil
}

// about is inRepository, and has a selector by a reference with a tag select the image that the tag
// leads to, if that is known, and one with a digest the image, if it is in the repository. An image
// shows a bounded number of its references, but it is recorded of every tag where it leads. A
// selector by recorded references is left to their index.
func (r *REST) about(ctx context.Context, options *internalversion.ListOptions) (asked, *internalversion.ListOptions, error) {
	a, options, err := inRepository(options)
	if err != nil || options == nil || options.FieldSelector == nil {
		return a, options, err
	}
	selector, err := options.FieldSelector.Transform(func(name, value string) (string, string, error) {
		if name == recordedField {
			return knownField, value, nil
		}
		ref, err := reference.Parse(value)
		if name != knownField || err != nil || ref.Tag == "" && ref.Digest == "" || r.answers == nil {
			return name, value, nil
		}
		of, digest, known, err := r.answers.Leads(ctx, ref)
		if a.ref == ref {
			a.ref = of
		}
		switch {
		case err != nil || !known:
			// if it is not known where the tag leads, only the recorded references are left
			return name, value, err
		case digest == "":
			return nameField, "none", nil
		}
		return nameField, digest, nil
	})
	if err != nil {
		return a, nil, err
	}
	followed := *options
	followed.FieldSelector = selector
	return a, &followed, nil
}

// leave leaves in a list the images whose verdict for the reference is what the selector demands.
func (a *asked) leave(ctx context.Context, r *REST, list *imagev1.ImageList) (failed error) {
	if len(a.verdicts) == 0 {
		return nil
	}
	list.Items = slices.DeleteFunc(list.Items, func(image imagev1.Image) bool {
		v, err := r.Verdict(ctx, &image, a.ref, "")
		if err != nil {
			failed = apierrors.NewServiceUnavailable(fmt.Sprintf("the verdict for %s is unknown: %v", a.ref, err))
		}
		return slices.ContainsFunc(a.verdicts, func(q fields.Requirement) bool {
			return slices.Contains(valuesOf(v, q.Field), q.Value) == (q.Operator == selection.NotEquals)
		})
	})
	list.RemainingItemCount = nil
	return failed
}

// Verdict returns the verdict on an image under a reference with a tag or a digest, for pods of a
// namespace or, with "", for no namespace. If r has no judge, it returns the verdict that the image
// holds for the repository.
func (r *REST) Verdict(ctx context.Context, image *imagev1.Image, ref reference.Reference, namespace string) (annotation.Verdict, error) {
	if r.answers != nil {
		return r.answers.Judge(ctx, image, ref, namespace)
	}
	v, _ := heldIn(r.Facts.stored.Held(image), ref)
	return v, nil
}

// heldIn is the verdict that is held for a repository.
func heldIn(all []annotation.HeldVerdict, ref reference.Reference) (annotation.Verdict, bool) {
	at := slices.IndexFunc(all, func(v annotation.HeldVerdict) bool { return v.Place == ref.Name() })
	if at < 0 {
		return annotation.Verdict{}, false
	}
	return all[at].Verdict, true
}

// judgedFields are the fields that have the verdict on an image where it is stored. What pods use
// may have another one, by the name that they use.
var judgedFields = []string{verifiedField, attestedField, verdictsField}

// leavesUsed reports whether a selector by use leaves images that are known to be used.
func leavesUsed(options *internalversion.ListOptions) bool {
	return slices.ContainsFunc(options.FieldSelector.Requirements(), func(r fields.Requirement) bool {
		isEqual := r.Operator != selection.NotEquals
		return r.Field == usedField && (r.Value == "true") == isEqual || r.Field == usedByField && (r.Value != "") == isEqual
	})
}

// errJudgedByName refuses to select what is used by verdicts.
func errJudgedByName() error {
	return apierrors.NewBadRequest(fmt.Sprintf("what pods run has the verdict for the name that they use, by the policies that count for their namespace, and not that of the image: kubectl get clusterpods --field-selector verified=False, also with image=, spec.cluster= and spec.namespace=. Images are selected by %s or %s alone, or with %s=false",
		verifiedField, verdictsField, usedField))
}

// errJudgedWhenAsked refuses to watch, or to delete together, by the verdict for a tag or a digest.
func errJudgedWhenAsked(ref reference.Reference) error {
	return apierrors.NewBadRequest(fmt.Sprintf("the verdict for %s is computed on request: list images by it, or select by their stored verdict for the repository: %s=%s, or %s=VERDICT@%s",
		ref, knownField, ref.Name(), verdictsField, ref.Name()))
}
