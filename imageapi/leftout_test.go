package imageapi_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	imagev1 "github.com/openshift/api/image/v1"

	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

// What a client says is left out may not contradict what the Image holds.
func TestLeftOutIsChecked(t *testing.T) {
	whole := ociImage(t)
	m, err := manifest.Of(whole)
	if err != nil {
		t.Fatal(err)
	}
	config := manifest.LeftOutPart{Digest: m.Config.Digest, Size: m.Config.Size, Reason: manifest.LeftOutTooLarge}
	for name, tt := range map[string]struct {
		edit func(image *imagev1.Image)
		want []string
	}{
		"the config": {func(i *imagev1.Image) { i.DockerImageConfig = ""; manifest.LeftOut{Config: &config}.Set(i) }, []string{}},
		"another config": {func(i *imagev1.Image) {
			i.DockerImageConfig = ""
			manifest.LeftOut{Config: &manifest.LeftOutPart{Digest: m.Layers[0].Digest, Size: config.Size}}.Set(i)
		}, []string{"FieldValueInvalid metadata.annotations[tidewaiter.dev/left-out].config"}},
		"another size": {func(i *imagev1.Image) {
			i.DockerImageConfig = ""
			manifest.LeftOut{Config: &manifest.LeftOutPart{Digest: config.Digest, Size: 1}}.Set(i)
		}, []string{"FieldValueInvalid metadata.annotations[tidewaiter.dev/left-out].config"}},
		"the manifest": {func(i *imagev1.Image) {
			i.DockerImageManifest, i.DockerImageConfig = "", ""
			manifest.LeftOut{Manifest: &manifest.LeftOutPart{Digest: i.Name, Size: 1}, Config: &config}.Set(i)
		}, []string{}},
		"another manifest": {func(i *imagev1.Image) {
			i.DockerImageManifest, i.DockerImageConfig = "", ""
			manifest.LeftOut{Manifest: &manifest.LeftOutPart{Digest: config.Digest, Size: -1}}.Set(i)
		}, []string{"FieldValueInvalid metadata.annotations[tidewaiter.dev/left-out].manifest.size", "FieldValueInvalid metadata.annotations[tidewaiter.dev/left-out].manifest.digest"}},
		"no JSON": {func(i *imagev1.Image) {
			i.DockerImageConfig = ""
			i.Annotations = map[string]string{annotation.LeftOut: "{"}
		}, []string{"FieldValueInvalid metadata.annotations[tidewaiter.dev/left-out]"}},
		"a config with U+009B": {func(i *imagev1.Image) { i.DockerImageConfig += "\u009b" }, []string{"FieldValueInvalid dockerImageConfig"}},
		"a manifest with DEL":  {func(i *imagev1.Image) { i.DockerImageManifest += "\x7f" }, []string{"FieldValueInvalid dockerImageManifest"}},
	} {
		t.Run(name, func(t *testing.T) {
			image := whole.DeepCopy()
			tt.edit(image)
			// as the server does; what cannot be derived is for validation to say
			_ = manifest.Derive(image)
			if diff := cmp.Diff(tt.want, problems(imageregistry.ValidateImage(image))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// An Image that comes to hold its config no longer says that it does not.
func TestLeftOutConfigComesBack(t *testing.T) {
	s := newStorages(t, nil)
	whole := ociImage(t)
	m, err := manifest.Of(whole)
	if err != nil {
		t.Fatal(err)
	}
	image := whole.DeepCopy()
	image.DockerImageConfig = ""
	manifest.LeftOut{Config: &manifest.LeftOutPart{Digest: m.Config.Digest, Size: m.Config.Size}}.Set(image)
	image = s.mustCreate(t, image)
	if got := s.selected(t, "warnings=ConfigLeftOut"); got != image.DockerImageReference[len("registry.example.com/"):] {
		t.Errorf("selected %q", got)
	}
	image.DockerImageConfig = whole.DockerImageConfig
	image, err = s.update(image)
	if err != nil {
		t.Fatal(err)
	}
	if text, ok := image.Annotations[annotation.LeftOut]; ok {
		t.Errorf("left out: %s", text)
	}
	if got := s.selected(t, "warnings=ConfigLeftOut"); got != "" {
		t.Errorf("selected %q", got)
	}
}

// Platforms, labels and whatever else a table or the metadata takes from an image come without what
// moves a cursor.
func TestAttackTerminalSequences(t *testing.T) {
	s := newStorages(t, nil)
	const evil = "linux\u009b31m\u202e\a\x1b[2J"
	image := plainImage()
	image.DockerImageMetadata.Raw = []byte(`{"Architecture":"` + strings.NewReplacer("\a", `\u0007`, "\x1b", `\u001b`).Replace(evil) + `"}`)
	image.DockerImageManifestMediaType = evil
	image = s.mustCreate(t, image)
	table, err := s.images.ConvertToTable(requestContext(), image, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, cell := range table.Rows[0].Cells {
		if text, ok := cell.(string); ok && strings.ContainsAny(text, "\u009b\u202e\a\x1b") {
			t.Errorf("%s is %q", table.ColumnDefinitions[i].Name, text)
		}
	}
	// Of an image with a config, the metadata has been made printable, too.
	whole := ociImage(t)
	config := `{"os":"` + strings.NewReplacer("\a", `\u0007`, "\x1b", `\u001b`, "\u009b", `\u009b`, "\u202e", `\u202e`).Replace(evil) + `","architecture":"a","config":{"Env":["A=\u0007","B=1\n2"],"Labels":{"\u0007":"\u202e"}}}`
	m, err := manifest.Of(whole)
	if err != nil {
		t.Fatal(err)
	}
	raw := strings.Replace(whole.DockerImageManifest, m.Config.Digest, manifest.Digest([]byte(config)), 1)
	raw = strings.Replace(raw, `"size": 986`, `"size": `+fmt.Sprint(len(config)), 1)
	whole.DockerImageManifest, whole.DockerImageConfig = raw, config
	whole.Name = manifest.Digest([]byte(raw))
	whole.DockerImageReference = "registry.example.com/acme/web@" + whole.Name
	whole = s.mustCreate(t, whole)
	if got := whole.Annotations[annotation.Platform]; got != "linux�31m���[2J/a" {
		t.Errorf("platform %q", got)
	}
	metadata, err := manifest.Metadata(whole)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"A=�", "B=1\n2"}, metadata.Config.Env); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"�": "�"}, metadata.Config.Labels); diff != "" {
		t.Error(diff)
	}
	if whole.DockerImageConfig != config {
		t.Error("the config itself has changed")
	}
}
