package queue_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/importer/queue"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

func TestWorkerMarksWhatIsGone(t *testing.T) {
	t.Run("tag", func(t *testing.T) {
		w := startWorker(t)
		digest, other := w.push("team/app:1.0", "a"), w.push("team/other:1.0", "b")
		w.push("team/app:latest", "a")
		w.do("push team/app:1.0@" + digest)
		w.do("push team/app:latest@" + digest)
		w.do("push team/other:1.0@" + other)
		w.notices.take()

		w.do("delete team/app:1.0") // a lie: it is there
		w.expect("marked after a lie", w.gone(digest), nil)
		w.notices.take()

		w.delete("team/app", "1.0")
		w.do("delete team/app:1.0")
		w.expect("marked", w.gone(digest), []string{"team/app:1.0"})
		w.expect("references", w.references(digest), []string{"team/app:latest"})
		w.expect("notices", w.notices.take(), []string{"GoneFromRegistry " + digest})
		w.expect("marked of another repository", w.gone(other), nil)
		writes := w.images.Writes()
		w.do("delete team/app:1.0")
		w.expect("writes of doing it again", w.images.Writes(), writes)

		w.push("team/app:1.0", "a")
		w.do("push team/app:1.0@" + digest)
		w.expect("marked after it came back", w.gone(digest), nil)
		if _, ok := w.image(digest).Annotations[annotation.Gone]; ok {
			t.Error("an empty mark is left")
		}
	})
	t.Run("tag and digest", func(t *testing.T) {
		w := startWorker(t, func(o *queue.Options) { o.Finder = nil })
		digest := w.push("team/app:1.0", "a")
		w.do("push team/app:1.0@" + digest)
		w.delete("team/app", "1.0")
		w.delete("team/app", digest)
		w.do("delete team/app:1.0@" + digest)
		w.expect("marked", w.gone(digest), []string{"team/app:1.0", "team/app@" + digest})
		w.expect("images", w.images.Names(), []string{digest})
	})
	t.Run("digest", func(t *testing.T) {
		w := startWorker(t)
		digest := w.push("team/app:1.0", "a")
		w.do("push team/app:1.0@" + digest)
		w.delete("team/app", digest)
		w.do("delete team/app@" + digest)
		w.expect("marked", w.gone(digest), []string{"team/app@" + digest})
	})
	t.Run("digest with its tags", func(t *testing.T) {
		// as Azure and zot tell, and as skopeo deletes
		w := startWorker(t)
		digest, other := w.push("team/app:1.0", "a"), w.push("team/app:2.0", "b")
		w.push("team/app:latest", "a")
		w.push("team/app:moved", "a")
		for _, tag := range []string{"1.0", "latest", "moved"} {
			w.do("push team/app:" + tag + "@" + digest)
		}
		w.do("push team/app:2.0@" + other)
		w.push("team/app:moved", "b") // without an event
		for _, gone := range []string{"1.0", "latest", digest} {
			w.delete("team/app", gone)
		}
		w.notices.take()
		w.do("delete team/app@" + digest)
		w.expect("marked", w.gone(digest), []string{"team/app:1.0", "team/app:latest", "team/app@" + digest})
		w.expect("references", w.references(digest), nil)
		w.expect("references of the other", w.references(other), []string{"team/app:2.0", "team/app:moved"})
		leads := func(tag string) []string {
			digests, _ := w.history("team/app", tag)
			return digests
		}
		w.expect("1.0 leads to", leads("1.0"), []string{"", digest})
		w.expect("latest leads to", leads("latest"), []string{"", digest})
		w.expect("moved leads to", leads("moved"), []string{other, digest})
		w.expect("2.0 leads to", leads("2.0"), []string{other})
		writes := w.images.Writes()
		w.do("delete team/app@" + digest)
		w.expect("writes of doing it again", w.images.Writes(), writes)
	})
	t.Run("repository", func(t *testing.T) {
		w := startWorker(t)
		a, b, other := w.push("team/app:1.0", "a"), w.push("team/app:2.0", "b"), w.push("team/app2:1.0", "c")
		for tag, digest := range map[string]string{"app:1.0": a, "app:2.0": b, "app2:1.0": other} {
			w.do("push team/" + tag + "@" + digest)
		}
		w.delete("team/app", "1.0")
		w.delete("team/app", a)
		w.do("delete team/app")
		w.expect("marked", w.gone(a), []string{"team/app:1.0", "team/app@" + a})
		w.expect("marked, though still there", w.gone(b), nil)
		w.expect("marked of another repository", w.gone(other), nil)
	})
	t.Run("never imported", func(t *testing.T) {
		w := startWorker(t)
		w.push("team/app:1.0", "a")
		w.do("delete team/app:2.0", "delete team/app:2.0@sha256:"+strings.Repeat("0", 64))
		w.expect("images", w.images.Names(), nil)
	})
	t.Run("registry away", func(t *testing.T) {
		w := startWorker(t)
		digest := w.push("team/app:1.0", "a")
		w.do("push team/app:1.0@" + digest)
		w.registry.Inject("manifests", 0, registrytest.Status(503, "UNAVAILABLE"))
		if e := w.try(1, "delete team/app:1.0"); e.How != "failed" || e.Failure.Permanent {
			t.Errorf("%s: %+v, want it to be tried again", e.How, e.Failure)
		}
		w.expect("marked", w.gone(digest), nil)
	})
}

// Gitea and Docker Hub delete a manifest with its tag, and tell of the tag alone: the digest is
// asked for, and with an index what it lists, unless another tag leads there.
func TestADeletedTagTakesItsManifestAlong(t *testing.T) {
	w := startWorker(t)
	index, err := sample.MultiPlatform(sample.Spec{Name: "index"}, false, "linux/amd64", "linux/arm64")
	if err != nil {
		t.Fatal(err)
	}
	listed, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	root := w.registry.PushIndex("team/app:1.0", index)
	kept, single := w.push("team/app:kept", "kept"), w.push("team/app:single", "single")
	w.push("team/app:also", "kept")
	for _, tag := range []string{"1.0", "kept", "also", "single"} {
		w.do("push team/app:" + tag)
	}
	if n := len(w.images.Names()); n != 5 {
		t.Fatalf("%d images are stored", n)
	}
	w.notices.take()

	w.delete("team/app", "1.0")
	w.delete("team/app", root)
	for _, child := range listed.Manifests {
		w.delete("team/app", child.Digest.String())
	}
	w.do("delete team/app:1.0")
	w.expect("marked", w.gone(root), []string{"team/app:1.0", "team/app@" + root})
	for _, child := range listed.Manifests {
		w.expect("marked of the index", w.gone(child.Digest.String()), []string{"team/app@" + child.Digest.String()})
	}

	w.delete("team/app", "also") // another tag leads there
	w.do("delete team/app:also")
	w.expect("marked, though another tag leads to it", w.gone(kept), []string{"team/app:also"})

	w.delete("team/app", "single") // the manifest stays
	w.do("delete team/app:single")
	w.expect("marked, though it is there", w.gone(single), []string{"team/app:single"})
	writes := w.images.Writes()
	w.do("delete team/app:1.0")
	w.expect("writes of doing it again", w.images.Writes(), writes)
}

// A sweep finds the same without a word from the registry.
func TestASweepFindsWhatATagTookAlong(t *testing.T) {
	w, o := prepareWorker(t)
	index, err := sample.MultiPlatform(sample.Spec{Name: "index"}, false, "linux/amd64", "linux/arm64")
	if err != nil {
		t.Fatal(err)
	}
	listed, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	root := w.registry.PushIndex("team/app:1.0", index)
	w.run(o)
	w.do("push team/app:1.0")
	w.push("team/app:kept", "kept")
	w.delete("team/app", "1.0")
	w.delete("team/app", root)
	for _, child := range listed.Manifests {
		w.delete("team/app", child.Digest.String())
	}
	o.Sweep.Repositories = []string{w.registry.Host + "/team/app"}
	sweeper, err := queue.New(o)
	if err != nil {
		t.Fatal(err)
	}
	sweeper.SweepOnce(t.Context())
	w.expect("marked", w.gone(root), []string{"team/app:1.0", "team/app@" + root})
	for _, child := range listed.Manifests {
		w.expect("marked of the index", w.gone(child.Digest.String()), []string{"team/app@" + child.Digest.String()})
	}
}

// A registry may delete what a tag has left.
func TestAMovedTagLeavesAManifestThatIsGone(t *testing.T) {
	w := startWorker(t)
	first := w.push("team/app:1.0", "a")
	w.do("push team/app:1.0")
	second := w.push("team/app:1.0", "b")
	w.do("push team/app:1.0@" + second)
	w.expect("marked, though it is there", w.gone(first), nil)
	w.push("team/app:1.0", "c")
	w.delete("team/app", second)
	w.do("push team/app:1.0")
	w.expect("marked after a move", w.gone(second), []string{"team/app@" + second})
}

// A registry that denies to HEAD what it gives to GET, as Nexus and other proxies do, has it,
// through each door that ends in a job or in a sweep: nothing is recorded as deleted or marked as
// gone.
func TestDeniedHeadsAtEachDoor(t *testing.T) {
	t.Parallel()
	for _, status := range []int{401, 403, 404, 405} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			streams, running := &fakeStreams{}, &fakeRunning{cluster: "prod"}
			w, o := prepareWorker(t)
			o.Streams, o.Running, o.Pods = streams, running, fakePods{}
			digest := w.push("team/app:1.0", "a")
			at := reference.Reference{Host: w.registry.Host, Repository: "team/app"}
			streams.scheduled, running.images = []reference.Reference{at.WithTag("1.0")}, []reference.Reference{at.WithTag("1.0"), w.running("team/app", digest)}
			w.run(o)
			w.do("push team/app:1.0@" + digest)
			w.notices.take()
			w.registry.Inject("HEAD ", 0, registrytest.Status(status, "MANIFEST_UNKNOWN"))
			stays := func(door string) {
				t.Helper()
				w.expect(door+": marked", w.gone(digest), nil)
				if got := w.references(digest); !slices.Contains(got, "team/app:1.0") {
					t.Errorf("%s: the image is known as %q", door, got)
				}
				if got := w.notices.messages(queue.NoticeGoneFromRegistry); len(got) > 0 {
					t.Errorf("%s: told %q", door, got)
				}
				if digests, cause := w.history("team/app", "1.0"); len(digests) != 1 || digests[0] != digest {
					t.Errorf("%s: the tag's history is %q, by %s", door, digests, cause)
				}
			}
			for _, event := range []string{"push team/app:1.0@" + digest, "push team/app:1.0", "push team/app@" + digest, "delete team/app:1.0", "delete team/app@" + digest} {
				w.do(event)
				stays("a webhook of " + event)
			}
			for _, event := range []string{"team/app:1.0", "team/app@" + digest} {
				if e := w.runs("cluster/prod", event, 6); e.How != "done" {
					t.Errorf("what runs, %s: %s: %+v", event, e.How, e.Failure)
				}
				stays("what runs, " + event)
			}
			if e := w.follows("1.0"); e.How != "done" {
				t.Errorf("a stream: %s: %+v", e.How, e.Failure)
			}
			if told := streams.take(); len(told) == 0 || slices.ContainsFunc(told, func(s string) bool { return s != "1.0 " }) {
				t.Errorf("streams are told %q", told)
			}
			stays("a stream")
			for door, swept := range map[string][]string{"a sweep of repositories": {w.registry.Host + "/team/app"}, "a sweep of streams and of what runs": nil} {
				o.Sweep.Repositories = swept
				sweeper, err := queue.New(o)
				if err != nil {
					t.Fatal(err)
				}
				sweeper.SweepOnce(t.Context())
				stays(door)
			}
		})
	}
}

// follows has a job of a stream's tag done.
func (w *workerTest) follows(tag string) ending {
	w.t.Helper()
	w.nextID++
	j := newJob(w.nextID, w.event("follow team/app:"+tag))
	j.Source = push.OfStreams
	w.queue.add(j)
	return w.queue.await(w.t)
}
