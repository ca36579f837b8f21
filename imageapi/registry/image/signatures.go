package image

import (
	"context"
	"errors"
	"fmt"
	"slices"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/internal/virtual"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/internal/strategy"
)

// SignaturesREST adds and removes single signatures. They are stored inside their Image, so an
// ImageSignature has no resourceVersion.
type SignaturesREST struct {
	virtual.Resource
	images   rest.Updater
	strategy signatureStrategy
}

// NewSignaturesREST returns the storage of ImageSignatures, which are parts of images.
func NewSignaturesREST(scheme *runtime.Scheme, images *REST) *SignaturesREST {
	return &SignaturesREST{virtual.Resource{Object: &imagev1.ImageSignature{}, Singular: "imagesignature"}, images, signatureStrategy{strategy.NewClusterWide(scheme)}}
}

var (
	_ rest.Creater              = &SignaturesREST{}
	_ rest.GracefulDeleter      = &SignaturesREST{}
	_ rest.Scoper               = &SignaturesREST{}
	_ rest.SingularNameProvider = &SignaturesREST{}
)

// Create adds a signature to the image that its name, image "@" signature, begins with. It answers
// 404 when there is no such image, 409 when the image has a signature of that name or of the same
// type and content.
func (r *SignaturesREST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	signature, ok := obj.(*imagev1.ImageSignature)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not an ImageSignature: %T", obj))
	}
	if err := virtual.BeforeCreate(ctx, r.strategy, signature, validate); err != nil {
		return nil, err
	}
	imageName, _, err := SplitSignatureName(signature.Name)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error()) // BeforeCreate has checked it
	}
	image, err := r.update(ctx, imageName, options.DryRun, func(image *imagev1.Image) error {
		for i := range image.Signatures {
			if s := &image.Signatures[i]; s.Name == signature.Name || sameSignatureContent(s, signature) {
				return apierrors.NewAlreadyExists(imagev1.Resource("imagesignatures"), signature.Name)
			}
		}
		image.Signatures = append(image.Signatures, *signature)
		return nil
	})
	if err != nil {
		return nil, err
	}
	i := indexSignature(image, signature.Name)
	if i < 0 {
		return nil, apierrors.NewInternalError(fmt.Errorf("signature %q is missing from the image it was added to", signature.Name))
	}
	return &image.Signatures[i], nil
}

// Delete removes the signature of that name from its image.
func (r *SignaturesREST) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	imageName, _, err := SplitSignatureName(name)
	if err != nil {
		return nil, false, apierrors.NewBadRequest(fmt.Sprintf("%q: %v", name, err))
	}
	_, err = r.update(ctx, imageName, options.DryRun, func(image *imagev1.Image) error {
		i := indexSignature(image, name)
		if i < 0 {
			return apierrors.NewNotFound(imagev1.Resource("imagesignatures"), name)
		}
		signature := &image.Signatures[i]
		if p := options.Preconditions; p != nil && p.UID != nil && *p.UID != signature.UID {
			return apierrors.NewConflict(imagev1.Resource("imagesignatures"), name, fmt.Errorf("the precondition's UID is %s but the signature's is %s", *p.UID, signature.UID))
		}
		if validate != nil {
			if err := validate(ctx, signature.DeepCopy()); err != nil {
				return err
			}
		}
		image.Signatures = slices.Delete(image.Signatures, i, i+1)
		return nil
	})
	if err != nil {
		return nil, false, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, true, nil
}

// update changes an image. It starts again when another write was faster.
func (r *SignaturesREST) update(ctx context.Context, name string, dryRun []string, change func(*imagev1.Image) error) (*imagev1.Image, error) {
	transform := func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		image := old.(*imagev1.Image).DeepCopy()
		return image, change(image)
	}
	obj, _, err := r.images.Update(ctx, name, rest.DefaultUpdatedObjectInfo(nil, transform), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{DryRun: dryRun})
	if apierrors.IsNotFound(err) && !isSignatureStatus(err) {
		// The image store names the resource after the request, which is for a signature.
		return nil, apierrors.NewNotFound(imagev1.Resource("images"), name)
	}
	if err != nil {
		return nil, err
	}
	return obj.(*imagev1.Image), nil
}

// isSignatureStatus reports whether err is about a signature, whose names have an "@", not an
// image.
func isSignatureStatus(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	_, _, err = SplitSignatureName(status.Status().Details.Name)
	return err == nil
}

func indexSignature(image *imagev1.Image, name string) int {
	return slices.IndexFunc(image.Signatures, func(s imagev1.ImageSignature) bool { return s.Name == name })
}

// signatureStrategy prepares an ImageSignature that was posted on its own.
type signatureStrategy struct{ strategy.ClusterWide }

var _ rest.RESTCreateStrategy = signatureStrategy{}

// PrepareForCreate removes the fields that only a verifier may set.
func (signatureStrategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	ClearVerdict(obj.(*imagev1.ImageSignature))
}

// Validate reports what is wrong with a new signature.
func (signatureStrategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validateSignature(obj.(*imagev1.ImageSignature), nil)
}
