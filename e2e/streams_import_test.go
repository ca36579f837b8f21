package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// The requests of oc import-image, of who may do so and of who may not.
func TestStreamImports(t *testing.T) {
	t.Parallel()
	r := registry.Start(t, registry.Distribution)
	index, image := images.MultiArch(t), images.Numbered(t, 1)[0]
	r.Push(t, "team/app:multi", index)
	r.Push(t, "team/app:v1", image)
	config := filepath.Join(t.TempDir(), "tidewaiter.yaml")
	if err := os.WriteFile(config, []byte("streams: {allowedRegistriesForImport: [{domainName: '"+r.Host+"'}]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := harness.StartServer(t, "--config", config)
	s.Kubectl(t, "create", "namespace", "team")
	s.Kubectl(t, "create", "rolebinding", "alice", "-n", "team", "--clusterrole=edit", "--user=alice")
	asked := func(references ...string) map[string]any {
		var wanted []any
		for i, ref := range references {
			wanted = append(wanted, map[string]any{"from": map[string]any{"kind": "DockerImage", "name": ref}, "to": map[string]any{"name": fmt.Sprint("t", i)},
				"importPolicy": map[string]any{"importMode": "PreserveOriginal"}})
		}
		return map[string]any{"kind": "ImageStreamImport", "apiVersion": "image.openshift.io/v1", "metadata": map[string]any{"name": "app", "namespace": "team"},
			"spec": map[string]any{"import": true, "images": wanted}, "status": map[string]any{}}
	}
	imports := "namespaces/team/imagestreamimports"
	alice := streamCaller{restClient(t, as(s.Config(t), "alice"))}
	refused := func(what string, body map[string]any) {
		t.Helper()
		harness.Eventually(t, func() error {
			if code, answer := alice.send(t, "POST", imports, nil, body); code != http.StatusUnprocessableEntity || !strings.Contains(fmt.Sprint(answer["message"]), what) {
				return fmt.Errorf("want %s: %d %v", what, code, answer)
			}
			return nil
		})
	}
	refused("may not get imagestreams/layers", asked(r.Host+"/team/app:v1"))
	s.Kubectl(t, "create", "rolebinding", "alice", "-n", "default", "--clusterrole=system:image-puller", "--user=alice")
	refused("may not be imported", asked("127.0.0.1:1/team/app:v1"))

	var done map[string]any
	harness.Eventually(t, func() error {
		var code int
		if code, done = alice.send(t, "POST", imports, nil, asked(r.Host+"/team/app:v1", r.Host+"/team/app:multi", r.Host+"/team/app:none")); code != http.StatusCreated {
			return fmt.Errorf("the import is answered with %d %v", code, done)
		}
		return nil
	})
	all, _ := at(done, "status", "images").([]any)
	for i, want := range []struct {
		status, image string
		manifests     int
	}{
		{"Success", images.Digest(t, image).String(), 0},
		{"Success", images.Digest(t, index).String(), len(images.Children(t, index))},
		{"Failure", "<nil>", 0},
	} {
		manifests, _ := at(all[i], "manifests").([]any)
		if got := fmt.Sprint(at(all[i], "image", "metadata", "name")); at(all[i], "status", "status") != want.status || got != want.image || len(manifests) > want.manifests || (len(manifests) == 0) != (want.manifests == 0) {
			t.Errorf("image %d came to %v, %s and %d manifests", i, at(all[i], "status"), got, len(manifests))
		}
	}
	got := s.Kubectl(t, "get", "is", "app", "-n", "team", "-o", `jsonpath={range .status.tags[*]}{.tag} {.items[0].image} {.conditions[0].reason}{"\n"}{end}`)
	if want := fmt.Sprintf("t0 %s \nt1 %s \nt2  NotFound\n", images.Digest(t, image), images.Digest(t, index)); got != want {
		t.Errorf("the stream has\n%swant\n%s", got, want)
	}
}
