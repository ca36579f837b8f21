package spool

import (
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// warnEvery is the least time between two warnings about one receiver.
const warnEvery = time.Minute

// dropped tells of jobs that were dropped because their receiver is past its quota.
type dropped struct {
	log     *slog.Logger
	counter *prometheus.CounterVec // by receiver; the receivers are few

	mu     sync.Mutex
	warned map[string]time.Time // by receiver
}

func newDropped(log *slog.Logger) *dropped {
	return &dropped{log: log, warned: map[string]time.Time{}, counter: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tidewaiter_spool_dropped_total",
		Help: "Events of pushes that waited and were dropped because their receiver was past its quota.",
	}, []string{"receiver"})}
}

func (d *dropped) add(receiver string, events int64, now time.Time) {
	d.counter.WithLabelValues(receiver).Add(float64(events))
	d.mu.Lock()
	last, warned := d.warned[receiver]
	again := !warned || now.Sub(last) >= warnEvery
	if again {
		d.warned[receiver] = now
	}
	d.mu.Unlock()
	if again {
		d.log.Warn("a receiver is past its quota of pushes that wait: its oldest are dropped", "receiver", receiver,
			"do", "if these pushes are not yours, give the receiver a new secret; sweeps find what was dropped and was yours")
	}
}

// Describe implements prometheus.Collector.
func (s *Spool) Describe(ch chan<- *prometheus.Desc) { s.dropped.counter.Describe(ch) }

// Collect implements prometheus.Collector.
func (s *Spool) Collect(ch chan<- prometheus.Metric) { s.dropped.counter.Collect(ch) }
