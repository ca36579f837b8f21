package policyapi

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// maxSpec bounds the spec of an object as JSON, in bytes.
const maxSpec = 256 << 10

// strategy validates and prepares a policy between decoding and storing.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	keeper     *Keeper
	namespaced bool
}

var (
	_ rest.RESTCreateStrategy  = strategy{}
	_ rest.RESTUpdateStrategy  = strategy{}
	_ rest.ResetFieldsStrategy = strategy{}
)

// NamespaceScoped reports whether the policies are for the pods of a namespace; otherwise they are
// for all images.
func (s strategy) NamespaceScoped() bool { return s.namespaced }

// AllowCreateOnUpdate is false: PUT of an unknown policy is 404.
func (strategy) AllowCreateOnUpdate(context.Context) bool { return false }

// AllowUnconditionalUpdate is true, as for OpenShift's kind.
func (strategy) AllowUnconditionalUpdate(context.Context) bool { return true }

// GetResetFields lists the fields that clients cannot set: the status.
func (strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(GroupVersion.String()): fieldpath.NewSet(fieldpath.MakePathOrDie("status")),
	}
}

// PrepareForCreate is part of rest.RESTCreateStrategy.
func (strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	p := obj.(object)
	*p.status() = PolicyStatus{}
	p.SetGeneration(1)
}

// PrepareForUpdate is part of rest.RESTUpdateStrategy.
func (strategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	p, before := obj.(object), old.(object)
	*p.status() = *before.status()
	p.SetGeneration(before.GetGeneration())
	if !apiequality.Semantic.DeepEqual(p.spec(), before.spec()) {
		p.SetGeneration(before.GetGeneration() + 1)
	}
}

// Validate reports what is wrong with a new policy.
func (s strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	p := obj.(object)
	errs := validation.ValidateObjectMetaAccessor(p, s.namespaced, validation.NameIsDNSSubdomain, field.NewPath("metadata"))
	return slices.Concat(errs, validateAdmission(p), fieldErrors(policy.CheckLabels(p.GetLabels())), s.validateSpec(p))
}

func validateAdmission(p object) field.ErrorList {
	_, err := policy.NewAdmission(p.GetAnnotations())
	return fieldErrors(err)
}

// ValidateUpdate reports what is wrong with a changed policy.
func (s strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	p, before := obj.(object), old.(object)
	errs := validation.ValidateObjectMetaAccessorUpdate(p, before, field.NewPath("metadata"))
	if !maps.Equal(p.GetAnnotations(), before.GetAnnotations()) {
		errs = append(errs, validateAdmission(p)...)
	}
	if !maps.Equal(p.GetLabels(), before.GetLabels()) {
		errs = append(errs, fieldErrors(policy.CheckLabels(p.GetLabels()))...)
	}
	if apiequality.Semantic.DeepEqual(p.spec(), before.spec()) {
		return errs // a policy that an older version accepted can still be labelled and deleted
	}
	return append(errs, s.validateSpec(p)...)
}

func (s strategy) validateSpec(p object) field.ErrorList {
	if spec, err := json.Marshal(p.spec()); err != nil || len(spec) > maxSpec {
		return field.ErrorList{field.TooLong(field.NewPath("spec"), nil, maxSpec)}
	}
	parsed, err := policy.New(p.GetNamespace(), p.GetName(), p.spec())
	if err == nil {
		err = s.keeper.live.Set().Accepts(parsed)
	}
	return fieldErrors(err)
}

// fieldErrors converts errors of package policy, which have field paths, to field errors.
func fieldErrors(err error) field.ErrorList {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var errs field.ErrorList
		for _, e := range joined.Unwrap() {
			errs = append(errs, fieldErrors(e)...)
		}
		return errs
	}
	e := &field.Error{Type: field.ErrorTypeInvalid, Field: "spec", BadValue: field.OmitValueType{}, Detail: err.Error()}
	if at, ok := errors.AsType[*policy.Error](err); ok {
		e.Field, e.Detail = at.Field, at.Err.Error()
	}
	if errors.Is(err, policy.ErrNamesFile) {
		e.Type = field.ErrorTypeForbidden
	}
	return field.ErrorList{e}
}

// Canonicalize has nothing to do.
func (strategy) Canonicalize(runtime.Object) {}

// WarningsOnCreate warns about a policy that no signature can meet, that leaves images uncovered,
// or that has no alternative although it names a group, as the status will do later.
func (s strategy) WarningsOnCreate(_ context.Context, obj runtime.Object) []string {
	p := obj.(object)
	parsed, err := policy.New(p.GetNamespace(), p.GetName(), p.spec())
	if err != nil {
		return nil
	}
	var warnings []string
	if err := parsed.Usable(s.keeper.clock.Now()); err != nil {
		warnings = append(warnings, "no signature can meet this policy: "+err.Error())
	}
	parsed.Admission = admissionOf(p)
	if s.keeper.live.Set().UncoveredWith(parsed) {
		warnings = append(warnings, uncovered)
	}
	if alone := s.keeper.live.Set().Alone(parsed); len(alone) > 0 {
		warnings = append(warnings, isAlone(parsed, alone))
	}
	return warnings
}

// WarningsOnUpdate is WarningsOnCreate for a spec that changes.
func (s strategy) WarningsOnUpdate(ctx context.Context, obj, old runtime.Object) []string {
	if apiequality.Semantic.DeepEqual(obj.(object).spec(), old.(object).spec()) {
		return nil
	}
	warnings := s.WarningsOnCreate(ctx, obj)
	p, before := obj.(object), old.(object)
	parsed, err := policy.New(p.GetNamespace(), p.GetName(), p.spec())
	was, invalid := policy.New(before.GetNamespace(), before.GetName(), before.spec())
	if err == nil && invalid == nil {
		if err := parsed.OlderLists(was); err != nil {
			warnings = append(warnings, err.Error())
		}
	}
	return warnings
}

// statusStrategy is for the status, which the server writes.
type statusStrategy struct{ strategy }

// PrepareForUpdate changes nothing: the server updates only the status.
func (statusStrategy) PrepareForUpdate(context.Context, runtime.Object, runtime.Object) {}

// ValidateUpdate is part of rest.RESTUpdateStrategy.
func (statusStrategy) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return nil
}

// WarningsOnUpdate is part of rest.RESTUpdateStrategy.
func (statusStrategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}
