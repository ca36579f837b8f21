package limits

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var refused = metrics.NewCounterVec(&metrics.CounterOpts{
	Namespace: "tidewaiter", Name: "refused_requests_total", StabilityLevel: metrics.ALPHA,
	Help: "Requests answered 429, by kind (read, list, change, watch, login) and by whose bound was reached: that of a user at one address, of a user, or of the server. Logins are bounded by address.",
}, []string{"kind", "bound"})

var registerMetrics = sync.OnceFunc(func() { legacyregistry.MustRegister(refused) })
