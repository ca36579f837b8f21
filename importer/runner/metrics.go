package runner

import (
	"slices"
	"time"

	"k8s.io/component-base/metrics"

	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/meter"
)

// Metrics are figures of queues by receiver. Receivers are those of the configuration, so labels
// are bounded, and no two queues have the same.
type Metrics struct {
	depth  *metrics.GaugeVec   // receiver, state
	oldest *metrics.GaugeVec   // receiver
	jobs   *metrics.CounterVec // receiver, result
}

// NewMetrics returns the metrics of all Runners of a server. r may be nil.
func NewMetrics(r meter.Registerer) *Metrics {
	m := &Metrics{
		depth:  meter.GaugeVec("queue", "jobs", "Jobs in the queues by receiver and state (waiting, leased, dead).", "receiver", "state"),
		oldest: meter.GaugeVec("queue", "oldest_job_age_seconds", "Age of the oldest job that is not dead, by receiver; 0 when there is none.", "receiver"),
		jobs:   meter.CounterVec("queue", "attempts_total", "Attempts at a job by receiver and result (done, gone, failed, dead, released, lost).", "receiver", "result"),
	}
	meter.Register(r, m.depth, m.oldest, m.jobs)
	return m
}

// depths are the figures of one queue.
type depths[S job.Source] struct {
	metrics *Metrics
	shown   []S
}

// set shows how many jobs there are. A receiver may have left the configuration.
func (d *depths[S]) set(sources []S, depth map[S]job.Depth, now time.Time) {
	sources = slices.Clone(sources)
	for source := range depth {
		if !slices.Contains(sources, source) {
			sources = append(sources, source)
		}
	}
	states := func(of job.Depth) map[string]int64 {
		return map[string]int64{string(job.Waiting): of.Waiting, string(job.Leased): of.Leased, string(job.Dead): of.Dead}
	}
	for _, source := range d.shown {
		if slices.Contains(sources, source) {
			continue
		}
		for state := range states(job.Depth{}) {
			d.metrics.depth.Delete(map[string]string{"receiver": source.String(), "state": state})
		}
		d.metrics.oldest.Delete(map[string]string{"receiver": source.String()})
	}
	for _, source := range sources {
		of, receiver := depth[source], source.String()
		for state, n := range states(of) {
			d.metrics.depth.WithLabelValues(receiver, state).Set(float64(n))
		}
		age := 0.0
		if !of.Oldest.IsZero() {
			age = now.Sub(of.Oldest).Seconds()
		}
		d.metrics.oldest.WithLabelValues(receiver).Set(age)
	}
	d.shown = sources
}
