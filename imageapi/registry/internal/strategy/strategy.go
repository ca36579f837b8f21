// Package strategy has the common parts of the strategies of the group's kinds.
package strategy

import (
	"context"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// commonStrategy is the common part of the strategies of all kinds.
type commonStrategy struct {
	runtime.ObjectTyper
	names.NameGenerator
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

// ClusterWide is the common strategy of kinds that belong to no namespace.
type ClusterWide struct{ commonStrategy }

// NewClusterWide returns the strategy of kinds of scheme that belong to no namespace.
func NewClusterWide(scheme *runtime.Scheme) ClusterWide {
	return ClusterWide{commonStrategy{scheme, names.SimpleNameGenerator}}
}

// NamespaceScoped is part of rest.RESTCreateStrategy.
func (ClusterWide) NamespaceScoped() bool { return false }

// Namespaced is the common strategy of kinds that belong to a namespace.
type Namespaced struct{ commonStrategy }

// NewNamespaced returns the strategy of kinds of scheme that belong to a namespace.
func NewNamespaced(scheme *runtime.Scheme) Namespaced {
	return Namespaced{commonStrategy{scheme, names.SimpleNameGenerator}}
}

// NamespaceScoped is part of rest.RESTCreateStrategy.
func (Namespaced) NamespaceScoped() bool { return true }

// UserOf returns the name of the sender of a request.
func UserOf(ctx context.Context) string {
	if user, ok := genericapirequest.UserFrom(ctx); ok {
		return user.GetName()
	}
	return "somebody"
}

// May reports whether the sender of a request may also do what is given, to a resource of this
// group, and why not. A nil authorizer allows everything.
func May(ctx context.Context, a authorizer.UnconditionalAuthorizer, what authorizer.AttributesRecord) (reason string, may bool) {
	if a == nil {
		return "", true
	}
	what.APIGroup, what.APIVersion, what.ResourceRequest = imagev1.GroupName, imagev1.GroupVersion.Version, true
	var ok bool
	if what.User, ok = genericapirequest.UserFrom(ctx); !ok {
		return "the request has no user", false
	}
	decision, reason, err := a.Authorize(ctx, what)
	if err != nil && decision != authorizer.DecisionAllow {
		reason = err.Error()
	}
	return reason, decision == authorizer.DecisionAllow
}

func ResetFields(paths ...string) map[fieldpath.APIVersion]*fieldpath.Set {
	set := fieldpath.NewSet()
	for _, p := range paths {
		set.Insert(fieldpath.MakePathOrDie(p))
	}
	return map[fieldpath.APIVersion]*fieldpath.Set{fieldpath.APIVersion(imagev1.GroupVersion.String()): set}
}
