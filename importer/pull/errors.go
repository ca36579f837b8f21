package pull

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/tidewaiter/tidewaiter/importer/guard"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Reason is, in one word, why an import failed, for code that branches on it.
type Reason string

const (
	// NotFound: the registry has no such repository, tag, digest or platform.
	NotFound Reason = "NotFound"
	// Incomplete: the registry has the manifest and lacks what it names: the config, a layer, or all
	// images of an index. The reference is there.
	Incomplete Reason = "Incomplete"
	// Unauthorized: the registry requires credentials, or other credentials.
	Unauthorized Reason = "Unauthorized"
	// Denied: the credentials are valid but not sufficient, or the registry redirects to a forbidden
	// address (see package guard).
	Denied Reason = "Denied"
	// Misconfigured: a file or a helper of this machine with credentials or certificates for the
	// registry cannot be read.
	Misconfigured Reason = "Misconfigured"
	// RateLimited: the registry answered 429, or reported that its quota is used up. Error.RetryAfter
	// is the pause that it asked for, if any.
	RateLimited Reason = "RateLimited"
	// DigestMismatch: the registry sent bytes that do not match the digest.
	DigestMismatch Reason = "DigestMismatch"
	// TooLarge: a manifest, config, index or list is beyond its limit.
	TooLarge Reason = "TooLarge"
	// OverBudget: the job needs more requests, bytes or time than one job may use; see
	// Limits.JobManifests.
	OverBudget Reason = "OverBudget"
	// NotAnImage: the reference leads to an artifact, such as a signature.
	NotAnImage Reason = "NotAnImage"
	// InvalidImage: a manifest or config breaks the rules of its own format.
	InvalidImage Reason = "InvalidImage"
	// TLS: the registry's certificate is not trusted, or the registry does not use TLS.
	TLS Reason = "TLS"
	// Insecure: plain HTTP would be needed and is not allowed for the host.
	Insecure Reason = "Insecure"
	// Unreachable: no connection, or one that broke.
	Unreachable Reason = "Unreachable"
	// Timeout: the registry stalled, dripped or took too long.
	Timeout Reason = "Timeout"
	// Unavailable: the registry answered 5xx.
	Unavailable Reason = "Unavailable"
	// Unexpected: the host answered, but not as a registry does.
	Unexpected Reason = "Unexpected"
	// Canceled: the caller gave up.
	Canceled Reason = "Canceled"
	// Failed is shown for an error without one of these reasons, such as an error of the API that
	// stores the Images.
	Failed Reason = "Failed"
)

// words is the reason as prose, for messages.
var words = map[Reason]string{
	NotFound: "not found", Incomplete: "incomplete", Unauthorized: "unauthorized", Denied: "denied", Misconfigured: "misconfigured", RateLimited: "rate limited",
	DigestMismatch: "digest mismatch", TooLarge: "too large", OverBudget: "over budget", NotAnImage: "not an image",
	InvalidImage: "invalid image", TLS: "TLS", Insecure: "insecure", Unreachable: "unreachable",
	Timeout: "timeout", Unavailable: "unavailable", Unexpected: "unexpected answer", Canceled: "canceled",
}

// Error is any failure of an import that is due to the registry or to what it sent. Its text is
// safe to show and to log: URLs have lost their queries, and a registry's text is cut and cleaned.
type Error struct {
	Reason Reason
	// Host and Repository are the registry's; Reference is canonical. For a child of an index,
	// Reference has the child's digest.
	Host, Repository, Reference string
	// Message is what happened and, where that is known, what to do.
	Message string
	// RetryAfter is the pause that the registry asked for, from the time of the error; 0 if it named
	// none.
	RetryAfter time.Duration
	// Refused is true if the registry refused the request with 429 or 503, without naming a pause.
	Refused bool
	// Hidden is true if the registry answered that it lacks the content, and may only hide it from
	// the credentials. The Reason is Unauthorized.
	Hidden bool

	cause error
}

func (e *Error) Error() string {
	s := words[e.Reason]
	if where := e.Reference; where != "" {
		s = where + ": " + s
	} else if e.Host != "" {
		s = e.Host + ": " + s
	}
	if e.Message != "" {
		s += ": " + e.Message
	}
	if e.RetryAfter > 0 {
		s += fmt.Sprintf(" (try again in %s)", e.RetryAfter.Round(time.Second))
	}
	return s
}

// Unwrap returns the cause, for errors.Is and errors.As. Do not print it: its text may hold what
// Error's text does not.
func (e *Error) Unwrap() error { return e.cause }

// Temporary reports whether the same import may succeed later.
func (e *Error) Temporary() bool {
	switch e.Reason {
	case RateLimited, Unreachable, Timeout, Unavailable:
		return true
	}
	return false
}

// Content reports whether the registry answered, and the import failed because of what the registry
// has, lacks or refuses. Users who may push, or who choose the image, can cause such an error.
func (e *Error) Content() bool {
	switch e.Reason {
	case NotFound, Incomplete, Unauthorized, Denied, DigestMismatch, TooLarge, OverBudget, NotAnImage, InvalidImage:
		return true
	}
	return false
}

// IsRefusal reports whether the registry refused the request with 429 or 503, or asked for a pause.
func (e *Error) IsRefusal() bool { return e.Reason == RateLimited || e.Refused || e.RetryAfter > 0 }

// CausedBy is an *Error with a cause.
func CausedBy(reason Reason, message string, cause error) *Error {
	return &Error{Reason: reason, Message: message, cause: cause}
}

// IsHidden reports whether the first *Error in err's tree is Hidden.
func IsHidden(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Hidden
}

// ReasonOf is the reason of the first *Error in err's tree, or "".
func ReasonOf(err error) Reason {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return ""
}

// Describe makes an *Error about ref from the error of a request or a parser.
func Describe(ref reference.Reference, err error) *Error {
	e := &Error{}
	if known, ok := errors.AsType[*Error](err); ok {
		*e = *known
	} else {
		e.Reason, e.Message = classify(err, ref.Host)
		e.cause = err
	}
	if there, ok := errors.AsType[*elsewhereError](err); ok && e.Reason != Canceled && !strings.Contains(e.Message, there.host) {
		e.Message = fmt.Sprintf("%s, to which the registry redirected: %s", there.host, e.Message)
	}
	if part, ok := errors.AsType[*partError](err); ok && e.Reason != Canceled && !strings.Contains(e.Message, part.part) {
		e.Message = part.part + ": " + e.Message
		if e.Reason == NotFound {
			e.Reason = Incomplete
		}
	}
	if e.Reference == "" {
		e.Host, e.Repository = ref.Host, ref.Repository
		e.Reference = ref.String()
	}
	return e
}

// partError names the part of an image that could not be read.
type partError struct {
	part string // such as "layer sha256:…"
	err  error
}

func (e *partError) Error() string { return e.part + ": " + e.err.Error() }

func (e *partError) Unwrap() error { return e.err }

// PartFailed is the error of a part, such as "layer sha256:…".
func PartFailed(part string, err error) error { return &partError{part, err} }

// elsewhereError is the error of a request that went to another host than the registry: to its
// token server, or where a redirect led.
type elsewhereError struct {
	host string // printable
	err  error
}

func (e *elsewhereError) Error() string { return e.host + ": " + e.err.Error() }

func (e *elsewhereError) Unwrap() error { return e.err }

// errPlainHTTP is the error of a request that would be sent unencrypted.
var errPlainHTTP = errors.New("plain HTTP is not allowed for this host")

// alertOp is how package tls marks the peer's message about a handshake.
const alertOp = "remote error"

// classify tests for the most specific errors first, because greeting a host over both TLS and
// plain HTTP gives two errors in one.
func classify(err error, host string) (Reason, string) {
	var answer *transport.Error
	var authority x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	var dns *net.DNSError
	var dial *net.OpError
	var refused *guard.RefusedError
	switch {
	case errors.Is(err, context.Canceled):
		return Canceled, ""
	case errors.As(err, &refused):
		return Denied, Clean(refused.Error())
	case errors.As(err, &answer):
		return classifyAnswer(answer, host)
	case errors.Is(err, manifest.ErrDigestMismatch):
		return DigestMismatch, Clean(err.Error())
	case errors.Is(err, manifest.ErrTooLarge):
		return TooLarge, Clean(err.Error())
	case errors.Is(err, manifest.ErrNotAnImage):
		return NotAnImage, Clean(err.Error())
	case errors.Is(err, manifest.ErrInvalid), errors.Is(err, manifest.ErrAmbiguous), errors.Is(err, manifest.ErrUnsupported):
		return InvalidImage, Clean(err.Error())
	case errors.Is(err, http.ErrSchemeMismatch), errors.As(err, &record):
		return TLS, fmt.Sprintf("%s does not speak TLS; if it is meant to speak plain HTTP, mark it insecure in the registries configuration", host)
	case errors.As(err, &authority):
		return TLS, "the certificate is signed by an unknown authority; give the authority as caFile of an entry for this host in the registries configuration, or add it to the system's"
	case errors.As(err, &hostname):
		return TLS, "the certificate is for another host: " + Clean(hostname.Error())
	case errors.As(err, &certificate):
		return TLS, Clean(certificate.Err.Error())
	case errors.As(err, &alert):
		return TLS, Clean(alert.Error())
	case errors.As(err, &dial) && dial.Op == alertOp:
		return TLS, Clean(dial.Err.Error()) + ", says the registry; it may want a client certificate: see certDir and --cert-dir"
	case errors.As(err, &dns) && dns.IsNotFound:
		return Unreachable, fmt.Sprintf("host %s not found", Clean(dns.Name))
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return Timeout, "the registry did not answer in time"
	case errors.As(err, &dial):
		return Unreachable, Clean(dial.Error())
	case errors.Is(err, errPlainHTTP):
		return Insecure, "the connection would be plain HTTP; mark the host insecure in the registries configuration to allow that"
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, net.ErrClosed):
		return Unreachable, "the connection broke"
	}
	return Unexpected, Clean(err.Error())
}

func classifyAnswer(answer *transport.Error, host string) (Reason, string) {
	var details []string
	codes := map[transport.ErrorCode]bool{}
	for _, d := range answer.Errors {
		codes[d.Code] = true
		details = append(details, string(d.Code)+": "+d.Message)
	}
	message := Clean(strings.Join(details, "; "))
	if message == "" {
		message = fmt.Sprintf("status %d %s", answer.StatusCode, http.StatusText(answer.StatusCode))
	}
	if answer.Request != nil && canonicalHost(answer.Request.URL.Host) != host && answer.Request.URL.Host != "" {
		message += " (said " + Clean(answer.Request.URL.Host) + ")"
	}
	switch status := answer.StatusCode; {
	case status == http.StatusTooManyRequests || codes[transport.TooManyRequestsErrorCode]:
		return RateLimited, message
	case status == http.StatusUnauthorized:
		return Unauthorized, message + "; log in with docker login or podman login, or check the credentials"
	case status == http.StatusForbidden:
		return Denied, message
	case status == http.StatusNotFound:
		return NotFound, message
	case status == http.StatusRequestEntityTooLarge:
		return TooLarge, message
	case status == http.StatusRequestTimeout || status == http.StatusGatewayTimeout:
		return Timeout, message
	case status >= 500:
		return Unavailable, message
	}
	return Unexpected, message
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// maxMessage bounds the bytes of a message that come from a registry.
const maxMessage = 300

// Clean makes text from a registry safe to show: one line of bounded length, without control
// characters and without URL queries, which hold the secrets of signed URLs.
func Clean(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	s = queries.ReplaceAllString(s, "$1?…")
	s = userinfo.ReplaceAllString(s, "$1")
	return printable.Line(s, maxMessage)
}

var (
	queries  = regexp.MustCompile(`(https?://[^\s?"]*)\?[^\s"]*`)
	userinfo = regexp.MustCompile(`(https?://)[^\s/@"]*@`)
)
