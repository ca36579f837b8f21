package queue_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/signatures/find"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// prepareSearching is a worker that looks for signatures as the program does.
func prepareSearching(t *testing.T, demanded bool) *workerTest {
	t.Helper()
	w, o := prepareWorker(t)
	demands := func(reference.Reference) (signatures, attestations bool) { return demanded, false }
	absent := filepath.Join(t.TempDir(), "absent")
	finder, err := find.New(find.Options{RegistriesDirs: []string{absent}, Storage: absent, Demands: demands})
	if err != nil {
		t.Fatal(err)
	}
	o.Importer = newImporter(t, importer.Options{Signatures: finder, SignaturesAge: time.Minute, Limits: importer.Limits{Attempts: 1}})
	o.Concurrency, o.HostConcurrency = 4, 1 // in the order in which they were told of
	w.run(o)
	return w
}

// A push of an index with three platforms, told of in four events, cost 39 requests, 28 of them 404.
func TestRequestsOfAPushOfThreePlatforms(t *testing.T) {
	for _, tt := range []struct {
		api, demanded           bool
		requests, missing, tags int // at most
	}{
		{true, false, 14, 0, 0},
		{false, false, 14, 1, 0},
		// A policy demands signatures, and there are none: the tags that would hold them are asked for.
		{true, true, 18, 4, 4},
		{false, true, 19, 9, 8},
	} {
		w := prepareSearching(t, tt.demanded)
		index := newIndex(t, sample.Spec{}, false, "linux/amd64", "linux/arm64", "linux/s390x")
		digest := w.registry.PushIndex("team/app:v1", index)
		if !tt.api {
			w.registry.Inject("/referrers/", 0, registrytest.Status(404, "NOT_FOUND"))
		}
		manifest, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		for _, child := range manifest.Manifests {
			w.do("push team/app@" + child.Digest.String())
		}
		w.do("push team/app:v1@" + digest)
		requests := w.registry.AllRequests()
		// The answers 404 are those of the referrers API, and of tags of signatures.
		tags := w.registry.Count(`manifests/sha256-`)
		missing := tags
		if !tt.api {
			missing += w.registry.Count("/referrers/")
		}
		if tags != tt.tags || missing > tt.missing || len(requests) > tt.requests {
			t.Errorf("%+v: %d requests, %d answered 404, %d for tags of signatures: %v", tt, len(requests), missing, tags, requests)
		}
	}
}

// What is remembered of a repository hides no signature that is told of, whatever came before.
func TestAttackSignatureToldOfAfterWhatIsRemembered(t *testing.T) {
	w := prepareSearching(t, false)
	w.registry.Inject("/referrers/", 0, registrytest.Status(404, "NOT_FOUND"))
	for _, name := range []string{"one", "two", "three"} {
		digest := w.push("team/app:"+name, name)
		w.do("push team/app:" + name + "@" + digest)
		blob := signaturestest.NewKey(t, signaturestest.P256).SimpleSigning(t, digest, w.registry.Host+"/team/app")
		tag := strings.Replace(digest, ":", "-", 1) + ".sig"
		signature, err := mutate.Append(mutate.MediaType(empty.Image, types.OCIManifestSchema1), mutate.Addendum{
			Layer: static.NewLayer(blob.Payload, types.MediaType(blob.MediaType)), Annotations: blob.Annotations,
		})
		if err != nil {
			t.Fatal(err)
		}
		signed := w.registry.Push("team/app:"+tag, signature)
		w.do("push team/app:" + tag + "@" + signed)
		if n := len(w.image(digest).Signatures); n != 1 {
			t.Errorf("%s: %d signatures, want 1", name, n)
		}
	}
}
