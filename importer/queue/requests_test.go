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

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/signatures/find"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// prepareSearching is a worker that looks for signatures as the program does.
func prepareSearching(t *testing.T) *workerTest {
	t.Helper()
	w, o := prepareWorker(t)
	absent := filepath.Join(t.TempDir(), "absent")
	finder, err := find.New(find.Options{RegistriesDirs: []string{absent}, Storage: absent})
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
	for _, api := range []bool{true, false} {
		w := prepareSearching(t)
		index := newIndex(t, sample.Spec{}, false, "linux/amd64", "linux/arm64", "linux/s390x")
		digest := w.registry.PushIndex("team/app:v1", index)
		if !api {
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
		missing := w.registry.Count("/referrers/")
		if api {
			missing = 0
		}
		// The answers 404 are those of the referrers API: no tag that is not there is asked for.
		if n := w.registry.Count(`manifests/sha256-`); n != 0 || missing > 1 || len(requests) > 14 {
			t.Errorf("referrers API %t: %d requests, %d answered 404, %d for tags of signatures: %v", api, len(requests), missing, n, requests)
		}
	}
}

// What is remembered of a repository hides no signature that is told of, whatever came before.
func TestAttackSignatureToldOfAfterWhatIsRemembered(t *testing.T) {
	w := prepareSearching(t)
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
