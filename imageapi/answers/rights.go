package answers

import (
	"context"
	"fmt"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/tidewaiter/tidewaiter/imageapi/packages"
	"github.com/tidewaiter/tidewaiter/imageapi/tags"
)

// Authorizer says what a caller may do.
type Authorizer = authorizer.Authorizer

// rights say what a caller may not do, and why: each is empty if the caller may.
type rights struct{ getImages, listImages, getTags, listTags, listPods, listPackages string }

// rightsOf asks once for a review what its caller may see. Without a caller, the program itself asks.
func (a *Answerer) rightsOf(ctx context.Context) (r rights) {
	caller, ok := genericapirequest.UserFrom(ctx)
	if a.Authorizer == nil || !ok {
		return rights{}
	}
	may := func(verb, group, version, resource, namespace string) string {
		decision, _, err := a.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
			User: caller, Verb: verb, APIGroup: group, APIVersion: version, Resource: resource, Namespace: namespace, ResourceRequest: true,
		})
		switch {
		case decision == authorizer.DecisionAllow:
			return ""
		case err != nil:
			return fmt.Sprintf("it is unknown whether user %q may %s %s.%s: %v", caller.GetName(), verb, resource, group, err)
		}
		where := ""
		if namespace != "" {
			where = fmt.Sprintf(" in the namespace %q", namespace)
		}
		return fmt.Sprintf("user %q may not %s %s.%s%s", caller.GetName(), verb, resource, group, where)
	}
	image := imagev1.GroupVersion
	return rights{
		getImages: may("get", image.Group, image.Version, "images", ""), listImages: may("list", image.Group, image.Version, "images", ""),
		getTags: may("get", image.Group, image.Version, "imagetags", tags.Namespace), listTags: may("list", image.Group, image.Version, "imagetags", tags.Namespace),
		listPods:     may("list", GroupVersion.Group, GroupVersion.Version, "clusterpods", ""),
		listPackages: may("list", packages.GroupVersion.Group, packages.GroupVersion.Version, packages.Resource, ""),
	}
}
