package db

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/internal/space"
)

func newMetrics(d *DB) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "tidewaiter_db_" + name, Help: help})
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tidewaiter_db_" + name, Help: help, Buckets: buckets})
	}
	m := &metrics{
		commit:             histogram("commit_duration_seconds", "Time of a shared commit, from its first writer to the synced log.", prometheus.ExponentialBuckets(0.0005, 2, 14)),
		batch:              histogram("commit_writers", "Writers that shared a commit.", prometheus.ExponentialBuckets(1, 2, 9)),
		read:               histogram("read_duration_seconds", "Time of a read from the file: a key, a page, or a look for events.", prometheus.ExponentialBuckets(0.00001, 4, 10)),
		lag:                histogram("event_lag_seconds", "Time from a commit to a watcher fetching its events.", prometheus.ExponentialBuckets(0.0001, 4, 10)),
		commitFailures:     counter("commit_failures_total", "Commits that failed and wrote nothing."),
		compactedRevisions: counter("compacted_revisions_total", "Superseded revisions removed."),
		expired:            counter("expired_keys_total", "Keys deleted because their time to live expired."),
		damaged:            counter("damaged_reads_total", "Reads that found damage in the file or in a value."),
	}
	add := func(name, help string, labels prometheus.Labels, value func() float64) {
		m.gauges = append(m.gauges, gauge{prometheus.NewDesc("tidewaiter_db_"+name, help, nil, labels), value})
	}
	add("revision", "Last revision given out.", nil, func() float64 { return float64(d.revision.Load()) })
	add("compacted_revision", "Oldest revision that can be listed or watched from.", nil, func() float64 { return float64(d.compacted.Load()) })
	add("watchers", "Open watches.", nil, func() float64 { return float64(d.changes.Watching()) })
	add("queued_writers", "Writers waiting for a commit.", nil, func() float64 { return float64(len(d.queue)) })
	add("writable", "1 when everything can be written, 0 while the disk is full, the quota is reached, or the device fails.", nil, func() float64 {
		if d.WriteFault() != nil {
			return 0
		}
		return 1
	})
	add("disk_free_bytes", "Free space on the file system of the data directory.", nil, func() float64 {
		free, _, err := space.Free(d.dir)
		if err != nil {
			return math.NaN()
		}
		return float64(free)
	})
	add("quota_bytes", "Quota for the bytes in use; 0 for none.", nil, func() float64 { return float64(d.opts.Quota) })
	size := "Size of a file on the disk."
	add("file_size_bytes", size, prometheus.Labels{"file": "database"}, func() float64 { return float64(datafile.FileSize(d.path)) })
	add("file_size_bytes", size, prometheus.Labels{"file": "wal"}, func() float64 { return float64(datafile.FileSize(d.path + "-wal")) })
	return m
}

// addMirror adds the metrics of a database that is a copy of a store.
func (m *metrics) addMirror(of *mirror) {
	m.barrier = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "tidewaiter_db_copy_barrier_seconds", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
		Help: "Time that a read waits until the copy has every write that was confirmed before it.",
	})
	m.gauges = append(m.gauges, gauge{
		prometheus.NewDesc("tidewaiter_db_copy_lag_seconds", "How long the copy has not been known to have all that the store of all servers has; 0 while it has.", nil, nil),
		func() float64 { return of.lag().Seconds() },
	})
}

func (m *metrics) collectors() []prometheus.Collector {
	all := []prometheus.Collector{m.commit, m.batch, m.read, m.lag, m.commitFailures, m.compactedRevisions, m.expired, m.damaged}
	if m.barrier != nil {
		all = append(all, m.barrier)
	}
	return all
}

// Describe implements prometheus.Collector.
func (d *DB) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range d.metrics.collectors() {
		c.Describe(ch)
	}
	for _, g := range d.metrics.gauges {
		ch <- g.desc
	}
}

// Collect implements prometheus.Collector.
func (d *DB) Collect(ch chan<- prometheus.Metric) {
	for _, c := range d.metrics.collectors() {
		c.Collect(ch)
	}
	for _, g := range d.metrics.gauges {
		ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, g.value())
	}
}
