package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// One command imports what is in a registry, one shows it: the main job.
func TestImportFromRealRegistries(t *testing.T) {
	t.Parallel()
	for _, kind := range registry.Kinds(t) {
		t.Run(string(kind), func(t *testing.T) {
			s, r := harness.StartServer(t), registry.Start(t, kind)
			busybox, hello, multi, list := images.Busybox(t), images.HelloWorld(t), images.MultiArch(t), images.DockerList(t)
			refs := []string{
				r.Push(t, "library/busybox:1.36", busybox),
				r.Push(t, "library/hello-world:latest", hello),
				r.Push(t, "team/multi:v1", multi),
				r.Push(t, "team/list:v1", list),
			}
			out := s.Import(t, refs...)
			for i, what := range []interface{ Digest() (v1.Hash, error) }{busybox, hello, multi, list} {
				digest, _ := what.Digest()
				if !slices.ContainsFunc(lines(out), func(l string) bool {
					return strings.Contains(l, refs[i]) && strings.Contains(l, digest.String())
				}) {
					t.Errorf("no line names %s and %s:\n%s", refs[i], digest, out)
				}
			}

			// Every image, both indexes, each of their platforms, and nothing
			// else: an attestation is not an image.
			want := []string{images.Digest(t, busybox).String(), images.Digest(t, hello).String(),
				images.Digest(t, multi).String(), images.Digest(t, list).String()}
			for _, index := range []v1.ImageIndex{multi, list} {
				for _, child := range images.Children(t, index) {
					want = append(want, child.Digest.String())
				}
			}
			slices.Sort(want)
			want = slices.Compact(want)
			if got := imageNames(t, s); !slices.Equal(got, want) {
				t.Errorf("stored images:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}

			checkImage(t, s, refs[0], busybox)
			checkImage(t, s, refs[1], hello)
			checkIndex(t, s, refs[2], multi)
			checkIndex(t, s, refs[3], list)
			for _, child := range images.Children(t, multi) {
				img, err := multi.Image(child.Digest)
				if err != nil {
					t.Fatal(err)
				}
				checkImage(t, s, r.Host+"/team/multi@"+child.Digest.String(), img)
			}
		})
	}
}

// checkImage compares a stored Image, field by field, with the image it is of.
func checkImage(t *testing.T, s *harness.Server, ref string, img v1.Image) {
	t.Helper()
	digest := images.Digest(t, img).String()
	u := getImage(t, s, digest)
	manifest, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	rawManifest, err := img.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	size := manifest.Config.Size
	var layers []any
	seen := map[v1.Hash]bool{}
	for _, l := range manifest.Layers {
		layers = append(layers, map[string]any{"name": l.Digest.String(), "size": l.Size, "mediaType": string(l.MediaType)})
		if !seen[l.Digest] {
			size += l.Size
		}
		seen[l.Digest] = true
	}
	repository, _, _ := strings.Cut(ref, "@")
	if colon := strings.LastIndex(repository, ":"); colon > strings.LastIndex(repository, "/") {
		repository = repository[:colon]
	}
	want := map[string]any{
		"dockerImageReference":                                      repository + "@" + digest,
		"dockerImageManifestMediaType":                              string(manifest.MediaType),
		"dockerImageManifest":                                       string(rawManifest),
		"dockerImageMetadataVersion":                                "1.0",
		"dockerImageMetadata.kind":                                  "DockerImage",
		"dockerImageMetadata.apiVersion":                            "image.openshift.io/1.0",
		"dockerImageMetadata.Id":                                    manifest.Config.Digest.String(),
		"dockerImageMetadata.Architecture":                          config.Architecture,
		"dockerImageMetadata.Size":                                  size,
		"dockerImageMetadata.Config.User":                           orNil(config.Config.User),
		"dockerImageLayers":                                         layers,
		"metadata.annotations.image.openshift.io/dockerLayersOrder": "ascending",
	}
	for path, w := range want {
		if g := field(u, splitPath(path)...); fmt.Sprint(g) != fmt.Sprint(w) {
			t.Errorf("%s: %s = %v, want %v", ref, path, g, w)
		}
	}
	if !config.Created.IsZero() {
		if g := field(u, "dockerImageMetadata", "Created"); g != config.Created.UTC().Format("2006-01-02T15:04:05Z") {
			t.Errorf("%s: dockerImageMetadata.Created = %v, want %v", ref, g, config.Created)
		}
	}
}

// checkIndex compares a stored Image with the index it is of.
func checkIndex(t *testing.T, s *harness.Server, ref string, index v1.ImageIndex) {
	t.Helper()
	u := getImage(t, s, images.Digest(t, index).String())
	mediaType, err := index.MediaType()
	if err != nil {
		t.Fatal(err)
	}
	if g := field(u, "dockerImageManifestMediaType"); g != string(mediaType) {
		t.Errorf("%s: dockerImageManifestMediaType = %v, want %v", ref, g, mediaType)
	}
	if g := field(u, "dockerImageLayers"); g != nil && len(g.([]any)) > 0 {
		t.Errorf("%s: an index has no layers, this one %v", ref, g)
	}
	if g := field(u, "dockerImageMetadata", "Id"); g != images.Digest(t, index).String() {
		t.Errorf("%s: dockerImageMetadata.Id = %v, want its own digest", ref, g)
	}
	got := map[string]map[string]any{}
	manifests, _ := field(u, "dockerImageManifests").([]any)
	for _, m := range manifests {
		m := m.(map[string]any)
		got[m["digest"].(string)] = m
	}
	for _, child := range images.Children(t, index) {
		m := got[child.Digest.String()]
		if m == nil {
			t.Errorf("%s: dockerImageManifests lacks %s (%s)", ref, child.Digest, child.Platform)
			continue
		}
		want := map[string]any{
			"digest": child.Digest.String(), "mediaType": string(child.MediaType), "manifestSize": child.Size,
			"os": child.Platform.OS, "architecture": child.Platform.Architecture, "variant": orNil(child.Platform.Variant),
		}
		for k, w := range want {
			if fmt.Sprint(m[k]) != fmt.Sprint(w) {
				t.Errorf("%s: dockerImageManifests[%s].%s = %v, want %v", ref, child.Platform, k, m[k], w)
			}
		}
	}
}

// splitPath splits at dots up to the key of an annotation, which has its own.
func splitPath(path string) []string {
	if key, ok := strings.CutPrefix(path, "metadata.annotations."); ok {
		return []string{"metadata", "annotations", key}
	}
	return strings.Split(path, ".")
}

// orNil is how an empty string with omitempty comes back.
func orNil(s string) any {
	if s == "" {
		return nil
	}
	return s
}
