package admission

import (
	"k8s.io/component-base/metrics"

	"github.com/tidewaiter/tidewaiter/internal/meter"
)

// admissionMetrics count reviews. Label values are constants of this package.
type admissionMetrics struct {
	reviews  *metrics.CounterVec   // decision
	duration *metrics.HistogramVec // waited
}

func newMetrics(r meter.Registerer) *admissionMetrics {
	m := &admissionMetrics{
		reviews: meter.CounterVec("admission", "reviews_total", "Pods judged on admission, by decision: allowed, audited, warned, denied, exempt, or failed if the API server's failurePolicy decides.", "decision"),
		duration: meter.HistogramVec("admission", "duration_seconds", "Time to judge a pod on admission, by whether it waited for the import of an unknown image.",
			[]float64{.0001, .00025, .0005, .001, .002, .005, .01, .025, .1, .5, 1, 2.5, 5, 10, 30}, "waited"),
	}
	meter.Register(r, m.reviews, m.duration)
	return m
}
