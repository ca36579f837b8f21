package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// A multi-architecture image that crane pushes and cosign signs is in a running
// watch, and then its verdict, with no other trigger than the notifications of
// a real registry. The times are logged, the longest only bounded by patience:
// they are figures of the machine.
func TestSignedPushAppears(t *testing.T) {
	t.Parallel()
	const pushes = 3
	policy := map[string]string{"legacy": "MatchRepository", "bundle": "DigestOnly"}
	for _, kind := range registry.Kinds(t) {
		for _, format := range []string{"legacy", "bundle"} {
			t.Run(string(kind)+"/"+format, func(t *testing.T) {
				h, c := prepareHooked(t, kind, false), newCosign(t)
				c.key("release", "p256")
				h.args = append(h.args, "--policy", writePolicy(t, c.policyOf("release-team", h.registry.Host, "release", policy[format])))
				h.resume(t)
				watch := h.watchImages(t)

				multi := images.MultiArch(t)
				var seen, judged []time.Duration
				for i := range pushes {
					index := labelled(t, multi, fmt.Sprint(i))
					digest := images.Digest(t, index).String()
					crane(t, "push", saveLayout(t, index), fmt.Sprintf("%s/team/app:v%d", h.registry.Host, i))
					pushed := time.Now()
					awaitRow(t, watch, digest, " Unsigned ")
					seen = append(seen, time.Since(pushed))

					signing := harness.Start(t, c.command(c.signArgs(format, "release", h.registry.Host+"/team/app@"+digest)...))
					// The last thing that cosign pushes, in either format, is the tag of this name.
					h.registry.AwaitRequest(t, "PUT", "/v2/team/app/manifests/sha256-"+strings.TrimPrefix(digest, "sha256:"))
					signed := time.Now()
					awaitRow(t, watch, digest, " True ", "release-team")
					judged = append(judged, time.Since(signed))
					if code := signing.Wait(t); code != 0 {
						t.Fatalf("cosign: exit code %d: %s", code, signing.Stderr)
					}
					for _, child := range images.Children(t, index) {
						awaitRow(t, watch, child.Digest.String(), " ByIndex ", "release-team")
					}
				}
				t.Logf("from the end of crane push until kubectl get images -w shows the image: median %v, longest %v", median(seen), slices.Max(seen))
				t.Logf("from the end of the signature's push until it shows the verdict: median %v, longest %v", median(judged), slices.Max(judged))
				h.awaitEmptySpool(t)
				h.checkNoSecret(t)
			})
		}
	}
}

// labelled is an index of the same programs in other images.
func labelled(t *testing.T, index v1.ImageIndex, label string) v1.ImageIndex {
	t.Helper()
	var out v1.ImageIndex = empty.Index
	for _, d := range images.Children(t, index) {
		child, err := index.Image(d.Digest)
		must(t, err)
		config, err := child.ConfigFile()
		must(t, err)
		config = config.DeepCopy()
		config.Config.Labels["push"] = label
		child, err = mutate.ConfigFile(child, config)
		must(t, err)
		out = mutate.AppendManifests(out, mutate.IndexAddendum{Add: child, Descriptor: v1.Descriptor{Platform: d.Platform}})
	}
	return out
}

// saveLayout writes an index as an OCI image layout, which is what crane pushes.
func saveLayout(t *testing.T, index v1.ImageIndex) string {
	t.Helper()
	dir := t.TempDir()
	path, err := layout.Write(dir, empty.Index)
	must(t, err)
	must(t, path.AppendIndex(index))
	return dir
}
