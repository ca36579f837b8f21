package e2e

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// A row is an operation of the Image API.
type row struct{ verb, path string }

// imageRows are OpenShift's nine operations on Images. TestEndpoints goes
// through the query parameters of each.
var imageRows = []row{
	{"DELETE", imagesPath},
	{"GET", imagesPath},
	{"POST", imagesPath},
	{"GET", watchPath},
	{"DELETE", imagesPath + "/{name}"},
	{"GET", imagesPath + "/{name}"},
	{"PATCH", imagesPath + "/{name}"},
	{"PUT", imagesPath + "/{name}"},
	{"GET", watchPath + "/{name}"},
}

// watchPath is the deprecated form of watching, which old clients still use.
const watchPath = "/apis/image.openshift.io/v1/watch/images"

// kubectl --raw reaches each row as it is.
func TestRowsWithKubectlRaw(t *testing.T) {
	t.Parallel()
	s := harness.SharedServer(t)
	create := func(name string) {
		t.Helper()
		s.KubectlStdin(t, plainImage(name, "suite", "raw"), "create", "--raw", imagesPath, "-f", "-")
	}
	kind := func(text string) string {
		t.Helper()
		var meta metav1.TypeMeta
		if err := json.Unmarshal([]byte(text), &meta); err != nil {
			t.Fatalf("%v:\n%s", err, text)
		}
		return meta.Kind
	}
	one := imagesPath + "/raw-1"
	create("raw-1") // POST
	create("raw-2")

	if got := kind(s.Kubectl(t, "get", "--raw", imagesPath)); got != "ImageList" {
		t.Errorf("GET %s: kind %s", imagesPath, got)
	}
	got := s.Kubectl(t, "get", "--raw", one)
	if kind(got) != "Image" {
		t.Errorf("GET %s: %s", one, got)
	}
	s.KubectlStdin(t, strings.Replace(got, `"labels":{`, `"labels":{"put":"yes",`, 1), "replace", "--raw", one, "-f", "-")
	wantContains(t, "the replaced Image", s.Kubectl(t, "get", "--raw", one), `"put":"yes"`)
	s.Kubectl(t, "patch", "image", "raw-1", "--type=merge", "-p", `{"metadata":{"labels":{"patched":"yes"}}}`)

	// A watch without a resourceVersion begins with what there is; the timeout
	// ends it, cleanly: kubectl exits 0.
	for path, want := range map[string][]string{
		imagesPath + "?watch=true&timeoutSeconds=1":       {"raw-1", "raw-2"},
		watchPath + "?timeoutSeconds=1":                   {"raw-1", "raw-2"},
		watchPath + "/raw-1?timeoutSeconds=1":             {"raw-1"},
		watchPath + "?timeoutSeconds=1&labelSelector=put": {"raw-1"},
	} {
		var names []string
		for _, l := range lines(s.Kubectl(t, "get", "--raw", path)) {
			var event struct {
				Type   string
				Object struct{ Metadata metav1.ObjectMeta }
			}
			if err := json.Unmarshal([]byte(l), &event); err != nil {
				t.Fatalf("GET %s: %v: %s", path, err, l)
			}
			if event.Type != "ADDED" {
				t.Errorf("GET %s: event %s", path, event.Type)
			}
			names = append(names, event.Object.Metadata.Name)
		}
		slices.Sort(names)
		if !slices.Equal(names, want) {
			t.Errorf("GET %s: events of %q, want %q", path, names, want)
		}
	}

	if got := s.Kubectl(t, "delete", "--raw", one); kind(got) != "Status" {
		t.Errorf("DELETE %s: %s", one, got)
	}
	if got := kind(s.Kubectl(t, "delete", "--raw", imagesPath)); got != "ImageList" && got != "Status" {
		t.Errorf("DELETE %s: kind %s", imagesPath, got)
	}
	if got := imageNames(t, s); len(got) != 0 {
		t.Errorf("left after the collection was deleted: %v", got)
	}
}

// restClient speaks JSON to whatever path it is given.
func restClient(t testing.TB, cfg *rest.Config) *rest.RESTClient {
	t.Helper()
	cfg = rest.CopyConfig(cfg)
	cfg.ContentConfig = rest.ContentConfig{ContentType: "application/json", NegotiatedSerializer: scheme.Codecs.WithoutConversion()}
	c, err := rest.UnversionedRESTClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// do carries out a row for the Image called row and returns the status code
// and the body.
func do(t testing.TB, c *rest.RESTClient, r row, query url.Values) (int, string) {
	t.Helper()
	q := c.Verb(r.verb).AbsPath(strings.Replace(r.path, "{name}", "row", 1)).MaxRetries(0)
	for k, v := range query {
		q.Param(k, v[0])
	}
	switch r.verb {
	case "POST":
		q.Body([]byte(plainImage("row-new")))
	case "PUT":
		q.Body([]byte(withCurrentVersion(t, c, "row")))
	case "PATCH":
		q = q.SetHeader("Content-Type", string(types.MergePatchType)).Body([]byte(`{"metadata":{"labels":{"x":"y"}}}`))
	}
	var code int
	result := q.Do(t.Context()).StatusCode(&code)
	body, err := result.Raw()
	if err != nil && len(body) == 0 {
		t.Fatalf("%s %s?%s: %v", r.verb, r.path, query.Encode(), err)
	}
	return code, string(body)
}

// withCurrentVersion is an Image as stored, to be put back.
func withCurrentVersion(t testing.TB, c *rest.RESTClient, name string) string {
	t.Helper()
	b, err := c.Get().AbsPath(imagesPath, name).Do(t.Context()).Raw()
	if err != nil {
		return plainImage(name) // the caller has no right to read, and is about to see that
	}
	return string(b)
}
