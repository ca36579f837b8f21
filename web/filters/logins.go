package filters

import (
	"net/http"

	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/tidewaiter/tidewaiter/internal/warn"
	"github.com/tidewaiter/tidewaiter/web/limits"
)

// Logins authenticates requests and logs failures. It returns no error for a failure, because the
// filter that calls it would log each one, and a flood of failures would fill the disk.
type Logins struct {
	authenticator.Request
	failed warn.Limiter
}

// AuthenticateRequest implements authenticator.Request.
func (l *Logins) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	response, ok, err := l.Request.AuthenticateRequest(r)
	if ok && err == nil {
		return response, true, nil
	}
	why := "no credential"
	if err != nil {
		why = err.Error()
	}
	l.failed.Warn(limits.Address(r.RemoteAddr), "authentication failed", "address", r.RemoteAddr, "method", r.Method, "path", r.URL.Path, "why", why)
	return nil, false, nil
}

// CheckedInTurn authenticates requests. It checks the credentials of an address with too many
// failures one at a time.
type CheckedInTurn struct {
	authenticator.Request
	Failures *limits.Failures
}

// AuthenticateRequest implements authenticator.Request.
func (c CheckedInTurn) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	done, err := c.Failures.Check(r.Context(), r.RemoteAddr)
	if err != nil {
		return nil, false, err
	}
	defer done()
	return c.Request.AuthenticateRequest(r)
}
