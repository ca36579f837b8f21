package content_test

import (
	"slices"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/content"
)

func image(name, metadata string, layers ...string) *imagev1.Image {
	image := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: name}}
	image.DockerImageMetadata.Raw = []byte(metadata)
	for i, layer := range layers {
		image.DockerImageLayers = append(image.DockerImageLayers, imagev1.ImageLayer{Name: layer, LayerSize: int64(i + 1)})
	}
	return image
}

func index(name string, listed ...imagev1.ImageManifest) *imagev1.Image {
	all := image(name, "{}")
	all.DockerImageManifests = listed
	return all
}

func subject(image, on *imagev1.Image) content.Subject {
	return content.Subject{Reference: "r.example.com/" + image.Name, Image: image, OnPlatform: on}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	a := image("sha256:a", `{"Architecture":"amd64","Config":{"User":"root","Env":["A=1","B=2","B=3"],"Labels":{"l":""}}}`, "base", "old", "both")
	b := image("sha256:b", `{"Architecture":"amd64","Config":{"User":"app","Env":["B=3"]}}`, "base", "both", "new")
	r := content.Compare(subject(a, a), subject(b, b), "")
	want := []content.Change{{Field: "user", A: "root", B: "app"}, {Field: "env", Key: "A", A: "A=1"}, {Field: "label", Key: "l", A: "l="}}
	if r.Same || !slices.Equal(r.Changes, want) || len(r.NotCompared) != 0 {
		t.Errorf("%+v", r)
	}
	names := func(all []content.Layer) (names []string) {
		for _, l := range all {
			names = append(names, l.Digest)
		}
		return names
	}
	if l := r.Layers; l.Base != 1 || !slices.Equal(names(l.Shared), []string{"base", "both"}) || !slices.Equal(names(l.Removed), []string{"old"}) || !slices.Equal(names(l.Added), []string{"new"}) {
		t.Errorf("%+v", l)
	}
	if r := content.Compare(subject(a, a), subject(a, a), ""); !r.Same || len(r.Changes) != 0 {
		t.Errorf("%+v", r)
	}
	unknown := image("sha256:c", `{"Architecture":"arm64"}`)
	if r := content.Compare(subject(a, a), subject(unknown, unknown), ""); len(r.NotCompared) != 1 || r.Changes[0] != (content.Change{Field: "platform", A: "amd64", B: "arm64"}) {
		t.Errorf("%+v", r)
	}
}

func TestCompareIndexes(t *testing.T) {
	t.Parallel()
	amd, arm, other := image("sha256:1", `{"Config":{}}`), image("sha256:2", `{"Config":{}}`), image("sha256:3", `{"Config":{}}`)
	on := func(of *imagev1.Image, architecture string) imagev1.ImageManifest {
		return imagev1.ImageManifest{Digest: of.Name, OS: "linux", Architecture: architecture}
	}
	a, b := index("sha256:a", on(amd, "amd64"), on(arm, "arm64")), index("sha256:b", on(other, "arm64"))
	if platform := content.Shared(a, b); platform != "linux/arm64" {
		t.Errorf("%q", platform)
	}
	if platform := content.Shared(amd, arm); platform != "" {
		t.Errorf("%q", platform)
	}
	r := content.Compare(subject(a, arm), subject(b, other), "linux/arm64")
	if r.Platform != "linux/arm64" || r.A.Compared != arm.Name || r.B.Compared != other.Name || len(r.Platforms) != 2 || r.Platforms[1].A != "linux/arm64="+arm.Name {
		t.Errorf("%+v", r)
	}
	alone := index("sha256:c", on(amd, "s390x"))
	if r := content.Compare(subject(alone, alone), subject(b, b), content.Shared(alone, b)); len(r.NotCompared) != 1 || len(r.Platforms) != 2 {
		t.Errorf("%+v", r)
	}
}
