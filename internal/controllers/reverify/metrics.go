package reverify

import (
	"time"

	"k8s.io/component-base/metrics"

	"github.com/tidewaiter/tidewaiter/internal/meter"
)

// Outcomes of an Image in a sweep: values of the label result.
const (
	resultUnchanged  = "unchanged"
	resultChanged    = "changed"
	resultFailed     = "failed"
	resultUnreadable = "unreadable"
)

// sweepMetrics are the metrics of sweeps. Label values are constants of this package.
type sweepMetrics struct {
	examined  *metrics.CounterVec // result
	remaining *metrics.Gauge
	sweeps    *metrics.CounterVec // result
	duration  *metrics.Gauge
	succeeded *metrics.Gauge
}

func newMetrics(r meter.Registerer) *sweepMetrics {
	m := &sweepMetrics{
		examined:  meter.CounterVec("reverify", "images_total", "Images examined for an outdated verdict, by result: unchanged, changed, failed, unreadable.", "result"),
		remaining: meter.Gauge("reverify", "remaining_images", "Images that the current sweep has yet to examine; 0 between sweeps."),
		sweeps:    meter.CounterVec("reverify", "sweeps_total", "Sweeps over all images, by result: success, error.", "result"),
		duration:  meter.Gauge("reverify", "last_sweep_duration_seconds", "How long the last sweep took, with its pauses."),
		succeeded: meter.Gauge("reverify", "last_success_timestamp_seconds", "When the last complete sweep ended, in which every image could be examined and written."),
	}
	meter.Register(r, m.examined, m.remaining, m.sweeps, m.duration, m.succeeded)
	return m
}

// sweepEnded records the end of a sweep: err is nil if every Image could be examined and written.
func (m *sweepMetrics) sweepEnded(err error, now time.Time, took time.Duration) {
	result := "success"
	if err != nil {
		result = "error"
	} else {
		m.succeeded.Set(float64(now.Unix()))
	}
	m.sweeps.WithLabelValues(result).Inc()
	m.duration.Set(took.Seconds())
	m.remaining.Set(0)
}
