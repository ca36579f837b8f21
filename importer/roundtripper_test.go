package importer_test

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
)

// skippingClock does not wait: a timer fires at once and takes the time with
// it. Functions that are to run later run in real time.
type skippingClock struct {
	clock.RealClock
	mu    sync.Mutex
	ahead time.Duration
	waits []time.Duration
}

func (c *skippingClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.ahead)
}

func (c *skippingClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

func (c *skippingClock) NewTimer(d time.Duration) clock.Timer {
	c.advance(d)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waits = append(c.waits, d)
	return c.RealClock.NewTimer(0)
}

func (c *skippingClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
}

func (c *skippingClock) waited() []time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.waits)
}

func hangUp(http.Handler) http.Handler {
	return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
}

func TestRetries(t *testing.T) {
	const get = "GET .*/manifests/"
	for _, tc := range []struct {
		name   string
		times  int
		fault  registrytest.Fault
		want   pull.Reason
		made   int
		waited [][2]time.Duration // from, below
	}{
		{"500 twice", 2, registrytest.Status(500, "UNKNOWN"), "", 3, [][2]time.Duration{{250 * time.Millisecond, 750 * time.Millisecond}, {500 * time.Millisecond, 1500 * time.Millisecond}}},
		{"500 always", 0, registrytest.Status(500, "UNKNOWN"), pull.Unavailable, 3, [][2]time.Duration{{250 * time.Millisecond, 750 * time.Millisecond}, {500 * time.Millisecond, 1500 * time.Millisecond}}},
		{"503 with Retry-After", 1, registrytest.Status(503, "UNAVAILABLE", "Retry-After", "7"), "", 2, [][2]time.Duration{{7 * time.Second, 7*time.Second + 1}}},
		{"429 with Retry-After", 1, registrytest.Status(429, "TOOMANYREQUESTS", "Retry-After", "5"), "", 2, [][2]time.Duration{{5 * time.Second, 5*time.Second + 1}}},
		{"429 with a date", 1, comeBackIn(15 * time.Second), "", 2, [][2]time.Duration{{1, 15*time.Second + 1}}},
		{"429 with nonsense", 1, registrytest.Status(429, "TOOMANYREQUESTS", "Retry-After", "soon"), "", 2, [][2]time.Duration{{250 * time.Millisecond, 750 * time.Millisecond}}},
		{"429 with a past", 1, registrytest.Status(429, "TOOMANYREQUESTS", "Retry-After", "-5"), "", 2, nil},
		{"429 for too long", 1, registrytest.Status(429, "TOOMANYREQUESTS", "Retry-After", "21"), pull.RateLimited, 1, nil},
		{"429 for more than can be counted", 1, registrytest.Status(429, "TOOMANYREQUESTS", "Retry-After", "99999999999999999999"), pull.RateLimited, 1, nil},
		{"429 for ever", 1, registrytest.Status(429, "TOOMANYREQUESTS", "Retry-After", "9223372036854775807"), pull.RateLimited, 1, nil},
		// The first is on a connection used before, which net/http retries itself.
		{"connection breaks", 2, hangUp, "", 3, [][2]time.Duration{{250 * time.Millisecond, 750 * time.Millisecond}}},
		{"502 four times", 4, registrytest.Status(502, "UNKNOWN"), "", 5, [][2]time.Duration{{250 * time.Millisecond, 750 * time.Millisecond}, {500 * time.Millisecond, 1500 * time.Millisecond}, {time.Second, 3 * time.Second}, {2 * time.Second, 6 * time.Second}}},
		{"429, the quota comes back at a point in time", 1, quotaIn(15 * time.Second), "", 2, [][2]time.Duration{{1, 15*time.Second + 1}}},
		{"429, the quota comes back at a point in milliseconds", 1, quotaInMillis(15 * time.Second), "", 2, [][2]time.Duration{{1, 15*time.Second + 1}}},
		{"429 with Retry-After beside a point in time", 1, quotaIn(time.Hour, "Retry-After", "3"), "", 2, [][2]time.Duration{{3 * time.Second, 3*time.Second + 1}}},
		{"404", 1, registrytest.Status(404, "MANIFEST_UNKNOWN"), pull.NotFound, 1, nil},
		{"403", 1, registrytest.Status(403, "DENIED"), pull.Denied, 1, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			registry := registrytest.New(t)
			registry.Push("app:v1", newImage(t, sample.Spec{}))
			registry.Inject(get, tc.times, tc.fault)
			skipping := &skippingClock{}
			_, err := newImporter(t, importer.Options{Clock: skipping}).Import(t.Context(), parse(t, registry.Host+"/app:v1"), &registrytest.Images{})
			if tc.want == "" && err != nil {
				t.Fatal(err)
			} else if tc.want != "" {
				wantReason(t, err, tc.want)
			}
			if made := registry.Count(get); made != tc.made {
				t.Errorf("%d requests, want %d", made, tc.made)
			}
			waited := skipping.waited()
			if len(waited) != len(tc.waited) {
				t.Fatalf("waited %v, want %v", waited, tc.waited)
			}
			for i, w := range waited {
				if w < tc.waited[i][0] || w >= tc.waited[i][1] {
					t.Errorf("wait %d was %s, want it within %v", i, w, tc.waited[i])
				}
			}
		})
	}
}

// quotaIn refuses a request as GitLab does: the quota is back at a point in time that far ahead.
func quotaIn(d time.Duration, also ...string) registrytest.Fault {
	return quotaAt(func() int64 { return time.Now().Add(d).Unix() }, also...)
}

func quotaInMillis(d time.Duration) registrytest.Fault {
	return quotaAt(func() int64 { return time.Now().Add(d).UnixMilli() })
}

func quotaAt(at func() int64, also ...string) registrytest.Fault {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			headers := append([]string{"RateLimit-Remaining", "0", "RateLimit-Reset", strconv.FormatInt(at(), 10)}, also...)
			registrytest.Status(429, "TOOMANYREQUESTS", headers...)(next).ServeHTTP(w, r)
		})
	}
}

// A proxy whose registry is away costs no more attempts than a registry that fails.
func TestAGatewayWithoutARegistryIsNotAskedMoreOften(t *testing.T) {
	const get = "manifests"
	registry := registrytest.New(t)
	registry.Push("app:v1", newImage(t, sample.Spec{}))
	registry.Inject(get, 0, registrytest.Status(502, "UNKNOWN"))
	im := newImporter(t, importer.Options{Clock: &skippingClock{}})
	for n := 0; ; n++ {
		registry.Reset()
		_, err := im.Import(t.Context(), parse(t, registry.Host+"/app:v1"), &registrytest.Images{})
		wantReason(t, err, pull.Unavailable)
		if registry.Count(get) == 3 {
			break
		}
		if n == 20 {
			t.Fatalf("it is asked %d times for one manifest", registry.Count(get))
		}
	}
}

// comeBackIn refuses a request until a date that far ahead.
func comeBackIn(d time.Duration) registrytest.Fault {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			date := time.Now().Add(d).UTC().Format(http.TimeFormat)
			registrytest.Status(429, "TOOMANYREQUESTS", "Retry-After", date)(next).ServeHTTP(w, r)
		})
	}
}

// Nobody asked for a pause: the error says none, and other requests of the host go on.
func TestARefusalWithoutATimePausesNobody(t *testing.T) {
	for status, code := range map[int]string{429: "TOOMANYREQUESTS", 503: "UNAVAILABLE"} {
		reason := map[int]pull.Reason{429: pull.RateLimited, 503: pull.Unavailable}[status]
		registry := registrytest.New(t)
		registry.Push("app:v1", newImage(t, sample.Spec{}))
		registry.Inject("/refused$", 0, registrytest.Status(status, code))
		skipping := &skippingClock{}
		im := newImporter(t, importer.Options{Clock: skipping})
		_, err := im.Import(t.Context(), parse(t, registry.Host+"/app:refused"), &registrytest.Images{})
		if e := wantReason(t, err, reason); !e.Refused || e.RetryAfter != 0 || strings.Contains(e.Error(), "try again in") {
			t.Errorf("%d: %v: refused is %t, again after %s", status, e, e.Refused, e.RetryAfter)
		}
		waits := len(skipping.waited())
		mustImport(t, im, registry.Host+"/app:v1", &registrytest.Images{})
		if n := len(skipping.waited()); n != waits {
			t.Errorf("%d: another request waited: %v", status, skipping.waited()[waits:])
		}
	}
}

// A refusal by a token server names it.
func TestARefusalByTheTokenServer(t *testing.T) {
	elsewhere := registrytest.New(t)
	elsewhere.Inject("/token", 0, registrytest.Status(429, "TOOMANYREQUESTS"))
	registry := registrytest.New(t, registrytest.WithAuth(registrytest.Auth{Scheme: "bearer", Realm: elsewhere.AliasURL() + "/token"}))
	named := strings.TrimPrefix(elsewhere.AliasURL(), "http://")
	im := newImporter(t, importer.Options{Clock: &skippingClock{}, Registries: []pull.Registry{{Prefix: registry.Host, TokenHosts: []string{named}}}})
	_, err := im.Import(t.Context(), parse(t, registry.Host+"/app:v1"), &registrytest.Images{})
	if e := wantReason(t, err, pull.RateLimited); !e.Refused || e.RetryAfter != 0 || !strings.Contains(e.Message, named+", to which the registry redirected: ") {
		t.Errorf("%v: refused is %t, again after %s", e, e.Refused, e.RetryAfter)
	}
}

func TestBackoffIsJittered(t *testing.T) {
	registry := registrytest.New(t)
	registry.Push("app:v1", newImage(t, sample.Spec{}))
	seen := map[time.Duration]bool{}
	for range 5 {
		registry.Inject("/manifests/", 1, registrytest.Status(500, "UNKNOWN"))
		skipping := &skippingClock{}
		mustImport(t, newImporter(t, importer.Options{Clock: skipping}), registry.Host+"/app:v1", &registrytest.Images{})
		seen[skipping.waited()[0]] = true
	}
	if len(seen) < 2 {
		t.Errorf("five clients all wait %v", seen)
	}
}

func TestPausedHostIsWaitedForIfNotForLong(t *testing.T) {
	registry := registrytest.New(t)
	registry.Push("app:v1", newImage(t, sample.Spec{}))
	registry.Inject("/manifests/", 1, registrytest.Status(429, "TOOMANYREQUESTS", "Retry-After", "3600"))
	skipping := &skippingClock{}
	im := newImporter(t, importer.Options{Clock: skipping, Limits: pull.Limits{MaxWait: 10 * time.Minute}})
	_, err := im.Import(t.Context(), parse(t, registry.Host+"/app:v1"), &registrytest.Images{})
	wantReason(t, err, pull.RateLimited)
	skipping.advance(50 * time.Minute)
	mustImport(t, im, registry.Host+"/app:v1", &registrytest.Images{})
	if w := skipping.waited(); len(w) != 1 || w[0] <= 0 || w[0] > 10*time.Minute {
		t.Errorf("waited %v, want what is left of 10 minutes", w)
	}
}

func TestGreetingAndCredentialsAreRecycled(t *testing.T) {
	registry := registrytest.New(t, registrytest.WithAuth(with("bearer", nil)))
	registry.Push("app:v1", newImage(t, sample.Spec{}))
	skipping, images := &skippingClock{}, &registrytest.Images{}
	im := newImporter(t, importer.Options{Clock: skipping, Keychain: secret})
	for i, want := range []int{6, 1, 3, 1} { // greeting, token, HEAD, GET, GET, GET
		if i == 2 {
			skipping.advance(31 * time.Minute)
		}
		registry.Reset()
		mustImport(t, im, registry.Host+"/app:v1", images)
		if got := len(registry.AllRequests()); i > 0 && got != want {
			t.Errorf("import %d cost %d requests, want %d: %v", i, got, want, registry.AllRequests())
		}
	}
}

// A host that says that nothing is left of what it grants is not asked until it grants more.
func TestHostWithNothingLeftIsSpared(t *testing.T) {
	for _, tc := range []struct {
		remaining, reset string
		spared           bool
	}{
		{"0", "3600", true},
		{"0", "86400", true},       // at most an hour
		{"0", "4102444800", true},  // a point in time, in 2100
		{"0", "1000000000", false}, // in 2001
		{"0;w=21600", "3600;w=21600", true},
		{"1", "3600", false},
		{"0", "", false},
		{"0", "soon", false},
		{"0", "-5", false},
		{"", "3600", false},
	} {
		registry := registrytest.New(t)
		registry.Push("app:v1", newImage(t, sample.Spec{}))
		im := newImporter(t, importer.Options{})
		registry.Inject("/blobs/", 0, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				w.Header().Set("RateLimit-Remaining", tc.remaining)
				w.Header().Set("RateLimit-Reset", tc.reset)
				next.ServeHTTP(w, req)
			})
		})
		mustImport(t, im, registry.Host+"/app:v1", &registrytest.Images{})
		registry.Reset()
		_, err := im.Import(t.Context(), parse(t, registry.Host+"/app:v1"), &registrytest.Images{})
		if !tc.spared {
			if err != nil {
				t.Errorf("remaining %q, reset %q: %v", tc.remaining, tc.reset, err)
			}
			continue
		}
		e := wantReason(t, err, pull.RateLimited)
		if n := len(registry.AllRequests()); n != 0 || e.RetryAfter > time.Hour || e.RetryAfter < 50*time.Minute {
			t.Errorf("remaining %q, reset %q: %d requests, again after %s", tc.remaining, tc.reset, n, e.RetryAfter)
		}
	}
}

// A quota that each answer says is used up, for a moment, is waited for within the import: else it
// would begin again with the request that uses it up.
func TestAQuotaThatEachAnswerUsesUp(t *testing.T) {
	registry := registrytest.New(t)
	registry.Push("app:v1", newImage(t, sample.Spec{}))
	registry.Inject("manifests", 0, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("RateLimit-Remaining", "0")
			w.Header().Set("RateLimit-Reset", strconv.FormatInt(time.Now().Add(5*time.Second).Unix(), 10))
			next.ServeHTTP(w, req)
		})
	})
	im := newImporter(t, importer.Options{Clock: &skippingClock{}, Limits: pull.Limits{MaxWait: time.Second}})
	mustImport(t, im, registry.Host+"/app:v1", &registrytest.Images{})
}

// A request that fails gives its slot back, whatever way it fails.
func TestNoSlotIsLost(t *testing.T) {
	registry := registrytest.New(t)
	registry.Push("app:v1", newImage(t, sample.Spec{}))
	limits := short
	limits.HostConcurrency = 1
	im := newImporter(t, importer.Options{Limits: limits})
	for _, match := range []string{"GET .*/manifests/", "/blobs/", "HEAD "} {
		for _, fault := range []registrytest.Fault{
			registrytest.Status(404, "X"), registrytest.Status(500, "X"), registrytest.StallHeaders(), registrytest.StallBody(),
			registrytest.Truncate(), registrytest.Append(10<<20, true), registrytest.Append(10<<20, false), hangUp,
			registrytest.Redirect(307, "ftp://example.com"), registrytest.Redirect(302, "http://example.com"),
		} {
			registry.Heal()
			images := &registrytest.Images{}
			if match == "HEAD " { // known tags get one
				mustImport(t, newImporter(t, importer.Options{}), registry.Host+"/app:v1", images)
			}
			registry.Inject(match, 0, fault)
			// Not every fault hurts a HEAD, which has no body.
			_, _ = im.Import(t.Context(), parse(t, registry.Host+"/app:v1"), images)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			registry.Heal()
			for {
				// a busy machine may be slower than these limits, while a slot that is lost stays
				// so
				_, err := im.Import(ctx, parse(t, registry.Host+"/app:v1"), &registrytest.Images{})
				if err == nil {
					break
				}
				if ctx.Err() != nil {
					t.Fatalf("the slot is lost: %v", err)
				}
			}
			cancel()
		}
	}
}

func TestImportStopsWithItsContext(t *testing.T) {
	registry := registrytest.New(t)
	registry.Push("app:v1", newImage(t, sample.Spec{}))
	for _, match := range []string{"HEAD ", "GET .*/manifests/", "/blobs/"} {
		ctx, cancel := context.WithCancel(t.Context())
		registry.Heal()
		images := &registrytest.Images{}
		if match == "HEAD " { // known tags get one
			mustImport(t, newImporter(t, importer.Options{}), registry.Host+"/app:v1", images)
		}
		registry.Inject(match, 0, func(http.Handler) http.Handler {
			return http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
				cancel()
				<-req.Context().Done()
			})
		})
		_, err := newImporter(t, importer.Options{}).Import(ctx, parse(t, registry.Host+"/app:v1"), images)
		wantReason(t, err, pull.Canceled)
	}
}
