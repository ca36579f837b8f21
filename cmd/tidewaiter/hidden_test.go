package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// pushed is an image with this config in the registry, and its digest. edit may change the
// manifest.
func pushed(t *testing.T, registry *registrytest.Registry, name, config string, edit func(raw string) string) string {
	t.Helper()
	repository, _, _ := strings.Cut(name, ":")
	registry.PushLayer(repository, static.NewLayer([]byte(config), types.OCIConfigJSON))
	raw := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":%q,"digest":%q,"size":%d},"layers":[{"mediaType":%q,"digest":%q,"size":7}]}`,
		types.OCIManifestSchema1, types.OCIConfigJSON, manifest.Digest([]byte(config)), len(config), types.OCILayer, manifest.Digest([]byte("a layer")))
	if edit != nil {
		raw = edit(raw)
	}
	digest := manifest.Digest([]byte(raw))
	registry.PushManifest(name, string(types.OCIManifestSchema1), digest, []byte(raw))
	return digest
}

// importInto imports a reference into a server.
func importInto(t *testing.T, images *imageclient.Client, finder importer.SignatureFinder, text string) *importer.Result {
	t.Helper()
	ref, err := reference.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	im, err := importer.New(importer.Options{Keychain: authn.NewMultiKeychain(), Signatures: finder})
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	result, err := im.Import(t.Context(), ref, images)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// No manifest and no config that its author can choose keeps an image out of the inventory: what
// cannot be kept is replaced by its digest and size, which can be selected, and what can be derived
// from it is there. A second import changes nothing.
func TestAttackContentThatCannotBeStored(t *testing.T) {
	oneCaller(t)
	t.Parallel()
	images, err := imageclient.New(serve(t))
	if err != nil {
		t.Fatal(err)
	}
	registry := registrytest.New(t)
	label := func(n int) string {
		return `{"os":"linux","architecture":"arm64","created":"2026-03-04T05:06:07Z","config":{"User":"1001","Labels":{"x":"` + strings.Repeat("<", n) + `"}}}`
	}
	keep := func(raw string) string { return raw }
	for _, tt := range []struct {
		name, Config string
		edit         func(string) string
		warnings     []string // kinds
		platform     string
	}{
		{"config of 7 MiB", label(7 << 20), keep, []string{"ConfigLeftOut"}, "linux/arm64"},
		{"config of 9 MiB, more than is read", label(9 << 20), keep, []string{"ConfigLeftOut"}, ""},
		{"config of 700 kB that JSON makes 4 MB", label(700 << 10), keep, []string{"ConfigLeftOut"}, "linux/arm64"},
		{"config of 50 kB", label(50 << 10), keep, nil, "linux/arm64"},
		{"config that is not UTF-8", strings.Replace(label(1), "1001", "\xff", 1), keep, []string{"ConfigLeftOut"}, "linux/arm64"},
		{"config with U+009B", strings.Replace(label(1), "1001", "\u009b31m", 1), keep, []string{"ConfigLeftOut"}, "linux/arm64"},
		{"config that is no JSON", "{", keep, []string{"ConfigLeftOut"}, ""},
		{"config of the year 10000", strings.Replace(label(1), "2026-03-04T05:06:07Z", "9999-12-31T23:59:59-23:59", 1), keep, nil, "linux/arm64"},
		{"operating system of 300 kB", strings.Replace(label(1), "linux", strings.Repeat("linux ", 50_000), 1), keep, nil, "linux linux"},
		{"manifest of 3.5 MiB", label(1), func(raw string) string {
			return strings.Replace(raw, `"schemaVersion"`, `"annotations":{"x":"`+strings.Repeat("<", 7<<19)+`"},"schemaVersion"`, 1)
		}, []string{"ManifestLeftOut"}, "linux/arm64"},
		{"manifest of 30,000 layers", label(1), func(raw string) string {
			layer := fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":7},`, types.OCILayer, manifest.Digest([]byte("a layer")))
			return strings.Replace(raw, `"layers":[`, `"layers":[`+strings.Repeat(layer, 25_000), 1)
		}, []string{"ManifestLeftOut"}, "linux/arm64"},
		{"manifest that is not UTF-8", label(1), func(raw string) string {
			return strings.Replace(raw, `"schemaVersion"`, "\"x\":\"\xff\",\"schemaVersion\"", 1)
		}, []string{"ManifestLeftOut"}, "linux/arm64"},
		{"manifest with U+009B", label(1), func(raw string) string {
			return strings.Replace(raw, `"schemaVersion"`, "\"x\":\"\u009b\",\"schemaVersion\"", 1)
		}, []string{"ManifestLeftOut"}, "linux/arm64"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			name := "team/" + strings.Map(func(r rune) rune {
				if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
					return r
				}
				return -1
			}, strings.ToLower(tt.name)) + ":v1"
			digest := pushed(t, registry, name, tt.Config, tt.edit)
			first := importInto(t, images, nil, registry.Host+"/"+name)
			if first.Digest != digest || first.Images[0].Action != importer.Created {
				t.Fatalf("imported %s: %s", first.Digest, first.Images[0].Action)
			}
			image, err := images.Get(t.Context(), digest, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			left, err := manifest.LeftOutOf(image)
			if err != nil {
				t.Fatal(err)
			}
			check := func(kind, held string, part *manifest.LeftOutPart, digest string, size int) {
				switch leftOut := slices.Contains(tt.warnings, kind); {
				case !leftOut && (part != nil || held == ""):
					t.Errorf("%s: %d bytes are held, %+v is said to be left out", kind, len(held), part)
				case leftOut && (part == nil || held != "" || part.Digest != digest || part.Size != int64(size) || part.Reason == ""):
					t.Errorf("%s: %d bytes are held, %+v is said to be left out, want %s of %d bytes", kind, len(held), part, digest, size)
				}
			}
			raw := int64(0)
			if left.Manifest != nil {
				raw = left.Manifest.Size
			}
			check("ManifestLeftOut", image.DockerImageManifest, left.Manifest, digest, int(raw))
			check("ConfigLeftOut", image.DockerImageConfig, left.Config, manifest.Digest([]byte(tt.Config)), len(tt.Config))
			if got := image.Annotations[annotation.Platform]; !strings.HasPrefix(got, tt.platform) || (got == "") != (tt.platform == "") || len(got) > 128 {
				t.Errorf("the platform is %.200q, want %q", got, tt.platform)
			}
			if metadata, err := manifest.Metadata(image); err != nil || metadata.ID != manifest.Digest([]byte(tt.Config)) || tt.platform != "" && metadata.Created.IsZero() != strings.Contains(tt.Config, "9999-") {
				t.Errorf("derived %+v, %v", metadata, err)
			}
			if b, err := json.Marshal(image); err != nil || len(b) > 2<<20 {
				t.Errorf("the Image has %d bytes, %v", len(b), err)
			}
			for _, kind := range []string{"ManifestLeftOut", "ConfigLeftOut"} {
				list, err := images.List(t.Context(), metav1.ListOptions{FieldSelector: "warnings=" + kind})
				if err != nil {
					t.Fatal(err)
				}
				if got := slices.ContainsFunc(list.Items, func(i imagev1.Image) bool { return i.Name == digest }); got != slices.Contains(tt.warnings, kind) {
					t.Errorf("warnings=%s selects it: %v", kind, got)
				}
			}
			if again := importInto(t, images, nil, registry.Host+"/"+name); again.Images[0].Action != importer.Unchanged {
				t.Errorf("a second import: %s", again.Images[0].Action)
			}
		})
	}
	list, err := images.List(t.Context(), metav1.ListOptions{FieldSelector: "warnings!="})
	if err != nil || len(list.Items) != 10 {
		t.Errorf("%d images have a warning: %v", len(list.Items), err)
	}
	wantYAML(t, list)
}

// Nor does a manifest that is larger than registries take, or that programs read in different ways:
// some program runs it.
func TestAttackManifestThatCannotBeRead(t *testing.T) {
	t.Parallel()
	images, err := imageclient.New(serve(t))
	if err != nil {
		t.Fatal(err)
	}
	registry := registrytest.New(t)
	var digests []string
	for name, edit := range map[string]func(string) string{
		"large": func(raw string) string {
			return strings.Replace(raw, `"schemaVersion"`, `"annotations":{"x":"`+strings.Repeat("x", 5<<20)+`"},"schemaVersion"`, 1)
		},
		"twice": func(raw string) string { return strings.Replace(raw, `"layers":`, `"layers":[],"layers":`, 1) },
		"both":  func(raw string) string { return strings.Replace(raw, `"layers":`, `"manifests":[],"layers":`, 1) },
	} {
		digests = append(digests, pushed(t, registry, "team/"+name+":v1", `{"os":"linux","architecture":"arm64"}`, edit))
		for _, want := range []importer.Action{importer.Created, importer.Unchanged} {
			if got := importInto(t, images, nil, registry.Host+"/team/"+name+":v1").Images[0].Action; got != want {
				t.Errorf("%s: imported: %s, want %s", name, got, want)
			}
		}
	}
	list, err := images.List(t.Context(), metav1.ListOptions{FieldSelector: "warnings=ManifestLeftOut"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, i := range list.Items {
		got = append(got, i.Name)
	}
	slices.Sort(digests)
	if slices.Sort(got); !slices.Equal(got, digests) {
		t.Errorf("warnings=ManifestLeftOut selects %v, want %v", got, digests)
	}
	wantYAML(t, list)
}

// wantYAML has kubectl's printer write a list as YAML.
func wantYAML(t *testing.T, list *imagev1.ImageList) {
	t.Helper()
	list.SetGroupVersionKind(imagev1.GroupVersion.WithKind("ImageList"))
	var out bytes.Buffer
	if err := (&printers.YAMLPrinter{}).PrintObj(list, &out); err != nil {
		t.Errorf("kubectl get images -o yaml: %v", err)
	}
	if i := strings.IndexFunc(out.String(), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
		t.Errorf("it has %q", out.String()[i:][:min(20, out.Len()-i)])
	}
}
