package reverify

import (
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// What became of an Image in a sweep; values of the label result.
const (
	resultUnchanged  = "unchanged"
	resultChanged    = "changed"
	resultFailed     = "failed"
	resultUnreadable = "unreadable"
)

var (
	examined = metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace: "tidewaiter", Subsystem: "reverify", Name: "images_total", StabilityLevel: metrics.ALPHA,
		Help: "Images examined for an outdated verdict, by result: unchanged, changed, failed, unreadable.",
	}, []string{"result"})
	remaining = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "tidewaiter", Subsystem: "reverify", Name: "remaining_images", StabilityLevel: metrics.ALPHA,
		Help: "Images that the current sweep has yet to examine; 0 between sweeps.",
	})
	sweeps = metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace: "tidewaiter", Subsystem: "reverify", Name: "sweeps_total", StabilityLevel: metrics.ALPHA,
		Help: "Sweeps over all images, by result: success, error.",
	}, []string{"result"})
	duration = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "tidewaiter", Subsystem: "reverify", Name: "last_sweep_duration_seconds", StabilityLevel: metrics.ALPHA,
		Help: "How long the last sweep took, with its pauses.",
	})
	succeeded = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "tidewaiter", Subsystem: "reverify", Name: "last_success_timestamp_seconds", StabilityLevel: metrics.ALPHA,
		Help: "When the last sweep ended in which every image could be examined and written.",
	})
)

var registerMetrics = sync.OnceFunc(func() {
	legacyregistry.MustRegister(examined, remaining, sweeps, duration, succeeded)
})

func recordSweep(err error, now time.Time, took time.Duration) {
	result := "success"
	if err != nil {
		result = "error"
	} else {
		succeeded.Set(float64(now.Unix()))
	}
	sweeps.WithLabelValues(result).Inc()
	duration.Set(took.Seconds())
	remaining.Set(0)
}
