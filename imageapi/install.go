package imageapi

import (
	"github.com/openshift/api/image/docker10"
	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestream"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestreamimport"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagetag"
)

// internalGroupVersion is the version that the API machinery works in. The Go types are the v1
// types themselves, so nothing is ever converted.
var internalGroupVersion = schema.GroupVersion{Group: imagev1.GroupName, Version: runtime.APIVersionInternal}

// Install registers Image, ImageList, ImageSignature, ImageTag, ImageStream, ImageStreamTag and
// their lists, ImageStreamImage, ImageStreamLayers, SecretList, ImageStreamMapping and
// ImageStreamImport with scheme, as internal and as v1 types, and docker10.DockerImage, the kind
// inside dockerImageMetadata.
func Install(scheme *runtime.Scheme) error {
	for _, gv := range []schema.GroupVersion{internalGroupVersion, imagev1.GroupVersion} {
		scheme.AddKnownTypes(gv, &imagev1.Image{}, &imagev1.ImageList{}, &imagev1.ImageSignature{}, &imagev1.ImageTag{}, &imagev1.ImageTagList{},
			&imagev1.ImageStream{}, &imagev1.ImageStreamList{}, &imagev1.ImageStreamTag{}, &imagev1.ImageStreamTagList{}, &imagev1.ImageStreamImage{}, &imagev1.ImageStreamLayers{},
			&imagev1.SecretList{}, &imagev1.ImageStreamMapping{}, &imagev1.ImageStreamImport{})
	}
	metav1.AddToGroupVersion(scheme, imagev1.GroupVersion)
	if err := docker10.Install(scheme); err != nil {
		return err
	}
	scheme.AddTypeDefaultingFunc(&imagev1.Image{}, func(obj any) { imageregistry.SetDefaults(obj.(*imagev1.Image)) })
	if err := scheme.AddFieldLabelConversionFunc(imagev1.GroupVersion.WithKind("Image"), imageregistry.ConvertFieldLabel); err != nil {
		return err
	}
	if err := scheme.AddFieldLabelConversionFunc(imagev1.GroupVersion.WithKind("ImageTag"), imagetag.ConvertFieldLabel); err != nil {
		return err
	}
	scheme.AddTypeDefaultingFunc(&imagev1.ImageStream{}, func(obj any) {
		for i := range obj.(*imagev1.ImageStream).Spec.Tags {
			imagestream.SetTagDefaults(&obj.(*imagev1.ImageStream).Spec.Tags[i])
		}
	})
	scheme.AddTypeDefaultingFunc(&imagev1.ImageStreamTag{}, func(obj any) {
		if tag := obj.(*imagev1.ImageStreamTag).Tag; tag != nil {
			imagestream.SetTagDefaults(tag)
		}
	})
	scheme.AddTypeDefaultingFunc(&imagev1.ImageStreamImport{}, func(obj any) { imagestreamimport.SetImportDefaults(&obj.(*imagev1.ImageStreamImport).Spec) })
	if err := scheme.AddFieldLabelConversionFunc(imagev1.GroupVersion.WithKind("ImageStream"), imagestream.ConvertFieldLabel); err != nil {
		return err
	}
	return scheme.SetVersionPriority(imagev1.GroupVersion)
}
