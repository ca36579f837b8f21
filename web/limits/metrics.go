package limits

import "k8s.io/component-base/metrics"

// Refused counts requests that are answered 429, by kind and by the bound that was reached. Label
// values are constants of this package.
type Refused struct{ requests *metrics.CounterVec }

// NewRefused returns the counter, and registers it with register unless that is nil. In production,
// register is legacyregistry.MustRegister.
func NewRefused(register func(...metrics.Registerable)) *Refused {
	r := &Refused{metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace: "tidewaiter", Name: "refused_requests_total", StabilityLevel: metrics.ALPHA,
		Help: "Requests answered 429, by kind (read, list, change, watch, body, login) and by the limit that was reached: of a user at one address, of a user, or of the server. Logins are limited by address.",
	}, []string{"kind", "bound"})}
	if register != nil {
		register(r.requests)
	}
	return r
}

func (r *Refused) count(kind string, reached bound) {
	r.requests.WithLabelValues(kind, string(reached)).Inc()
}
