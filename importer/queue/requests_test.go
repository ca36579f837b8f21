package queue_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures/find"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// demandsSigned are policies that demand signatures of all images, or nothing.
type demandsSigned bool

func (d demandsSigned) Demands(reference.Reference) (signatures, attestations bool) {
	return bool(d), false
}

// prepareSearching is a worker that looks for signatures as the program does.
func prepareSearching(t *testing.T, demanded bool) *workerTest {
	t.Helper()
	w, o := prepareWorker(t)
	absent := filepath.Join(t.TempDir(), "absent")
	finder, err := find.New(find.Options{RegistriesDirs: []string{absent}, Storage: absent, Demands: demandsSigned(demanded)})
	if err != nil {
		t.Fatal(err)
	}
	o.Config = always(newImporter(t, importer.Options{Signatures: finder, SignaturesAge: time.Minute, Limits: pull.Limits{Attempts: 1}}))
	o.Concurrency, o.HostConcurrency = 4, 1 // in the order in which they were told of
	w.run(o)
	return w
}

// A push of an index with three platforms, told of in four events, cost 39 requests, 28 of
// them 404. Some registries tell of the index alone.
func TestRequestsOfAPushOfThreePlatforms(t *testing.T) {
	for _, tt := range []struct {
		api, demanded, alone bool
		requests, missing    int // at most
	}{
		{true, false, false, 14, 0},
		{false, false, false, 11, 1},
		{true, false, true, 14, 0},
		{false, false, true, 11, 1},
		// A policy demands signatures, and there are none: the tags that would hold those of the
		// index are asked for. With the greeting, which only the first push needs, that is one
		// request more than the 14 that are wanted.
		{true, true, false, 15, 1},
		{false, true, false, 13, 3},
		{true, true, true, 15, 1},
		{false, true, true, 13, 3},
	} {
		w := prepareSearching(t, tt.demanded)
		if !tt.api {
			w.registry.Inject("/referrers/", 0, registrytest.Status(404, "NOT_FOUND"))
		}
		for n, greeting := range []int{0, 1} {
			index := newIndex(t, sample.Spec{Name: fmt.Sprint(n)}, false, "linux/amd64", "linux/arm64", "linux/s390x")
			digest := w.registry.PushIndex("team/app:v1", index)
			manifest, err := index.IndexManifest()
			if err != nil {
				t.Fatal(err)
			}
			w.registry.Reset()
			for _, child := range manifest.Manifests {
				if tt.alone {
					break
				}
				w.do("push team/app@" + child.Digest.String())
			}
			w.do("push team/app:v1@" + digest)
			requests := w.registry.AllRequests()
			missing := 0
			for _, r := range requests {
				if r.Status == http.StatusNotFound {
					missing++
				}
			}
			if missing > tt.missing || len(requests) > tt.requests-greeting {
				t.Errorf("%+v, push %d: %d requests, %d answered 404: %v", tt, n, len(requests), missing, requests)
			}
		}
	}
}

// A repository that is new has no tag while its first platforms are imported, and its registry says
// that it does not exist. Each platform and the index cost three tags that are not there. A
// registry may also list no tags.
func TestRequestsOfTheFirstPushToARepository(t *testing.T) {
	for _, tt := range []struct {
		api, empty        bool
		requests, missing int // at most
	}{
		{true, false, 14, 1},
		{false, false, 12, 2},
		{true, true, 14, 0},
		{false, true, 12, 1},
	} {
		w := prepareSearching(t, false)
		if !tt.api {
			w.registry.Inject("/referrers/", 0, registrytest.Status(404, "NOT_FOUND"))
		}
		index := newIndex(t, sample.Spec{}, false, "linux/amd64", "linux/arm64", "linux/s390x")
		digest := w.registry.PushIndex("team/app:v1", index)
		manifest, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		none := registrytest.Status(404, "NAME_UNKNOWN")
		if tt.empty {
			none = func(http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"name":"team/app","tags":null}`) })
			}
		}
		w.registry.Inject("/tags/list", 0, none)
		w.registry.Reset()
		for _, child := range manifest.Manifests {
			w.do("push team/app@" + child.Digest.String())
		}
		w.registry.Heal()
		if !tt.api {
			w.registry.Inject("/referrers/", 0, registrytest.Status(404, "NOT_FOUND"))
		}
		w.do("push team/app:v1@" + digest)
		requests, missing := w.registry.AllRequests(), 0
		for _, r := range requests {
			if r.Status == http.StatusNotFound {
				missing++
			}
		}
		if missing > tt.missing || len(requests) > tt.requests {
			t.Errorf("%+v: %d requests, %d answered 404: %v", tt, len(requests), missing, requests)
		}
	}
}

// That there were no tags before the index was pushed hides no signature of it, nor one of a
// platform that is told of.
func TestAttackSignaturesInARepositoryThatWasNew(t *testing.T) {
	w := prepareSearching(t, false)
	index := newIndex(t, sample.Spec{}, false, "linux/amd64", "linux/arm64")
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	digest := w.registry.PushIndex("team/app:v1", index)
	w.registry.Inject("/tags/list", 0, registrytest.Status(404, "NAME_UNKNOWN"))
	w.do("push team/app@" + manifest.Manifests[0].Digest.String())
	w.registry.Heal()
	platform := manifest.Manifests[1].Digest.String()
	w.sign(digest)
	tag, signature := w.sign(platform)
	w.do("push team/app:v1@" + digest)
	w.do("push team/app:" + tag + "@" + signature)
	for _, signed := range []string{digest, platform} {
		if n := len(w.image(signed).Signatures); n != 1 {
			t.Errorf("%s has %d signatures, want 1", signed, n)
		}
	}
}

// A platform that is signed itself is found to be, though only the list of tags says so.
func TestSignaturesOfPushedPlatformsAreFound(t *testing.T) {
	w := prepareSearching(t, true)
	index := newIndex(t, sample.Spec{}, false, "linux/amd64", "linux/arm64")
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	platform := manifest.Manifests[1].Digest.String()
	digest := w.registry.PushIndex("team/app:v1", index)
	w.sign(platform)
	w.do("push team/app:v1@" + digest)
	if n := len(w.image(platform).Signatures); n != 1 {
		t.Errorf("%d signatures, want 1", n)
	}
	if n := w.registry.Count("manifests/sha256-.*sig"); n != 2 {
		t.Errorf("%d tags of signatures were asked for, want that of the index and that of the signed platform", n)
	}
}

// sign pushes a signature of an image in team/app, and returns its tag and digest.
func (w *workerTest) sign(digest string) (tag, signed string) {
	w.t.Helper()
	blob := signaturestest.NewKey(w.t, signaturestest.P256).SimpleSigning(w.t, digest, w.registry.Host+"/team/app")
	signature, err := mutate.Append(mutate.MediaType(empty.Image, types.OCIManifestSchema1), mutate.Addendum{
		Layer: static.NewLayer(blob.Payload, types.MediaType(blob.MediaType)), Annotations: blob.Annotations,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	tag = strings.Replace(digest, ":", "-", 1) + ".sig"
	return tag, w.registry.Push("team/app:"+tag, signature)
}

// What is remembered of a repository hides no signature that is told of, whatever came before.
func TestAttackSignatureToldOfAfterWhatIsRemembered(t *testing.T) {
	w := prepareSearching(t, false)
	w.registry.Inject("/referrers/", 0, registrytest.Status(404, "NOT_FOUND"))
	for _, name := range []string{"one", "two", "three"} {
		digest := w.push("team/app:"+name, name)
		w.do("push team/app:" + name + "@" + digest)
		tag, signed := w.sign(digest)
		w.do("push team/app:" + tag + "@" + signed)
		if n := len(w.image(digest).Signatures); n != 1 {
			t.Errorf("%s: %d signatures, want 1", name, n)
		}
	}
}
