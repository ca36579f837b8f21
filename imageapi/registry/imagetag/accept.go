package imagetag

import (
	"context"
	"fmt"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/registry/internal/strategy"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// AcceptVerb is the right to accept that a tag leads elsewhere than it must. Who may only write a
// tag may not: the role edit in the namespace of tags has that right.
const AcceptVerb = "accept"

// WhyNotAccept returns why the sender of a request may not accept moves of a tag, or "".
func WhyNotAccept(ctx context.Context, a authorizer.UnconditionalAuthorizer, name string) string {
	reason, may := strategy.May(ctx, a, authorizer.AttributesRecord{Verb: AcceptVerb, Namespace: tags.Namespace, Resource: "imagetags", Name: name})
	if may {
		return ""
	}
	return fmt.Sprintf("%s may not accept moves of tags: ask for the role tidewaiter:tag-accepter in the namespace %s %s", strategy.UserOf(ctx), tags.Namespace, reason)
}

// MayForget returns a validation for deletions of tags. If it is known where a tag must lead, only
// users who may accept moves can delete the tag: otherwise the tag could come back, lead elsewhere,
// and the move would go unnoticed.
func MayForget(a authorizer.UnconditionalAuthorizer, validate rest.ValidateObjectFunc) rest.ValidateObjectFunc {
	return func(ctx context.Context, obj runtime.Object) error {
		if tag, ok := obj.(*imagev1.ImageTag); ok && tags.Kept(tag) != "" {
			if why := WhyNotAccept(ctx, a, tag.Name); why != "" {
				return apierrors.NewForbidden(imagev1.Resource("imagetags"), tag.Name, fmt.Errorf("without the tag it is not known where it must lead, and %s", why))
			}
		}
		if validate == nil {
			return nil
		}
		return validate(ctx, obj)
	}
}

// accept records that the writer accepts where the tag leads. Anything but that digest stays in the
// annotation, for ValidateUpdate, and so does what the writer may not accept.
func (s tagStrategy) accept(ctx context.Context, tag *imagev1.ImageTag) {
	digest, asked := tag.Annotations[tags.Accept]
	if now, _ := tags.Now(tag); !asked || digest == "" || digest != now || WhyNotAccept(ctx, s.may, tag.Name) != "" {
		return
	}
	reason := printable.Line(tag.Annotations[tags.AcceptReason], maxWho)
	delete(tag.Annotations, tags.Accept)
	delete(tag.Annotations, tags.AcceptReason)
	tags.AcceptMove(tag, printable.Line(strategy.UserOf(ctx), maxWho), reason, s.now())
}

// mayKeep reports whether annotations have where a tag must lead, and the writer may set that.
// Writers that give a tag another name do.
func (s tagStatusStrategy) mayKeep(ctx context.Context, tag *imagev1.ImageTag, annotations map[string]string) bool {
	return annotations[tags.First]+annotations[tags.Accepted] != "" && WhyNotAccept(ctx, s.may, tag.Name) == ""
}
