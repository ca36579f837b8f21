package openapi

import (
	"strings"

	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// ByModelName returns generated definitions under the OpenAPI model names of their types, to which they refer. The generator
// knows the model names of the types that it generates for, if they have one, and writes the Go names of others, such as
// Kubernetes' own.
func ByModelName(generated common.GetOpenAPIDefinitions) common.GetOpenAPIDefinitions {
	return func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		out := map[string]common.OpenAPIDefinition{}
		for name, d := range generated(func(name string) spec.Ref { return ref(modelName(name)) }) {
			for i, part := range d.Dependencies {
				d.Dependencies[i] = modelName(part)
			}
			out[modelName(name)] = d
		}
		return out
	}
}

func modelName(name string) string {
	if strings.Contains(name, "/") {
		return util.ToRESTFriendlyName(name)
	}
	return name
}
