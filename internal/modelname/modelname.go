// Package modelname puts generated OpenAPI definitions under the names that the API server looks
// for.
package modelname

import (
	"strings"

	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Definitions returns generated definitions under the OpenAPI model names of their types, which
// they refer to each other by. The generator knows the model names of types that it generates for,
// if they have one, and writes the Go names of others, such as Kubernetes' own.
func Definitions(generated common.GetOpenAPIDefinitions) common.GetOpenAPIDefinitions {
	return func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		out := map[string]common.OpenAPIDefinition{}
		for name, d := range generated(func(name string) spec.Ref { return ref(of(name)) }) {
			for i, part := range d.Dependencies {
				d.Dependencies[i] = of(part)
			}
			out[of(name)] = d
		}
		return out
	}
}

func of(name string) string {
	if strings.Contains(name, "/") {
		return util.ToRESTFriendlyName(name)
	}
	return name
}
