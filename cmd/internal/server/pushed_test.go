package server

import (
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/cmd/internal/config"

	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/importer/hostlimit"
	"github.com/tidewaiter/tidewaiter/importer/push"
	"github.com/tidewaiter/tidewaiter/importer/spool"
	"github.com/tidewaiter/tidewaiter/web/hooks"
)

// What the registry of streams has pushed is a job, with its tag and its digest, unless its webhook tells of all pushes.
func TestPushedIsAJob(t *testing.T) {
	t.Parallel()
	queue, err := spool.Open(dbtest.Open(t), spool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p := &pushes{spool: queue, cfg: &config.Config{Streams: config.Streams{Registry: "registry.example.com:5000"}, Receivers: []hooks.Receiver{
		{Name: "part", Hosts: []string{"registry.example.com:5000"}, Repositories: []string{"team/**"}},
		{Name: "other", Hosts: []string{"other.example.com"}},
	}}}
	ref, err := reference.Parse("registry.example.com:5000/team/app:v1@sha256:9fea68ab04b020141dff90ec460f46751f8634f040e6616cd420660a96af2a61")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := p.pushed()(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
	}
	jobs, err := queue.Claim(t.Context(), 2, time.Minute, hostlimit.New(2, 2, clock.RealClock{}).Available)
	if err != nil || len(jobs) != 1 || len(jobs[0].Events) != 1 {
		t.Fatalf("the jobs are %+v, %v", jobs, err)
	}
	if e := jobs[0].Events[0]; jobs[0].Receiver != push.OfRegistry || e.Action != push.Pushed || e.Reference() != ref {
		t.Errorf("the job is %+v", jobs[0])
	}
	p.cfg.Receivers = append(p.cfg.Receivers, hooks.Receiver{Name: "all", Hosts: []string{"other.example.com", "registry.example.com:5000"}})
	if p.pushed() != nil {
		t.Error("the registry's webhook tells of all pushes, and they are told of twice")
	}
}
