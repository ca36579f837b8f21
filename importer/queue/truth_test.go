package queue_test

import (
	"crypto/sha512"
	"encoding/hex"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// history is what a tag of the test's registry led to, the newest first, and why that was written
// last.
func (w *workerTest) history(repository, tag string) (digests []string, cause string) {
	w.t.Helper()
	found, err := w.images.GetTag(w.t.Context(), tags.Name(reference.Reference{Host: w.registry.Host, Repository: repository, Tag: tag}), metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, item := range found.Status.Items {
		digests = append(digests, item.Image)
	}
	return digests, found.Annotations[tags.Cause]
}

// A push of a tag takes it off the image that it led to, a deletion off all; both are in its
// history.
func TestPushesMoveTags(t *testing.T) {
	t.Parallel()
	w := startWorker(t)
	a := w.push("team/app:1.0", "a")
	w.do("push team/app:1.0@" + a)
	b := w.push("team/app:1.0", "b")
	w.do("push team/app:1.0@" + b)
	w.expect("references of the old image", w.references(a), nil)
	w.expect("references of the new image", w.references(b), []string{"team/app:1.0"})
	// A late word of the first push moves nothing back.
	w.do("push team/app:1.0@" + a)
	digests, cause := w.history("team/app", "1.0")
	w.expect("history", append(digests, cause), []string{b, a, "webhook local"})
	w.delete("team/app", "1.0")
	w.do("delete team/app:1.0")
	w.expect("references after the deletion", w.references(b), nil)
	digests, _ = w.history("team/app", "1.0")
	w.expect("history after the deletion", digests, []string{"", b, a})
}

// Who pushed, by the registry's word, is in the history of the tag and in the Event; several are
// named, and not all of many.
func TestWhoPushedIsRecorded(t *testing.T) {
	t.Parallel()
	w := startWorker(t)
	pushedBy := func(wantCause, wantMessage string, actors ...string) {
		t.Helper()
		digest := w.push("team/app:1.0", wantCause)
		w.nextID++
		j := newJob(w.nextID)
		for _, actor := range actors {
			e := w.event("push team/app:1.0@" + digest)
			e.Actor = actor
			j.Events = append(j.Events, e)
		}
		j.Key = j.Events[0].Key()
		w.notices.take()
		w.queue.add(j)
		if e := w.queue.await(t); e.How != "done" {
			t.Fatalf("%s: %+v", e.How, e.Failure)
		}
		digests, cause := w.history("team/app", "1.0")
		if digests[0] != digest || cause != wantCause {
			t.Errorf("the history says %q of %s, want %q of %s", cause, digests[0], wantCause, digest)
		}
		if got := w.notices.messages("PushReceived"); len(got) != 1 || got[0] != "The registry says that "+j.Key+" was pushed"+wantMessage {
			t.Errorf("Events say %q, want %q", got, wantMessage)
		}
	}
	pushedBy("webhook local, by ann", " by ann", "ann")
	pushedBy("webhook local, by ann, robot$ci", " by ann, robot$ci", "ann", "", "robot$ci", "ann")
	pushedBy("webhook local, by a, b, c, others", " by a, b, c, others", "a", "b", "c", "d", "e")
	pushedBy("webhook local", "", "")
}

// A registry may name by SHA-512 what it answers to by SHA-256: the tag is tried, and nothing is
// stored twice.
func TestPushOfATagWithASHA512Digest(t *testing.T) {
	t.Parallel()
	w := startWorker(t)
	image := newImage(t, sample.Spec{Name: "a"})
	digest := w.registry.Push("team/app:1.0", image)
	raw, err := image.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha512.Sum512(raw)
	w.do("push team/app:1.0@sha512:" + hex.EncodeToString(sum[:]))
	w.expect("images", w.images.Names(), []string{digest})
	// One that the registry does not have is not a reason to give up, either.
	w.do("push team/app:1.0@sha512:" + strings.Repeat("ab", 64))
	w.expect("images", w.images.Names(), []string{digest})
}

// What was pushed and deleted before it could be imported is gone, and no job that somebody has to
// look after.
func TestPushThatIsGoneIsNoDeadJob(t *testing.T) {
	t.Parallel()
	w := startWorker(t)
	lost := "sha256:" + strings.Repeat("1", 64)
	for _, event := range []string{"push team/app:1.0@" + lost, "push team/app@" + lost, "push team/app:1.0"} {
		if e := w.try(1, event); e.How != "failed" || e.Failure.Permanent {
			t.Errorf("%s, at first: %s: %+v", event, e.How, e.Failure)
		}
		w.notices.take()
		if e := w.try(6, event); e.How != "done" {
			t.Errorf("%s, at last: %s: %+v", event, e.How, e.Failure)
		}
		if got := w.notices.take(); len(got) != 1 || !strings.HasPrefix(got[0], "GoneFromRegistry ") {
			t.Errorf("%s: told is %v", event, got)
		}
	}
	// What is there and cannot be had is not gone.
	digest := w.push("team/app:1.0", "a")
	w.registry.Inject("GET .*/blobs/", 0, registrytest.Status(http.StatusNotFound, "BLOB_UNKNOWN"))
	if e := w.try(6, "push team/app:1.0@"+digest); e.How != "failed" || !e.Failure.Permanent {
		t.Errorf("without its blobs: %s: %+v", e.How, e.Failure)
	}
}

// What a script says was pushed, and the registry never had, stays for somebody to look after.
func TestPushOfAScriptThatIsNotThereIsADeadJob(t *testing.T) {
	t.Parallel()
	w, o := prepareWorker(t)
	o.Config = config{o.Importer(), []push.Source{push.OfWebhook("local")}}
	w.run(o)
	lost := "sha256:" + strings.Repeat("1", 64)
	for _, event := range []string{"push team/app:1.0@" + lost, "push team/app@" + lost, "push team/ap:1.0"} {
		if e := w.try(5, event); e.How != "failed" || e.Failure.Permanent {
			t.Errorf("%s, at first: %s: %+v", event, e.How, e.Failure)
		}
		w.notices.take()
		e := w.try(6, event)
		if e.How != "failed" || !e.Failure.Permanent {
			t.Errorf("%s, at last: %s: %+v", event, e.How, e.Failure)
		}
		if got := w.notices.take(); len(got) != 1 || !strings.HasPrefix(got[0], "ImportFailed ") {
			t.Errorf("%s: told is %v", event, got)
		}
	}
}

// The log has a line for a registry that is away and one when it is back, however many jobs meet
// it. (The spool logs which jobs are given up.)
func TestLogOfWhatSomebodyMustActOn(t *testing.T) {
	t.Parallel()
	w, o := prepareWorker(t)
	var log lockedLog
	o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	w.run(o)
	digest := w.push("team/app:1.0", "a")
	w.registry.Inject("", 0, registrytest.Status(http.StatusServiceUnavailable, "UNAVAILABLE"))
	for range 2 {
		if e := w.try(1, "push team/app:1.0@"+digest); e.How == "done" {
			t.Fatal("it was imported")
		}
	}
	w.registry.Heal()
	eventually(t, "the import", func() bool { return w.try(1, "push team/app:1.0@"+digest).How == "done" })
	text := log.String()
	if away, back := strings.Count(text, "A registry does not answer"), strings.Count(text, "A registry answers again"); away != 1 || back != 1 {
		t.Errorf("away %d times, back %d times: %s", away, back, text)
	}
}

// lockedLog is a log that goroutines write.
type lockedLog struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A sweep takes moved tags off old images, and has the history say so.
func TestSweepMovesTags(t *testing.T) {
	t.Parallel()
	w, o := prepareWorker(t)
	a := w.push("team/app:1.0", "a")
	mustImport(t, o.Importer(), w, "team/app:1.0")
	b := w.push("team/app:1.0", "b")
	o.Sweep.Repositories = []string{w.registry.Host + "/team/app"}
	w.run(o)
	eventually(t, "the sweep", func() bool {
		digests, cause := w.history("team/app", "1.0")
		return len(digests) == 2 && digests[0] == b && digests[1] == a && cause == "sweep"
	})
	eventually(t, "the reference to leave", func() bool { return len(w.references(a)) == 0 })
}

func mustImport(t *testing.T, im *importer.Importer, w *workerTest, ref string) {
	t.Helper()
	parsed, err := reference.Parse(w.registry.Host + "/" + ref)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := im.Import(t.Context(), parsed, w.images); err != nil {
		t.Fatal(err)
	}
}
