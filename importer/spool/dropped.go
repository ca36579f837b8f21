package spool

import (
	"log/slog"
	"sync"
	"time"

	"k8s.io/component-base/metrics"

	"github.com/tidewaiter/tidewaiter/internal/push"
)

// warnEvery is the least time between two warnings about one receiver.
const warnEvery = time.Minute

// dropped tells of jobs that were dropped because their receiver is past its quota.
type dropped struct {
	log     *slog.Logger
	counter *metrics.CounterVec // by receiver; the receivers are few

	mu     sync.Mutex
	warned map[push.Source]time.Time
}

func newDropped(log *slog.Logger, register func(...metrics.Registerable)) *dropped {
	d := &dropped{log: log, warned: map[push.Source]time.Time{}, counter: metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace: "tidewaiter", Subsystem: "spool", Name: "dropped_total", StabilityLevel: metrics.ALPHA,
		Help: "Events of waiting pushes that were dropped because their receiver exceeded its quota.",
	}, []string{"receiver"})}
	if register != nil {
		register(d.counter)
	}
	return d
}

func (d *dropped) add(source push.Source, events int64, now time.Time) {
	d.counter.WithLabelValues(source.String()).Add(float64(events))
	d.mu.Lock()
	last, warned := d.warned[source]
	again := !warned || now.Sub(last) >= warnEvery
	if again {
		d.warned[source] = now
	}
	d.mu.Unlock()
	if source.Kind == push.Notification && again {
		d.log.Warn("a receiver of notifications does not keep up; dropping the oldest that wait", "receiver", source, "do", "mend the receiver, or send it fewer events (notify in the configuration)")
		return
	}
	if again {
		d.log.Warn("a receiver exceeded its quota of waiting pushes; dropping its oldest", "receiver", source,
			"do", "if these pushes are not yours, give the receiver a new secret; sweeps find dropped pushes that were yours, and images that pods use are checked again")
	}
}
