package containers

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

func parse(t *testing.T, s string) reference.Reference {
	t.Helper()
	ref, err := reference.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// Where references are read is what podman and CRI-O would do with the same files.
func TestPlaces(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	writeFile(t, `
[[registry]]
prefix = "conf.example.com/team"
location = "moved.example.com/old"
[[registry.mirror]]
location = "both.example.com/m"
insecure = true
[[registry.mirror]]
location = "digests.example.com"
pull-from-mirror = "digest-only"

[[registry]]
location = "only.example.com"
blocked = true
[[registry.mirror]]
location = "m.example.com/only"

[[registry]]
location = "old.example.com"
mirror-by-digest-only = true
[[registry.mirror]]
location = "m.example.com/old"
`, root, "etc/containers/registries.conf")
	f := newFiles(t, Options{Root: root, Mirrors: []Mirrors{
		{Source: "quay.io/acme", Digests: []string{"d.example.com:5000/acme", "e.example.com"}, Tags: []string{"t.example.com/acme/"}},
		{Source: "quay.io/acme/secret", Digests: []string{"s.example.com"}, NeverContactSource: true},
		{Source: "*.corp.example.com", Tags: []string{"all.example.com/corp"}, Digests: []string{"all.example.com/corp"}},
		{Source: "docker.io", Tags: []string{"hub.example.com"}},
		{Source: "only.example.com/ours", Tags: []string{"ours.example.com"}},
	}})
	for ref, want := range map[string]string{
		"quay.io/other/web:v1":                     "quay.io/other/web:v1",
		"quay.io/acmes/web:v1":                     "quay.io/acmes/web:v1",
		"quay.io/acme/web:v1":                      "t.example.com/acme/web:v1 quay.io/acme/web:v1",
		"quay.io/acme/web":                         "t.example.com/acme/web quay.io/acme/web",
		"quay.io/acme/web@" + digest:               "d.example.com:5000/acme/web@" + digest + " e.example.com/web@" + digest + " quay.io/acme/web@" + digest,
		"quay.io/acme/secret/x@" + digest:          "s.example.com/x@" + digest,
		"quay.io/acme/secret/x:v1":                 "",
		"a.b.corp.example.com/x:v1":                "all.example.com/corp/x:v1 a.b.corp.example.com/x:v1",
		"corp.example.com/x:v1":                    "corp.example.com/x:v1",
		"other.example.com/a.corp.example.com/x:v": "other.example.com/a.corp.example.com/x:v",
		"busybox:1":                                "hub.example.com/library/busybox:1 docker.io/library/busybox:1",
		"conf.example.com/team/app:v1":             "both.example.com/m/app:v1! moved.example.com/old/app:v1",
		"conf.example.com/team/app@" + digest:      "both.example.com/m/app@" + digest + "! digests.example.com/app@" + digest + " moved.example.com/old/app@" + digest,
		"old.example.com/app:v1":                   "old.example.com/app:v1",
		"old.example.com/app@" + digest:            "m.example.com/old/app@" + digest + " old.example.com/app@" + digest,
		// which is refused when it is asked
		"only.example.com/app:v1":      "m.example.com/only/app:v1 only.example.com/app:v1",
		"only.example.com/ours/app:v1": "ours.example.com/app:v1 only.example.com/ours/app:v1",
	} {
		sources, err := f.PullSources(parse(t, ref))
		if err != nil {
			t.Errorf("%s: %v", ref, err)
			continue
		}
		var got []string
		for _, p := range sources {
			s := p.Reference.String()
			if p.Insecure {
				s += "!"
			}
			got = append(got, s)
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s is read from %q, want %q", ref, s, want)
		}
		// A mirror's name leads back.
		own := parse(t, ref)
		for _, p := range sources {
			back, err := f.MirrorOf(p.Reference)
			wildcard := strings.HasPrefix(p.Reference.Name(), "all.example.com/corp/")
			// where the source is, and not its mirror
			moved := p.Reference.Host == "moved.example.com"
			if mirrors, err := f.MirrorsOf(own); err != nil || slices.Contains(back, own) && !slices.Contains(mirrors, p.Reference) {
				t.Errorf("the mirrors of %s are %v, %v, without %s", own, mirrors, err, p.Reference)
			}
			if p.Reference != own && (err != nil || slices.Contains(back, own) == (wildcard || moved)) {
				t.Errorf("%s is a mirror of %v, %v, not of %s", p.Reference, back, err, own)
			}
		}
	}
	if back, err := f.MirrorOf(parse(t, "hub.example.comet/x:v1")); err != nil || len(back) > 0 {
		t.Errorf("another host is a mirror of %v, %v", back, err)
	}
}

func TestMirrorsThatAreNone(t *testing.T) {
	t.Parallel()
	for _, m := range []Mirrors{
		{Source: ""}, {Source: "acme"}, {Source: "https://quay.io"}, {Source: "*.example.com/team"}, {Source: "quay.io/Acme"},
		{Source: "quay.io", Digests: []string{"mirror"}}, {Source: "quay.io", Tags: []string{"m.example.com/a:v1"}},
	} {
		if _, err := New(Options{Mirrors: []Mirrors{m}}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("mirrors of %q", m.Source)) {
			t.Errorf("%+v: %v", m, err)
		}
	}
}

// asked is a finder that finds nothing and tells where it was sent.
type asked struct {
	mu           sync.Mutex
	repositories []string
}

func (a *asked) Forget(name.Repository)                      {}
func (a *asked) Listed(name.Repository, []string, time.Time) {}

func (a *asked) Find(_ context.Context, digest name.Digest, _ reference.Reference, _ http.RoundTripper, _ time.Time, _ bool) ([]imagev1.ImageSignature, map[string]string, []string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.repositories = append(a.repositories, digest.Context().Name())
	return nil, nil, nil, nil
}

func newImporter(t *testing.T, o Options, finder importer.SignatureFinder) *importer.Importer {
	t.Helper()
	im, err := importer.New(importer.Options{Keychain: authn.NewMultiKeychain(), Files: newFiles(t, o), Signatures: finder, Limits: pull.Limits{Attempts: 1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(im.Close)
	return im
}

// A registry that must not be contacted is not. What is stored has its name, the result says which
// mirror was read, and signatures are looked for there.
func TestMirrorIsReadAndItsSourceIsNot(t *testing.T) {
	t.Parallel()
	source, mirror := registrytest.New(t), registrytest.New(t)
	image, err := sample.New(sample.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	pushed := mirror.Push("copies/team/app:v1", image)
	source.Push("team/app:v1", image)
	finder := &asked{}
	im := newImporter(t, Options{Root: t.TempDir(), Mirrors: []Mirrors{{
		Source: source.Host, Digests: []string{mirror.Host + "/copies"}, Tags: []string{mirror.Host + "/copies"}, NeverContactSource: true,
	}}}, finder)
	for _, ref := range []string{source.Host + "/team/app:v1", source.Host + "/team/app@" + pushed} {
		images := &registrytest.Images{}
		result, err := im.Import(t.Context(), parse(t, ref), images)
		if err != nil {
			t.Fatal(err)
		}
		if result.Mirror != mirror.Host+"/copies/team/app" || result.Reference != ref || result.Digest != pushed {
			t.Errorf("%+v", result)
		}
		if got := result.Images[0].Image.DockerImageReference; got != source.Host+"/team/app@"+pushed {
			t.Errorf("it is stored as %s", got)
		}
	}
	if tags, _, err := im.Tags(t.Context(), parse(t, source.Host+"/team/app")); err != nil || !slices.Equal(tags, []string{"v1"}) {
		t.Errorf("the tags are %v, %v", tags, err)
	}
	if want := []string{mirror.Host + "/copies/team/app", mirror.Host + "/copies/team/app"}; !slices.Equal(finder.repositories, want) {
		t.Errorf("signatures were looked for in %v", finder.repositories)
	}
	if got := source.AllRequests(); len(got) > 0 {
		t.Errorf("the source was contacted: %v", got)
	}
	_, err = im.Import(t.Context(), parse(t, source.Host+"/team/app:v2"), &registrytest.Images{})
	if pull.ReasonOf(err) != pull.NotFound || !strings.Contains(err.Error(), "its mirrors failed: "+mirror.Host+"/copies/team/app:v2: not found") {
		t.Errorf("what no mirror has: %v", err)
	}
}

// A mirror that has an index and not all of its images is made up for: by the next mirror, and by
// the source at last. What nobody has is skipped, unless one that may have it does not answer.
func TestMirrorThatLacksAChildLeadsOn(t *testing.T) {
	t.Parallel()
	source, sparse, second := registrytest.New(t), registrytest.New(t), registrytest.New(t)
	index, err := sample.MultiPlatform(sample.Spec{}, false, "linux/amd64", "linux/arm64", "linux/s390x", "linux/ppc64le")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []*registrytest.Registry{source, sparse, second} {
		r.PushIndex("team/app:v1", index)
	}
	m, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	lacks := func(r *registrytest.Registry, children ...int) {
		for _, i := range children {
			r.Inject("/manifests/"+m.Manifests[i].Digest.String(), 0, registrytest.Status(404, "MANIFEST_UNKNOWN"))
		}
	}
	lacks(sparse, 1, 2, 3)
	lacks(second, 2, 3)
	lacks(source, 3)
	mirrors := Options{Root: t.TempDir(), Mirrors: []Mirrors{{Source: source.Host, Digests: []string{sparse.Host, second.Host}, Tags: []string{sparse.Host, second.Host}}}}
	finder := &asked{}
	images := &registrytest.Images{}
	result, err := newImporter(t, mirrors, finder).Import(t.Context(), parse(t, source.Host+"/team/app:v1"), images)
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Images) != 4 || result.Mirror != sparse.Host+"/team/app" || len(images.Names()) != 4 {
		t.Errorf("%d are imported from %s, %d stored", len(result.Images), result.Mirror, len(images.Names()))
	}
	if len(result.Skipped) != 1 || result.Skipped[0].Digest != m.Manifests[3].Digest.String() || result.Skipped[0].Reason != importer.SkippedMissing {
		t.Errorf("skipped is %+v", result.Skipped)
	}
	for _, i := range result.Images {
		if got := i.Image.DockerImageReference; got != source.Host+"/team/app@"+i.Image.Name {
			t.Errorf("it is stored as %s", got)
		}
	}
	// Signatures of an image are looked for where it was found.
	slices.Sort(finder.repositories)
	want := []string{source.Host + "/team/app", sparse.Host + "/team/app", sparse.Host + "/team/app", second.Host + "/team/app"}
	if slices.Sort(want); !slices.Equal(finder.repositories, want) {
		t.Errorf("signatures were looked for in %v, want %v", finder.repositories, want)
	}

	source.Inject("/manifests/", 0, registrytest.Status(503, "UNAVAILABLE"))
	_, err = newImporter(t, mirrors, nil).Import(t.Context(), parse(t, source.Host+"/team/app:v1"), &registrytest.Images{})
	if err == nil || pull.ReasonOf(err) == pull.NotFound {
		t.Errorf("while the source is away: %v", err)
	}
}

// A mirror that fails leads to the next, and to the source at last, as registries.conf says.
func TestMirrorsThatFailLeadOn(t *testing.T) {
	t.Parallel()
	source, broken, sparse, blocked := registrytest.New(t), registrytest.New(t), registrytest.New(t), registrytest.New(t)
	image, err := sample.New(sample.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	source.Push("team/app:v1", image)
	sparse.Push("team/app:v2", image)
	sparse.Push("elsewhere/app:v3", image)
	broken.Inject("/manifests/", 0, registrytest.Status(503, "UNAVAILABLE"))
	root := t.TempDir()
	writeFile(t, fmt.Sprintf(`
[[registry]]
location = %q
[[registry.mirror]]
location = %q
[[registry.mirror]]
location = %q

[[registry]]
prefix = "%s/moved"
location = "%s/elsewhere"

[[registry]]
location = %q
blocked = true
[[registry.mirror]]
location = %q
`, source.Host, broken.Host, sparse.Host, source.Host, sparse.Host, blocked.Host, broken.Host), root, filepath.Join("etc/containers/registries.conf"))
	im := newImporter(t, Options{Root: root}, nil)
	for ref, want := range map[string]string{
		source.Host + "/team/app:v1":  "",
		source.Host + "/team/app:v2":  sparse.Host + "/team/app",
		source.Host + "/moved/app:v3": sparse.Host + "/elsewhere/app",
	} {
		result, err := im.Import(t.Context(), parse(t, ref), &registrytest.Images{})
		if err != nil {
			t.Errorf("%s: %v", ref, err)
			continue
		}
		if result.Mirror != want || !strings.HasPrefix(result.Images[0].Image.DockerImageReference, source.Host+"/") {
			t.Errorf("%s: read from %q, stored as %s", ref, result.Mirror, result.Images[0].Image.DockerImageReference)
		}
	}

	// The source has the last word; a mirror that is away does not hide that something is gone.
	_, err = im.Import(t.Context(), parse(t, source.Host+"/team/app:v4"), &registrytest.Images{})
	if s := fmt.Sprint(err); pull.ReasonOf(err) != pull.NotFound || !strings.Contains(s, "its mirrors also failed: "+broken.Host) || !strings.Contains(s, sparse.Host) {
		t.Errorf("what nobody has: %v", err)
	}
	// Where the source is blocked, what a mirror that is away has is not known.
	_, err = im.Import(t.Context(), parse(t, blocked.Host+"/team/app:v1"), &registrytest.Images{})
	if s := fmt.Sprint(err); pull.ReasonOf(err) == pull.NotFound || !strings.Contains(s, "blocked") || !strings.Contains(s, broken.Host) {
		t.Errorf("a blocked source: %v", err)
	}
	if got := blocked.AllRequests(); len(got) > 0 {
		t.Errorf("a blocked registry was contacted: %v", got)
	}
}

// Importers ask with each request what registries.conf says. It cost a twentieth of the import of a
// known image.
func TestRegistriesConfIsAskedOnce(t *testing.T) {
	root := t.TempDir()
	writeFile(t, "[[registry]]\nlocation = \"r.example.com\"\ninsecure = true\n", root, "etc/containers/registries.conf")
	f := newFiles(t, Options{Root: root})
	for name, want := range map[string]bool{"r.example.com/team/app": true, "r.example.com": true, "other.example.com": false} {
		if n := testing.AllocsPerRun(10, func() {
			if insecure, blocked, err := f.Registry(name); insecure != want || blocked || err != nil {
				t.Errorf("%s: %v, %v, %v", name, insecure, blocked, err)
			}
		}); n > 5 { // twelve when it is looked up
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	for i := range 2 * maxFound {
		if _, _, err := f.Registry(fmt.Sprint("r.example.com/team/", i)); err != nil {
			t.Fatal(err)
		}
	}
	if n := f.found.Len(); n > maxFound {
		t.Errorf("%d are remembered", n)
	}
}
