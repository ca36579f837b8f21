package bulk

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/hostlimit"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/record"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
	"github.com/tidewaiter/tidewaiter/signatures/find"
)

// patient has limits that leave all waiting for a registry to the batch.
var patient = pull.Limits{MaxWait: time.Second, Stall: 10_000 * time.Hour, Request: 10_000 * time.Hour, JobTime: 10_000 * time.Hour, Attempts: 1}

// batchRun is a run of a batch.
type batchRun struct {
	limits    pull.Limits
	jobs      []Job
	selection Selection
	// No time passes before goods references of the registry good have been imported. So a test fails
	// if they wait for another registry.
	good  *registrytest.Registry
	goods int
	clock *clocktesting.FakeClock
	// step, if not 0, makes time pass during requests, too.
	step   time.Duration
	finder importer.SignatureFinder // may be nil
	// refused, if not nil, is closed when the batch has printed that a registry refuses requests.
	refused chan struct{}
	images  importer.Images // nil means a DryRun
}

// run runs the batch and returns its output.
func (r batchRun) run(t *testing.T) (out, errOut string, report *report) {
	t.Helper()
	if r.clock == nil {
		r.clock = clocktesting.NewFakeClock(time.Now())
	}
	im, err := importer.New(importer.Options{Keychain: authn.NewMultiKeychain(), Limits: r.limits, Clock: r.clock, Signatures: r.finder})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(im.Close)
	if r.images == nil {
		r.images = &importer.DryRun{}
	}
	var stdout, stderr servertest.LogBuffer
	progress := NewProgress(noticer{&stderr, r.refused})
	report = NewReport("", "", &stdout, &stderr, progress)
	b := New(im, func() importer.Images { return r.images }, 4, &r.selection, report, progress)
	isGood := func() bool { return strings.Count(stdout.String(), r.good.Host) >= r.goods }
	b.clock, b.limiter = idleClock{r.clock, func() bool {
		if b.running == 0 && !isGood() {
			t.Errorf("the good references wait:\n%s%s", &stdout, &stderr)
		}
		return b.running == 0
	}}, hostlimit.New(8, 4, r.clock)
	ended := make(chan error)
	go func() { ended <- b.Run(t.Context(), r.jobs) }()
	var steps <-chan time.Time
	if r.step > 0 {
		ticker := time.NewTicker(time.Millisecond)
		defer ticker.Stop()
		steps = ticker.C
	}
	patience := time.After(5 * time.Minute)
	for {
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
			return stdout.String(), stderr.String(), report
		case <-steps:
			if isGood() && r.clock.HasWaiters() {
				r.clock.Step(r.step)
			}
		case <-patience:
			t.Fatalf("it does not end:\n%s%s", &stdout, &stderr)
		}
	}
}

// noticer closes refused when the first notice of a refusal is written.
type noticer struct {
	*servertest.LogBuffer
	refused chan struct{} // may be nil
}

// Write implements io.Writer. The batch prints from one goroutine.
func (n noticer) Write(p []byte) (int, error) {
	const notice = " refuses requests; "
	if n.refused != nil && strings.Contains(string(p), notice) && !strings.Contains(n.String(), notice) {
		close(n.refused)
	}
	return n.LogBuffer.Write(p)
}

// idleClock moves time to the batch's timer when the batch waits only for that.
type idleClock struct {
	*clocktesting.FakeClock
	isIdle func() bool
}

func (c idleClock) After(d time.Duration) <-chan time.Time {
	if !c.isIdle() {
		return nil // a job has to end first
	}
	c.Step(max(d, 0))
	passed := make(chan time.Time, 1)
	passed <- c.Now()
	return passed
}

// imports returns jobs that import references.
func imports(t *testing.T, references ...string) (jobs []Job) {
	t.Helper()
	for _, s := range references {
		ref, err := reference.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, Job{Ref: ref})
	}
	return jobs
}

func pushTags(t *testing.T, registry *registrytest.Registry, n int) (references []string) {
	t.Helper()
	image, err := sample.New(sample.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		registry.Push(fmt.Sprint("team/app:", i), image)
		references = append(references, fmt.Sprint(registry.Host, "/team/app:", i))
	}
	return references
}

// TestImportWaitsForRegistriesThatAskForIt: twenty references of a host that answers 429 wait and
// are imported later. They do not delay forty references of another host.
func TestImportWaitsForRegistriesThatAskForIt(t *testing.T) {
	t.Parallel()
	busy, good := registrytest.New(t), registrytest.New(t)
	references := append(pushTags(t, busy, 20), pushTags(t, good, 40)...)
	busy.Inject("HEAD ", 2, registrytest.Status(429, "TOOMANYREQUESTS", "Retry-After", "2"))
	out, errOut, r := batchRun{limits: patient, jobs: imports(t, references...), good: good, goods: 40}.run(t)
	if r.Done != 60 || r.Failed != 0 {
		t.Fatalf("%d done, %d failed:\n%s", r.Done, r.Failed, errOut)
	}
	if first := strings.Index(out, busy.Host); strings.Count(out[:first], good.Host) != 40 {
		t.Errorf("the references of the other host waited:\n%s", out)
	}
	if n := strings.Count(errOut, busy.Host+" asks for a pause of 2s; 20 references wait for it"); n == 0 || n > 2 {
		t.Errorf("the pause is not reported, or too often:\n%s", errOut)
	}
}

// TestAllTagsWhereHeadsAreDenied: if a registry refuses HEAD and answers GET, as Nexus and other
// proxies do, all tags of a list are imported, also the second time.
func TestAllTagsWhereHeadsAreDenied(t *testing.T) {
	t.Parallel()
	for _, status := range []int{401, 403, 404, 405} {
		registry, images := registrytest.New(t), &importer.DryRun{}
		pushTags(t, registry, 3)
		registry.Inject("HEAD ", 0, registrytest.Status(status, "MANIFEST_UNKNOWN"))
		list := Job{Kind: ListJob, Ref: reference.Reference{Host: registry.Host, Repository: "team/app"}}
		for range 2 {
			out, errOut, r := batchRun{limits: patient, jobs: []Job{list}, images: images, good: registry}.run(t)
			if r.Done != 3 || r.Failed != 0 || strings.Contains(out+errOut, "no longer has") {
				t.Errorf("%d: %d done, %d failed:\n%s%s", status, r.Done, r.Failed, out, errOut)
			}
		}
	}
}

// TestImportWaitsAnHour: a registry may repeatedly request a pause of an hour, with 429 or 503. A
// registry that requests a longer pause, or requests pauses for ever, is given up for all its
// references at once.
func TestImportWaitsAnHour(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name       string
		status     int
		retryAfter string
		times      int // 0 is for ever
		failed     int
		least, top time.Duration
	}{
		{"an hour, twice", 429, "3600", 2, 0, 2 * time.Hour, 2 * time.Hour},
		{"unavailable for ten minutes", 503, "600", 1, 0, 10 * time.Minute, 10 * time.Minute},
		{"two hours", 429, "7200", 0, 10, 0, 0},
		{"unavailable for two hours", 503, "7200", 0, 10, 0, 0},
		{"for ever", 429, "1800", 0, 10, maxBusy, maxBusy + time.Hour},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			busy, clock := registrytest.New(t), clocktesting.NewFakeClock(time.Now())
			began := clock.Now()
			references := pushTags(t, busy, 10)
			var header []string
			if tc.retryAfter != "" {
				header = []string{"Retry-After", tc.retryAfter}
			}
			busy.Inject("HEAD ", tc.times, registrytest.Status(tc.status, "TOOMANYREQUESTS", header...))
			_, errOut, r := batchRun{limits: patient, jobs: imports(t, references...), good: busy, clock: clock}.run(t)
			if took := clock.Since(began); r.Done != 10-tc.failed || r.Failed != tc.failed || took < tc.least || took > tc.top {
				t.Errorf("%d done, %d failed after %s:\n%s", r.Done, r.Failed, took, errOut)
			}
			if n := strings.Count(errOut, "not tried, since the registry "); tc.failed > 0 && n != tc.failed-1 {
				t.Errorf("%d were not tried:\n%s", n, errOut)
			}
		})
	}
}

// TestImportOutlivesARestartOfTheRegistry: when a registry restarts, all its running jobs break
// off. They count as one failure to answer, so the registry is not given up.
func TestImportOutlivesARestartOfTheRegistry(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name       string
		away       time.Duration
		done       int
		least, top time.Duration
	}{
		{"half a minute", 30 * time.Second, 40, 30 * time.Second, time.Minute},
		{"for good", 10_000 * time.Hour, 10, maxSilence, 3 * time.Minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			registry, clock := registrytest.New(t), clocktesting.NewFakeClock(time.Now())
			began := clock.Now()
			references := pushTags(t, registry, 40)
			var asked atomic.Int64
			registry.Inject("HEAD .*/manifests/", 0, func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					if asked.Add(1) > 10 && clock.Since(began) < tc.away {
						panic(http.ErrAbortHandler)
					}
					next.ServeHTTP(w, req)
				})
			})
			_, errOut, r := batchRun{limits: patient, jobs: imports(t, references...), good: registry, clock: clock}.run(t)
			if took := clock.Since(began); r.Done != tc.done || r.Failed != 40-tc.done || took < tc.least || took > tc.top {
				t.Errorf("%d done, %d failed after %s:\n%s", r.Done, r.Failed, took, errOut)
			}
			if !strings.Contains(errOut, registry.Host+" does not answer; it is tried again in 1s, and ") {
				t.Errorf("the notice is missing:\n%s", errOut)
			}
		})
	}
}

// TestImportGivesUpAReferenceThatIsNotAnswered: if a registry answers all references but one, only
// that one is given up.
func TestImportGivesUpAReferenceThatIsNotAnswered(t *testing.T) {
	t.Parallel()
	registry, clock := registrytest.New(t), clocktesting.NewFakeClock(time.Now())
	references := pushTags(t, registry, 20)
	registry.Inject("HEAD .*/manifests/7$", 0, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	})
	_, errOut, r := batchRun{limits: patient, jobs: imports(t, references...), good: registry, clock: clock}.run(t)
	if r.Done != 19 || r.Failed != 1 {
		t.Errorf("%d done, %d failed:\n%s", r.Done, r.Failed, errOut)
	}
}

// TestImportGivesUpARegistryThatDoesNotAnswer: a registry that never answers is tried three times,
// not once for each reference.
func TestImportGivesUpARegistryThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() }) // the kernel accepts connections, and nothing answers
	good := registrytest.New(t)
	var references []string
	for i := range 20 {
		references = append(references, fmt.Sprint(l.Addr(), "/app:", i))
	}
	references = append(references, pushTags(t, good, 40)...)
	_, errOut, r := batchRun{limits: pull.Limits{Attempts: 1}, jobs: imports(t, references...), good: good, goods: 40, step: 100 * time.Millisecond}.run(t)
	if r.Done != 40 || r.Failed != 20 {
		t.Errorf("%d done, %d failed", r.Done, r.Failed)
	}
	if n := strings.Count(errOut, "not tried, since the registry did not answer 3 times in a row"); n != 17 {
		t.Errorf("%d were not tried, want 17:\n%s", n, errOut)
	}
}

// TestImportGivesUpARegistryThatRefuses: a registry that refuses everything from the start, without
// a time to wait, is given up soon.
func TestImportGivesUpARegistryThatRefuses(t *testing.T) {
	t.Parallel()
	withTokens := registrytest.WithAuth(registrytest.Auth{Scheme: "bearer"})
	for _, tc := range []struct {
		name    string
		status  int
		match   string
		options []registrytest.Option
	}{
		{"429", 429, "HEAD ", nil},
		{"503", 503, "HEAD ", nil},
		{"429 to the greeting", 429, "", nil},
		{"503 to the greeting", 503, "", nil},
		{"429 from the token server", 429, "/token", []registrytest.Option{withTokens}},
		{"503 from the token server", 503, "/token", []registrytest.Option{withTokens}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			registry, good, clock := registrytest.New(t, tc.options...), registrytest.New(t), clocktesting.NewFakeClock(time.Now())
			began := clock.Now()
			references := append(pushTags(t, registry, 20), pushTags(t, good, 20)...)
			registry.Inject(tc.match, 0, registrytest.Status(tc.status, "TOOMANYREQUESTS"))
			_, errOut, r := batchRun{limits: patient, jobs: imports(t, references...), good: good, goods: 20, clock: clock}.run(t)
			if took := clock.Since(began); r.Done != 20 || r.Failed != 20 || took > 10*time.Second {
				t.Errorf("%d done, %d failed after %s:\n%s", r.Done, r.Failed, took, errOut)
			}
			if n := strings.Count(errOut, "not tried, since the registry refused 3 times in a row: "); n != 19 {
				t.Errorf("%d were not tried, want 19:\n%s", n, errOut)
			}
			if strings.Contains(errOut, "asks") || strings.Contains(errOut, "asked") || strings.Contains(errOut, "try again in") {
				t.Errorf("a pause was reported:\n%s", errOut)
			}
			if !strings.Contains(errOut, registry.Host+" refuses requests; it is tried again in 1s, and 20 references wait for it: ") {
				t.Errorf("the notice is missing:\n%s", errOut)
			}
		})
	}
}

// TestImportWaitsForARegistryThatCounts: a registry that answers first and then refuses has a rate
// limit. The import waits for it, even if it sends no time to wait.
func TestImportWaitsForARegistryThatCounts(t *testing.T) {
	t.Parallel()
	registry, clock := registrytest.New(t), clocktesting.NewFakeClock(time.Now())
	began := clock.Now()
	references := pushTags(t, registry, 40)
	var asked atomic.Int64
	registry.Inject("HEAD .*/manifests/", 0, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			answer := next
			if asked.Add(1) > 10 && clock.Since(began) < 2*time.Hour {
				answer = registrytest.Status(429, "TOOMANYREQUESTS")(next)
			}
			answer.ServeHTTP(w, req)
		})
	})
	_, errOut, r := batchRun{limits: patient, jobs: imports(t, references...), good: registry, clock: clock, step: 100 * time.Millisecond}.run(t)
	if took := clock.Since(began); r.Done != 40 || r.Failed != 0 || took < 2*time.Hour || took > 3*time.Hour {
		t.Errorf("%d done, %d failed after %s:\n%s", r.Done, r.Failed, took, errOut)
	}
	if strings.Contains(errOut, "asks") {
		t.Errorf("a pause was reported:\n%s", errOut)
	}
}

// TestARefusedReferenceKeepsNobodyWaiting: if a registry always refuses one reference and answers
// others, the reference is given up and delays no others.
func TestARefusedReferenceKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	for _, status := range []int{429, 503} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			registry, clock := registrytest.New(t), clocktesting.NewFakeClock(time.Now())
			began := clock.Now()
			references := pushTags(t, registry, 20)
			refused := make(chan struct{})
			registry.Inject("HEAD .*/manifests/7$", 0, registrytest.Status(status, "TOOMANYREQUESTS"))
			// Other references are imported only after the refusal. Their answers show that the registry has
			// no rate limit.
			registry.Inject("HEAD .*/manifests/(8|9|1.)$", 0, func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					<-refused
					next.ServeHTTP(w, req)
				})
			})
			_, errOut, r := batchRun{limits: patient, jobs: imports(t, references...), good: registry, clock: clock, refused: refused}.run(t)
			if took := clock.Since(began); r.Done != 19 || r.Failed != 1 || took > 3*time.Minute {
				t.Errorf("%d done, %d failed after %s:\n%s", r.Done, r.Failed, took, errOut)
			}
			if strings.Contains(errOut, "asks") || strings.Contains(errOut, "not tried") {
				t.Errorf("a pause was reported, or a reference was not tried:\n%s", errOut)
			}
		})
	}
}

// TestRefusedSignaturesKeepNobodyWaiting: if a registry refuses to show the signatures of one
// image, the import does not wait for hours. It stores the image and reports that its signatures
// could not be read.
func TestRefusedSignaturesKeepNobodyWaiting(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		status     int
		retryAfter string
		top        time.Duration
	}{
		{429, "", 10 * time.Second},
		{503, "", 10 * time.Second},
		{429, "60", 3 * time.Minute},
		{503, "60", 3 * time.Minute},
	} {
		for _, place := range []string{"/manifests/sha256-%s.sig$", "/manifests/sha256-%s.att$", "/referrers/sha256:%s", "/manifests/sha256-%s$"} {
			t.Run(fmt.Sprintf("%d %s "+place, tc.status, tc.retryAfter, "…"), func(t *testing.T) {
				t.Parallel()
				registry, clock := registrytest.New(t), clocktesting.NewFakeClock(time.Now())
				began := clock.Now()
				references := append(pushTags(t, registry, 10), registry.Host+"/team/app:refused")
				refused := registry.Push("team/app:refused", servertest.SampleImage(t, "refused"))
				if !strings.HasPrefix(place, "/referrers/") {
					// then the importer reads the tag that replaces referrers
					registry.Inject("/referrers/", 0, registrytest.Status(404, "NOT_FOUND"))
				}
				var header []string
				if tc.retryAfter != "" {
					header = []string{"Retry-After", tc.retryAfter}
				}
				registry.Inject(fmt.Sprintf(place, strings.TrimPrefix(refused, "sha256:")), 0, registrytest.Status(tc.status, "TOOMANYREQUESTS", header...))
				finder, err := find.New(find.Options{RegistriesDirs: []string{t.TempDir()}, Storage: t.TempDir()})
				if err != nil {
					t.Fatal(err)
				}
				images := &registrytest.Images{}
				_, errOut, r := batchRun{limits: patient, jobs: imports(t, references...), good: registry, clock: clock, finder: finder, images: images}.run(t)
				failed, reported := 1, "error: looking for signatures: "+registry.Host+"/team/app:refused: "
				if strings.HasPrefix(place, "/referrers/") {
					failed, reported = 0, "warning: "+registry.Host+"/team/app:refused: page 1 of the referrers cannot be read" // the signatures under tags were read
				}
				if took := clock.Since(began); r.Done != 11-failed || r.Failed != failed || took > tc.top {
					t.Errorf("%d done, %d failed after %s:\n%s", r.Done, r.Failed, took, errOut)
				}
				if !strings.Contains(errOut, reported) || strings.Contains(errOut, "not tried") {
					t.Errorf("the failure is not reported, or the reference was not tried:\n%s", errOut)
				}
				image, err := images.Get(t.Context(), refused, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range annotation.Found(image.Annotations) {
					if !strings.Contains(r.Unread, "TOOMANYREQUESTS") && !strings.Contains(r.Unread, "asked for a pause") {
						t.Errorf("its signatures are not unknown: %+v", r)
					}
				}
			})
		}
	}
}

// TestListsWaitForTheirOwnRegistry: a registry that requests a pause while it is listed delays
// neither the lists nor the imports of others.
func TestListsWaitForTheirOwnRegistry(t *testing.T) {
	t.Parallel()
	tags := func(r *registrytest.Registry) Job {
		return Job{Kind: ListJob, Ref: reference.Reference{Host: r.Host, Repository: "team/app"}}
	}
	catalog := func(r *registrytest.Registry) Job { return Job{Kind: ListJob, Ref: reference.Reference{Host: r.Host}} }
	for _, tc := range []struct {
		name      string
		list      func(*registrytest.Registry) Job
		busy      string
		selection Selection
		goods     int
	}{
		{"tags", tags, "/tags/list", Selection{}, 8},
		{"catalog", catalog, "_catalog", Selection{}, 8},
		{"dates", tags, "HEAD ", Selection{newest: 3}, 3},
		{"dates of a catalog", catalog, "HEAD ", Selection{newest: 3}, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			good := registrytest.New(t)
			pushTags(t, good, 8)
			var jobs []Job
			for range 6 {
				busy := registrytest.New(t)
				pushTags(t, busy, 8)
				busy.Inject(tc.busy, 1, registrytest.Status(429, "TOOMANYREQUESTS", "Retry-After", "900"))
				jobs = append(jobs, tc.list(busy))
			}
			jobs = append(jobs, tc.list(good))
			_, errOut, r := batchRun{limits: patient, jobs: jobs, selection: tc.selection, good: good, goods: tc.goods}.run(t)
			if r.Done != 7*tc.goods || r.Failed != 0 {
				t.Errorf("%d done, %d failed:\n%s", r.Done, r.Failed, errOut)
			}
		})
	}
}

// TestARegistryThatIsGivenUpWhileDatesAreRead: if a registry is given up while the dates of tags
// are read, each repository counts as one failure, and no tag is imported without the choice.
func TestARegistryThatIsGivenUpWhileDatesAreRead(t *testing.T) {
	t.Parallel()
	registry, good := registrytest.New(t), registrytest.New(t)
	pushTags(t, registry, 20)
	var asked atomic.Int64
	registry.Inject("HEAD .*/manifests/", 0, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if asked.Add(1) > 5 {
				panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(w, req)
		})
	})
	pushTags(t, good, 5)
	list := func(r *registrytest.Registry) Job {
		return Job{Kind: ListJob, Ref: reference.Reference{Host: r.Host, Repository: "team/app"}}
	}
	_, errOut, r := batchRun{limits: patient, jobs: []Job{list(registry), list(good)}, selection: Selection{newest: 3}, good: good, goods: 3}.run(t)
	if r.Done != 3 || r.Failed != 1 || strings.Count(errOut, "error: "+registry.Host+"/team/app") != 1 {
		t.Errorf("%d done, %d failed:\n%s", r.Done, r.Failed, errOut)
	}
}

// TestImportBeginsBeforeAllIsListed: images are imported while other repositories are listed.
func TestImportBeginsBeforeAllIsListed(t *testing.T) {
	t.Parallel()
	registry := registrytest.New(t)
	image := servertest.SampleImage(t, "")
	var jobs []Job
	for i := range 20 {
		registry.Push(fmt.Sprintf("team/app%d:1", i), image)
		jobs = append(jobs, Job{Kind: ListJob, Ref: reference.Reference{Host: registry.Host, Repository: fmt.Sprint("team/app", i)}})
	}
	// The last list is answered only after an image was requested.
	asked := make(chan struct{})
	var once sync.Once
	registry.Inject("team/app0/manifests/", 0, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			once.Do(func() { close(asked) })
			next.ServeHTTP(w, req)
		})
	})
	registry.Inject("team/app19/tags/list", 0, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			select {
			case <-asked:
				next.ServeHTTP(w, req)
			case <-req.Context().Done():
			}
		})
	})
	_, errOut, r := batchRun{limits: patient, jobs: jobs, good: registry, goods: 20}.run(t)
	if r.Done != 20 || r.Failed != 0 {
		t.Errorf("%d done, %d failed:\n%s", r.Done, r.Failed, errOut)
	}
}

// TestBatchReadsImagesAhead: a batch uses lists to read the images of waiting references.
func TestBatchReadsImagesAhead(t *testing.T) {
	t.Parallel()
	registry := registrytest.New(t)
	var jobs []Job
	for i := range 200 {
		image, err := sample.New(sample.Spec{Name: fmt.Sprint(i)})
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprint("team/app:", i)
		registry.Push(name, image)
		jobs = append(jobs, Job{Ref: reference.Reference{Host: registry.Host, Repository: "team/app", Tag: fmt.Sprint(i)}})
	}
	im, err := importer.New(importer.Options{Keychain: authn.NewMultiKeychain()})
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	images := &listedDigests{Images: &registrytest.Images{}}
	for range 2 {
		var stdout, stderr servertest.LogBuffer
		progress := NewProgress(&stderr)
		b := New(im, func() importer.Images { return images }, 4, &Selection{}, NewReport("", "", &stdout, &stderr, progress), progress)
		if err := b.Run(t.Context(), jobs); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(stdout.String(), registry.Host); n != 200 {
			t.Errorf("%d of 200 were imported:\n%s%s", n, &stdout, &stderr)
		}
	}
	// The batch skips a list if another one is running, so only one list is certain.
	if n := images.lists.Load(); n < 1 || n > 3 {
		t.Errorf("there were %d lists of images, want 1 to 3", n)
	}
	if n := len(images.Names()); n != 200 {
		t.Errorf("%d images are stored", n)
	}
}

// TestImportsThatAreRecordedLeaveTheirPlace: while the server records the results of imports, other
// imports take their slots. So many more images than jobs are recorded together.
func TestImportsThatAreRecordedLeaveTheirPlace(t *testing.T) {
	t.Parallel()
	registry := registrytest.New(t)
	var jobs []Job
	for i := range 1 + recordedTogether {
		image, err := sample.New(sample.Spec{Name: fmt.Sprint(i)})
		if err != nil {
			t.Fatal(err)
		}
		registry.Push(fmt.Sprint("team/app:", i), image)
		jobs = append(jobs, Job{Ref: reference.Reference{Host: registry.Host, Repository: "team/app", Tag: fmt.Sprint(i)}})
	}
	im, err := importer.New(importer.Options{Keychain: authn.NewMultiKeychain()})
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	images := (&APIRetry{Clock: clock.RealClock{}}).Images(&togetherRecorder{Images: &registrytest.Images{}, together: make(chan struct{})})
	var stdout, stderr servertest.LogBuffer
	progress := NewProgress(&stderr)
	b := New(im, func() importer.Images { return images }, 4, &Selection{}, NewReport("", "", &stdout, &stderr, progress), progress)
	if err := b.Run(ctx, jobs); err != nil {
		t.Errorf("%v\n%s%s", err, &stdout, &stderr)
	}
}

// recordedTogether is how many images a togetherRecorder waits for.
const recordedTogether = 20

// togetherRecorder records one image at once, and the others only when all of them wait.
type togetherRecorder struct {
	*registrytest.Images
	recorded atomic.Int64
	together chan struct{}
}

// Record implements importer.Recorder.
func (r *togetherRecorder) Record(ctx context.Context, item *record.Item) (*record.Result, error) {
	if item.Image != nil {
		switch r.recorded.Add(1) {
		case 1: // a registry that has not answered yet gets one job
			return &record.Result{Action: record.Created}, nil
		case 1 + recordedTogether:
			close(r.together)
		}
		select {
		case <-r.together:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return &record.Result{Action: record.Created}, nil
}

// listedDigests counts the lists by digests.
type listedDigests struct {
	*registrytest.Images
	lists atomic.Int64
}

func (l *listedDigests) List(ctx context.Context, o metav1.ListOptions) (*imagev1.ImageList, error) {
	if strings.HasPrefix(o.FieldSelector, selectors.Digest) {
		l.lists.Add(1)
	}
	return l.Images.List(ctx, o)
}
