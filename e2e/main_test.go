package e2e

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// imagesPath is the collection all nine rows of the API's table are below.
const imagesPath = "/apis/image.openshift.io/v1/images"

var imageResource = schema.GroupVersionResource{Group: "image.openshift.io", Version: "v1", Resource: "images"}

// imageClient is client-go's dynamic client for Images.
func imageClient(t testing.TB, s *harness.Server) dynamic.ResourceInterface {
	t.Helper()
	c, err := dynamic.NewForConfig(s.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	return c.Resource(imageResource)
}

// imageNames are the names of the stored Images, sorted.
func imageNames(t testing.TB, s *harness.Server) []string {
	t.Helper()
	list, err := imageClient(t, s).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, 0, len(list.Items))
	for _, item := range list.Items {
		names = append(names, item.GetName())
	}
	slices.Sort(names)
	return names
}

// getImage reads an Image with kubectl.
func getImage(t testing.TB, s *harness.Server, name string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(s.Kubectl(t, "get", "image", name, "-o", "json")), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

// field is a nested field, nil when absent.
func field(u *unstructured.Unstructured, path ...string) any {
	v, _, _ := unstructured.NestedFieldNoCopy(u.Object, path...)
	return v
}

// plainImage is an Image without a manifest, which may have any name: what the
// API tests that need no registry create.
func plainImage(name string, labels ...string) string {
	image := map[string]any{
		"apiVersion":           "image.openshift.io/v1",
		"kind":                 "Image",
		"metadata":             map[string]any{"name": name, "labels": pairs(labels)},
		"dockerImageReference": "registry.example.com/team/" + name + ":1",
	}
	b, err := json.Marshal(image)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func pairs(kv []string) map[string]string {
	out := map[string]string{}
	for i := 0; i+1 < len(kv); i += 2 {
		out[kv[i]] = kv[i+1]
	}
	return out
}

// digests are the digests in a text, in order and without repetition.
func digests(text string) []string {
	var out []string
	for _, d := range digestPattern.FindAllString(text, -1) {
		if !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	return out
}

var digestPattern = regexp.MustCompile(`sha256:[0-9a-f]{64}`)

// lines are the lines of a text that are not empty.
func lines(text string) []string {
	return slices.DeleteFunc(strings.Split(text, "\n"), func(l string) bool { return strings.TrimSpace(l) == "" })
}

// wantContains fails the test for every part that a text lacks.
func wantContains(t testing.TB, what, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%s lacks %q:\n%s", what, p, text)
		}
	}
}
