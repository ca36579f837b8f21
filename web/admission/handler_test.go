package admission_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	kjson "sigs.k8s.io/json"

	"github.com/tidewaiter/tidewaiter/internal/admit"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/web/admission"
)

// stored holds the verdicts that a test chooses.
type stored struct {
	mu        sync.Mutex
	known     map[string]admit.Judgement // by reference; other images are missing
	imported  []string
	answered  int // calls of done
	asked     []admission.Pod
	onImport  func(reference string)
	importErr error
	err       error
}

var missing = admit.Judgement{Findings: []admit.Finding{{Policy: "prod", Action: admit.Deny, Unknown: true, Reason: "not imported yet"}}, Pending: true}

func (s *stored) Judge(_ context.Context, pod admission.Pod, image reference.Reference) (admit.Judgement, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, pod)
	if j, ok := s.known[image.String()]; ok || s.err != nil {
		return j, s.err
	}
	j := missing
	j.Missing = image
	return j, nil
}

func (s *stored) Import(_ context.Context, _ admission.Pod, image reference.Reference) (func(), error) {
	s.mu.Lock()
	s.imported = append(s.imported, image.String())
	onImport, err := s.onImport, s.importErr
	s.mu.Unlock()
	if onImport != nil {
		onImport(image.String())
	}
	return func() { s.mu.Lock(); defer s.mu.Unlock(); s.answered++ }, err
}

func (s *stored) set(image string, j admit.Judgement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[image] = j
}

func finding(policy string, action admit.Action) admit.Judgement {
	return admit.Judgement{Digest: "sha256:" + strings.Repeat("ab", 32), Findings: []admit.Finding{{Policy: policy, Action: action, Reason: "Unsigned: it has no signature"}}}
}

func newStored() *stored {
	return &stored{known: map[string]admit.Judgement{
		"registry.example.com/good:1":   {},
		"registry.example.com/bad:1":    finding("prod", admit.Deny),
		"registry.example.com/warned:1": finding("trial", admit.Warn),
		"registry.example.com/noted:1":  finding("quiet", admit.Audit),
		"":                              finding("prod", admit.Deny),
	}}
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func newHandler(v admission.Verdicts) *admission.Handler {
	return admission.New(admission.Options{Verdicts: v, Cluster: "here", Others: []string{"there"}, Exempt: []string{"tidewaiter"}, Logger: quiet})
}

// pod is a Pod in JSON that names images in its containers.
func pod(images ...string) string {
	var containers []string
	for i, image := range images {
		containers = append(containers, fmt.Sprintf(`{"name":"c%d","image":%q}`, i, image))
	}
	return fmt.Sprintf(`{"metadata":{"name":"app"},"spec":{"containers":[%s]}}`, strings.Join(containers, ","))
}

// reviewOf is an AdmissionReview about a pod.
func reviewOf(operation, object, old, more string) string {
	if old == "" {
		old = "null"
	}
	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u-1","resource":{"group":"","version":"v1","resource":"pods"},"namespace":"team","operation":%q,"object":%s,"oldObject":%s%s}}`, operation, object, old, more)
}

func ask(h *admission.Handler, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	h.Serve(http.NotFoundHandler()).ServeHTTP(w, r)
	return w
}

// answer sends a review, and returns the answer.
func answer(t *testing.T, h *admission.Handler, body string) *admissionv1.AdmissionResponse {
	t.Helper()
	w := ask(h, admission.Path, body)
	var got admissionv1.AdmissionReview
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusOK || got.Response == nil || got.Response.UID != "u-1" || got.APIVersion != "admission.k8s.io/v1" || got.Kind != "AdmissionReview" {
		t.Fatalf("answered %d, %v: %s", w.Code, err, w.Body)
	}
	return got.Response
}

func TestDecisions(t *testing.T) {
	t.Parallel()
	const good, bad, warned, noted = "registry.example.com/good:1", "registry.example.com/bad:1", "registry.example.com/warned:1", "registry.example.com/noted:1"
	const static = `{"metadata":{"annotations":{"kubernetes.io/config.mirror":"x"}},"spec":{"containers":[{"image":"` + bad + `"}]}}`
	for name, c := range map[string]struct {
		review   string
		denied   []string // parts of the refusal; nil if the pod is admitted
		warnings int
		audit    string
	}{
		"nothing wrong":                  {review: reviewOf("CREATE", pod(good), "", "")},
		"refused":                        {review: reviewOf("CREATE", pod(good, bad), "", ""), denied: []string{bad, "(sha256:abababababab)", `policy "prod"`, "Unsigned: it has no signature"}, audit: "denied: image " + bad},
		"warned of":                      {review: reviewOf("CREATE", pod(warned), "", ""), warnings: 1, audit: `warned: image ` + warned},
		"audited":                        {review: reviewOf("CREATE", pod(noted), "", ""), audit: "audited: image " + noted},
		"refused, and warned of":         {review: reviewOf("CREATE", pod(warned, bad), "", ""), denied: []string{bad}, warnings: 1, audit: "warned: "},
		"an init container":              {review: reviewOf("CREATE", `{"spec":{"initContainers":[{"image":"`+bad+`"}]}}`, "", ""), denied: []string{bad}, audit: "denied"},
		"a volume":                       {review: reviewOf("CREATE", `{"spec":{"volumes":[{"name":"v","image":{"reference":"`+bad+`"}}]}}`, "", ""), denied: []string{bad}, audit: "denied"},
		"a container to debug":           {review: reviewOf("UPDATE", `{"spec":{"ephemeralContainers":[{"image":"`+bad+`"}]}}`, pod(good), `,"subResource":"ephemeralcontainers"`), denied: []string{bad}, audit: "denied"},
		"an image that changes":          {review: reviewOf("UPDATE", pod(bad), pod(good), ""), denied: []string{bad}, audit: "denied"},
		"another change of what runs":    {review: reviewOf("UPDATE", pod(bad), pod(bad), "")},
		"an end":                         {review: reviewOf("DELETE", "null", pod(bad), "")},
		"the status":                     {review: reviewOf("UPDATE", pod(bad), pod(good), `,"subResource":"status"`), warnings: 1},
		"what is not a pod":              {review: strings.Replace(reviewOf("CREATE", pod(bad), "", ""), `"group":""`, `"group":"apps"`, 1), warnings: 1},
		"a static pod":                   {review: reviewOf("CREATE", static, "", `,"userInfo":{"username":"system:node:one","groups":["system:nodes","system:authenticated"]}`)},
		"a static pod of a person":       {review: reviewOf("CREATE", static, "", `,"userInfo":{"username":"ann","groups":["system:authenticated"]}`), denied: []string{bad}, audit: "denied"},
		"a static pod of a controller":   {review: reviewOf("CREATE", static, "", `,"userInfo":{"username":"system:serviceaccount:team:system:node:one","groups":["system:nodes"]}`), denied: []string{bad}, audit: "denied"},
		"a static pod of nobody":         {review: reviewOf("CREATE", static, "", ""), denied: []string{bad}, audit: "denied"},
		"another pod of a node":          {review: reviewOf("CREATE", pod(bad), "", `,"userInfo":{"username":"system:node:one","groups":["system:nodes"]}`), denied: []string{bad}, audit: "denied"},
		"the own namespace":              {review: strings.Replace(reviewOf("CREATE", pod(bad), "", ""), `"namespace":"team"`, `"namespace":"tidewaiter"`, 1)},
		"what is no reference":           {review: reviewOf("CREATE", pod("Not A Reference"), "", ""), denied: []string{"Not A Reference"}, audit: "denied"},
		"a pod without containers":       {review: reviewOf("CREATE", `{}`, "", "")},
		"more images than are looked at": {review: reviewOf("CREATE", pod(manyImages()...), "", ""), denied: []string{"the pod names 257 images"}, audit: "denied"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := answer(t, newHandler(newStored()), c.review)
			if name == "an end" {
				got.Warnings = nil // about a rule that matches too much
			}
			if got.Allowed != (c.denied == nil) || len(got.Warnings) != c.warnings || !strings.Contains(got.AuditAnnotations["findings"], c.audit) || c.audit == "" && got.AuditAnnotations != nil {
				t.Fatalf("answered %+v", got)
			}
			for _, want := range c.denied {
				if !strings.Contains(got.Result.Message, want) || got.Result.Code != http.StatusForbidden {
					t.Errorf("the refusal %+v lacks %q", got.Result, want)
				}
			}
		})
	}
}

func manyImages() (all []string) {
	for i := range 257 {
		all = append(all, fmt.Sprintf("registry.example.com/many:%d", i))
	}
	return all
}

// Refusals quote untrusted text bounded and printable.
func TestMessagesAreBounded(t *testing.T) {
	t.Parallel()
	s := newStored()
	var images []string
	for i := range 100 {
		image := fmt.Sprintf("registry.example.com/bad:%d", i)
		j := finding("prod", admit.Deny)
		j.Findings[0].Reason = strings.Repeat("\x1b[31mlong ", 1000)
		s.set(image, j)
		images = append(images, image)
	}
	got := answer(t, newHandler(s), reviewOf("CREATE", pod(images...), "", ""))
	if m := got.Result.Message; len(m) > 8<<10 || strings.Contains(m, "\x1b") || !strings.Contains(m, "and 92 more") {
		t.Errorf("%d bytes: %.300q", len(m), m)
	}
}

// A review that no API server sends is refused with the reason.
func TestBadReviews(t *testing.T) {
	t.Parallel()
	good := reviewOf("CREATE", pod("registry.example.com/good:1"), "", "")
	for want, c := range map[string]struct {
		path, body, media string
		code              int
	}{
		"not an AdmissionReview":      {body: "x", code: 400},
		"set admissionReviewVersions": {body: strings.Replace(good, "k8s.io/v1", "k8s.io/v1beta1", 1), code: 400},
		"without a UID":               {body: `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, code: 400},
		"the object is not a pod":     {body: reviewOf("CREATE", `[]`, "", ""), code: 400},
		"the old object is not a pod": {body: reviewOf("UPDATE", pod(), "[]", ""), code: 400},
		"must be application/json":    {body: good, media: "application/vnd.kubernetes.protobuf", code: 415},
		"at most 6291456 bytes":       {body: strings.Repeat(" ", 6<<20) + good, code: 413},
		`there is no cluster "other"`: {path: admission.Path + "/other", body: good, code: 404},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequest(http.MethodPost, cmp.Or(c.path, admission.Path), strings.NewReader(c.body))
			r.Header.Set("Content-Type", cmp.Or(c.media, "application/json"))
			w := httptest.NewRecorder()
			newHandler(newStored()).Serve(http.NotFoundHandler()).ServeHTTP(w, r)
			if w.Code != c.code || !strings.Contains(w.Body.String(), want) {
				t.Errorf("answered %d: %s", w.Code, w.Body)
			}
		})
	}
}

// Other requests go to the next handler. A namespace of another cluster is not exempt, even if it
// has the name of an exempt one.
func TestWhatIsAnswered(t *testing.T) {
	t.Parallel()
	h := newHandler(newStored())
	if w := ask(h, admission.Path+"x", "{}"); w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), "page not found") {
		t.Errorf("another path is answered %d %s", w.Code, w.Body)
	}
	own := strings.Replace(reviewOf("CREATE", pod("registry.example.com/bad:1"), "", ""), `"namespace":"team"`, `"namespace":"tidewaiter"`, 1)
	if w := ask(h, admission.Path+"/there", own); !strings.Contains(w.Body.String(), `"allowed":false`) {
		t.Errorf("a pod of another cluster is answered %d %s", w.Code, w.Body)
	}
}

// If the store cannot be read, the API server's failurePolicy decides.
func TestWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	s := newStored()
	s.err = errors.New("the disk is gone")
	if w := ask(newHandler(s), admission.Path, reviewOf("CREATE", pod("a"), "", "")); w.Code != http.StatusInternalServerError || strings.Contains(w.Body.String(), "disk") {
		t.Errorf("answered %d %s", w.Code, w.Body)
	}
}

// An unknown image is imported. The pod waits for it, but no longer than the API server waits.
func TestUnknownImages(t *testing.T) {
	t.Parallel()
	unknown := reviewOf("CREATE", pod("registry.example.com/new:1", "registry.example.com/good:1"), "", "")
	for name, c := range map[string]struct {
		review, timeout string
		// the judgement three seconds after the import was queued
		then        *admit.Judgement
		imports     int
		allowed     bool
		least, most time.Duration
		says        string
	}{
		"imported in time":     {review: unknown, then: &admit.Judgement{}, imports: 1, allowed: true, least: 3 * time.Second, most: 3200 * time.Millisecond},
		"imported and refused": {review: unknown, then: new(finding("prod", admit.Deny)), imports: 1, least: 3 * time.Second, most: 3200 * time.Millisecond, says: "does not meet"},
		"given up":             {review: unknown, then: new(given(missing)), imports: 1, least: 3 * time.Second, most: 3200 * time.Millisecond, says: "is not known to meet"},
		"never":                {review: unknown, imports: 1, least: 9 * time.Second, most: 9 * time.Second, says: "not imported yet"},
		"never, in a second":   {review: unknown, timeout: "?timeout=1s", imports: 1, least: 800 * time.Millisecond, most: 800 * time.Millisecond, says: "not imported yet"},
		"at most 30 seconds":   {review: unknown, timeout: "?timeout=1h", imports: 1, least: 27 * time.Second, most: 27 * time.Second, says: "not imported yet"},
		"a dry run":            {review: strings.Replace(unknown, `"operation"`, `"dryRun":true,"operation"`, 1), says: "not imported yet"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStored()
				if c.then != nil {
					s.onImport = func(image string) { time.AfterFunc(3*time.Second, func() { s.set(image, *c.then) }) }
				}
				start := time.Now()
				w := ask(newHandler(s), admission.Path+c.timeout, c.review)
				took := time.Since(start)
				if took < c.least || took > c.most || len(s.imported) != c.imports || s.answered != c.imports {
					t.Errorf("took %v, imports of %v, %d answered", took, s.imported, s.answered)
				}
				if got := w.Body.String(); !strings.Contains(got, fmt.Sprintf(`"allowed":%t`, c.allowed)) || !strings.Contains(got, c.says) {
					t.Errorf("answered %s", got)
				}
			})
		})
	}
}

func given(j admit.Judgement) admit.Judgement {
	j.GivenUp = true
	return j
}

// If an import cannot be queued, the pod does not wait for it.
func TestImportCannotBeQueued(t *testing.T) {
	t.Parallel()
	s := newStored()
	s.importErr = errors.New("full")
	if got := answer(t, newHandler(s), reviewOf("CREATE", pod("registry.example.com/new:1"), "", "")); got.Allowed || !strings.Contains(got.Result.Message, "cannot be queued") {
		t.Errorf("answered %+v", got)
	}
}

// One namespace fills the places for waiting. That does not keep others from getting places,
// whether its callers wait or disconnect.
func TestAttackFillPlaces(t *testing.T) {
	t.Parallel()
	for _, away := range []bool{false, true} {
		t.Run(fmt.Sprintf("away=%t", away), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStored()
				h := admission.New(admission.Options{Verdicts: s, Cluster: "here", MaxWaiting: 10, Logger: quiet})
				send := func(ctx context.Context, namespace, image string) *httptest.ResponseRecorder {
					body := strings.Replace(reviewOf("CREATE", pod("registry.example.com/"+image), "", ""), `"team"`, `"`+namespace+`"`, 1)
					r := httptest.NewRequestWithContext(ctx, http.MethodPost, admission.Path, strings.NewReader(body))
					r.Header.Set("Content-Type", "application/json")
					w := httptest.NewRecorder()
					h.Serve(nil).ServeHTTP(w, r)
					return w
				}
				ctx, cancel := context.WithCancel(t.Context())
				var all sync.WaitGroup
				for i := range 40 {
					all.Go(func() { send(ctx, fmt.Sprintf("evil-%d", i%2), fmt.Sprintf("evil-%d:1", i)) })
				}
				synctest.Wait()
				if n := len(s.imported); n > 16 {
					// eight of each namespace at most, though some lost their places
					t.Errorf("two namespaces had %d images imported", n)
				}
				if away {
					cancel()
					synctest.Wait()
				}
				all.Go(func() {
					if w := send(t.Context(), "honest", "new:1"); !strings.Contains(w.Body.String(), `"allowed":true`) {
						t.Errorf("the honest one is answered %s", w.Body)
					}
				})
				synctest.Wait()
				if !slices.Contains(s.imported, "registry.example.com/new:1") {
					t.Errorf("what the honest one needs is not imported beside %d", len(s.imported))
				}
				s.set("registry.example.com/new:1", admit.Judgement{})
				all.Wait()
				cancel()
				time.Sleep(time.Minute) // the places of disconnected callers become free
				if w := send(t.Context(), "evil-0", "later:1"); len(s.imported) == 0 || s.imported[len(s.imported)-1] != "registry.example.com/later:1" {
					t.Errorf("no place came back: %s", w.Body)
				}
			})
		})
	}
}

// Judging needs no place. If a pod names more images than there are places, the known ones are
// judged at once, and the others wait in turn.
func TestManyImagesOfAPod(t *testing.T) {
	t.Parallel()
	names := func(n int, last string) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf("registry.example.com/none%d:1", i))
		}
		return append(all, last)
	}
	for name, c := range map[string]struct {
		images   []string
		onImport func(s *stored, image string)
		allowed  bool
		says     string
		imports  int
		most     time.Duration
	}{
		"what is known refuses it at once": {names(8, "registry.example.com/bad:1"), nil, false, "Unsigned", 0, 0},
		"the last waits its turn": {names(8, "registry.example.com/late:1"), func(s *stored, image string) {
			time.AfterFunc(time.Second, func() { s.set(image, admit.Judgement{}) })
		}, true, "", 9, 3 * time.Second},
		"the last is not verified": {names(8, "registry.example.com/late:1"), func(s *stored, image string) {
			j := admit.Judgement{}
			if strings.Contains(image, "late") {
				j = finding("prod", admit.Deny)
			}
			time.AfterFunc(time.Second, func() { s.set(image, j) })
		}, false, "Unsigned", 9, 3 * time.Second},
		"the last gets no place": {names(8, "registry.example.com/late:1"), nil, false, "and 1 more", 8, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStored()
				if c.onImport != nil {
					s.onImport = func(image string) { c.onImport(s, image) }
				}
				h := newHandler(s)
				start := time.Now()
				got := answer(t, h, reviewOf("CREATE", pod(c.images...), "", ""))
				said := got.AuditAnnotations["findings"]
				if got.Allowed != c.allowed || len(s.imported) != c.imports || time.Since(start) > c.most || !c.allowed && !strings.Contains(said+got.Result.Message, c.says) {
					t.Errorf("after %v, and %d imports: %+v", time.Since(start), len(s.imported), got)
				}
				// every place is free again
				if s.onImport = nil; !answer(t, h, reviewOf("CREATE", pod("registry.example.com/good:1"), "", "")).Allowed || s.answered != c.imports {
					t.Errorf("%d of %d imports have ended", s.answered, c.imports)
				}
			})
		})
	}
}

// Namespaces of one name in two clusters have places of their own.
func TestNamespacesOfTwoClusters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStored()
		s.onImport = func(image string) {
			if strings.Contains(image, "new") {
				time.AfterFunc(time.Second, func() { s.set(image, admit.Judgement{}) })
			}
		}
		h := newHandler(s)
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				ask(h, admission.Path+"/there", reviewOf("CREATE", pod(fmt.Sprintf("registry.example.com/hangs:%d", i)), "", ""))
			})
		}
		synctest.Wait()
		if got := answer(t, h, reviewOf("CREATE", pod("registry.example.com/new:1"), "", "")); !got.Allowed {
			t.Errorf("answered %+v", got)
		}
		all.Wait()
	})
}

// The import gets the pod's own credentials.
func TestPodIsTold(t *testing.T) {
	t.Parallel()
	s := newStored()
	answer(t, newHandler(s), reviewOf("CREATE", `{"spec":{"serviceAccountName":"robot","imagePullSecrets":[{"name":"a"}],"containers":[{"image":"registry.example.com/good:1"}]}}`, "", ""))
	if len(s.asked) != 1 || fmt.Sprint(s.asked[0]) != "{here team robot [a]}" {
		t.Errorf("told %+v", s.asked)
	}
}

// FuzzReview: for any body, the answer has its UID, or a reason for the refusal.
func FuzzReview(f *testing.F) {
	f.Add(reviewOf("CREATE", pod("registry.example.com/bad:1"), "", ""))
	f.Add(reviewOf("UPDATE", pod("registry.example.com/bad:1"), pod("b"), `,"subResource":"ephemeralcontainers","dryRun":true`))
	f.Add(reviewOf("CREATE", `{"metadata":{"annotations":{"kubernetes.io/config.mirror":""}},"spec":{"volumes":[{"image":{}},null],"initContainers":[null]}}`, "", ""))
	f.Add(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"\ud800"}}`)
	f.Add(`[]`)
	s := newStored()
	s.importErr = errors.New("nothing is imported")
	h := newHandler(s)
	f.Fuzz(func(t *testing.T, body string) {
		w := ask(h, admission.Path, body)
		if w.Code == http.StatusBadRequest && w.Body.Len() < 1024 {
			return
		}
		var in, out admissionv1.AdmissionReview
		if err := json.Unmarshal(w.Body.Bytes(), &out); w.Code != http.StatusOK || err != nil || out.Response == nil {
			t.Fatalf("answered %d %s", w.Code, w.Body)
		}
		if err := kjson.UnmarshalCaseSensitivePreserveInts([]byte(body), &in); err != nil || in.Request == nil {
			t.Fatalf("%v, and is answered %s", err, w.Body)
		}
		if uid, _ := json.Marshal(in.Request.UID); !strings.Contains(w.Body.String(), `"uid":`+string(uid)) {
			t.Fatalf("the UID %s is answered %s", uid, w.Body)
		}
		if !out.Response.Allowed && out.Response.Result == nil {
			t.Fatalf("refused without a reason: %s", w.Body)
		}
	})
}

// recorded are texts about what was admitted.
type recorded []string

func (r *recorded) Admitted(_, namespace, image string, as admit.Action, unknown bool, message string) {
	*r = append(*r, fmt.Sprintf("%s %s %s %t %t", namespace, image, as, unknown, strings.Contains(message, image)))
}

// For each image of an admitted pod, the recorder gets the result. It gets nothing for a refused
// pod or a dry run.
func TestAdmittedIsTold(t *testing.T) {
	t.Parallel()
	const good, bad, warned = "registry.example.com/good:1", "registry.example.com/bad:1", "registry.example.com/warned:1"
	h := newHandler(newStored())
	var told recorded
	h.Recorder = &told
	answer(t, h, reviewOf("CREATE", pod(good, warned), "", ""))
	answer(t, h, reviewOf("CREATE", pod(good, bad), "", ""))
	answer(t, h, reviewOf("CREATE", pod(good), "", `,"dryRun":true`))
	if want := []string{"team " + good + " allowed false false", "team " + warned + " warned false true"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}
