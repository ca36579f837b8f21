package imageapi_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// mirrored has mirror.example.com/copy stand for the repository of tests.
type mirrored struct{}

func (mirrored) Mirrors(reference.Reference) []reference.Reference { return nil }

func (mirrored) Confirmed(context.Context, reference.Reference, string) time.Time { return time.Time{} }

func (mirrored) Immutable(reference.Reference) string { return "" }

func (mirrored) Sources(ref reference.Reference) []reference.Reference {
	if ref.Host != "mirror.example.com" {
		return nil
	}
	return []reference.Reference{{Host: "registry.example.com", Repository: "team/app", Tag: ref.Tag}}
}

// What a pod uses that does not tell a manifest's digest: the images whose config its ID is; else
// what its tag leads to now, while it is unknown whether it uses what that led to since the pod was
// created. Nothing of that is deleted, and nothing else is kept.
func TestPodsThatTellNoManifest(t *testing.T) {
	t.Parallel()
	p := &pods{synced: true}
	s := newTagStoragesOf(t, imageapi.Options{Images: imageregistry.Options{Usage: p}, Answerer: answers.Answerer{Registries: mirrored{}}})
	table := storages{images: s.all.Images}
	const old, now, gone, index, listed, copied, lost = 1, 2, 3, 4, 41, 5, 6
	config := func(n int) string { return digestOf(1000 + n) }
	create := func(n, config int, tag string, lists ...int) {
		t.Helper()
		image := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: digestOf(n), Annotations: map[string]string{}}, DockerImageReference: repository + "@" + digestOf(n)}
		if tag != "" {
			image.Annotations[annotation.References] = `["` + repository + ":" + tag + `"]`
		}
		if config > 0 {
			image.DockerImageMetadata = runtime.RawExtension{Raw: fmt.Appendf(nil, `{"kind":"DockerImage","apiVersion":"image.openshift.io/1.0","Id":%q}`, digestOf(1000+config))}
		}
		for _, child := range lists {
			image.DockerImageManifests = append(image.DockerImageManifests, imagev1.ImageManifest{Digest: digestOf(child), MediaType: "application/vnd.oci.image.manifest.v1+json", Architecture: "arm64", OS: "linux"})
		}
		if _, err := s.images.Create(requestContext(), image, rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create(old, old, "")
	create(now, now, "v1")
	create(gone, gone, "")
	create(index, 0, "multi", listed)
	create(listed, listed, "")
	create(copied, old, "") // the same config below other layers, as after a copy that compressed them again

	v1 := s.lead(tags.New(s.ref), digestOf(gone), "import")
	v1 = s.lead(v1, digestOf(old), "import")
	moved := v1.Status.Items[0].Created.Unix() + 1
	s.seconds += 10
	s.lead(v1, digestOf(now), "import")
	s.ref.Tag = "multi"
	multi := s.lead(tags.New(s.ref), digestOf(index), "import")
	s.ref.Tag = "lost"
	s.lead(s.lead(tags.New(s.ref), digestOf(lost), "import"), digestOf(gone), "import")
	s.ref.Tag = "none"
	s.lead(s.lead(tags.New(s.ref), digestOf(gone), "import"), "", "webhook")

	const name, mirror = repository + ":v1", "mirror.example.com/copy:v1"
	unknown := "sha256:" + strings.Repeat("f", 64)
	for _, tt := range []struct {
		what  string
		keys  []string
		since int64
		want  map[int]string // PODS; 0 of all others

		naming string // the tag that a pod names which tells a digest of its repository
	}{
		{what: "a manifest", keys: []string{digestOf(old)}, since: moved, want: map[int]string{old: "1"}, naming: name},
		{what: "a config as a digest of its repository", keys: []string{config(old)}, since: moved, want: map[int]string{old: "1", copied: "1"}, naming: name},
		{what: "the config of one platform as a digest of its repository", keys: []string{config(listed)}, since: moved, want: map[int]string{index: "1", listed: "1"}, naming: repository + ":multi"},
		{what: "an unknown digest of its repository", keys: []string{unknown}, since: moved, want: map[int]string{now: "Unknown", old: "Unknown"}, naming: name},
		{what: "an unknown digest of a mirror's repository", keys: []string{unknown}, since: moved, want: map[int]string{now: "Unknown", old: "Unknown"}, naming: mirror},
		{what: "an unknown digest of its repository, since the tag moved", keys: []string{unknown}, since: moved + 60, want: map[int]string{now: "Unknown"}, naming: name},
		{what: "an unknown digest, by the tag of an index", keys: []string{unknown}, since: moved + 60, want: map[int]string{index: "Unknown", listed: "Unknown"}, naming: repository + ":multi"},
		{what: "the digest of a manifest that the tag led to and is not stored", keys: []string{digestOf(lost)}, since: multi.Status.Items[0].Created.Unix() + 1, naming: repository + ":lost"},
		{what: "the digest of a manifest that the tag led to before the pod, and is not stored", keys: []string{digestOf(lost)}, since: multi.Status.Items[0].Created.Unix() + 60, naming: repository + ":lost"},
		{what: "an unknown digest, by a tag that nothing is known of", keys: []string{unknown}, since: 1, naming: repository + ":v9"},
		{what: "a config", keys: []string{name + "?" + config(old)}, since: moved, want: map[int]string{old: "1", copied: "1"}},
		{what: "the ID of a manifest", keys: []string{name + "?" + digestOf(old)}, since: moved, want: map[int]string{old: "1"}},
		{what: "a config, and no tag", keys: []string{"?" + config(old)}, since: moved, want: map[int]string{old: "1", copied: "1"}},
		{what: "the config of one platform", keys: []string{repository + ":multi?" + config(listed)}, since: moved, want: map[int]string{index: "1", listed: "1"}},
		{what: "the ID of an index", keys: []string{repository + ":multi?" + digestOf(index)}, since: moved, want: map[int]string{index: "1", listed: "1"}},
		{what: "nothing, before the tag moved", keys: []string{name}, since: moved, want: map[int]string{now: "1", old: "Unknown"}},
		{what: "nothing, since before all", keys: []string{name}, since: 1, want: map[int]string{now: "1", old: "Unknown", gone: "Unknown"}},
		{what: "nothing, since the tag moved", keys: []string{name}, since: moved + 60, want: map[int]string{now: "1"}},
		{what: "nothing, by a mirror's name", keys: []string{mirror}, since: moved, want: map[int]string{now: "1", old: "Unknown"}},
		{what: "an unknown ID", keys: []string{name + "?" + unknown}, since: moved, want: map[int]string{now: "1", old: "Unknown"}},
		{what: "an unknown ID, by a mirror's name", keys: []string{mirror + "?" + unknown}, since: moved, want: map[int]string{now: "1", old: "Unknown"}},
		{what: "another repository's unknown digest", keys: []string{unknown, name + "?" + unknown}, since: moved, want: map[int]string{now: "1", old: "Unknown"}},
		{what: "another repository's digest of a config", keys: []string{config(old), name + "?" + config(old)}, since: moved, want: map[int]string{old: "2", copied: "2"}}, // each key is a pod here
		{what: "nothing, of an index", keys: []string{repository + ":multi"}, since: multi.Status.Items[0].Created.Unix() + 1, want: map[int]string{index: "1", listed: "Unknown"}},
		{what: "nothing, and the tag is gone", keys: []string{repository + ":none"}, since: multi.Status.Items[0].Created.Unix(), want: map[int]string{gone: "Unknown"}},
		{what: "nothing, by a tag that nothing is known of", keys: []string{repository + ":v9"}, since: 1, want: nil},
	} {
		p.since, p.naming = tt.since, tt.naming
		p.use(tt.keys...)
		for _, n := range []int{old, now, gone, index, listed, copied} {
			want := tt.want[n]
			if want == "" {
				want = "0"
			}
			obj, err := s.images.Get(requestContext(), digestOf(n), &metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(table.cell(t, obj.(*imagev1.Image), "Pods")); got != want {
				t.Errorf("a pod tells %s: image %d has PODS %s, want %s", tt.what, n, got, want)
			}
			kept := ""
			if err := deleteImage(s.images, digestOf(n), metav1.DryRunAll); err != nil {
				kept = err.Error()
			}
			if isKept := strings.Contains(kept, "uses it") || strings.Contains(kept, "use it") || strings.Contains(kept, "it is unknown whether pods use it"); isKept != (want != "0") {
				t.Errorf("a pod tells %s: image %d is kept: %q", tt.what, n, kept)
			}
		}
	}

	// What the ID means becomes known, and unknown again.
	p.since = moved
	p.use(name + "?" + config(9))
	create(9, 9, "")
	for _, want := range []string{"1 0", "none Unknown"} {
		was, _ := s.images.Get(requestContext(), digestOf(9), &metav1.GetOptions{})
		pods := "none"
		if image, ok := was.(*imagev1.Image); ok {
			pods = fmt.Sprint(table.cell(t, image, "Pods"))
		}
		before, err := s.images.Get(requestContext(), digestOf(old), &metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := pods + " " + fmt.Sprint(table.cell(t, before.(*imagev1.Image), "Pods")); got != want {
			t.Errorf("the image with the config and the one of before have PODS %q, want %q", got, want)
		}
		if pods == "1" {
			if err := allowDelete(s.images, digestOf(9), "used"); err != nil {
				t.Fatal(err)
			}
			wantDeleted(t, s.images, digestOf(9))
		}
	}
}

// The image that a stream's tag names by digest without importing it is kept, until the tag is
// gone.
func TestReferencesOfStreamsAreKept(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	s.withImages(map[int][]int{1: nil, 2: nil})
	referring := stream("app", "", "prod", "DockerImage/"+repository+"@"+digestOf(1), "other", "DockerImage/"+repository+":v2")
	referring.Spec.Tags[0].Reference, referring.Spec.Tags[1].Reference = true, true
	s.mustCreateStream(referring)
	wantDeleted(t, s.images, digestOf(2))
	if err := deleteImage(s.images, digestOf(1)); err == nil || !strings.Contains(err.Error(), "tag team/app:prod leads to it") {
		t.Errorf("the deletion says %v", err)
	}
	app := s.stream("app")
	app.Spec.Tags = app.Spec.Tags[1:]
	if _, err := s.updateStream(s.streams, app); err != nil {
		t.Fatal(err)
	}
	wantDeleted(t, s.images, digestOf(1))
}
