package answers

import (
	"context"
	"fmt"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
)

// Authorizer decides what a caller may do.
type Authorizer = authorizer.Authorizer

// rights holds why a caller lacks a right; a field is empty if the caller has it.
type rights struct{ getImages, listImages, getTags, listTags, listPods, listPackages string }

// rightsOf reads the rights of a review's caller, once for the review.
func (a *Answerer) rightsOf(ctx context.Context) (r rights) {
	image := imagev1.GroupVersion
	return rights{
		getImages: a.lacks(ctx, "get", image, "images", ""), listImages: a.lacks(ctx, "list", image, "images", ""),
		getTags: a.lacks(ctx, "get", image, "imagetags", tags.Namespace), listTags: a.lacks(ctx, "list", image, "imagetags", tags.Namespace),
		listPods: a.LacksPods(ctx), listPackages: a.LacksPackages(ctx),
	}
}

// LacksPackages returns why a caller may not see which packages images have, or "" if the caller
// may.
func (a *Answerer) LacksPackages(ctx context.Context) string {
	return a.lacks(ctx, "list", packages.GroupVersion, packages.Resource, "")
}

// LacksPods returns why a caller may not see the pods of clusters, or "" if the caller may.
func (a *Answerer) LacksPods(ctx context.Context) string {
	return a.lacks(ctx, "list", GroupVersion, "clusterpods", "")
}

// lacks returns why a caller lacks a right, or "" if the caller has it. The words are Kubernetes'
// own, so that clients can find the role that grants the right. Without a caller in ctx, the
// program itself asks, and has every right.
func (a *Answerer) lacks(ctx context.Context, verb string, of schema.GroupVersion, resource, namespace string) string {
	caller, ok := genericapirequest.UserFrom(ctx)
	if a.Authorizer == nil || !ok {
		return ""
	}
	decision, _, err := a.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: caller, Verb: verb, APIGroup: of.Group, APIVersion: of.Version, Resource: resource, Namespace: namespace, ResourceRequest: true,
	})
	switch {
	case decision == authorizer.DecisionAllow:
		return ""
	case err != nil:
		return fmt.Sprintf("it is unknown whether user %q may %s %s.%s: %v", caller.GetName(), verb, resource, of.Group, err)
	}
	where := ""
	if namespace != "" {
		where = fmt.Sprintf(" in the namespace %q", namespace)
	}
	return fmt.Sprintf("User %q cannot %s resource %q in API group %q%s", caller.GetName(), verb, resource, of.Group, where)
}
