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

	"github.com/tidewaiter/tidewaiter/imageapi/manifest"
	"github.com/tidewaiter/tidewaiter/importer/guard"
)

// registryTransport is the http.RoundTripper under the authentication of one repository: all
// requests to its registry, to the token server and to where either redirects pass through it. It
// decides whether a request may go out at all, when, how often, and how much of the answer is read.
type registryTransport struct {
	client *Client
	// host is the registry's, as in a URL.
	host string
	// insecure is Registry.Insecure of the repository.
	insecure bool
	// tokenHosts are Registry.TokenHosts of the repository.
	tokenHosts []string
	// scheme is the one that the registry was found to speak, once it is known.
	scheme string
	// tokens are those of the repository; nil before their source is known.
	tokens *tokens
}

// budget is how much answer the caller of a request allows.
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

// budgetOf returns the caller's budget, or one that suits the request's path: package remote makes
// requests, too, for a SignatureFinder.
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
		return w.tokens.get(req, send)
	}
	resp, err := send()
	if err == nil && resp.StatusCode == http.StatusUnauthorized {
		w.tokens.refused(req)
	}
	return resp, err
}

// isNamed reports whether people named a URL's host, in the reference or in the configuration, so
// that it may be anywhere. The registry named all others.
func (w *registryTransport) isNamed(u *url.URL) bool {
	return u.Host == w.host || slices.Contains(w.tokenHosts, u.Host) || w.client.registries.lookup(canonicalHost(u.Host)).Prefix != ""
}

// checkRedirect is the rule for a request that a redirect caused: no secret goes to another host or
// port.
func checkRedirect(req *http.Request) error {
	from, to := guard.First(req).URL, req.URL
	if from.Host == to.Host {
		return nil
	}
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		// 307 and 308 repeat the body, which for a token server is a secret.
		return &Error{Reason: Denied, Message: fmt.Sprintf("%s redirects a request with credentials to %s", Clean(from.Host), Clean(to.Host))}
	}
	// http.Client takes headers along to subdomains and to other ports.
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
		if err == nil {
			now := w.client.Clock.Now()
			h.pace.answered(now, now.Sub(began), resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable)
			if spent, ok := spentFor(resp.Header); ok {
				h.pause(spent)
			}
		}
		again := (req.Method == http.MethodGet || req.Method == http.MethodHead) && n < w.client.Limits.Attempts
		wait := backoff(n)
		switch {
		case err != nil:
			if !again || !passing(err) {
				return nil, err
			}
		case resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable:
			// Without a time, only this request was refused: others of the host continue, more
			// slowly (see pace).
			asked, ok := RetryAfter(resp.Header, w.client.Clock.Now())
			if ok {
				wait = asked
				h.pause(asked)
			}
			if !again || asked > w.client.Limits.MaxWait {
				return nil, refused(resp, asked)
			}
		case again && passingStatus(resp.StatusCode):
		default:
			return resp, nil
		}
		if err := sleep(req.Context(), w.client.Clock, wait); err != nil {
			return nil, err
		}
	}
}

// refused returns the error for the answer of a host that refuses requests, and asked to be left
// alone for a time, or 0.
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

// maxRetryAfter bounds what a registry may ask for.
const maxRetryAfter = 24 * time.Hour

// RetryAfter reads the header of RFC 9110 §10.2.3, seconds or a date, as at most a day; ok is false
// if it has neither.
func RetryAfter(header http.Header, now time.Time) (wait time.Duration, ok bool) {
	value := strings.TrimSpace(header.Get("Retry-After"))
	if value == "" {
		return 0, false
	}
	var d time.Duration
	if seconds, err := strconv.ParseInt(value, 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		// then it is the largest
		d = time.Duration(min(max(seconds, 0), int64(maxRetryAfter/time.Second))) * time.Second
	} else if at, err := http.ParseTime(value); err == nil {
		d = at.Sub(now)
	} else {
		return 0, false
	}
	return min(max(d, 0), maxRetryAfter), true
}

// spentFor returns for how long a host says that its quota is used up: RateLimit-Remaining is 0,
// and RateLimit-Reset has the seconds (draft-ietf-httpapi-ratelimit-headers-05).
func spentFor(header http.Header) (time.Duration, bool) {
	// Docker Hub adds the window
	remaining, _, _ := strings.Cut(header.Get("RateLimit-Remaining"), ";")
	if strings.TrimSpace(remaining) != "0" {
		return 0, false
	}
	reset, _, _ := strings.Cut(header.Get("RateLimit-Reset"), ";")
	seconds, err := strconv.ParseInt(strings.TrimSpace(reset), 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) || seconds <= 0 {
		return 0, false
	}
	return time.Duration(min(seconds, int64(maxRetryAfter/time.Second))) * time.Second, true
}

func passingStatus(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusInternalServerError, http.StatusBadGateway, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// passing reports whether a connection failed in a way that a retry may mend. A refused connection
// did not: this distinguishes plain HTTP from TLS.
func passing(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
}

// maxErrorBody is how much of an error's body is kept, in bytes.
const maxErrorBody = 64 << 10

// once makes one request. Its slot of the host is given back when the answer's body has been read
// or closed, or has failed.
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
	// http.Client knows only the caller's request, not this copy.
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

// inSpan makes a request in a span of its own if it is for something that is traced. The registry
// is not told of it.
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
