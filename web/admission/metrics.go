package admission

import "k8s.io/component-base/metrics"

// admissionMetrics count reviews. Label values are constants of this package.
type admissionMetrics struct {
	reviews  *metrics.CounterVec   // decision
	duration *metrics.HistogramVec // waited
}

func newMetrics(register func(...metrics.Registerable)) *admissionMetrics {
	m := &admissionMetrics{
		reviews: metrics.NewCounterVec(&metrics.CounterOpts{
			Namespace: "tidewaiter", Subsystem: "admission", Name: "reviews_total", StabilityLevel: metrics.ALPHA,
			Help: "Pods judged on admission, by decision: allowed, audited, warned, denied, exempt, or failed if the API server's failurePolicy decides.",
		}, []string{"decision"}),
		duration: metrics.NewHistogramVec(&metrics.HistogramOpts{
			Namespace: "tidewaiter", Subsystem: "admission", Name: "duration_seconds", StabilityLevel: metrics.ALPHA,
			Help:    "Time to judge a pod on admission, by whether it waited for the import of an unknown image.",
			Buckets: []float64{.0001, .00025, .0005, .001, .002, .005, .01, .025, .1, .5, 1, 2.5, 5, 10, 30},
		}, []string{"waited"}),
	}
	if register != nil {
		register(m.reviews, m.duration)
	}
	return m
}
