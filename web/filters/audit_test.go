package filters

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	authnv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	clocktesting "k8s.io/utils/clock/testing"
)

func auditEvent(user, verb string, code int32) *auditinternal.Event {
	return &auditinternal.Event{
		Level: auditinternal.LevelMetadata, Stage: auditinternal.StageResponseComplete, AuditID: "an-id", Verb: verb,
		User: authnv1.UserInfo{Username: user}, RequestURI: "/apis", ResponseStatus: &metav1.Status{Code: code},
	}
}

// TestDefaultPolicyFile: the default policy can be read whether open files have paths or, as in a
// chroot, have none. No file is left.
func TestDefaultPolicyFile(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	for _, fds := range []string{"/dev/fd", filepath.Join(t.TempDir(), "none")} {
		path, remove, err := defaultPolicyFile(fds)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != defaultAuditPolicy {
			t.Errorf("%s: %q, %v", path, got, err)
		}
		remove()
		if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
			t.Errorf("%s: left behind are %v, %v", path, left, err)
		}
	}
	t.Setenv("TMPDIR", filepath.Join(temporary, "none"))
	if _, _, err := defaultPolicyFile(filepath.Join(temporary, "none")); err == nil {
		t.Error("a policy was made in a folder that does not exist")
	}
}

// TestAuditLogIsBounded: the default log stays below 200 MB, whatever the number and the length of
// requests.
func TestAuditLogIsBounded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit", "audit.log")
	o := NewAuditOptions(path)
	if most := (o.LogOptions.MaxBackups + 2) * o.LogOptions.MaxSize << 20; most > 200e6 || o.LogOptions.MaxBackups == 0 || o.LogOptions.MaxSize == 0 {
		t.Errorf("%d files and one of %d MiB are %d bytes", o.LogOptions.MaxBackups, o.LogOptions.MaxSize, most)
	}
	// The same with small bounds.
	o.LogOptions.MaxSize, o.LogOptions.MaxBackups = 1, 2
	cfg := &genericapiserver.Config{}
	if err := ApplyAudit(cfg, o); err != nil {
		t.Fatal(err)
	}
	size := func() (total int64) {
		files, err := os.ReadDir(filepath.Dir(path))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if fi, err := f.Info(); err == nil { // it may just have been removed
				total += fi.Size()
			}
		}
		return total
	}
	long := strings.Repeat("x", 100<<10)
	for range 6000 {
		e := auditEvent("admin", "create", http.StatusCreated)
		e.RequestURI, e.AuditID = "/apis/"+long, types.UID(long)
		if !cfg.AuditBackend.ProcessEvents(e) {
			t.Fatal("an event was not written")
		}
	}
	// Old files are removed a moment later.
	for deadline := time.Now().Add(2 * time.Minute); size() > 3<<20; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the log and two older ones of 1 MiB take %d bytes", size())
		}
	}
	if size() < 2<<20 {
		t.Errorf("earlier events are not kept: %d bytes", size())
	}
}

// TestAttackRefusalsThatPushOutTheLog: a caller that is refused repeatedly, authenticated or not,
// does not push records of changes out of the log. Refusals that are left out are counted.
func TestAttackRefusalsThatPushOutTheLog(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakePassiveClock(time.Now())
	o := newOwnRecords(clock)
	for _, flood := range []*auditinternal.Event{
		auditEvent("", "get", http.StatusUnauthorized), auditEvent("mallory", "list", http.StatusForbidden),
	} {
		kept := 0
		for range 100 * refusalBurst {
			if o.keep(flood) {
				kept++
			}
		}
		if kept != refusalBurst {
			t.Errorf("%d refusals are logged at once, want %d", kept, refusalBurst)
		}
	}
	for _, e := range []*auditinternal.Event{
		auditEvent("", "post", http.StatusNotFound), auditEvent("", "brew", http.StatusBadRequest), auditEvent("mallory", "create", http.StatusTooManyRequests),
		auditEvent("", "get", http.StatusTooManyRequests),
	} {
		if o.keep(e) {
			t.Errorf("%s: %d is also logged", e.Verb, e.ResponseStatus.Code)
		}
	}
	for _, code := range []int32{200, 201, 404, 409, 422, 500} {
		if !o.keep(auditEvent("admin", "create", code)) {
			t.Errorf("a creation that was answered %d is not logged during the flood", code)
		}
	}
	if !o.keep(auditEvent("", "post", http.StatusAccepted)) {
		t.Error("a push is not logged during the flood")
	}
	clock.SetTime(clock.Now().Add(time.Second))
	e := auditEvent("", "get", http.StatusUnauthorized)
	if !o.keep(e) || e.Annotations[leftOutAnnotation] != strconv.Itoa(99*refusalBurst+3) {
		t.Errorf("a second later: %v", e.Annotations)
	}
	question := auditEvent("system:apiserver", "create", http.StatusOK)
	question.ObjectRef = &auditinternal.ObjectReference{APIGroup: "tidewaiter.dev", Resource: "admissionreviews"}
	if o.keep(question) {
		t.Error("a cluster's admission review of a pod is logged")
	}
	for _, verb := range []string{"get", "list", "watch", "options"} {
		if o.keep(auditEvent("admin", verb, http.StatusOK)) {
			t.Errorf("%s is logged", verb)
		}
	}
}

// TestAttackLongTextsInTheAudit: no text that a caller chooses makes a line of the log long.
func TestAttackLongTextsInTheAudit(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1<<20)
	var many []string
	for range 10_000 {
		many = append(many, long[:500])
	}
	e := auditEvent("admin", long, http.StatusForbidden)
	e.AuditID, e.RequestURI, e.SourceIPs = types.UID(long), "/"+long+"?limit="+long, append(many, "192.0.2.1")
	e.ObjectRef = &auditinternal.ObjectReference{Namespace: long, Name: long, Resource: long, Subresource: long, APIGroup: long, APIVersion: long}
	e.ImpersonatedUser = &authnv1.UserInfo{Username: long, UID: long, Groups: many, Extra: map[string]authnv1.ExtraValue{long: {long}, "a": {long}, "b": many}}
	e.ResponseStatus.Message = long
	e.ResponseStatus.Details = &metav1.StatusDetails{Name: long}
	e.Annotations = map[string]string{"authorization.k8s.io/reason": long}
	boundEvent(e)
	if n := e.Size(); n > 100<<10 {
		t.Errorf("an event has %d bytes", n)
	}
	if got := e.SourceIPs[len(e.SourceIPs)-1]; got != "192.0.2.1" {
		t.Errorf("the connection's address is %q", got)
	}
	short := auditEvent("admin", "create", http.StatusCreated)
	boundEvent(short)
	if short.RequestURI != "/apis" || short.AuditID != "an-id" {
		t.Errorf("a short event was changed: %+v", short)
	}
}

// FuzzAuditedURI: the audit has only the values of Kubernetes' and our own parameters, whatever the
// form of the query.
func FuzzAuditedURI(f *testing.F) {
	for _, query := range []string{"limit=5&access_token=x&watch=1", "token=x;limit=1", "%6cimit=1&%74oken=x", "a?b=c", "x", "&&="} {
		f.Add(query)
	}
	f.Fuzz(func(t *testing.T, query string) {
		got, found := strings.CutPrefix(withoutUnknownValues("/apis?"+query), "/apis?")
		if !found {
			t.Fatalf("%q became %q", query, got)
		}
		for part := range strings.FieldsFuncSeq(got, func(r rune) bool { return r == '&' || r == ';' }) {
			if name, _, _ := strings.Cut(part, "="); part != "leftout" && !auditedParameters.Has(name) {
				t.Errorf("%q became %q", query, got)
			}
		}
	})
}

// TestAuditedURI: the audit has the URIs of Kubernetes' clients unchanged.
func TestAuditedURI(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string]string{
		"/apis": "/apis",
		"/apis?limit=500&continue=abc%3D&labelSelector=a%3Db": "/apis?limit=500&continue=abc%3D&labelSelector=a%3Db",
		"/apis?limit=5&token=abc&watch=true":                  "/apis?limit=5&leftout&watch=true",
		"/apis?abc":                                           "/apis?leftout",
	} {
		if got := withoutUnknownValues(uri); got != want {
			t.Errorf("%s: %s, want %s", uri, got, want)
		}
	}
}

// keptEvents is an audit backend that keeps events.
type keptEvents []auditinternal.Event

func (k *keptEvents) ProcessEvents(events ...*auditinternal.Event) bool {
	for _, e := range events {
		*k = append(*k, *e.DeepCopy())
	}
	return true
}

// TestAuditOfAnAnswerThatIsCutOff: if an answer is cut off because the caller left, the audit has
// the code with which it began, and it is still cut off. A panic before the answer began, or of
// another kind, is a fault of the server.
func TestAuditOfAnAnswerThatIsCutOff(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer func(w http.ResponseWriter, leave func())
		code   int32
		stage  auditinternal.Stage
		cut    bool
		panics any
	}{
		"the caller leaves when the object is stored and the answer has begun": {func(w http.ResponseWriter, leave func()) {
			w.WriteHeader(http.StatusCreated)
			leave()
		}, http.StatusCreated, auditinternal.StageResponseComplete, true, http.ErrAbortHandler},
		"the answer is whole": {func(w http.ResponseWriter, _ func()) { w.WriteHeader(http.StatusCreated) },
			http.StatusCreated, auditinternal.StageResponseComplete, false, nil},
		"a handler breaks off before it answers": {func(http.ResponseWriter, func()) { panic(http.ErrAbortHandler) },
			http.StatusInternalServerError, auditinternal.StagePanic, false, http.ErrAbortHandler},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			over := make(chan struct{})
			h := genericfilters.WithTimeoutForNonLongRunningRequests(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				test.answer(w, func() {
					leave()
					<-over
				})
			}), func(*http.Request, *request.RequestInfo) bool { return false })
			var kept keptEvents
			h = CutOff(filters.WithAudit(AuditCutOff(h), &kept, policy.NewFakePolicyRuleEvaluator(auditinternal.LevelMetadata, nil), nil))
			info := request.RequestInfo{Verb: "create", Path: "/", IsResourceRequest: true, Resource: "pods"}
			var panicked any
			func() {
				defer func() { panicked = recover() }()
				filters.WithAuditInit(h).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(request.WithRequestInfo(ctx, &info), http.MethodPost, "/", nil))
			}()
			close(over)
			if panicked != test.panics {
				t.Errorf("the answer ends with %v, want %v", panicked, test.panics)
			}
			if len(kept) == 0 {
				t.Fatal("nothing is logged")
			}
			e := kept[len(kept)-1]
			if _, cut := e.Annotations[cutOffAnnotation]; e.Stage != test.stage || e.ResponseStatus.Code != test.code || cut != test.cut {
				t.Errorf("logged: %s %+v %v", e.Stage, e.ResponseStatus, e.Annotations)
			}
		})
	}
}
