package console

import (
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/web/admin"
)

// Where the queue is longer than what is read of it, counts of its jobs say that there may be more.
func TestQueueThatIsNotReadToItsEnd(t *testing.T) {
	if spoolPage != admin.SpoolPage {
		t.Errorf("a request lists %d jobs, not %d", admin.SpoolPage, spoolPage)
	}
	failed := []queuedJob{{Key: "r.io/a:1", Error: "away"}, {Key: "r.io/b:1", Error: "away"}, {Key: "s.io/b:1"}}
	for _, tt := range []struct {
		jobs  []queuedJob
		more  bool
		dead  counted
		away  counted
		known bool
	}{
		{failed, false, counted{Count: 3}, counted{Count: 1}, true}, {failed, true, counted{Count: 3, More: true}, counted{Count: 1, More: true}, true},
		{failed[2:], false, counted{Count: 1}, counted{}, true}, {failed[2:], true, counted{Count: 1, More: true}, counted{More: true}, false},
	} {
		jobs := func() ([]queuedJob, bool, error) { return tt.jobs, tt.more, nil }
		if dead, err := countDead(jobs, false)(); dead != tt.dead || err != nil {
			t.Errorf("given up of %d and more, %v: %+v, %v", len(tt.jobs), tt.more, dead, err)
		}
		if sent, err := countDead(func() ([]queuedJob, bool, error) {
			return append([]queuedJob{{ID: job.FirstNotification}}, tt.jobs...), tt.more, nil
		}, true)(); sent.Count != 1 || err != nil {
			t.Errorf("of pushes and a notification that were given up: %+v, %v", sent, err)
		}
		if away, err := countRegistriesAway(jobs)(); away != tt.away || (err == nil) != tt.known {
			t.Errorf("registries away of %d and more, %v: %+v, %v", len(tt.jobs), tt.more, away, err)
		}
	}
}
