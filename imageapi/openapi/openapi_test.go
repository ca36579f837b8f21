package openapi_test

import (
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	endpointsopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
	k8sopenapi "k8s.io/kubernetes/pkg/generated/openapi"
	"sigs.k8s.io/yaml"

	"github.com/tidewaiter/tidewaiter/imageapi"
	"github.com/tidewaiter/tidewaiter/imageapi/openapi"
)

const image = "com.github.openshift.api.image.v1.Image"

// definitions merges with Kubernetes' own, as a server does.
func definitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	all := k8sopenapi.GetOpenAPIDefinitions(ref)
	maps.Copy(all, openapi.GetOpenAPIDefinitions(ref))
	return all
}

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, metav1.Unversioned)
	utilruntime.Must(imageapi.Install(s))
	return s
}

func schemas(t *testing.T) map[string]*spec.Schema {
	t.Helper()
	namer := endpointsopenapi.NewDefinitionNamer(newScheme())
	out, err := builder3.BuildOpenAPIDefinitionsForResources(&common.OpenAPIV3Config{
		Info:              &spec.Info{},
		GetDefinitions:    definitions,
		GetDefinitionName: namer.GetDefinitionName,
	}, image, imagev1.ImageList{}.OpenAPIModelName(), imagev1.ImageSignature{}.OpenAPIModelName())
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// What `kubectl explain image.signatures` prints.
func TestDescriptions(t *testing.T) {
	all := schemas(t)
	for _, tt := range []struct{ definition, property, want string }{
		{image, "signatures", "signatures holds all signatures of the image."},
		{image, "dockerImageReference", "dockerImageReference is the string that can be used to pull this image."},
		{"com.github.openshift.api.image.v1.ImageSignature", "content", "Required: An opaque binary string which is an image's signature."},
		{"com.github.openshift.api.image.v1.SignatureCondition", "status", "status of the condition, one of True, False, Unknown."},
	} {
		s, ok := all[tt.definition]
		if !ok {
			t.Fatalf("no definition %s among %d", tt.definition, len(all))
		}
		if got := s.Properties[tt.property].Description; got != tt.want {
			t.Errorf("%s.%s: %q, want %q", tt.definition, tt.property, got, tt.want)
		}
	}
	gvk, ok := all[image].Extensions["x-kubernetes-group-version-kind"]
	if !ok {
		t.Fatalf("%s has no x-kubernetes-group-version-kind", image)
	}
	if want := map[string]any{"group": "image.openshift.io", "version": "v1", "kind": "Image"}; !containsGVK(gvk, want) {
		t.Errorf("x-kubernetes-group-version-kind %v, want %v", gvk, want)
	}
}

func containsGVK(list any, want map[string]any) bool {
	kinds, _ := list.([]any)
	for _, k := range kinds {
		if m, ok := k.(map[string]any); ok && maps.Equal(m, want) {
			return true
		}
	}
	return false
}

// Only what is served is defined, and nothing that a definition refers to is missing.
func TestDefinitionsAreComplete(t *testing.T) {
	own := openapi.GetOpenAPIDefinitions(func(name string) spec.Ref { return spec.MustCreateRef("#/" + name) })
	if _, ok := own["com.github.openshift.api.image.v1.DockerImageReference"]; ok {
		t.Error("DockerImageReference is defined but no part of what is served")
	}
	all := definitions(func(name string) spec.Ref { return spec.MustCreateRef("#/" + name) })
	for name, def := range own {
		for _, d := range def.Dependencies {
			if _, ok := all[d]; !ok {
				t.Errorf("%s refers to %s, which is not defined", name, d)
			}
		}
	}
}

// Server-side apply of a label to an image with signatures and metadata: by the tags of the Go
// type, signatures would merge by a key that they do not have, and every write of such an image
// would fail.
func TestServerSideApply(t *testing.T) {
	converter, err := managedfields.NewTypeConverter(schemas(t), false)
	if err != nil {
		t.Fatal(err)
	}
	scheme := newScheme()
	gvk := imagev1.GroupVersion.WithKind("Image")
	manager, err := managedfields.NewDefaultFieldManager(converter, scheme, scheme, scheme, gvk, gvk.GroupVersion(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	live := &imagev1.Image{}
	live.Name = "sha256:1"
	live.SetGroupVersionKind(gvk)
	created := live.DeepCopy()
	created.DockerImageMetadata.Raw = []byte(`{"kind":"DockerImage","apiVersion":"image.openshift.io/1.0","Id":"x","Config":{"Labels":{"a":"b"}}}`)
	created.DockerImageLayers = []imagev1.ImageLayer{{Name: "a"}, {Name: "a"}}
	for _, name := range []string{"sha256:1@a", "sha256:1@b"} {
		s := imagev1.ImageSignature{Type: "x", Content: []byte("y")}
		s.Name = name
		s.Conditions = []imagev1.SignatureCondition{{Type: "Trusted"}, {Type: "Trusted"}}
		created.Signatures = append(created.Signatures, s)
	}
	obj, err := manager.Update(live, created, "importer")
	if err != nil {
		t.Fatal(err)
	}
	patch := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte("apiVersion: image.openshift.io/v1\nkind: Image\nmetadata:\n  name: sha256:1\n  labels: {team: a}\n"), patch); err != nil {
		t.Fatal(err)
	}
	if obj, err = manager.Apply(obj, patch, "kubectl", false); err != nil {
		t.Fatal(err)
	}
	applied := obj.(*imagev1.Image)
	if applied.Labels["team"] != "a" || len(applied.Signatures) != 2 || len(applied.DockerImageLayers) != 2 || string(applied.DockerImageMetadata.Raw) == "" {
		t.Errorf("applied %+v", applied)
	}
	owned := map[string]string{}
	for _, m := range applied.ManagedFields {
		owned[m.Manager] = m.FieldsV1.GetRawString()
	}
	if got, want := owned["kubectl"], `{"f:metadata":{"f:labels":{"f:team":{}}}}`; got != want {
		t.Errorf("kubectl owns %s, want %s", got, want)
	}
	// Each of these is one value.
	if got, want := owned["importer"], `{"f:dockerImageLayers":{},"f:dockerImageMetadata":{},"f:signatures":{}}`; got != want {
		t.Errorf("importer owns %s, want %s", got, want)
	}
}

// The generator and the library that reads its output are of one version.
func TestGeneratorVersion(t *testing.T) {
	version := func(file string) string {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(`k8s\.io/kube-openapi (v\S+)`).FindStringSubmatch(string(raw))
		if m == nil {
			t.Fatalf("%s does not require k8s.io/kube-openapi", file)
		}
		return strings.TrimSpace(m[1])
	}
	if a, b := version("../../go.mod"), version("tools.mod"); a != b {
		t.Errorf("go.mod has k8s.io/kube-openapi %s but tools.mod %s: see generate.go", a, b)
	}
}
