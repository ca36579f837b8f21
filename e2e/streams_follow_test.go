package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// ocTag is what oc tag REFERENCE STREAM:TAG sends (PUT), with --scheduled or --reference if so.
func ocTag(streamTag, ref string, scheduled, reference bool) map[string]any {
	_, name, _ := strings.Cut(streamTag, ":")
	policy := map[string]any{}
	if scheduled {
		policy["scheduled"] = true
	}
	tag := map[string]any{"name": name, "annotations": nil, "from": map[string]any{"kind": "DockerImage", "name": ref}, "generation": 0, "importPolicy": policy, "referencePolicy": map[string]any{"type": "Source"}}
	if reference {
		tag["reference"] = true
	}
	return map[string]any{"kind": "ImageStreamTag", "apiVersion": "image.openshift.io/v1", "metadata": map[string]any{"name": streamTag, "namespace": "default", "creationTimestamp": nil},
		"tag": tag, "generation": 0, "lookupPolicy": map[string]any{"local": false}, "image": map[string]any{"metadata": map[string]any{"creationTimestamp": nil}, "dockerImageMetadata": nil, "dockerImageLayers": nil}}
}

// What oc tag writes into the spec is imported: also when the registry, or the server, is away at
// first. Tags that are scheduled follow the registry.
func TestStreamsImportWhatTheyFollow(t *testing.T) {
	t.Parallel()
	r := registry.Start(t, registry.Distribution)
	index, imgs := images.MultiArch(t), images.Numbered(t, 3)
	digest := func(i int) string { return images.Digest(t, imgs[i]).String() }
	r.Push(t, "team/app:multi", index)
	r.Push(t, "team/app:v1", imgs[0])
	r.Push(t, "team/app:v2", imgs[0])
	config := filepath.Join(t.TempDir(), "tidewaiter.yaml")
	if err := os.WriteFile(config, []byte("sweep: {every: 24h}\nstreams: {allowedRegistriesForImport: [{domainName: '"+r.Host+"'}]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := harness.StartServer(t, "--config", config)
	var oc streamCaller
	restart := func() { // every restart sweeps what is scheduled
		s = harness.StartServerOn(t, s.DataDir, "--config", config)
		oc = streamCaller{restClient(t, s.Config(t))}
	}
	oc = streamCaller{restClient(t, s.Config(t))}
	tag := func(name, ref string, scheduled, reference bool) {
		t.Helper()
		name = "app:" + name
		if code, answer := oc.send(t, "PUT", "namespaces/default/imagestreamtags/"+name, nil, ocTag(name, ref, scheduled, reference)); code != http.StatusOK && code != http.StatusCreated {
			t.Fatalf("tagging %s: %d %v", name, code, answer)
		}
	}
	// await waits until the stream says of a tag: image, reason of the condition, and whether that
	// is of the spec's generation.
	await := func(name, want string) {
		t.Helper()
		harness.Eventually(t, func() error {
			stream := oc.must(t, http.StatusOK, "GET", "namespaces/default/imagestreams/app", nil, nil)
			got := toldOfTag(stream, name)
			if !strings.HasPrefix(got, want) {
				return fmt.Errorf("the stream says of %s %q, want %q", name, got, want)
			}
			return nil
		})
	}

	tag("prod", r.Host+"/team/app:v1", false, false)
	tag("multi", r.Host+"/team/app:multi", false, false)
	tag("pinned", r.Host+"/team/app@"+digest(0), false, false)
	tag("next", r.Host+"/team/app:v2", true, false)
	tag("name", r.Host+"/team/app:v1", false, true)
	tag("none", r.Host+"/team/app:none", false, false)
	tag("elsewhere", "127.0.0.1:1/team/app:v1", false, false)
	await("prod", digest(0)+" current")
	await("multi", images.Digest(t, index).String()+" current")
	await("pinned", digest(0)+" current")
	await("next", digest(0)+" current")
	await("none", "NotFound current")
	await("elsewhere", "Forbidden current")
	for _, child := range images.Children(t, index) {
		s.Kubectl(t, "get", "image", child.Digest.String())
	}
	if stream := oc.must(t, http.StatusOK, "GET", "namespaces/default/imagestreams/app", nil, nil); strings.HasPrefix(toldOfTag(stream, "name"), "sha256") {
		t.Errorf("a tag that is a reference leads to %q", toldOfTag(stream, "name"))
	}

	// The registry is away, then the server, too.
	r.Stop(t)
	tag("late", r.Host+"/team/app:v1", false, false)
	tag("later", r.Host+"/team/other:v1", false, false)
	await("later", "InternalError current "+r.Host+"/team/other:v1")
	tag("last", r.Host+"/team/last:v1", false, false)
	s.Kill(t)
	restart()
	await("last", "InternalError current")
	r.Resume(t)
	r.Push(t, "team/other:v1", imgs[1])
	r.Push(t, "team/last:v1", imgs[2])
	await("late", digest(0)+" current")
	await("later", digest(1)+" current")
	await("last", digest(2)+" current")

	// What moves in the registry without a word is found for tags that are scheduled.
	r.Push(t, "team/app:v1", imgs[1])
	r.Push(t, "team/app:v2", imgs[1])
	s.Terminate(t)
	restart()
	await("next", digest(1)+" current")
	await("prod", digest(0)+" current")
	if got := s.Kubectl(t, "get", "is", "app", "-o", `jsonpath={.status.tags[?(@.tag=="next")].items[*].image}`); got != digest(1)+" "+digest(0) {
		t.Errorf("the history of the scheduled tag is %s", got)
	}

	// Others move when they are tagged again.
	tag("prod", r.Host+"/team/app:v1", false, false)
	await("prod", digest(1)+" current")
}

// toldOfTag is what a stream says of a tag: the image, or the reason that there is none; whether
// that is about the present spec; and the message.
func toldOfTag(stream map[string]any, name string) string {
	named := func(list any, key string) map[string]any {
		all, _ := list.([]any)
		i := slices.IndexFunc(all, func(v any) bool { return at(v, key) == name })
		if i < 0 {
			return nil
		}
		return all[i].(map[string]any)
	}
	generation := at(named(at(stream, "spec", "tags"), "name"), "generation")
	status := named(at(stream, "status", "tags"), "tag")
	what, of, message := "nothing", any(nil), any("")
	if items, _ := status["items"].([]any); len(items) > 0 {
		what, of = fmt.Sprint(at(items[0], "image")), at(items[0], "generation")
	}
	if conditions, _ := status["conditions"].([]any); len(conditions) > 0 {
		what, of, message = fmt.Sprint(at(conditions[0], "reason")), at(conditions[0], "generation"), at(conditions[0], "message")
	}
	if of != generation {
		return fmt.Sprintf("%s of generation %v, not %v", what, of, generation)
	}
	return fmt.Sprintf("%s current %v", what, message)
}
