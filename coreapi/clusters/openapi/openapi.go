// Package openapi holds the OpenAPI definitions of the kinds of package clusters: what `kubectl explain` shows. They are
// generated from the Go types: run go generate ./coreapi/clusters/openapi.
package openapi

import (
	"strings"

	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters/openapi/internal/generated"
)

// GetOpenAPIDefinitions returns the definitions of Cluster, ClusterPod, their lists and the types of their fields, by
// OpenAPI model name. Those of Kubernetes' types are not among them.
func GetOpenAPIDefinitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	out := map[string]common.OpenAPIDefinition{}
	for name, d := range generated.GetOpenAPIDefinitions(func(name string) spec.Ref { return ref(modelName(name)) }) {
		for i, part := range d.Dependencies {
			d.Dependencies[i] = modelName(part)
		}
		out[modelName(name)] = d
	}
	return out
}

// modelName turns the Go name of a type into its model name. The generator knows the model names of some types.
func modelName(name string) string {
	if strings.Contains(name, "/") {
		return util.ToRESTFriendlyName(name)
	}
	return name
}
