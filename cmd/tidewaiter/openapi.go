package main

import (
	"maps"

	"k8s.io/kube-openapi/pkg/common"
	k8sopenapi "k8s.io/kubernetes/pkg/generated/openapi"

	imageopenapi "tidewaiter/imageapi/openapi"
)

// openAPIDefinitions describes every served type: Kubernetes' own and the image
// group's.
func openAPIDefinitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	definitions := k8sopenapi.GetOpenAPIDefinitions(ref)
	maps.Copy(definitions, imageopenapi.GetOpenAPIDefinitions(ref))
	return definitions
}
