package pull

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/tidewaiter/tidewaiter/importer/guard"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

// registryTransport is the http.RoundTripper below the authentication of one repository. All
// requests to its registry, to the token server, and to the targets of their redirects pass through
// it. It decides whether a request may be sent, when, how often, and how much of the answer is
// read.
type registryTransport struct {
	client *Client
	// host is the registry's, as in a URL.
	host string
	// insecure is Registry.Insecure of the repository.
	insecure bool
	// tokenHosts are Registry.TokenHosts of the repository.
	tokenHosts []string
	// scheme is the registry's scheme, https or http, once it is known.
	scheme string
	// tokens are the repository's tokens; nil before its token server is known.
	tokens *tokens
}

// budget is how many bytes and how much time the caller of a request allows for the answer.
type budget struct {
	bytes int64
	time  time.Duration
	// job is charged for the bytes; it may be nil.
	job *jobBudget
}

type budgetKey struct{}

// WithBudget limits the bytes of answers, and the time, of the requests with the returned context.
// job is charged for the bytes; it may be nil.
func WithBudget(ctx context.Context, bytes int64, time time.Duration, job *jobBudget) context.Context {
	return context.WithValue(ctx, budgetKey{}, budget{bytes, time, job})
}

// budgetOf returns the caller's budget or, for a request without one, a budget by the request's
// path: a SignatureFinder may send requests with package remote.
func (w *registryTransport) budgetOf(req *http.Request) budget {
	if b, ok := req.Context().Value(budgetKey{}).(budget); ok {
		return b
	}
	b := budget{manifest.MaxManifestSize, w.client.Limits.Request, JobOf(req.Context())}
	if strings.Contains(req.URL.Path, "/blobs/") {
		b.bytes = manifest.MaxConfigSize
	}
	return b
}

// RoundTrip implements http.RoundTripper.
func (w *registryTransport) RoundTrip(in *http.Request) (*http.Response, error) {
	resp, err := w.send(in)
	if err != nil && in.URL.Host != w.host {
		err = &elsewhereError{Clean(in.URL.Host), err}
	}
	return resp, err
}

func (w *registryTransport) send(in *http.Request) (*http.Response, error) {
	req := in.Clone(in.Context())
	if w.scheme != "" && req.URL.Host == w.host {
		req.URL.Scheme = w.scheme
	}
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", w.client.userAgent)
	}
	if err := checkRedirect(req); err != nil {
		return nil, err
	}
	insecure := w.insecure && req.URL.Host == w.host || w.client.registries.lookup(canonicalHost(req.URL.Host)).Insecure
	if req.URL.Scheme != "https" && !insecure && !isLoopback(req.URL.Host) {
		return nil, fmt.Errorf("%w: %s", errPlainHTTP, req.URL.Host)
	}
	out, err := w.client.transports.get(req.URL.Host, !insecure)
	if err != nil {
		return nil, unreadHere("certificates", err)
	}
	send := func() (*http.Response, error) { return w.attempt(out.Named(w.isNamed(req.URL)), req) }
	if w.tokens.isFor(req) {
		return w.tokens.get(req, w.client.Clock, send)
	}
	resp, err := send()
	if err == nil && resp.StatusCode == http.StatusUnauthorized {
		w.tokens.refused(req)
	}
	return resp, err
}

// isNamed reports whether the reference or the configuration names a URL's host, so that it may
// have any address. All other hosts were named by the registry.
func (w *registryTransport) isNamed(u *url.URL) bool {
	return u.Host == w.host || slices.Contains(w.tokenHosts, u.Host) || w.client.registries.lookup(canonicalHost(u.Host)).Prefix != ""
}

// checkRedirect keeps secrets from going to another host or port with a request that a redirect
// caused.
func checkRedirect(req *http.Request) error {
	from, to := guard.First(req).URL, req.URL
	if from.Host == to.Host {
		return nil
	}
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		// 307 and 308 repeat the body, which for a token server is a secret.
		return &Error{Reason: Denied, Message: fmt.Sprintf("%s redirects a request with credentials to %s", Clean(from.Host), Clean(to.Host))}
	}
	// http.Client keeps headers for subdomains and other ports.
	for _, secret := range []string{"Authorization", "Cookie", "Proxy-Authorization"} {
		req.Header.Del(secret)
	}
	return nil
}

// attempt makes the request until it succeeds, fails for good, or has failed often enough.
func (w *registryTransport) attempt(base http.RoundTripper, req *http.Request) (*http.Response, error) {
	h, job := w.client.hosts.get(req.URL.Host), JobOf(req.Context())
	for n := 1; ; n++ {
		if err := job.request(); err != nil {
			return nil, err
		}
		release, err := h.acquire(req.Context())
		if err != nil {
			return nil, err
		}
		began := w.client.Clock.Now()
		w.client.traffic.requests.Add(1)
		resp, err := w.once(base, req, release)
		var asked time.Duration
		isAsked := false
		if err == nil {
			now := w.client.Clock.Now()
			h.answered(now, now.Sub(began), resp.StatusCode)
			// A refusal of referrers alone hides no signature of a tag: a request for the tag follows.
			if !isRefusal(resp.StatusCode) || !isReferrers(req) {
				asked, isAsked = pauseAsked(resp, now)
			}
			h.pause(asked, !isRefusal(resp.StatusCode))
		}
		again := (req.Method == http.MethodGet || req.Method == http.MethodHead || w.tokens.isFor(req) && req.GetBody != nil) && n < w.attempts(h, req, resp)
		wait := backoff(n)
		switch {
		case err != nil:
			if !again || !passing(err) {
				return nil, err
			}
		case isRefusal(resp.StatusCode):
			// Without a pause, only this request was refused: other requests to the host continue, more
			// slowly (see pace).
			if !again || asked > w.client.Limits.MaxWait {
				return nil, refused(resp, asked)
			}
			if isAsked {
				wait = asked
			}
		case again && passingStatus(resp.StatusCode):
		default:
			return resp, nil
		}
		if err := sleep(req.Context(), w.client.Clock, wait); err != nil {
			return nil, err
		}
		if req.GetBody != nil {
			if req.Body, err = req.GetBody(); err != nil {
				return nil, err
			}
		}
	}
}

// attempts is how often to try a request whose answer was resp, or nil for none. A gateway fails
// for a shorter time than the registry behind it, so its failures are worth more attempts, unless
// it has failed for a while, or what is asked for has another place.
func (w *registryTransport) attempts(h *host, req *http.Request, resp *http.Response) int {
	if resp != nil && isGatewayFailure(resp.StatusCode) && !isReferrers(req) && h.gatewayFailures.Load() <= maxGatewayFailures {
		return 2 * w.client.Limits.Attempts
	}
	return w.client.Limits.Attempts
}

// isReferrers reports whether a request is for an image's referrers, or a redirect from there.
func isReferrers(req *http.Request) bool {
	return strings.Contains(guard.First(req).URL.Path, "/referrers/")
}

// isRefusal reports whether a host refuses a request for now, whatever it is about.
func isRefusal(status int) bool {
	return status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable
}

// isGatewayFailure reports whether a status is one with which load balancers and proxies answer
// while a server is replaced. 503 is not: a registry may refuse requests with it, and then imports
// wait.
func isGatewayFailure(status int) bool {
	switch status {
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// refused returns the error for the answer of a host that refuses a request. asked is the pause
// that it asked for, or 0.
func refused(resp *http.Response, asked time.Duration) error {
	err := transport.CheckError(resp)
	reason, message := classify(err, resp.Request.URL.Host)
	if resp.StatusCode == http.StatusTooManyRequests {
		reason = RateLimited
	}
	return &Error{Reason: reason, Message: message, RetryAfter: asked, Refused: asked == 0, cause: err}
}

// backoff is half a second, one, two, …, plus or minus a half of it, so that clients do not come
// back in step.
func backoff(n int) time.Duration {
	d := 500 * time.Millisecond << min(n-1, 6)
	return d/2 + rand.N(d)
}

const (
	// MaxPause bounds a pause that a registry asks for.
	MaxPause = time.Hour
	// maxRetryAfter bounds the value of Retry-After. An interactive import gives up a registry that
	// asks for more than MaxPause.
	maxRetryAfter = 24 * time.Hour
)

// pauseAsked returns the pause that an answer asks for. A refusal may have Retry-After. Any answer
// may report that a quota is used up; then Retry-After, if present, has the pause.
func pauseAsked(resp *http.Response, now time.Time) (wait time.Duration, ok bool) {
	spent, isSpent := spentFor(resp.Header, now)
	if isSpent || isRefusal(resp.StatusCode) {
		if asked, ok := RetryAfter(resp.Header, now); ok {
			return asked, true
		}
	}
	return spent, spent > 0
}

// RetryAfter reads the header of RFC 9110 §10.2.3, seconds or a date, as at most a day; ok is false
// if it has neither.
func RetryAfter(header http.Header, now time.Time) (wait time.Duration, ok bool) {
	value := strings.TrimSpace(header.Get("Retry-After"))
	if wait, ok := waitOf(value, now, maxRetryAfter); ok {
		return wait, true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	return min(max(at.Sub(now), 0), maxRetryAfter), true
}

// spentFor returns for how long a host reports that its quota is used up: RateLimit-Remaining is 0,
// and RateLimit-Reset has the seconds (draft-ietf-httpapi-ratelimit-headers-05), or the point in
// time (GitLab).
func spentFor(header http.Header, now time.Time) (wait time.Duration, spent bool) {
	// Docker Hub adds the window
	remaining, _, _ := strings.Cut(header.Get("RateLimit-Remaining"), ";")
	if strings.TrimSpace(remaining) != "0" {
		return 0, false
	}
	reset, _, _ := strings.Cut(header.Get("RateLimit-Reset"), ";")
	wait, _ = waitOf(strings.TrimSpace(reset), now, MaxPause)
	return wait, true
}

// waitOf reads a number of seconds as a wait of at most longest. A number of more than a year is a
// point in time, in seconds or milliseconds since 1970.
func waitOf(text string, now time.Time, longest time.Duration) (wait time.Duration, ok bool) {
	const year, millis = 365 * 24 * 60 * 60, 100_000_000_000
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) { // a number out of range is the largest
		return 0, false
	}
	switch {
	case n > millis:
		wait = time.UnixMilli(n).Sub(now)
	case n > year:
		wait = time.Unix(n, 0).Sub(now)
	default:
		wait = time.Duration(max(n, 0)) * time.Second
	}
	return min(max(wait, 0), longest), true
}

func passingStatus(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusInternalServerError:
		return true
	}
	return isGatewayFailure(status)
}

// passing reports whether a retry may help after a connection failed. It returns false for a
// refused connection, which is how a greeting finds out whether the host uses TLS or plain HTTP.
func passing(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
}

// maxErrorBody is how much of an error's body is kept, in bytes.
const maxErrorBody = 64 << 10

// once sends one request. It releases the host's slot when the answer's body has been read or
// closed, or has failed.
func (w *registryTransport) once(base http.RoundTripper, req *http.Request, release func()) (*http.Response, error) {
	allowed := w.budgetOf(req)
	ctx, cancel := context.WithCancelCause(req.Context())
	deadline := w.client.Clock.AfterFunc(allowed.time, func() {
		cancel(&Error{Reason: Timeout, Message: fmt.Sprintf("%s took longer than %s", req.URL.Host, allowed.time)})
	})
	b := &body{
		ctx: ctx, cancel: cancel, clock: w.client.Clock, limits: w.client.Limits, left: allowed.bytes, limit: allowed.bytes, host: req.URL.Host,
		job:  allowed.job,
		done: func() { deadline.Stop(); release() },
		read: &w.client.traffic.bytes,
	}
	var resp *http.Response
	err := b.waiting(func() (err error) {
		resp, err = inSpan(base, req.WithContext(ctx))
		return err
	})
	if err != nil {
		b.finish()
		return nil, err
	}
	b.inner = resp.Body
	resp.Body = b
	// http.Client expects the caller's request, not this copy.
	resp.Request = req
	switch {
	case resp.StatusCode >= 400:
		// The caller of an error does not always close it.
		b.left, b.limit = maxErrorBody, maxErrorBody
		text, _ := io.ReadAll(b) // a missing part does not matter
		b.Close()
		resp.Body = io.NopCloser(bytes.NewReader(text))
	case resp.ContentLength > allowed.bytes && resp.StatusCode == http.StatusOK:
		b.Close()
		return nil, TooLargeError(req.URL.Host, resp.ContentLength, allowed.bytes)
	case req.Method == http.MethodHead:
		b.Close()
	}
	return resp, nil
}

// inSpan sends a request in a span of its own if its context is traced. It sends no trace headers
// to the registry.
func inSpan(base http.RoundTripper, req *http.Request) (*http.Response, error) {
	of := trace.SpanFromContext(req.Context())
	if !of.IsRecording() {
		return base.RoundTrip(req)
	}
	_, span := of.TracerProvider().Tracer("github.com/tidewaiter/tidewaiter/importer/pull").Start(req.Context(), req.Method+" "+req.URL.Host, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("http.request.method", req.Method), attribute.String("server.address", req.URL.Hostname()), attribute.String("url.path", req.URL.Path),
	))
	defer span.End()
	resp, err := base.RoundTrip(req)
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	} else {
		span.SetAttributes(attribute.Int("http.response.status_code", resp.StatusCode))
	}
	return resp, err
}

func TooLargeError(host string, size, limit int64) error {
	sent := "more"
	if size > 0 {
		sent = fmt.Sprintf("%d bytes", size)
	}
	return &Error{Reason: TooLarge, Message: fmt.Sprintf("%s sends %s where at most %d bytes are read", host, sent, limit)}
}
