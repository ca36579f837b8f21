package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// pushedManifest is the Image that OpenShift's registry makes of a manifest that a registry has, in
// the repository team/app.
func pushedManifest(t testing.TB, ref string) map[string]any {
	t.Helper()
	parsed, err := name.ParseReference(ref, name.Insecure)
	must(t, err)
	found, err := remote.Get(parsed, remote.WithContext(t.Context()))
	must(t, err)
	return map[string]any{
		"kind": "Image", "apiVersion": "image.openshift.io/v1",
		"metadata": map[string]any{"name": found.Digest.String(), "annotations": map[string]any{
			"openshift.io/image.managed": "true", "image.openshift.io/manifestBlobStored": "true",
		}},
		"dockerImageReference": parsed.Context().Name() + "@" + found.Digest.String(),
		"dockerImageManifest":  string(found.Manifest), "dockerImageManifestMediaType": string(found.MediaType),
	}
}

// A signature that is pushed to the registry of streams has its image verified, with no webhook and
// no sweep: as cosign's tag, while the registry is away and the server is killed before it could
// look, and as a referrer that an index under the tag of the referrers tag schema lists. Neither is
// an image. A real registry has what OpenShift's would tell of.
func TestSignaturesOfTheRegistryOfStreams(t *testing.T) {
	t.Parallel()
	r := registry.Start(t, registry.Distribution)
	c := newCosign(t)
	c.key("ours", "p256")
	dir := t.TempDir()
	config, data := filepath.Join(dir, "tidewaiter.yaml"), filepath.Join(dir, "data")
	must(t, os.WriteFile(config, []byte("streams: {registry: '"+r.Host+"'}\n"), 0o600))
	args := []string{"--config", config, "--policy", writePolicy(t, c.policyOf("ours", r.Host, "ours", "DigestOnly"))}
	s := harness.StartServerOn(t, data, args...)
	s.Kubectl(t, "create", "namespace", "team")
	own := streamCaller{restClient(t, s.Config(t))}
	own.must(t, http.StatusCreated, "POST", "namespaces/team/imagestreams", nil, map[string]any{
		"kind": "ImageStream", "apiVersion": "image.openshift.io/v1", "metadata": map[string]any{"name": "app"}})
	mapped := func(image map[string]any, tag string) {
		t.Helper()
		own.must(t, http.StatusCreated, "POST", "namespaces/team/imagestreammappings", nil, map[string]any{"kind": "ImageStreamMapping", "apiVersion": "image.openshift.io/v1",
			"metadata": map[string]any{"namespace": "team", "name": "app"}, "image": image, "tag": tag})
	}
	selected := func(selector string) []string {
		t.Helper()
		return strings.Fields(s.Kubectl(t, "get", "images", "--field-selector", selector, "-o", "jsonpath={.items[*].metadata.name}"))
	}
	withVerdict := func(verdict string) []string { return selected("signatures.verified=" + verdict) }
	awaitVerdict := func(digest, want string) {
		t.Helper()
		harness.Eventually(t, func() error {
			if got := withVerdict(want); !slices.Contains(got, digest) {
				return fmt.Errorf("%s are %v, and not %s", want, got, digest)
			}
			return nil
		})
	}
	imgs := images.Numbered(t, 2)
	var signed []string
	for i, tag := range []string{"v1", "v2"} {
		ref := r.Push(t, "team/app:"+tag, imgs[i])
		mapped(pushedManifest(t, ref), tag)
		signed = append(signed, images.Digest(t, imgs[i]).String())
		awaitVerdict(signed[i], "Unsigned")
	}

	repository := r.Host + "/team/app"
	legacy := strings.Replace(signed[0], ":", "-", 1) + ".sig"
	c.sign("legacy", "ours", repository+"@"+signed[0])
	signature := pushedManifest(t, repository+":"+legacy)
	r.Stop(t)
	mapped(signature, legacy)
	s.Kill(t)
	r.Resume(t)
	s = harness.StartServerOn(t, data, args...)
	own = streamCaller{restClient(t, s.Config(t))}
	// A job that the killed server had begun is due when its lease ends, after a minute.
	for ended := time.Now().Add(2 * harness.Patience); !slices.Contains(withVerdict("True"), signed[0]) && time.Now().Before(ended); {
		time.Sleep(100 * time.Millisecond)
	}
	awaitVerdict(signed[0], "True")

	referrers := strings.Replace(signed[1], ":", "-", 1)
	c.sign("bundle", "ours", repository+"@"+signed[1])
	index := pushedManifest(t, repository+":"+referrers)
	parsed, err := name.NewTag(repository+":"+referrers, name.Insecure)
	must(t, err)
	listed, err := remote.Index(parsed, remote.WithContext(t.Context()))
	must(t, err)
	lists, err := listed.IndexManifest()
	must(t, err)
	if len(lists.Manifests) != 1 {
		t.Fatalf("cosign's index lists %+v", lists.Manifests)
	}
	bundle := lists.Manifests[0].Digest.String()
	own.must(t, http.StatusCreated, "POST", "images", nil, pushedManifest(t, repository+"@"+bundle))
	// by the bundle alone: whoever pushes it may be stopped before the index
	awaitVerdict(signed[1], "True")
	mapped(index, referrers)
	layers := own.must(t, http.StatusOK, "GET", "namespaces/team/imagestreams/app/layers", nil, nil)
	if manifests, _ := at(layers, "images", at(index, "metadata", "name").(string), "manifests").([]any); !slices.Contains(manifests, any(bundle)) || at(layers, "blobs", bundle) == nil {
		t.Errorf("the registry may not give out the bundle: %v", layers)
	}
	for selector, want := range map[string]int{"artifact=false": 2, "artifact=true": 3} {
		if got := selected(selector); len(got) != want {
			t.Errorf("%s are %v, want %d", selector, got, want)
		}
	}
}
