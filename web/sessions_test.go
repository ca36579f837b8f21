package web

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// knownTokens lets in callers with one of some tokens, and counts how often it is asked. Like
// the authenticators of Kubernetes, it takes the credential from the request.
type knownTokens struct {
	mu    sync.Mutex
	good  map[string]bool
	asked int
}

func (k *knownTokens) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked++
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !k.good[token] {
		return nil, false, errors.New("no")
	}
	r.Header.Del("Authorization")
	return &authenticator.Response{User: &user.DefaultInfo{Name: token}}, true, nil
}

func (k *knownTokens) set(token string, good bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.good[token] = good
}

// everything is permitted.
var everything = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })

// A watch does not outlive the rights of its caller, or of whom the caller acts for, nor the right
// to act for somebody. While rights cannot be asked for, it goes on for five minutes. Watches of
// others go on.
func TestAttackWatchesThatOutliveTheirRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		may := map[string]bool{"ann watch": true, "bob watch": true, "ann impersonate": true, "group:staff watch": true}
		var away error
		rights := authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			mu.Lock()
			defer mu.Unlock()
			allowed := may[a.GetUser().GetName()+" "+a.GetVerb()]
			for _, group := range a.GetUser().GetGroups() {
				allowed = allowed || may["group:"+group+" "+a.GetVerb()]
			}
			switch {
			case away != nil:
				return authorizer.DecisionNoOpinion, "", away
			case allowed:
				return authorizer.DecisionAllow, "", nil
			}
			return authorizer.DecisionNoOpinion, "no rule", nil
		})
		groups := map[string][]string{"carl": {"staff"}}
		callers := authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
			mu.Lock()
			defer mu.Unlock()
			name := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
			return &authenticator.Response{User: &user.DefaultInfo{Name: name, Groups: groups[name]}}, true, nil
		})
		config := &genericapiserver.Config{Serializer: legacyscheme.Codecs}
		config.Authorization.Authorizer = rights
		s := newSessions(callers, nil, newRights(config))
		h := s.keep(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), callers, func(*http.Request, *request.RequestInfo) bool { return true })
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		watch := func(caller, acting string) (ended chan struct{}) {
			ended = make(chan struct{})
			info := &request.RequestInfo{IsResourceRequest: true, Verb: "watch", Resource: "events", APIVersion: "v1"}
			r := httptest.NewRequestWithContext(request.WithRequestInfo(ctx, info), http.MethodGet, "/api/v1/events", nil)
			r.Header.Set("Authorization", "Bearer "+caller)
			if acting != "" {
				r.Header.Set("Impersonate-User", acting)
			}
			go func() {
				defer close(ended)
				h.ServeHTTP(httptest.NewRecorder(), r)
			}()
			return ended
		}
		change := func(do func()) {
			mu.Lock()
			do()
			mu.Unlock()
		}
		begin := func() map[string]chan struct{} {
			return map[string]chan struct{}{"ann": watch("ann", ""), "bob": watch("bob", ""), "carl": watch("carl", ""), "ann as bob": watch("ann", "bob")}
		}
		open := begin()
		go s.run(ctx)
		expect := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			var goOn []string
			for name, ended := range open {
				select {
				case <-ended:
				default:
					goOn = append(goOn, name)
				}
			}
			slices.Sort(goOn)
			if !slices.Equal(goOn, want) {
				t.Errorf("%s these watches go on: %q, want %q", when, goOn, want)
			}
		}
		time.Sleep(10*recheckEvery + time.Second) // of the bubble's clock
		expect("with all rights", "ann", "ann as bob", "bob", "carl")
		change(func() { may["ann impersonate"] = false })
		time.Sleep(recheckEvery)
		expect("when ann may not act for bob", "ann", "bob", "carl")
		change(func() { groups["carl"] = nil })
		time.Sleep(recheckEvery)
		expect("when carl has left the group", "ann", "bob")
		change(func() { may["ann impersonate"], groups["carl"] = true, []string{"staff"} })
		for name, ended := range begin() {
			if open[name] == nil || name == "ann as bob" || name == "carl" {
				open[name] = ended
			}
		}
		synctest.Wait()
		change(func() { may["bob watch"] = false })
		time.Sleep(recheckEvery)
		expect("when bob may not watch", "ann", "carl")
		change(func() { away = errors.New("no answer") })
		time.Sleep(unaskedTime - recheckEvery)
		expect("while nobody answers", "ann", "carl")
		time.Sleep(2 * recheckEvery)
		expect("when nobody has answered for too long")
		stop()
	})
}

// A watch does not outlive its credential. If the credential is the data directory's own, the
// watch ends as soon as the files are read again. Any other ends at the next minute's check,
// which asks once for each credential. Other callers' watches go on.
func TestAttackWatchesThatOutliveTheirCredential(t *testing.T) {
	t.Parallel()
	own, others := &knownTokens{good: map[string]bool{"leaked": true, "kept": true}}, &knownTokens{good: map[string]bool{"robot": true, "person": true}}
	s := newSessions(own, nil, everything)
	all := authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		if response, ok, err := s.AuthenticateRequest(r); ok {
			return response, ok, err
		}
		return others.AuthenticateRequest(r)
	})
	begun := make(chan context.Context)
	h := s.keep(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, ok, _ := all.AuthenticateRequest(r); !ok {
			t.Error("a good credential is refused")
		}
		if !strings.Contains(r.URL.Path, "watch") {
			return
		}
		begun <- r.Context()
		<-r.Context().Done()
	}), all, func(r *http.Request, _ *request.RequestInfo) bool { return strings.Contains(r.URL.Path, "watch") })

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	call := func(token, path string) (ended chan struct{}) {
		ended = make(chan struct{})
		r := httptest.NewRequestWithContext(request.WithRequestInfo(ctx, &request.RequestInfo{}), http.MethodGet, path, nil)
		r.Header.Set("Authorization", "Bearer "+token)
		go func() {
			defer close(ended)
			h.ServeHTTP(httptest.NewRecorder(), r)
		}()
		return ended
	}
	watches, contexts := map[string][]chan struct{}{}, map[string]context.Context{}
	for _, token := range []string{"leaked", "leaked", "kept", "robot", "robot", "person"} {
		watches[token] = append(watches[token], call(token, "/watch"))
		contexts[token] = <-begun
	}
	<-call("kept", "/list")
	everybody := func(*session) bool { return true }

	asked := others.asked
	own.set("leaked", false)
	others.set("robot", false)
	s.recheckOwn()
	for _, ended := range watches["leaked"] {
		<-ended
	}
	if others.asked != asked {
		t.Error("others are asked about a credential of the data directory")
	}
	for _, token := range []string{"kept", "robot", "person"} {
		if contexts[token].Err() != nil {
			t.Errorf("the watch of %s was ended", token)
		}
	}
	s.recheck(s.all, everybody)
	for _, ended := range watches["robot"] {
		<-ended
	}
	if got := others.asked - asked; got != 2 {
		t.Errorf("%d questions about two credentials", got)
	}
	s.recheck(s.all, everybody)
	for _, token := range []string{"kept", "person"} {
		if contexts[token].Err() != nil {
			t.Errorf("the watch of %s was ended", token)
		}
	}
	stop()
	for _, token := range []string{"kept", "person"} {
		<-watches[token][0]
	}
	if len(s.open) != 0 {
		t.Errorf("%d requests that are over are kept", len(s.open))
	}
}

// Certificates and the protocols of websockets are credentials, too.
func TestSessionsOfOneCredential(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for name, header := range map[string]http.Header{
		"none": {}, "token": {"Authorization": {"Bearer a"}}, "other token": {"Authorization": {"Bearer b"}},
		"websocket": {"Sec-Websocket-Protocol": {"base64url.bearer.authorization.k8s.io.YQ", "x"}}, "as a protocol": {"Sec-Websocket-Protocol": {"Bearer a"}},
	} {
		credential := (&session{request: &http.Request{Header: header}}).credential()
		if same, is := seen[credential]; is {
			t.Errorf("%s and %s are taken for one", name, same)
		}
		seen[credential] = name
	}
}

// A server that is asked whose tokens are cannot be asked for a while, or says no. Its word ends a
// watch at once. While it cannot be asked, watches go on for five minutes from its last answer, and
// only those that it let in.
func TestWatchesWhileNobodyCanBeAsked(t *testing.T) {
	answer := func(code int, body string) func() (*http.Response, error) {
		return func() (*http.Response, error) {
			return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body))}, nil
		}
	}
	review := func(status string) func() (*http.Response, error) {
		return answer(http.StatusOK, `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":`+status+`}`)
	}
	fails := func(err error) func() (*http.Response, error) {
		return func() (*http.Response, error) { return nil, err }
	}
	knows := review(`{"authenticated":true,"user":{"username":"pod"}}`)
	for name, test := range map[string]struct {
		answer func() (*http.Response, error)
		goesOn bool
	}{
		"known":                   {knows, true},
		"not known":               {review(`{"authenticated":false}`), false},
		"expired":                 {review(`{"authenticated":false,"error":"token has expired: 503 timeout"}`), false},
		"deleted":                 {answer(http.StatusNotFound, `{}`), false},
		"refused connection":      {fails(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}), true},
		"no answer in time":       {fails(context.DeadlineExceeded), true},
		"connection ends":         {fails(io.ErrUnexpectedEOF), true},
		"restarts":                {answer(http.StatusServiceUnavailable, ``), true},
		"a proxy":                 {answer(http.StatusBadGateway, `<html>`), true},
		"is busy":                 {answer(http.StatusTooManyRequests, `{}`), true},
		"fails":                   {answer(http.StatusInternalServerError, `{}`), true},
		"the asker is not known":  {answer(http.StatusUnauthorized, `{}`), true},
		"the asker may not ask":   {answer(http.StatusForbidden, `{}`), true},
		"the answer has no sense": {answer(http.StatusOK, `<html>`), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var answers atomic.Pointer[func() (*http.Response, error)]
				answers.Store(&knows)
				client := kubernetes.NewForConfigOrDie(&restclient.Config{Host: "http://cluster.test", QPS: -1, Transport: roundTripper(func() (*http.Response, error) { return (*answers.Load())() })})
				tokens, err := webhook.NewFromInterface(client.AuthenticationV1(), authenticator.Audiences{"here"}, wait.Backoff{Steps: 1}, 0, webhook.AuthenticatorMetrics{
					RecordRequestTotal: func(context.Context, string) {}, RecordRequestLatency: func(context.Context, string, float64) {},
				})
				if err != nil {
					t.Fatal(err)
				}
				local := &knownTokens{good: map[string]bool{"local": true}}
				s := newSessions(&knownTokens{}, authenticator.Audiences{"here"}, everything)
				all := union.New(s, local, asking{bearertoken.New(tokens)})
				begun := make(chan context.Context)
				h := s.keep(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					if _, ok, err := all.AuthenticateRequest(r); !ok {
						t.Error(err)
					}
					begun <- r.Context()
					<-r.Context().Done()
				}), all, func(*http.Request, *request.RequestInfo) bool { return true })
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				watch := func(token string) context.Context {
					r := httptest.NewRequestWithContext(request.WithRequestInfo(ctx, &request.RequestInfo{}), http.MethodGet, "/watch", nil)
					r.Header.Set("Authorization", "Bearer "+token)
					go h.ServeHTTP(httptest.NewRecorder(), r)
					return <-begun
				}
				pod, localPod := watch("of-the-cluster"), watch("local")
				go s.run(ctx)
				time.Sleep(10*recheckEvery + time.Second) // of the bubble's clock
				if pod.Err() != nil || localPod.Err() != nil {
					t.Fatal("a watch ended while its credential was good")
				}
				answers.Store(&test.answer)
				local.set("local", false)
				time.Sleep(recheckEvery)
				if goesOn := pod.Err() == nil; goesOn != test.goesOn {
					t.Errorf("after a minute the watch goes on: %t, want %t", goesOn, test.goesOn)
				}
				if localPod.Err() == nil && name != "known" {
					t.Error("a watch of a credential that the server did not let in goes on")
				}
				time.Sleep(unaskedTime - 2*recheckEvery)
				if goesOn := pod.Err() == nil; goesOn != test.goesOn {
					t.Errorf("before the time is over the watch goes on: %t, want %t", goesOn, test.goesOn)
				}
				time.Sleep(recheckEvery)
				if goesOn := pod.Err() == nil; goesOn != (name == "known") {
					t.Errorf("after %v the watch goes on: %t", unaskedTime, goesOn)
				}
			})
		})
	}
}

// roundTripper answers all requests.
type roundTripper func() (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := f()
	if resp != nil {
		resp.Request = r
	}
	return resp, err
}
