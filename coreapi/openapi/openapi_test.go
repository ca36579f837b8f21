package openapi_test

import (
	"reflect"
	"testing"

	"k8s.io/kube-openapi/pkg/validation/spec"
	k8sopenapi "k8s.io/kubernetes/pkg/generated/openapi"

	"github.com/tidewaiter/tidewaiter/coreapi/openapi"
)

// The definitions are those that Kubernetes has.
func TestDefinitionsAreKubernetes(t *testing.T) {
	t.Parallel()
	ref := func(path string) spec.Ref { return spec.MustCreateRef("#/definitions/" + path) }
	ours, theirs := openapi.GetOpenAPIDefinitions(ref), k8sopenapi.GetOpenAPIDefinitions(ref)
	for name, definition := range ours {
		if want, ok := theirs[name]; !ok || !reflect.DeepEqual(definition, want) {
			t.Errorf("%s is\n%+v\nand Kubernetes', %t,\n%+v", name, definition, ok, want)
		}
	}
	if len(ours) < 300 || len(ours) > len(theirs)/2 {
		t.Errorf("%d of %d are described", len(ours), len(theirs))
	}
}
