package db

import "github.com/prometheus/client_golang/prometheus"

// metrics are the figures DB counts; see Describe for those it reads.
type metrics struct {
	db             *DB
	commit, batch  prometheus.Histogram
	commitFailures prometheus.Counter
	reads          prometheus.Counter

	compactedRevisions prometheus.Counter
	damaged            prometheus.Counter
}

func newMetrics(d *DB) *metrics {
	return &metrics{
		db: d,
		commit: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tidewaiter_db_commit_duration_seconds", Help: "Time of a group commit, from its first writer to the durable log.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}),
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tidewaiter_db_commit_writers", Help: "Writers that shared a commit.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 9),
		}),
		commitFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tidewaiter_db_commit_failures_total", Help: "Commits that failed; nothing of them was written.",
		}),
		reads: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tidewaiter_db_reads_total", Help: "Reads from the database file.",
		}),
		compactedRevisions: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tidewaiter_db_compacted_revisions_total", Help: "Superseded revisions removed.",
		}),
		damaged: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tidewaiter_db_damaged_reads_total", Help: "Reads that met damage in the file or in a value.",
		}),
	}
}
