// Package openapi holds the OpenAPI definitions of the kinds of image.openshift.io/v1 that the
// server serves: what `kubectl explain` shows, and what server-side apply merges by.
//
// github.com/openshift/api has definitions of its own, but of all of OpenShift and of an older
// Kubernetes. These are generated from its Go types: run go generate ./imageapi/openapi.
package openapi

import (
	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/tidewaiter/tidewaiter/imageapi/openapi/internal/generated"
	"github.com/tidewaiter/tidewaiter/internal/modelname"
)

// GetOpenAPIDefinitions returns the definitions of Image, ImageList, ImageSignature, ImageTag,
// ImageStream, ImageStreamTag, their lists, ImageStreamImage, ImageStreamLayers, SecretList,
// ImageStreamMapping, ImageStreamImport and of the types of their package that they refer to, by
// OpenAPI model name. It lacks Kubernetes' own types: merge with the definitions of
// coreapi/openapi.
func GetOpenAPIDefinitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	all := modelname.Definitions(generated.GetOpenAPIDefinitions)(ref)
	out := map[string]common.OpenAPIDefinition{}
	var add func(name string)
	add = func(name string) {
		def, ok := all[name]
		if _, done := out[name]; !ok || done {
			return
		}
		out[name] = def
		for _, d := range def.Dependencies {
			add(d)
		}
	}
	for _, name := range []string{imagev1.Image{}.OpenAPIModelName(), imagev1.ImageList{}.OpenAPIModelName(), imagev1.ImageSignature{}.OpenAPIModelName(),
		imagev1.ImageTag{}.OpenAPIModelName(), imagev1.ImageTagList{}.OpenAPIModelName(),
		imagev1.ImageStream{}.OpenAPIModelName(), imagev1.ImageStreamList{}.OpenAPIModelName(),
		imagev1.ImageStreamTag{}.OpenAPIModelName(), imagev1.ImageStreamTagList{}.OpenAPIModelName(),
		imagev1.ImageStreamImage{}.OpenAPIModelName(), imagev1.ImageStreamLayers{}.OpenAPIModelName(),
		imagev1.SecretList{}.OpenAPIModelName(), imagev1.ImageStreamMapping{}.OpenAPIModelName(), imagev1.ImageStreamImport{}.OpenAPIModelName()} {
		add(name)
	}
	mendImage(out[imagev1.Image{}.OpenAPIModelName()])
	return out
}

// mendImage corrects how the Go type's tags merge.
//
// Signatures are tagged to merge by the key "name", which an ImageSignature does not have (it has
// metadata.name): server-side apply and field tracking would fail on every image with a signature.
// So they are one value. So is the metadata, which is never written in parts.
func mendImage(image common.OpenAPIDefinition) {
	setExtensions := func(property string, extensions spec.Extensions) {
		p := image.Schema.Properties[property]
		p.Extensions = extensions
		image.Schema.Properties[property] = p
	}
	setExtensions("signatures", spec.Extensions{"x-kubernetes-list-type": "atomic"})
	setExtensions("dockerImageMetadata", spec.Extensions{"x-kubernetes-map-type": "atomic"})
}
