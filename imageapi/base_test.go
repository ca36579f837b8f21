package imageapi_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

// layered is an Image of a digest with these layers. said is what its labels say of its base: a
// reference, a digest, or both with @.
func layered(n int, said string, layers ...int) *imagev1.Image {
	image := plainImage()
	image.Name = digestOf(n)
	image.DockerImageReference = fmt.Sprintf("registry.example.com/%d:1", n)
	for _, l := range layers {
		image.DockerImageLayers = append(image.DockerImageLayers, imagev1.ImageLayer{Name: digestOf(1000 + l), LayerSize: 1})
	}
	name, digest, _ := strings.Cut(said, "@")
	if strings.HasPrefix(said, "sha256:") {
		name, digest = "", said
	}
	image.DockerImageMetadata = runtime.RawExtension{Raw: fmt.Appendf(nil, `{"kind":"DockerImage","apiVersion":"image.openshift.io/1.0","Config":{"Labels":{"org.opencontainers.image.base.name":%q,"org.opencontainers.image.base.digest":%q}}}`, name, digest)}
	return image
}

// pagedNames are the images that a selector selects, in pages of a size.
func (s storages) pagedNames(t *testing.T, selector string, size int64) (names []string) {
	t.Helper()
	options := selecting(selector)
	options.Limit = size
	var err error
	if options.FieldSelector, err = options.FieldSelector.Transform(imageregistry.ConvertFieldLabel); err != nil {
		t.Fatal(err)
	}
	for range 10_000 {
		obj, err := s.images.List(requestContext(), options)
		if err != nil {
			t.Fatal(err)
		}
		list := obj.(*imagev1.ImageList)
		if size > 0 && int64(len(list.Items)) > size {
			t.Fatalf("a page of %d has %d", size, len(list.Items))
		}
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return names
		}
	}
	t.Fatal("a list does not end")
	return nil
}

// Images are built on a base by what they say and by their layers, and each is listed once,
// whatever the size of pages.
func TestSelectByBase(t *testing.T) {
	s := newStorages(t, nil)
	const hub = "docker.io/library/debian"
	s.mustCreate(t, layered(1, "", 1, 2)) // the base for a platform
	s.mustCreate(t, layered(2, "", 3))    // and for another
	index := layered(3, "")               // of these
	index.DockerImageManifests = []imagev1.ImageManifest{{Digest: digestOf(1), MediaType: manifest.MediaTypeOCIManifest, OS: "linux", Architecture: "amd64"}, {Digest: digestOf(2), MediaType: manifest.MediaTypeOCIManifest, OS: "linux", Architecture: "arm64"}}
	index.DockerImageManifestMediaType = manifest.MediaTypeOCIIndex
	s.mustCreate(t, index)
	s.mustCreate(t, layered(10, "", 1, 2, 4))                        // by layers
	s.mustCreate(t, layered(11, "debian:13@"+digestOf(3), 3, 5))     // both
	s.mustCreate(t, layered(12, digestOf(3), 6))                     // says so, and was squashed
	s.mustCreate(t, layered(13, "debian:13", 7))                     // any revision
	s.mustCreate(t, layered(14, "debian:12@"+digestOf(9), 8))        // another tag
	s.mustCreate(t, layered(15, "", 2, 1, 3))                        // other layers first
	s.mustCreate(t, layered(16, "", 1))                              // fewer layers
	s.mustCreate(t, layered(17, "no reference at all@sha256:00", 9)) // says nothing
	for _, tt := range []struct {
		selector string
		want     []int
	}{
		{"base=" + digestOf(3), []int{10, 11, 12}},
		{"base=" + digestOf(1), []int{10}},
		{"base=" + digestOf(9), []int{14}},
		{"base=" + digestOf(77), nil},
		{"base=" + hub + "@" + digestOf(3), []int{10, 11, 12}},
		{"base=debian:13", []int{11, 13}},
		{"base=index.docker.io/library/debian:13", []int{11, 13}},
		{"base=" + hub, []int{11, 13, 14}},
		{"base=" + digestOf(3) + ",layer=" + digestOf(1005), []int{11}},
		{"base=" + digestOf(3) + ",metadata.name!=" + digestOf(10), []int{11, 12}},
	} {
		var want []string
		for _, n := range tt.want {
			want = append(want, digestOf(n))
		}
		for _, size := range []int64{0, 1, 2, 500} {
			if got := s.pagedNames(t, tt.selector, size); !slices.Equal(got, want) {
				t.Errorf("%s in pages of %d selects %v, want %v", tt.selector, size, got, want)
			}
		}
	}
	for _, bad := range []string{"base!=debian:13", "base=debian:13,base=debian:12", "base="} {
		if _, err := s.images.List(requestContext(), selecting(bad)); !apierrors.IsBadRequest(err) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if _, err := s.images.Watch(requestContext(), selecting("base=debian:13")); !apierrors.IsBadRequest(err) {
		t.Errorf("watched: %v", err)
	}
	if _, err := s.images.DeleteCollection(requestContext(), nil, &metav1.DeleteOptions{}, selecting("base=debian:13")); !apierrors.IsBadRequest(err) {
		t.Errorf("deleted: %v", err)
	}
	// The table says how that is known.
	for selector, want := range map[string]string{"base=" + digestOf(3): "layers annotation,layers annotation", "": "<none> docker.io/library/debian:13 " + digestOf(3)[:19] + " docker.io/library/debian:13"} {
		ctx := genericapirequest.WithRequestInfo(requestContext(), &genericapirequest.RequestInfo{Verb: "list", FieldSelector: selector})
		list := &imagev1.ImageList{}
		for n := 10; n < 10+len(strings.Fields(want)); n++ {
			list.Items = append(list.Items, *s.get(t, digestOf(n)))
		}
		table, err := s.images.ConvertToTable(ctx, list, nil)
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(table.ColumnDefinitions, func(c metav1.TableColumnDefinition) bool { return c.Name == "Base" })
		var cells []string
		for _, row := range table.Rows {
			cells = append(cells, fmt.Sprint(row.Cells[at]))
		}
		if got := strings.Join(cells, " "); got != want {
			t.Errorf("by %q the cells are %q, want %q", selector, got, want)
		}
	}
}

// In random worlds, the pages of a list by base have what a look at every image finds, in order.
func TestPagesByBase(t *testing.T) {
	if testing.Short() {
		t.Skip("slow, and nothing runs side by side")
	}
	for seed := range uint64(8) {
		s, r := newStorages(t, nil), rand.New(rand.NewPCG(seed, 0))
		index := layered(1, "")
		index.DockerImageManifestMediaType = manifest.MediaTypeOCIIndex
		var platforms []*imagev1.Image
		for n := range 1 + r.IntN(4) {
			platform := layered(2+n, "", r.Perm(5)[:1+r.IntN(3)]...)
			platforms = append(platforms, s.mustCreate(t, platform))
			index.DockerImageManifests = append(index.DockerImageManifests, imagev1.ImageManifest{Digest: platform.Name, MediaType: manifest.MediaTypeOCIManifest, OS: "linux", Architecture: fmt.Sprint(n)})
		}
		s.mustCreate(t, index)
		var want []string
		for n := range 60 {
			said := ""
			if r.IntN(4) == 0 {
				said = index.Name
			}
			image := s.mustCreate(t, layered(100+n, said, r.Perm(5)[:r.IntN(6)]...))
			if said != "" || slices.ContainsFunc(platforms, func(p *imagev1.Image) bool { return manifest.BeginsWith(image, p) }) {
				want = append(want, image.Name)
			}
		}
		// A platform may be built on another.
		for _, p := range platforms {
			if got := s.pagedNames(t, "base="+index.Name, 0); slices.Contains(got, p.Name) {
				t.Fatalf("seed %d: the base %s is built on itself", seed, p.Name)
			}
		}
		for size := range int64(9) {
			if got := s.pagedNames(t, "base="+index.Name, size); !slices.Equal(got, want) {
				t.Fatalf("seed %d: pages of %d have %d images, want %d:\n%v\n%v", seed, size, len(got), len(want), got, want)
			}
		}
	}
}
