package policyapi

import (
	"context"
	"encoding/json"
	"errors"
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

// strategy is what happens to a policy between decoding and storing.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	keeper *Keeper
}

var (
	_ rest.RESTCreateStrategy  = strategy{}
	_ rest.RESTUpdateStrategy  = strategy{}
	_ rest.ResetFieldsStrategy = strategy{}
)

// NamespaceScoped is false: a policy is for images, whoever runs them.
func (strategy) NamespaceScoped() bool { return false }

// AllowCreateOnUpdate is false: PUT of an unknown policy is 404.
func (strategy) AllowCreateOnUpdate(context.Context) bool { return false }

// AllowUnconditionalUpdate is true, as of OpenShift's kind.
func (strategy) AllowUnconditionalUpdate(context.Context) bool { return true }

// GetResetFields says that a client's status is read over.
func (strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(GroupVersion.String()): fieldpath.NewSet(fieldpath.MakePathOrDie("status")),
	}
}

// PrepareForCreate is part of rest.RESTCreateStrategy.
func (strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	p := obj.(*ClusterImagePolicy)
	p.Status = ClusterImagePolicyStatus{}
	p.Generation = 1
}

// PrepareForUpdate is part of rest.RESTUpdateStrategy.
func (strategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	p, before := obj.(*ClusterImagePolicy), old.(*ClusterImagePolicy)
	p.Status = before.Status
	p.Generation = before.Generation
	if !apiequality.Semantic.DeepEqual(p.Spec, before.Spec) {
		p.Generation++
	}
}

// Validate reports what is wrong with a new policy.
func (s strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	p := obj.(*ClusterImagePolicy)
	errs := validation.ValidateObjectMeta(&p.ObjectMeta, false, validation.NameIsDNSSubdomain, field.NewPath("metadata"))
	return append(errs, s.validateSpec(p)...)
}

// ValidateUpdate reports what is wrong with a changed policy.
func (s strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	p, before := obj.(*ClusterImagePolicy), old.(*ClusterImagePolicy)
	errs := validation.ValidateObjectMetaUpdate(&p.ObjectMeta, &before.ObjectMeta, field.NewPath("metadata"))
	if apiequality.Semantic.DeepEqual(p.Spec, before.Spec) {
		return errs // one that an older version took can be labelled and deleted
	}
	return append(errs, s.validateSpec(p)...)
}

func (s strategy) validateSpec(p *ClusterImagePolicy) field.ErrorList {
	if spec, err := json.Marshal(p.Spec); err != nil || len(spec) > maxSpec {
		return field.ErrorList{field.TooLong(field.NewPath("spec"), nil, maxSpec)}
	}
	parsed, err := policy.New(p.Name, &p.Spec)
	if err == nil {
		err = s.keeper.admit(parsed)
	}
	return fieldErrors(err)
}

// fieldErrors are the errors of package policy, which knows the fields by their paths.
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
	var at *policy.Error
	if errors.As(err, &at) {
		e.Field, e.Detail = at.Field, at.Err.Error()
	}
	if errors.Is(err, policy.ErrNamesFile) {
		e.Type = field.ErrorTypeForbidden
	}
	return field.ErrorList{e}
}

// Canonicalize has nothing to do.
func (strategy) Canonicalize(runtime.Object) {}

// WarningsOnCreate says at once what the status will say of a policy that nothing can meet.
func (s strategy) WarningsOnCreate(_ context.Context, obj runtime.Object) []string {
	p := obj.(*ClusterImagePolicy)
	parsed, err := policy.New(p.Name, &p.Spec)
	if err != nil {
		return nil
	}
	if err := parsed.Usable(s.keeper.clock.Now()); err != nil {
		return []string{"no signature can meet this policy: " + err.Error()}
	}
	return nil
}

// WarningsOnUpdate is WarningsOnCreate of a spec that changes.
func (s strategy) WarningsOnUpdate(ctx context.Context, obj, old runtime.Object) []string {
	if apiequality.Semantic.DeepEqual(obj.(*ClusterImagePolicy).Spec, old.(*ClusterImagePolicy).Spec) {
		return nil
	}
	return s.WarningsOnCreate(ctx, obj)
}

// statusStrategy is how the server writes what it found.
type statusStrategy struct{ strategy }

// PrepareForUpdate lets the status alone change.
func (statusStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	p := obj.(*ClusterImagePolicy)
	status := p.Status
	*p = *old.(*ClusterImagePolicy).DeepCopy()
	p.Status = ClusterImagePolicyStatus{Conditions: slices.Clone(status.Conditions)}
}

// ValidateUpdate is part of rest.RESTUpdateStrategy.
func (statusStrategy) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return nil
}

// WarningsOnUpdate is part of rest.RESTUpdateStrategy.
func (statusStrategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}
