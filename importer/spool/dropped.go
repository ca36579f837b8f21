package spool

import (
	"log/slog"
	"sync"
	"time"

	"k8s.io/component-base/metrics"

	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/meter"
)

// warnEvery is the least time between two warnings about one receiver.
const warnEvery = time.Minute

// dropped logs and counts the jobs that were dropped because their receiver is past its quota.
type dropped[S job.Source] struct {
	log     *slog.Logger
	counter *metrics.CounterVec // by receiver; the receivers are few
	words   words

	mu     sync.Mutex
	warned map[S]time.Time
}

func newDropped[S job.Source](log *slog.Logger, counter *metrics.CounterVec, w words) *dropped[S] {
	return &dropped[S]{log: log, counter: counter, words: w, warned: map[S]time.Time{}}
}

// newDroppedCounter returns the counter of all queues.
func newDroppedCounter(r meter.Registerer) *metrics.CounterVec {
	counter := meter.CounterVec("spool", "dropped_total", "Events of waiting jobs that were dropped because their receiver exceeded its quota.", "receiver")
	meter.Register(r, counter)
	return counter
}

func (d *dropped[S]) add(source S, events int64, now time.Time) {
	d.counter.WithLabelValues(source.String()).Add(float64(events))
	d.mu.Lock()
	last, warned := d.warned[source]
	again := !warned || now.Sub(last) >= warnEvery
	if again {
		d.warned[source] = now
	}
	d.mu.Unlock()
	if again {
		d.log.Warn(d.words.dropped, "receiver", source, "do", d.words.do)
	}
}
