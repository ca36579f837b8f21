package web

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
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

// A watch does not outlive its credential. If the credential is the data directory's own, the
// watch ends as soon as the files are read again. Any other ends at the next minute's check,
// which asks once for each credential. Other callers' watches go on.
func TestAttackWatchesThatOutliveTheirCredential(t *testing.T) {
	t.Parallel()
	own, others := &knownTokens{good: map[string]bool{"leaked": true, "kept": true}}, &knownTokens{good: map[string]bool{"robot": true, "person": true}}
	s := newSessions(own, nil)
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
