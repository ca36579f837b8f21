package imagestream

import (
	"context"

	imagev1 "github.com/openshift/api/image/v1"
	"github.com/tidewaiter/tidewaiter/imageapi/internal/virtual"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// StatusREST is the subresource status.
type StatusREST struct {
	virtual.Status
	shown *Reader
}

var (
	_ rest.Patcher             = &StatusREST{}
	_ rest.ResetFieldsStrategy = Strategy{}
)

// Get is part of rest.Getter.
func (r *StatusREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	obj, err := r.Store.Get(ctx, name, options)
	return r.shown.object(ctx, obj, err)
}

// Update is part of rest.Updater. Only registries decide where tags lead, so a status with other
// images is refused. Former images of tags may be left out, as oc adm prune images does. The answer
// has the remaining ones.
func (r *StatusREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	var shorter *shortening
	info = rest.WrapUpdatedObjectInfo(info, func(ctx context.Context, obj, old runtime.Object) (runtime.Object, error) {
		shorter = &shortening{}
		stream, before := obj.(*imagev1.ImageStream), old.(*imagev1.ImageStream)
		if info, ok := genericapirequest.RequestInfoFrom(ctx); ok && info.Verb == "patch" && apiequality.Semantic.DeepEqual(stream.Status, before.Status) {
			// a patch is applied to what is stored: this one leaves the status alone
			return obj, nil
		}
		shown, err := r.shown.Show(ctx, before)
		if err != nil {
			return nil, err
		}
		out, ok := leftOut(shown.Status.Tags, stream.Status.Tags)
		shown.Status.Tags = stream.Status.Tags
		if !ok || !apiequality.Semantic.DeepEqual(stream.Status, shown.Status) {
			return nil, apierrors.NewInvalid(imagev1.GroupVersion.WithKind("ImageStream").GroupKind(), name, field.ErrorList{
				field.Forbidden(field.NewPath("status"), "it reflects the registries: import a tag or change spec instead")})
		}
		stream.Status = before.Status
		if len(out) > 0 {
			if shorter, err = r.shown.shorten(ctx, before, out); err != nil {
				return nil, err
			}
			shorter.shortenOwn(&stream.Status)
		}
		return stream, nil
	})
	obj, created, err := r.Store.Update(ctx, name, info, create, update, false, options)
	if err == nil {
		err = shorter.shortenTags(ctx, r.shown.TagStatus, options.DryRun)
	}
	obj, err = r.shown.object(ctx, obj, err)
	return obj, created, err
}
