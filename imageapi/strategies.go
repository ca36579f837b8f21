package imageapi

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage/names"
)

// commonStrategy is what the strategies of all kinds have in common.
type commonStrategy struct {
	runtime.ObjectTyper
	names.NameGenerator
}

func newCommonStrategy(scheme *runtime.Scheme) commonStrategy {
	return commonStrategy{ObjectTyper: scheme, NameGenerator: names.SimpleNameGenerator}
}

// AllowCreateOnUpdate is false: PUT of an unknown object is 404.
func (commonStrategy) AllowCreateOnUpdate(context.Context) bool { return false }

// AllowUnconditionalUpdate is false: an update names the resourceVersion it is based on.
func (commonStrategy) AllowUnconditionalUpdate(context.Context) bool { return false }

// Canonicalize has nothing to do: an object is in its final form before validation.
func (commonStrategy) Canonicalize(runtime.Object) {}

// WarningsOnCreate is part of rest.RESTCreateStrategy.
func (commonStrategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }

// WarningsOnUpdate is part of rest.RESTUpdateStrategy.
func (commonStrategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// clusterScoped is the common strategy of kinds that belong to no namespace.
type clusterScoped struct{ commonStrategy }

// NamespaceScoped is part of rest.RESTCreateStrategy.
func (clusterScoped) NamespaceScoped() bool { return false }

// namespaceScoped is the common strategy of kinds that belong to a namespace.
type namespaceScoped struct{ commonStrategy }

// NamespaceScoped is part of rest.RESTCreateStrategy.
func (namespaceScoped) NamespaceScoped() bool { return true }
