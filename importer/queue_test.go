package importer_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2"
	clocktesting "k8s.io/utils/clock/testing"

	"tidewaiter/importer"
	"tidewaiter/importer/registrytest"
	"tidewaiter/importer/registrytest/sample"
)

// memoryQueue is a Queue of what a test puts in. Failed jobs are not tried again
// by themselves.
type memoryQueue struct {
	mu      sync.Mutex
	waiting []importer.Job
	leased  map[int64]importer.Job
	ended   chan ending // one for each job that ended, in any way
	wake    chan struct{}
	renewed map[int64]int
	lost    bool // leases cannot be renewed
	claims  int
}

type ending struct {
	Job     importer.Job
	How     string // done, failed or released
	Failure importer.JobFailure
}

func newQueue(jobs ...importer.Job) *memoryQueue {
	q := &memoryQueue{leased: map[int64]importer.Job{}, renewed: map[int64]int{}, ended: make(chan ending, 100), wake: make(chan struct{}, 100)}
	q.add(jobs...)
	return q
}

func (q *memoryQueue) add(jobs ...importer.Job) {
	q.mu.Lock()
	q.waiting = append(q.waiting, jobs...)
	q.mu.Unlock()
	q.wake <- struct{}{}
}

func (q *memoryQueue) Claim(ctx context.Context, n int, _ time.Duration) ([]importer.Job, error) {
	for {
		q.mu.Lock()
		n := min(n, len(q.waiting))
		jobs := slices.Clone(q.waiting[:n])
		q.waiting = q.waiting[n:]
		for _, j := range jobs {
			q.leased[j.ID] = j
		}
		q.claims++
		q.mu.Unlock()
		if n > 0 {
			return jobs, nil
		}
		select {
		case <-q.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (q *memoryQueue) Renew(_ context.Context, j importer.Job, _ time.Duration) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.renewed[j.ID]++
	if q.lost {
		return errors.New("lease lost")
	}
	return nil
}

func (q *memoryQueue) end(j importer.Job, how string, f importer.JobFailure) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, ok := q.leased[j.ID]; !ok {
		return errors.New("not leased")
	}
	delete(q.leased, j.ID)
	q.ended <- ending{j, how, f}
	return nil
}

func (q *memoryQueue) Done(_ context.Context, j importer.Job) error {
	return q.end(j, "done", importer.JobFailure{})
}

func (q *memoryQueue) Fail(_ context.Context, j importer.Job, f importer.JobFailure) error {
	return q.end(j, "failed", f)
}

func (q *memoryQueue) Release(_ context.Context, j importer.Job) error {
	return q.end(j, "released", importer.JobFailure{})
}

func (q *memoryQueue) Depth(context.Context) (map[string]importer.QueueDepth, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return map[string]importer.QueueDepth{"local": {Waiting: int64(len(q.waiting)), Leased: int64(len(q.leased)), Dead: 7, Oldest: time.Now().Add(-time.Minute)}}, nil
}

// await returns the next job that ends.
func (q *memoryQueue) await(t *testing.T) ending {
	t.Helper()
	select {
	case e := <-q.ended:
		return e
	case <-time.After(30 * time.Second):
		t.Fatal("no job ends")
	}
	return ending{}
}

// notices records what a Worker tells.
type notices struct {
	mu  sync.Mutex
	all []importer.Notice
}

func (n *notices) Notify(_ context.Context, notice importer.Notice) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, notice)
}

func (n *notices) take() (out []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, notice := range n.all {
		out = append(out, notice.Reason+" "+notice.Image)
	}
	n.all = nil
	return out
}

// listed adds List to registrytest.Images, in pages of one.
type listed struct{ *registrytest.Images }

func (l listed) List(ctx context.Context, o metav1.ListOptions) (*imagev1.ImageList, error) {
	names := l.Names()
	i := 0
	if o.Continue != "" {
		i, _ = slices.BinarySearch(names, o.Continue)
	}
	list := &imagev1.ImageList{}
	if i < len(names) {
		image, err := l.Get(ctx, names[i], metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		list.Items = append(list.Items, *image)
	}
	if i+1 < len(names) {
		list.Continue = names[i+1]
	}
	return list, nil
}

// workerTest is a worker with a registry.
type workerTest struct {
	t        *testing.T
	registry *registrytest.Registry
	images   *registrytest.Images
	finder   *tagFinder
	notices  *notices
	queue    *memoryQueue
	nextID   int64
}

// startWorker runs a Worker until the test ends.
func startWorker(t *testing.T, change ...func(*importer.WorkerOptions)) *workerTest {
	t.Helper()
	w := &workerTest{t: t, registry: registrytest.New(t), images: &registrytest.Images{}, finder: &tagFinder{}, notices: &notices{}, queue: newQueue()}
	o := importer.WorkerOptions{
		Importer: newImporter(t, importer.Options{Signatures: w.finder, Limits: importer.Limits{Attempts: 1}}),
		Images:   w.images, Queue: w.queue, Settle: 64 * time.Millisecond, Finder: importer.ListFinder{Images: listed{w.images}}, Notifier: w.notices,
	}
	for _, c := range change {
		c(&o)
	}
	worker, err := importer.NewWorker(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logr.Discard()))
	done := make(chan error, 1)
	go func() { done <- worker.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return w
}

// hint is "push repository[:tag][@digest]" or "delete …", of the test's registry.
func (w *workerTest) hint(s string) importer.Hint {
	action, ref, _ := strings.Cut(s, " ")
	ref, digest, _ := strings.Cut(ref, "@")
	repository, tag, _ := strings.Cut(ref, ":")
	return importer.Hint{Action: action, Host: w.registry.Host, Repository: repository, Tag: tag, Digest: digest}
}

func (w *workerTest) start(attempt int, hints ...string) {
	w.nextID++
	j := importer.Job{ID: w.nextID, Receiver: "local", Received: time.Now(), Latest: time.Now(), Attempt: attempt}
	for _, s := range hints {
		j.Hints = append(j.Hints, w.hint(s))
	}
	w.queue.add(j)
}

// do has a job done and fails the test if it is not.
func (w *workerTest) do(hints ...string) {
	w.t.Helper()
	if e := w.try(1, hints...); e.How != "done" {
		w.t.Fatalf("%v: %s: %+v", hints, e.How, e.Failure)
	}
}

func (w *workerTest) try(attempt int, hints ...string) ending {
	w.t.Helper()
	w.start(attempt, hints...)
	return w.queue.await(w.t)
}

// delete deletes a tag or digest in the registry.
func (w *workerTest) delete(repository, identifier string) {
	w.t.Helper()
	req, err := http.NewRequest(http.MethodDelete, w.registry.URL+"/v2/"+repository+"/manifests/"+identifier, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		w.t.Fatalf("deleting %s of %s: %s", identifier, repository, resp.Status)
	}
}

func (w *workerTest) image(digest string) *imagev1.Image {
	w.t.Helper()
	image, err := w.images.Get(context.Background(), digest, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return image
}

// references are an Image's, without the host.
func (w *workerTest) references(digest string) (out []string) {
	w.t.Helper()
	for _, s := range importer.References(w.image(digest)) {
		out = append(out, strings.TrimPrefix(s, w.registry.Host+"/"))
	}
	return out
}

// gone are the references of an Image that are marked, without the host.
func (w *workerTest) gone(digest string) (out []string) {
	w.t.Helper()
	for s, at := range importer.Gone(w.image(digest)) {
		if _, err := time.Parse(time.RFC3339, at); err != nil {
			w.t.Errorf("the mark's time: %v", err)
		}
		out = append(out, strings.TrimPrefix(s, w.registry.Host+"/"))
	}
	slices.Sort(out)
	return out
}

func (w *workerTest) expect(what string, got, want []string) {
	w.t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func (w *workerTest) push(reference, content string) string {
	w.t.Helper()
	return w.registry.Push(reference, newImage(w.t, sample.Spec{Name: content}))
}

func TestWorkerImportsAPush(t *testing.T) {
	w := startWorker(t)
	digest := w.push("team/app:1.0", "a")
	w.do("push team/app:1.0@" + digest)
	w.expect("images", w.images.Names(), []string{digest})
	w.expect("references", w.references(digest), []string{"team/app:1.0"})
	w.expect("notices", w.notices.take(), []string{"PushReceived " + digest, "Imported " + digest})
	w.expect("writes", w.images.Writes(), []string{"create " + digest})

	// The same again changes nothing.
	w.do("push team/app:1.0@" + digest)
	w.expect("writes", w.images.Writes(), []string{"create " + digest})
}

func TestWorkerImportsATagWithoutADigest(t *testing.T) {
	w := startWorker(t)
	digest := w.push("team/app:1.0", "a")
	w.do("push team/app:1.0")
	w.expect("images", w.images.Names(), []string{digest})
	w.expect("notices", w.notices.take(), []string{"PushReceived " + digest, "Imported " + digest})
}

// TestWorkerAsksWhereTheTagPoints gets hints late and out of order.
func TestWorkerAsksWhereTheTagPoints(t *testing.T) {
	w := startWorker(t)
	a := w.push("team/app:1.0", "a")
	b := w.push("team/app:1.0", "b")
	w.do("push team/app:1.0@"+b, "push team/app:1.0@"+a)
	w.expect("images", w.images.Names(), sorted([]string{a, b}))
	w.expect("references of what the tag points to", w.references(b), []string{"team/app:1.0"})
	w.expect("references of what it pointed to", w.references(a), []string{"team/app@" + a})

	// What was pushed is gone by the time we look; the tag is elsewhere.
	c := w.push("team/app:1.0", "c")
	w.delete("team/app", c)
	d := w.push("team/app:1.0", "d")
	w.do("push team/app:1.0@" + c)
	w.expect("images", w.images.Names(), sorted([]string{a, b, d}))
}

// TestWorkerIsToldTooEarly gets the hint before the registry has written the tag,
// as distribution sends it: the first time the tag is missing, then it leads to
// what was there before.
func TestWorkerIsToldTooEarly(t *testing.T) {
	t.Run("no tag yet", func(t *testing.T) {
		w := startWorker(t)
		digest := w.push("team/app:1.0", "a")
		w.registry.Inject("HEAD .*/manifests/1.0$", 2, registrytest.Status(404, "MANIFEST_UNKNOWN"))
		w.do("push team/app:1.0@" + digest)
		w.expect("references", w.references(digest), []string{"team/app@" + digest, "team/app:1.0"})
		w.expect("notices", w.notices.take(), []string{"PushReceived " + digest, "Imported " + digest, "Imported " + digest})
	})
	t.Run("the tag of before", func(t *testing.T) {
		w := startWorker(t)
		before := w.push("team/app:1.0", "a")
		w.do("push team/app:1.0@" + before)
		after := w.push("team/app:2.0", "b") // in the registry, and not under its tag
		looks := 0
		w.registry.Inject("HEAD .*/manifests/1.0$", 0, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
				if looks++; looks == 3 {
					w.push("team/app:1.0", "b")
				}
				next.ServeHTTP(rw, req)
			})
		})
		w.do("push team/app:1.0@" + after)
		if got := w.references(after); !slices.Contains(got, "team/app:1.0") {
			t.Errorf("references: %v, want the tag among them", got)
		}
	})
	t.Run("a signature", func(t *testing.T) {
		w := startWorker(t)
		digest := w.push("team/app:1.0", "a")
		w.do("push team/app:1.0@" + digest)
		artifact, tag, looks := newArtifact(t), strings.Replace(digest, ":", "-", 1)+".sig", 0
		signature := w.registry.Push("team/app:other", artifact)
		w.registry.Inject("HEAD .*/manifests/"+tag+"$", 0, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
				if looks++; looks == 3 {
					w.registry.Push("team/app:"+tag, artifact)
				}
				next.ServeHTTP(rw, req)
			})
		})
		w.do("push team/app:" + tag + "@" + signature)
		if n := len(w.image(digest).Signatures); n != 1 {
			t.Errorf("%d signatures, want 1", n)
		}
	})
	t.Run("a deletion", func(t *testing.T) {
		w := startWorker(t)
		digest := w.push("team/app:1.0", "a")
		w.do("push team/app:1.0@" + digest)
		looks := 0
		w.registry.Inject("HEAD .*/manifests/1.0$", 0, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
				if looks++; looks == 3 {
					w.delete("team/app", "1.0")
				}
				next.ServeHTTP(rw, req)
			})
		})
		w.do("delete team/app:1.0")
		w.expect("marked", w.gone(digest), []string{"team/app:1.0"})
	})
}

func TestWorkerImportsAnIndex(t *testing.T) {
	w := startWorker(t)
	index := newIndex(t, sample.Spec{}, true, "linux/amd64", "linux/arm64")
	digest := w.registry.PushIndex("team/app:1.0", index)
	m, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	// As distribution tells of it: the children by digest, then the index.
	for _, child := range m.Manifests {
		w.do("push team/app@" + child.Digest.String())
	}
	w.do("push team/app:1.0@" + digest)
	if got := w.images.Names(); len(got) != 3 || !slices.Contains(got, digest) {
		t.Errorf("images: %v, want the index and two platforms", got)
	}
}

// TestWorkerSeesSignaturesThatComeLater signs after the image was imported, in
// each of the ways to attach a signature.
func TestWorkerSeesSignaturesThatComeLater(t *testing.T) {
	for _, suffix := range []string{".sig", ".att", ""} {
		t.Run("tag"+suffix, func(t *testing.T) {
			w := startWorker(t)
			digest := w.push("team/app:1.0", "a")
			w.do("push team/app:1.0@" + digest)
			if n := len(w.image(digest).Signatures); n != 0 {
				t.Fatalf("%d signatures before there are any", n)
			}
			w.notices.take()
			tag := strings.Replace(digest, ":", "-", 1)
			artifact := newArtifact(t)
			signature := w.registry.Push("team/app:"+tag+suffix, artifact)
			w.registry.Push("team/app:"+tag+".sig", artifact) // where the test's finder looks
			w.do("push team/app:" + tag + suffix + "@" + signature)
			if n := len(w.image(digest).Signatures); n != 1 {
				t.Errorf("%d signatures, want 1", n)
			}
			w.expect("images", w.images.Names(), []string{digest})
			w.expect("notices", w.notices.take(), []string{"Imported " + digest})
		})
	}
	t.Run("subject", func(t *testing.T) {
		w := startWorker(t)
		image := newImage(t, sample.Spec{Name: "a"})
		digest := w.registry.Push("team/app:1.0", image)
		w.do("push team/app:1.0@" + digest)
		w.registry.Push("team/app:"+strings.Replace(digest, ":", "-", 1)+".sig", newArtifact(t))
		subject, err := partialDescriptor(image)
		if err != nil {
			t.Fatal(err)
		}
		signature := w.registry.Push("team/app:any", mutate.Subject(newArtifact(t), subject).(v1.Image))
		w.do("push team/app@" + signature)
		if n := len(w.image(digest).Signatures); n != 1 {
			t.Errorf("%d signatures, want 1", n)
		}
		w.expect("images", w.images.Names(), []string{digest})
	})
	t.Run("before the image", func(t *testing.T) {
		w := startWorker(t)
		tag := "sha256-" + strings.Repeat("ab", 32) + ".sig"
		signature := w.registry.Push("team/app:"+tag, newArtifact(t))
		w.do("push team/app:" + tag + "@" + signature)
		w.expect("images", w.images.Names(), nil)
	})
	t.Run("an artifact of nothing", func(t *testing.T) {
		w := startWorker(t)
		chart := w.registry.Push("team/chart:1.0", newArtifact(t))
		w.do("push team/chart:1.0@" + chart)
		w.expect("images", w.images.Names(), nil)
		if n := w.registry.Count("manifests"); n != 3 {
			t.Errorf("%d requests, want a HEAD and two GETs: %v", n, requests(w.registry))
		}
	})
}

func newArtifact(t *testing.T) v1.Image {
	t.Helper()
	artifact, err := sample.Artifact("application/vnd.example.signature", []byte("signature"))
	if err != nil {
		t.Fatal(err)
	}
	return artifact
}

func partialDescriptor(image v1.Image) (v1.Descriptor, error) {
	digest, err := image.Digest()
	if err != nil {
		return v1.Descriptor{}, err
	}
	mediaType, err := image.MediaType()
	if err != nil {
		return v1.Descriptor{}, err
	}
	size, err := image.Size()
	return v1.Descriptor{MediaType: mediaType, Digest: digest, Size: size}, err
}

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
		if _, ok := w.image(digest).Annotations[importer.GoneAnnotation]; ok {
			t.Error("an empty mark is left")
		}
	})
	t.Run("tag and digest", func(t *testing.T) {
		w := startWorker(t, func(o *importer.WorkerOptions) { o.Finder = nil })
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

func TestWorkerFailures(t *testing.T) {
	missing := "push team/app@sha256:" + strings.Repeat("ab", 32)
	tests := map[string]struct {
		fault         registrytest.Fault
		hint          string
		first, sixth  bool // permanent at that attempt
		after         time.Duration
		mustMention   string
		reasonOfEvent string
	}{
		"unavailable":  {registrytest.Status(503, "UNAVAILABLE"), "push team/app:1.0", false, false, 0, "unavailable", "ImportFailed "},
		"rate limited": {registrytest.Status(429, "TOOMANYREQUESTS", "Retry-After", "3600"), "push team/app:1.0", false, false, 3590 * time.Second, "rate limited", "ImportFailed "},
		"denied":       {registrytest.Status(403, "DENIED"), "push team/app:1.0", false, true, 0, "denied", "ImportFailed "},
		"not there":    {nil, missing, false, true, 0, "not found", "ImportFailed sha256:" + strings.Repeat("ab", 32)},
		"no manifest":  {nil, "push team/bad:1", true, true, 0, "invalid image", "ImportFailed "},
	}
	notAManifest := []byte(`{"schemaVersion":2}`)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := startWorker(t)
			w.push("team/app:1.0", "a")
			w.registry.PushManifest("team/bad:1", "application/vnd.oci.image.manifest.v1+json", fmt.Sprintf("sha256:%x", sha256.Sum256(notAManifest)), notAManifest)
			if test.fault != nil {
				w.registry.Inject("manifests", 0, test.fault)
			}
			for attempt, permanent := range map[int]bool{1: test.first, 6: test.sixth} {
				e := w.try(attempt, test.hint)
				if e.How != "failed" || e.Failure.Permanent != permanent || e.Failure.After < test.after || !strings.Contains(e.Failure.Error, test.mustMention) {
					t.Errorf("attempt %d: %s: %+v", attempt, e.How, e.Failure)
				}
				if got := w.notices.take(); !slices.Contains(got, test.reasonOfEvent) {
					t.Errorf("attempt %d: notices %v", attempt, got)
				}
			}
			w.registry.Heal()
		})
	}
	t.Run("the API refuses the image", func(t *testing.T) {
		refusing := refusingImages{&registrytest.Images{}}
		w := startWorker(t, func(o *importer.WorkerOptions) { o.Images = refusing })
		w.push("team/app:1.0", "a")
		if e := w.try(1, "push team/app:1.0"); e.How != "failed" || !e.Failure.Permanent {
			t.Errorf("%s: %+v, want it never to be tried again", e.How, e.Failure)
		}
	})
	t.Run("a tag without a trace", func(t *testing.T) {
		w := startWorker(t)
		digest := w.push("team/app:1.0", "a")
		w.delete("team/app", "1.0")
		if e := w.try(1, "push team/app:1.0@"+digest); e.How != "failed" || e.Failure.Permanent {
			t.Errorf("%s: %+v, want it to be tried again", e.How, e.Failure)
		}
		w.expect("images", w.images.Names(), []string{digest})
		if e := w.try(6, "push team/app:1.0@"+digest); e.How != "done" {
			t.Errorf("%s: %+v, want it done", e.How, e.Failure)
		}
	})
	t.Run("signatures cannot be read", func(t *testing.T) {
		w := startWorker(t)
		w.finder.fail = errors.New("the registry went away")
		digest := w.push("team/app:1.0", "a")
		if e := w.try(1, "push team/app:1.0@"+digest); e.How != "failed" || e.Failure.Permanent {
			t.Errorf("%s: %+v, want it to be tried again", e.How, e.Failure)
		}
		w.expect("images", w.images.Names(), []string{digest})
	})
}

type refusingImages struct{ *registrytest.Images }

func (refusingImages) Create(_ context.Context, image *imagev1.Image, _ metav1.CreateOptions) (*imagev1.Image, error) {
	return nil, apierrors.NewInvalid(schema.GroupKind{Group: imagev1.GroupName, Kind: "Image"}, image.Name, nil)
}

func TestWorkerSurvivesAPanic(t *testing.T) {
	w := startWorker(t, func(o *importer.WorkerOptions) { o.Images = panickingImages{&registrytest.Images{}} })
	w.push("team/app:1.0", "a")
	if e := w.try(1, "push team/app:1.0"); e.How != "failed" || !e.Failure.Permanent || !strings.Contains(e.Failure.Error, "panicked") {
		t.Errorf("%s: %+v", e.How, e.Failure)
	}
}

type panickingImages struct{ *registrytest.Images }

func (panickingImages) Get(context.Context, string, metav1.GetOptions) (*imagev1.Image, error) {
	panic("at once")
}

// blockingImages stops every job in Get until released.
type blockingImages struct {
	*registrytest.Images
	entered chan struct{}
	release chan struct{}
}

func (b blockingImages) Get(ctx context.Context, name string, o metav1.GetOptions) (*imagev1.Image, error) {
	b.entered <- struct{}{}
	select {
	case <-b.release:
		return b.Images.Get(ctx, name, o)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func newBlockingImages() blockingImages {
	return blockingImages{&registrytest.Images{}, make(chan struct{}, 100), make(chan struct{})}
}

func TestWorkerConcurrency(t *testing.T) {
	images := newBlockingImages()
	w := startWorker(t, func(o *importer.WorkerOptions) { o.Images = images; o.Concurrency = 3 })
	for i := range 8 {
		w.push(fmt.Sprint("team/app:", i), fmt.Sprint(i))
		w.start(1, fmt.Sprint("push team/app:", i))
	}
	for range 3 {
		<-images.entered
	}
	w.queue.mu.Lock()
	leased := len(w.queue.leased)
	w.queue.mu.Unlock()
	if leased != 3 {
		t.Errorf("%d jobs are leased, want 3", leased)
	}
	close(images.release)
	for range 8 {
		if e := w.queue.await(t); e.How != "done" {
			t.Errorf("%s: %+v", e.How, e.Failure)
		}
	}
}

// TestWorkerStops gives back what does not end in the time of grace.
func TestWorkerStops(t *testing.T) {
	images := newBlockingImages()
	registry := registrytest.New(t)
	registry.Push("team/app:1.0", newImage(t, sample.Spec{}))
	queue := newQueue(importer.Job{ID: 1, Receiver: "local", Attempt: 1, Hints: []importer.Hint{{Action: "push", Host: registry.Host, Repository: "team/app", Tag: "1.0"}}})
	clock := clocktesting.NewFakeClock(time.Now())
	worker, err := importer.NewWorker(importer.WorkerOptions{
		Importer: newImporter(t, importer.Options{}), Images: images, Queue: queue, Clock: clock, Lease: time.Hour, Grace: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- worker.Run(ctx) }()
	<-images.entered
	before := clock.Waiters() // tickers
	cancel()
	for deadline := time.Now().Add(20 * time.Second); clock.Waiters() < before && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	select {
	case e := <-queue.ended:
		t.Fatalf("ended before its grace: %+v", e)
	case err := <-done:
		t.Fatalf("Run ended with a job running: %v", err)
	default:
	}
	for {
		clock.Step(time.Minute)
		select {
		case e := <-queue.ended:
			if e.How != "released" {
				t.Errorf("%s: %+v, want it released", e.How, e.Failure)
			}
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
			return
		case <-time.After(10 * time.Millisecond): // the clock is read once Run waits for it
		}
	}
}

// TestWorkerKeepsItsLease renews while a job runs, and stops the job when it
// cannot: somebody else will have it.
func TestWorkerKeepsItsLease(t *testing.T) {
	images, registry := newBlockingImages(), metrics.NewKubeRegistry()
	w := startWorker(t, func(o *importer.WorkerOptions) {
		o.Images, o.Lease, o.RegisterMetrics = images, 30*time.Millisecond, registry.MustRegister
	})
	w.push("team/app:1.0", "a")
	w.start(1, "push team/app:1.0")
	<-images.entered
	eventually(t, "three renewals", func() bool {
		w.queue.mu.Lock()
		defer w.queue.mu.Unlock()
		return w.queue.renewed[1] >= 3
	})
	w.queue.mu.Lock()
	w.queue.lost = true
	w.queue.mu.Unlock()
	want := `
# HELP tidewaiter_queue_attempts_total [ALPHA] Attempts at a job by receiver and result (done, failed, dead, released, lost).
# TYPE tidewaiter_queue_attempts_total counter
tidewaiter_queue_attempts_total{receiver="local",result="lost"} 1
`
	eventually(t, "the job to be left", func() bool {
		return testutil.GatherAndCompare(registry, strings.NewReader(want), "tidewaiter_queue_attempts_total") == nil
	})
	if len(w.queue.ended) != 0 {
		t.Errorf("a job of somebody else was ended: %+v", <-w.queue.ended)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited for %s in vain", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestWorkerMetrics(t *testing.T) {
	registry := metrics.NewKubeRegistry()
	w := startWorker(t, func(o *importer.WorkerOptions) { o.RegisterMetrics = registry.MustRegister })
	digest := w.push("team/app:1.0", "a")
	w.do("push team/app:1.0@" + digest)
	want := `
# HELP tidewaiter_queue_attempts_total [ALPHA] Attempts at a job by receiver and result (done, failed, dead, released, lost).
# TYPE tidewaiter_queue_attempts_total counter
tidewaiter_queue_attempts_total{receiver="local",result="done"} 1
`
	eventually(t, "the metrics of the job", func() bool {
		return testutil.GatherAndCompare(registry, strings.NewReader(want), "tidewaiter_queue_attempts_total") == nil
	})
	h, err := testutil.GetHistogramVecFromGatherer(registry, "tidewaiter_queue_push_to_image_seconds", map[string]string{"receiver": "local"})
	if err != nil || h.GetAggregatedSampleCount() != 1 {
		t.Errorf("push to image: %v, %v", h, err)
	}
	want = `
# HELP tidewaiter_queue_jobs [ALPHA] Jobs in the import queue by receiver and state (waiting, leased, dead).
# TYPE tidewaiter_queue_jobs gauge
tidewaiter_queue_jobs{receiver="local",state="dead"} 7
tidewaiter_queue_jobs{receiver="local",state="leased"} 0
tidewaiter_queue_jobs{receiver="local",state="waiting"} 0
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "tidewaiter_queue_jobs"); err != nil {
		t.Error(err)
	}
}

func TestHintCoding(t *testing.T) {
	digest := "sha256:" + strings.Repeat("ab", 32)
	good := []importer.Hint{
		{Action: "push", Host: "r.example.com", Repository: "team/app", Tag: "1.0", Digest: digest},
		{Action: "delete", Host: "127.0.0.1:5000", Repository: "app"},
		{Action: "push", Host: "index.docker.io", Repository: "library/busybox", Tag: "latest"},
	}
	for _, h := range good {
		got, err := importer.DecodeHint(h.Encode())
		if err != nil || got != h {
			t.Errorf("%+v came back as %+v, %v", h, got, err)
		}
	}
	for name, s := range map[string]string{
		"not JSON":        `x`,
		"no action":       `{"host":"r.example.com","repository":"a","tag":"1"}`,
		"push of nothing": `{"action":"push","host":"r.example.com","repository":"a"}`,
		"no host":         `{"action":"push","repository":"a/b","tag":"1"}`,
		"not canonical":   `{"action":"push","host":"docker.io","repository":"busybox","tag":"1"}`,
		"bad tag":         `{"action":"push","host":"r.example.com","repository":"a","tag":"a/b"}`,
		"bad digest":      `{"action":"push","host":"r.example.com","repository":"a","digest":"sha256:ab"}`,
		"climbing":        `{"action":"push","host":"r.example.com","repository":"../a","tag":"1"}`,
	} {
		if h, err := importer.DecodeHint([]byte(s)); err == nil {
			t.Errorf("%s: %s was read as %+v", name, s, h)
		}
	}
}

// FuzzDecodeHint says that what is read is written back the same, and names what
// an import takes.
func FuzzDecodeHint(f *testing.F) {
	f.Add([]byte(`{"action":"push","host":"r.example.com","repository":"team/app","tag":"1.0","digest":"sha256:` + strings.Repeat("ab", 32) + `"}`))
	f.Add([]byte(`{"action":"delete","host":"index.docker.io","repository":"library/busybox"}`))
	f.Add([]byte(`{"action":"push","host":"r.example.com:5000","repository":"..","tag":":"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := importer.DecodeHint(b)
		if err != nil {
			return
		}
		var again importer.Hint
		if err := json.Unmarshal(h.Encode(), &again); err != nil || again != h {
			t.Fatalf("%+v is written as %s", h, h.Encode())
		}
		if _, err := importer.ParseReference(h.Key()); err != nil {
			t.Errorf("key %q: %v", h.Key(), err)
		}
	})
}
