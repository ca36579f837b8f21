package web

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// recheckEvery is how often requests that run for long are authenticated again.
const recheckEvery = time.Minute

// recheckAtOnce is how many credentials are asked about at a time.
const recheckAtOnce = 16

// unaskedTime is for how long after the last answer about a credential its requests go on, while
// those who know it cannot be asked.
const unaskedTime = 5 * time.Minute

// sessions are the requests that run for long: watches, and logs that are followed. Such a request
// lasts for as long as its client asks for, so it is not enough to authenticate and authorize it
// when it begins. Both are done again every minute. If its credential is one of the data directory,
// they are also done at once when these change. There are no more sessions than the limits let in.
type sessions struct {
	audiences authenticator.Audiences // the API's
	// rights answers a request with 200 if its caller, or whom the caller acts for, may make it.
	rights http.Handler
	// own knows callers whose credential is in the data directory, without asking another server. all
	// knows every caller.
	own, all authenticator.Request

	mu   sync.Mutex
	open map[*session]struct{}
}

// session is a request that runs for long.
type session struct {
	request *http.Request // the parts of the request that are authenticated
	own     atomic.Bool   // sessions.own let it in
	asked   atomic.Bool   // another server knew the credential
	known   time.Time     // when it did so last, and the request was allowed
	end     context.CancelFunc
}

// asking authenticates by asking another server about each credential, and remembers whom it let
// in: only their sessions go on while that server is away.
type asking struct{ authenticator.Request }

// AuthenticateRequest implements authenticator.Request.
func (a asking) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	response, ok, err := a.Request.AuthenticateRequest(r)
	if one, is := r.Context().Value(sessionKey{}).(*session); is && ok {
		one.asked.Store(true)
	}
	return response, ok, err
}

type sessionKey struct{}

// newSessions makes sessions without any request.
func newSessions(own authenticator.Request, audiences authenticator.Audiences, rights http.Handler) *sessions {
	return &sessions{own: own, audiences: audiences, rights: rights, open: map[*session]struct{}{}}
}

// newRights returns what sessions ask about rights: the filters that the handler chain has, and
// nothing behind them.
func newRights(c *genericapiserver.Config) http.Handler {
	allowed := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	by := noting{c.Authorization.Authorizer}
	return impersonation.WithConstrainedImpersonation(filters.WithAuthorization(allowed, by, c.Serializer), by, c.Serializer)
}

// noting is an authorizer that notes for sessions.allows that it could not find out what is
// allowed. The filters would log each such error.
type noting struct {
	authorizer.UnconditionalAuthorizer
}

type notedKey struct{}

// Authorize implements authorizer.UnconditionalAuthorizer.
func (n noting) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	decision, reason, err := n.UnconditionalAuthorizer.Authorize(ctx, a)
	if noted, is := ctx.Value(notedKey{}).(*bool); is && err != nil && decision != authorizer.DecisionAllow {
		*noted, err = true, nil
	}
	return decision, reason, err
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
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || !longRunning(r, info) {
			next.ServeHTTP(w, r)
			return
		}
		ctx, end := context.WithCancel(r.Context())
		defer end()
		// The request has no address: failures of others at the address would delay it.
		credential := &http.Request{Method: r.Method, URL: r.URL, Header: maps.Clone(r.Header), TLS: r.TLS}
		again := request.WithRequestInfo(authenticator.WithAudiences(context.Background(), s.audiences), info)
		one := &session{request: credential.WithContext(again), known: time.Now(), end: end}
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

// recheck ends the sessions whose credential by no longer knows, or that are no longer allowed. It
// calls by once for each credential. If the servers that know credentials or rights do not answer,
// the sessions continue for unaskedTime.
func (s *sessions) recheck(by authenticator.Request, of func(*session) bool) {
	s.mu.Lock()
	open := map[string][]*session{} // by credential
	for one := range s.open {
		if of(one) {
			open[one.credential()] = append(open[one.credential()], one)
		}
	}
	s.mu.Unlock()
	var ended, unanswered atomic.Int64
	var group errgroup.Group
	group.SetLimit(recheckAtOnce)
	for _, of := range open {
		group.Go(func() error {
			r := of[0].request
			response, ok, err := by.AuthenticateRequest(r.Clone(r.Context())) // it may be changed
			for _, one := range of {
				goesOn, unasked := ok, !ok && isUnasked(err) && one.asked.Load()
				if ok {
					goesOn, unasked = s.allows(one, response.User)
				}
				switch {
				case goesOn:
					one.known = time.Now()
				case unasked && time.Since(one.known) < unaskedTime:
					unanswered.Add(1)
				default:
					one.end()
					ended.Add(1)
				}
			}
			return nil
		})
	}
	_ = group.Wait() // there are no errors
	if n := unanswered.Load(); n > 0 {
		slog.Warn("The server that verifies their credentials or rights does not answer; watches and logs continue for now", "requests", n, "for", unaskedTime)
	}
	if n := ended.Load(); n > 0 {
		slog.Info("Watches and logs were ended: their credential is no longer valid, it no longer permits them, or neither could be verified for too long", "requests", n)
	}
}

// allows reports whether a caller, who was authenticated again, may still make the request of a
// session; unasked if that is not known.
func (s *sessions) allows(one *session, caller user.Info) (allowed, unasked bool) {
	ctx := context.WithValue(request.WithUser(one.request.Context(), caller), notedKey{}, &unasked)
	told := &statusWriter{header: http.Header{}}
	s.rights.ServeHTTP(told, one.request.Clone(ctx))
	return told.code == http.StatusOK, unasked
}

// statusWriter keeps the status of an answer, and nothing else.
type statusWriter struct {
	header http.Header
	code   int
}

// Header implements http.ResponseWriter.
func (w *statusWriter) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(code int) { w.code = cmp.Or(w.code, code) }

// Write implements http.ResponseWriter.
func (w *statusWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return len(p), nil
}

// isUnasked reports whether err, of an authenticator, has an error of asking another server, and
// not what that server said of the credential. Which it is cannot be told from the outcome: both
// are an error and nobody known.
func isUnasked(err error) bool {
	if all := utilerrors.Aggregate(nil); errors.As(err, &all) {
		// which errors.As does not look into
		return slices.ContainsFunc(all.Errors(), isUnasked)
	}
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		code := status.Status().Code
		// 401 and 403 are about this server's credential: an unknown token is in the answer's
		// status.
		return code >= 500 || code == http.StatusTooManyRequests || code == http.StatusUnauthorized || code == http.StatusForbidden
	}
	var network net.Error // also that of a time that is over
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
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
