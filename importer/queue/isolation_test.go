package queue_test

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/queue"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures/find"
)

// hanging are hosts that accept connections and never answer.
func hanging(t testing.TB, n int) (hosts []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return // the test has ended
				}
				defer c.Close()
			}
		}()
		hosts = append(hosts, l.Addr().String())
	}
	return hosts
}

// Sixteen events of a registry that accepted and never answered held up the pushes of
// another for four minutes. These never end at all.
func TestRegistriesThatHangHoldUpNobody(t *testing.T) {
	w, o := prepareWorker(t)
	o.Config = always(newImporter(t, importer.Options{Limits: pull.Limits{Stall: time.Hour, Request: time.Hour, JobTime: time.Hour}}))
	o.Grace = time.Millisecond // they do not end by themselves
	for _, host := range hanging(t, 10) {
		for i := range 100 {
			w.nextID++
			w.queue.add(newJob(w.nextID, push.Event{Action: push.Pushed, Host: host, Repository: "app", Tag: fmt.Sprint(i)}))
		}
	}
	w.run(o)
	for i := range 50 {
		reference := fmt.Sprint("team/app:", i)
		w.push(reference, reference)
		if e := w.try(1, "push "+reference); e.How != "done" || e.Job.Host() != w.registry.Host {
			t.Fatalf("%s: %s: %+v", e.Job.Key, e.How, e.Failure)
		}
	}
	w.queue.mu.Lock()
	defer w.queue.mu.Unlock()
	of := map[string]int{}
	for _, j := range w.queue.leased {
		of[j.Host()]++
	}
	for host, n := range of {
		if n > 1 {
			t.Errorf("%d jobs of %s are leased", n, host)
		}
	}
}

// Nor does a registry that was never asked wait for sixty others that hang.
func TestRegistriesThatHangHoldUpNoNewOne(t *testing.T) {
	w, o := prepareWorker(t)
	o.Config = always(newImporter(t, importer.Options{Limits: pull.Limits{Stall: time.Hour, Request: time.Hour, JobTime: time.Hour}}))
	o.Grace = time.Millisecond
	hosts := hanging(t, 60)
	for _, host := range hosts {
		for i := range 2 {
			w.nextID++
			w.queue.add(newJob(w.nextID, push.Event{Action: push.Pushed, Host: host, Repository: "app", Tag: fmt.Sprint(i)}))
		}
	}
	w.run(o)
	w.queue.awaitLeased(t, len(hosts))
	w.push("team/app:v1", "new")
	if e := w.try(1, "push team/app:v1"); e.How != "done" || e.Job.Host() != w.registry.Host {
		t.Fatalf("%s: %s: %+v", e.Job.Key, e.How, e.Failure)
	}
}

// Registries that answered well until they hang leave slots, too.
func TestRegistriesThatBeginToHangHoldUpNobody(t *testing.T) {
	w, o := prepareWorker(t)
	o.Config = always(newImporter(t, importer.Options{Limits: pull.Limits{Stall: time.Hour, Request: time.Hour, JobTime: time.Hour}}))
	o.Grace = time.Millisecond
	w.run(o)
	image := w.push("team/app:first", "first")
	w.do("push team/app:first@" + image)
	for n := range 10 {
		other := registrytest.New(t)
		other.Push("app:v1", newImage(t, sampleOf(fmt.Sprint(n))))
		job := func(tag string) *push.Job {
			w.nextID++
			return newJob(w.nextID, push.Event{Action: push.Pushed, Host: other.Host, Repository: "app", Tag: tag})
		}
		w.queue.add(job("v1"))
		if e := w.queue.await(t); e.How != "done" {
			t.Fatalf("%s: %+v", e.How, e.Failure)
		}
		other.Inject(".", 0, registrytest.StallHeaders())
		for i := range 100 {
			w.queue.add(job(fmt.Sprint(i)))
		}
	}
	for i := range 50 {
		reference := fmt.Sprint("team/app:", i)
		w.push(reference, reference)
		if e := w.try(1, "push "+reference); e.How != "done" || e.Job.Host() != w.registry.Host {
			t.Fatalf("%s: %s: %+v", e.Job.Key, e.How, e.Failure)
		}
	}
}

// A registry that asks to be left alone is asked once, however many jobs wait for it.
func TestJobsOfAPausedRegistryWait(t *testing.T) {
	w := startWorker(t)
	w.registry.Inject("manifests", 0, registrytest.Status(429, "TOOMANYREQUESTS", "Retry-After", "3600"))
	for i := range 20 {
		w.start(1, fmt.Sprint("push team/app:", i))
	}
	if e := w.queue.await(t); e.How != "failed" || e.Failure.After < 59*time.Minute {
		t.Errorf("%s: %+v", e.How, e.Failure)
	}
	other := registrytest.New(t)
	other.Push("app:v1", newImage(t, sampleOf("other")))
	w.nextID++
	w.queue.add(newJob(w.nextID, push.Event{Action: push.Pushed, Host: other.Host, Repository: "app", Tag: "v1"}))
	if e := w.queue.await(t); e.How != "done" || e.Job.Host() != other.Host {
		t.Errorf("%s: %+v", e.How, e.Job)
	}
	if n := w.registry.Count("manifests"); n != 1 {
		t.Errorf("it was asked %d times", n)
	}
	w.queue.mu.Lock()
	defer w.queue.mu.Unlock()
	if n := len(w.queue.waiting); n != 19 {
		t.Errorf("%d jobs wait, want 19", n)
	}
}

// A registry that refuses to show the signatures of one image, as with a rate limit for tags that
// do not exist, has the image stored with the reason, and the search tried again. Other pushes to
// it are not held up, unless it asks for that.
func TestRefusedSignaturesHoldUpNobody(t *testing.T) {
	for _, tc := range []struct {
		status     int
		retryAfter string
		after      time.Duration
	}{
		{429, "", 0}, {503, "", 0}, {429, "3600", time.Hour}, {503, "3600", time.Hour},
	} {
		t.Run(fmt.Sprint(tc.status, " ", tc.retryAfter), func(t *testing.T) {
			w, o := prepareWorker(t)
			finder, err := find.New(find.Options{RegistriesDirs: []string{t.TempDir()}, Storage: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			o.Config = always(newImporter(t, importer.Options{Signatures: finder, Limits: pull.Limits{Attempts: 1, MaxWait: time.Millisecond}}))
			streams := &fakeStreams{}
			// a registry that is left alone is so for ever
			o.Streams, o.Clock = streams, clocktesting.NewFakeClock(time.Now())
			w.run(o)
			digest := w.push("team/app:refused", "refused")
			hex := strings.TrimPrefix(digest, "sha256:")
			var header []string
			if tc.retryAfter != "" {
				header = []string{"Retry-After", tc.retryAfter}
			}
			w.registry.Inject(hex+".sig$", 0, registrytest.Status(tc.status, "TOOMANYREQUESTS", header...))
			if e := w.try(1, "push team/app:refused@"+digest); e.How != "failed" || e.Failure.Permanent || e.Failure.After != tc.after {
				t.Fatalf("%s: %+v", e.How, e.Failure)
			}
			for name, found := range annotation.Found(w.image(digest).Annotations) {
				if !strings.Contains(found.Unread, "TOOMANYREQUESTS") {
					t.Errorf("what was found in %s: %+v", name, found)
				}
			}
			w.expect("notices", w.notices.take(), []string{"PushReceived " + digest, "Imported " + digest, "ImportFailed " + digest})
			if tc.after == time.Hour {
				return
			}
			for i := range 5 {
				name := fmt.Sprint("team/app:", i)
				w.push(name, name)
				w.do("push " + name)
			}
			// A stream that follows the image has it, and the search goes on.
			w.nextID++
			j := newJob(w.nextID, w.event("push team/app:refused"))
			j.Source = push.OfStreams
			w.queue.add(j)
			if e := w.queue.await(t); e.How != "failed" || e.Failure.Permanent {
				t.Errorf("%s: %+v", e.How, e.Failure)
			}
			w.expect("streams", streams.take(), []string{"refused "})
			w.registry.Heal()
			w.do("push team/app:refused@" + digest)
			for name, found := range annotation.Found(w.image(digest).Annotations) {
				if found.Unread != "" {
					t.Errorf("what was found in %s once it answers: %+v", name, found)
				}
			}
		})
	}
}

// A registry that was away is probed by the push that it tells of, and once it has answered others;
// people can have it asked at once.
func TestARegistryThatIsBackIsAskedSoon(t *testing.T) {
	for name, sign := range map[string]func(w *workerTest, worker *queue.Worker, im *importer.Importer){
		"a notification": func(w *workerTest, worker *queue.Worker, _ *importer.Importer) { worker.Sign(w.registry.Host) },
		"an answer": func(w *workerTest, _ *queue.Worker, im *importer.Importer) {
			ref, err := reference.Parse(w.registry.Host + "/team/app:v1")
			if err != nil {
				w.t.Fatal(err)
			}
			if _, err := im.Import(w.t.Context(), ref, &registrytest.Images{}); err != nil {
				w.t.Fatal(err)
			}
		},
		"a person":            func(w *workerTest, worker *queue.Worker, _ *importer.Importer) { worker.EndPauses(w.registry.Host) },
		"a person, about all": func(_ *workerTest, worker *queue.Worker, _ *importer.Importer) { worker.EndPauses("") },
	} {
		t.Run(name, func(t *testing.T) {
			w, o := prepareWorker(t)
			clock := clocktesting.NewFakeClock(time.Now())
			im := newImporter(t, importer.Options{Limits: pull.Limits{Attempts: 1}, Clock: clock})
			o.Config, o.Clock = always(im), clock
			w.push("team/app:v1", "a")
			worker := w.run(o)
			w.registry.Inject(".", 0, registrytest.Status(429, "TOOMANYREQUESTS"))
			for range 8 { // the back-off grows to minutes
				if e := w.try(1, "push team/app:v1"); e.How != "failed" {
					t.Fatalf("%s: %+v", e.How, e.Failure)
				}
				if until := worker.PausedUntil(w.registry.Host); until.IsZero() {
					t.Fatal("the registry is not backed off from")
				} else if until.Sub(clock.Now()) > time.Minute {
					break
				} else {
					clock.SetTime(until)
				}
			}
			w.registry.Heal()
			clock.Step(time.Second)
			sign(w, worker, im)
			if e := w.try(1, "push team/app:v1"); e.How != "done" {
				t.Fatalf("%s: %+v", e.How, e.Failure)
			}
			if until := worker.PausedUntil(w.registry.Host); !until.IsZero() {
				t.Errorf("it is left alone until %s", until)
			}
		})
	}
}

// A registry that hung is asked at once when there is a sign that it is back, beside the job that
// still hangs; that one is given back, and what failed before is tried.
func TestARegistryThatHungIsAskedSoon(t *testing.T) {
	w, o := prepareWorker(t)
	clock := clocktesting.NewFakeClock(time.Now())
	o.Config, o.Clock, o.Lease = always(newImporter(t, importer.Options{Limits: pull.Limits{Attempts: 1}, Clock: clock})), clock, 1000*time.Hour
	worker := w.run(o)
	w.push("team/app:v3", "c")
	asked := make(chan bool)
	w.registry.Inject(".", 0, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
			select {
			case asked <- true:
			case <-req.Context().Done():
			}
			<-req.Context().Done()
		})
	})
	hang := func(tag string) {
		w.start(1, "push team/app:"+tag)
		<-asked
	}
	next := func() ending {
		var e ending
		eventually(t, "a job that ends", func() bool {
			clock.Step(100 * time.Millisecond) // its timer may not have begun yet
			select {
			case e = <-w.queue.ended:
				return true
			default:
				return false
			}
		})
		return e
	}
	hang("v1")
	if e := next(); e.How != "failed" {
		t.Fatalf("%s: %+v", e.How, e.Failure)
	}
	if until := worker.PausedUntil(w.registry.Host); until.After(clock.Now()) {
		clock.SetTime(until)
	}
	hang("v2")
	w.registry.Heal()
	clock.Step(time.Millisecond)
	worker.Sign(w.registry.Host)
	w.start(1, "push team/app:v3")
	if e := next(); e.How != "done" || e.Job.Events[0].Tag != "v3" {
		t.Fatalf("the job after the sign: %s: %s: %+v", e.Job.Key, e.How, e.Failure)
	}
	hurried := func() bool {
		w.queue.mu.Lock()
		defer w.queue.mu.Unlock()
		return slices.Contains(w.queue.hurried, w.registry.Host)
	}
	eventually(t, "the jobs that failed being tried", hurried)
	if e := next(); e.How != "released" || e.Job.Events[0].Tag != "v2" {
		t.Errorf("the job that hung: %s: %s: %+v", e.Job.Key, e.How, e.Failure)
	}
	if until := worker.PausedUntil(w.registry.Host); !until.IsZero() {
		t.Errorf("the registry is left alone until %s", until)
	}
}

// A referrers API that fails for a moment has the image stored with what tags hold, and what it
// would list is looked for soon: nothing says that the image has no other signature.
func TestReferrersThatFailForAMomentAreAskedAgain(t *testing.T) {
	for _, status := range []int{401, 429, 500, 503} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			w, o := prepareWorker(t)
			finder, err := find.New(find.Options{RegistriesDirs: []string{t.TempDir()}, Storage: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			o.Config = always(newImporter(t, importer.Options{Signatures: finder, Limits: pull.Limits{Attempts: 1, MaxWait: time.Millisecond}}))
			w.run(o)
			digest := w.push("team/app:v1", "v1")
			w.registry.Inject("/referrers/", 0, registrytest.Status(status, "TOOMANYREQUESTS"))
			if e := w.try(1, "push team/app:v1@"+digest); e.How != "failed" || e.Failure.Permanent || !strings.Contains(e.Failure.Error, "looking for signatures") {
				t.Fatalf("%s: %+v", e.How, e.Failure)
			}
			for name, found := range annotation.Found(w.image(digest).Annotations) {
				if !strings.Contains(found.Unread, "referrers cannot be read: status "+fmt.Sprint(status)) {
					t.Errorf("what was found in %s: %+v", name, found)
				}
			}
			w.registry.Heal()
			w.do("push team/app:v1@" + digest)
			for name, found := range annotation.Found(w.image(digest).Annotations) {
				if found.Unread != "" {
					t.Errorf("afterwards, what was found in %s: %+v", name, found)
				}
			}
		})
	}
}
