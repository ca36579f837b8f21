package imagestream

import (
	"context"

	imagev1 "github.com/openshift/api/image/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// StatusREST is the subresource status.
type StatusREST struct {
	store *genericregistry.Store
	shown *Reader
}

var (
	_ rest.Patcher             = &StatusREST{}
	_ rest.ResetFieldsStrategy = Strategy{}
)

// New is part of rest.Storage.
func (*StatusREST) New() runtime.Object { return &imagev1.ImageStream{} }

// Destroy is part of rest.Storage. The storage belongs to the resource.
func (*StatusREST) Destroy() {}

// Get is part of rest.Getter.
func (r *StatusREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	obj, err := r.store.Get(ctx, name, options)
	return r.shown.object(ctx, obj, err)
}

// Update is part of rest.Updater. Registries say where tags lead, so a status that says something
// else is refused. Former images of tags may be left out, as oc adm prune images does. The answer
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
	obj, created, err := r.store.Update(ctx, name, info, create, update, false, options)
	if err == nil {
		err = shorter.shortenTags(ctx, r.shown.TagStatus, options.DryRun)
	}
	obj, err = r.shown.object(ctx, obj, err)
	return obj, created, err
}

// GetResetFields is part of rest.ResetFieldsStrategy.
func (r *StatusREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.store.GetResetFields()
}

// ConvertToTable is part of rest.TableConvertor.
func (r *StatusREST) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, obj, options)
}
