package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

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

	looksForNewApp(t, s, alice, r.Host, index, image)
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

// looksForNewApp asks as oc new-app does, which stores nothing: of an image it reads the metadata,
// of an index that of a platform, or else the config of the first that is listed.
func looksForNewApp(t *testing.T, s *harness.Server, alice streamCaller, host string, index v1.ImageIndex, image v1.Image) {
	t.Helper()
	look := func(reference, mode string) any {
		return map[string]any{"from": map[string]any{"kind": "DockerImage", "name": reference}, "importPolicy": map[string]any{"importMode": mode}, "referencePolicy": map[string]any{"type": ""}}
	}
	body := map[string]any{"kind": "ImageStreamImport", "apiVersion": "image.openshift.io/v1", "metadata": map[string]any{"name": "newapp", "creationTimestamp": nil}, "status": map[string]any{},
		"spec": map[string]any{"import": false, "images": []any{look("*", "Legacy"), look(host+"/team/app:v1", "Legacy"), look(host+"/team/app:multi", "Legacy"), look(host+"/team/app:multi", "PreserveOriginal")}}}
	var answer map[string]any
	harness.Eventually(t, func() error {
		var code int
		if code, answer = alice.send(t, "POST", "namespaces/team/imagestreamimports", nil, body); code != http.StatusCreated {
			return fmt.Errorf("the look is answered with %d %v", code, answer)
		}
		return nil
	})
	all, _ := at(answer, "status", "images").([]any)
	if len(all) != 4 || at(all[0], "status", "reason") != "Invalid" {
		t.Fatalf("oc new-app finds %v", all)
	}
	of := func(architecture string) int {
		return slices.IndexFunc(images.Children(t, index), func(d v1.Descriptor) bool { return d.Platform.Architecture == architecture })
	}
	platform := of(runtime.GOARCH)
	if platform < 0 {
		platform = of("amd64")
	}
	for i, want := range map[int]string{1: images.Digest(t, image).String(), 2: images.Children(t, index)[platform].Digest.String()} {
		if at(all[i], "image", "metadata", "name") != want || at(all[i], "image", "dockerImageMetadata", "kind") != "DockerImage" || at(all[i], "image", "dockerImageMetadata", "Config") == nil {
			t.Errorf("oc new-app finds %v, want %s with its config", all[i], want)
		}
	}
	manifests, _ := at(all[3], "manifests").([]any)
	if at(all[3], "image", "metadata", "name") != images.Digest(t, index).String() || len(manifests) == 0 || !strings.Contains(fmt.Sprint(at(manifests[0], "dockerImageConfig")), `"architecture"`) {
		t.Errorf("oc new-app finds %v, want the index with the configs of what it lists", all[3])
	}
	if got := s.Kubectl(t, "get", "images,is", "-A", "-o", "name"); got != "" {
		t.Errorf("a look stored %s", got)
	}
}
