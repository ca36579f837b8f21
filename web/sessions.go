package web

import (
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
	"k8s.io/apiserver/pkg/endpoints/request"
)

// recheckEvery is how often requests that run for long are authenticated again.
const recheckEvery = time.Minute

// recheckAtOnce is how many credentials are asked about at a time.
const recheckAtOnce = 16

// unaskedTime is for how long after the last answer about a credential its requests go on, while
// those who know it cannot be asked.
const unaskedTime = 5 * time.Minute

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
	asked   atomic.Bool   // another server knew the credential
	known   time.Time     // when it did so last
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
		one := &session{request: credential.WithContext(authenticator.WithAudiences(context.Background(), s.audiences)), known: time.Now(), end: end}
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

// recheck ends those of the sessions that by does not know. It asks by once for each credential. If
// those who know a credential cannot be asked, its sessions go on for unaskedTime.
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
			_, ok, err := by.AuthenticateRequest(r.Clone(r.Context())) // it may be changed
			away := !ok && isUnasked(err)
			for _, one := range of {
				switch {
				case ok:
					if one.asked.Load() {
						one.known = time.Now()
					}
				case away && one.asked.Load() && time.Since(one.known) < unaskedTime:
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
		slog.Warn("The server that verifies their credentials does not answer; watches and logs continue for now", "requests", n, "for", unaskedTime)
	}
	if n := ended.Load(); n > 0 {
		slog.Info("Watches and logs were ended: their credential is no longer valid, or could not be verified for too long", "requests", n)
	}
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
