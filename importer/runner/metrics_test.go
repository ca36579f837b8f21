package runner

import (
	"strings"
	"testing"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"

	"github.com/tidewaiter/tidewaiter/internal/job"
)

// Two queues share the metrics: each shows its own receivers, and takes away those that have left
// its configuration, but none of the other's.
func TestQueuesShareMetrics(t *testing.T) {
	registry := metrics.NewKubeRegistry()
	m := NewMetrics(registry)
	now := time.Date(2026, 5, 28, 10, 0, 0, 0, time.UTC)
	pushes, notifications := depths[job.Text]{metrics: m}, depths[job.Text]{metrics: m}
	notifications.set([]job.Text{"notify/ci"}, map[job.Text]job.Depth{"notify/ci": {Dead: 1}}, now)
	pushes.set([]job.Text{"hub", "former"}, map[job.Text]job.Depth{"hub": {Waiting: 2, Oldest: now.Add(-time.Minute)}, "former": {}}, now)
	pushes.set([]job.Text{"hub"}, map[job.Text]job.Depth{"hub": {Waiting: 2, Oldest: now.Add(-time.Minute)}}, now)
	want := `
# HELP tidewaiter_queue_jobs [ALPHA] Jobs in the queues by receiver and state (waiting, leased, dead).
# TYPE tidewaiter_queue_jobs gauge
tidewaiter_queue_jobs{receiver="hub",state="dead"} 0
tidewaiter_queue_jobs{receiver="hub",state="leased"} 0
tidewaiter_queue_jobs{receiver="hub",state="waiting"} 2
tidewaiter_queue_jobs{receiver="notify/ci",state="dead"} 1
tidewaiter_queue_jobs{receiver="notify/ci",state="leased"} 0
tidewaiter_queue_jobs{receiver="notify/ci",state="waiting"} 0
# HELP tidewaiter_queue_oldest_job_age_seconds [ALPHA] Age of the oldest job that is not dead, by receiver; 0 when there is none.
# TYPE tidewaiter_queue_oldest_job_age_seconds gauge
tidewaiter_queue_oldest_job_age_seconds{receiver="hub"} 60
tidewaiter_queue_oldest_job_age_seconds{receiver="notify/ci"} 0
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "tidewaiter_queue_jobs", "tidewaiter_queue_oldest_job_age_seconds"); err != nil {
		t.Error(err)
	}
}
