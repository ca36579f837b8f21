package limits

import (
	"k8s.io/component-base/metrics"

	"github.com/tidewaiter/tidewaiter/internal/meter"
)

// Refused counts requests that are answered 429, by kind and by the bound that was reached. Label
// values are constants of this package.
type Refused struct{ requests *metrics.CounterVec }

// NewRefused returns the counter, and registers it unless r is nil.
func NewRefused(r meter.Registerer) *Refused {
	requests := meter.CounterVec("", "refused_requests_total", "Requests answered 429, by kind (read, list, change, watch, body, login) and by the limit that was reached: of a user at one address, of a user, or of the server. Logins are limited by address.", "kind", "bound")
	meter.Register(r, requests)
	return &Refused{requests}
}

func (r *Refused) count(kind string, reached bound) {
	r.requests.WithLabelValues(kind, string(reached)).Inc()
}
