package web

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// recheckEvery is how often requests that run for long are authenticated again.
const recheckEvery = time.Minute

// sessions are the requests that run for long: watches, and logs that are followed. Such a request
// lasts for as long as its client asks for, so it is not enough to authenticate it when it begins.
// It is authenticated again every minute. If its credential is one of the data directory, it is
// also authenticated again at once when these change. There are no more sessions than the limits
// let in.
type sessions struct {
	audiences authenticator.Audiences // the API's
	// own knows callers whose credential is in the data directory, and asks nobody. all knows
	// every caller.
	own, all authenticator.Request

	mu   sync.Mutex
	open map[*session]struct{}
}

// session is a request that runs for long.
type session struct {
	request *http.Request // the parts of the request that are authenticated
	own     atomic.Bool   // sessions.own let it in
	end     context.CancelFunc
}

// sessionKey is the key of the context with the session.
type sessionKey struct{}

// newSessions makes sessions without any request.
func newSessions(own authenticator.Request, audiences authenticator.Audiences) *sessions {
	return &sessions{own: own, audiences: audiences, open: map[*session]struct{}{}}
}

// AuthenticateRequest implements authenticator.Request. It is own, and remembers whom own let in.
func (s *sessions) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	response, ok, err := s.own.AuthenticateRequest(r)
	if one, is := r.Context().Value(sessionKey{}).(*session); is && ok {
		one.own.Store(true)
	}
	return response, ok, err
}

// keep adds the requests that run for long to the sessions. It does so before all authenticates
// them, which takes the credential off the request. It is called once.
func (s *sessions) keep(next http.Handler, all authenticator.Request, longRunning request.LongRunningRequestCheck) http.Handler {
	s.all = all
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info, ok := request.RequestInfoFrom(r.Context()); !ok || !longRunning(r, info) {
			next.ServeHTTP(w, r)
			return
		}
		ctx, end := context.WithCancel(r.Context())
		defer end()
		// The request has no address: failures of others at the address would delay it.
		credential := &http.Request{Method: r.Method, URL: r.URL, Header: maps.Clone(r.Header), TLS: r.TLS}
		one := &session{request: credential.WithContext(authenticator.WithAudiences(context.Background(), s.audiences)), end: end}
		s.mu.Lock()
		s.open[one] = struct{}{}
		s.mu.Unlock()
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.open, one)
		}()
		next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, sessionKey{}, one)))
	})
}

// run rechecks all sessions every minute until ctx is done.
func (s *sessions) run(ctx context.Context) {
	ticker := time.NewTicker(recheckEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.recheck(s.all, func(*session) bool { return true })
		}
	}
}

// recheckOwn rechecks those that have a credential of the data directory.
func (s *sessions) recheckOwn() {
	s.recheck(s.own, func(one *session) bool { return one.own.Load() })
}

// recheck ends those of the sessions that by does not know. It asks by once for each credential.
func (s *sessions) recheck(by authenticator.Request, of func(*session) bool) {
	s.mu.Lock()
	open := slices.DeleteFunc(slices.Collect(maps.Keys(s.open)), func(one *session) bool { return !of(one) })
	s.mu.Unlock()
	known := map[string]bool{}
	ended := 0
	for _, one := range open {
		credential := one.credential()
		if _, asked := known[credential]; !asked {
			_, ok, _ := by.AuthenticateRequest(one.request.Clone(one.request.Context())) // it may be changed
			known[credential] = ok
		}
		if !known[credential] {
			one.end()
			ended++
		}
	}
	if ended > 0 {
		slog.Info("Watches and logs were ended, as their credential is good no longer", "requests", ended)
	}
}

// credential is equal for sessions that were authenticated by the same credential.
func (s *session) credential() string {
	parts := slices.Concat(s.request.Header["Authorization"], []string{""}, s.request.Header["Sec-Websocket-Protocol"])
	if s.request.TLS != nil {
		for _, certificate := range s.request.TLS.PeerCertificates {
			parts = append(parts, string(certificate.Raw))
		}
	}
	return strings.Join(parts, "\n")
}
