package server

import (
	"testing"

	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Every type that a served one consists of is described.
func TestOpenAPIDefinitionsAreClosed(t *testing.T) {
	ref := func(path string) spec.Ref { return spec.MustCreateRef("#/definitions/" + path) }
	served := openAPIDefinitions(ref)
	for name, definition := range served {
		for _, part := range definition.Dependencies {
			if _, ok := served[part]; !ok {
				t.Errorf("%s consists of %s, which is not described", name, part)
			}
		}
	}
	for _, name := range []string{"io.k8s.api.core.v1.Pod", "io.k8s.api.core.v1.Binding", "io.k8s.api.policy.v1.Eviction",
		"io.k8s.apimachinery.pkg.api.resource.Quantity", "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions", "com.github.openshift.api.image.v1.Image"} {
		if _, ok := served[name]; !ok {
			t.Errorf("%s is not described", name)
		}
	}
}
