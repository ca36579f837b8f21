package server

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/config"

	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/importer/hostlimit"
	"github.com/tidewaiter/tidewaiter/importer/spool"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/web/hooks"
)

// What the registry of streams has pushed is a job, with its tag and its digest, unless its webhook
// tells of all pushes.
func TestPushedIsAJob(t *testing.T) {
	t.Parallel()
	queue, err := spool.Open(dbtest.Open(t), spool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("a-secret-that-nobody-guesses"), 0o600); err != nil {
		t.Fatal(err)
	}
	receivers := []hooks.Receiver{
		{Name: "part", Type: hooks.Generic, SecretFile: secret, Hosts: []string{"registry.example.com:5000"}, Repositories: []string{"team/**"}},
		{Name: "other", Type: hooks.Generic, SecretFile: secret, Hosts: []string{"other.example.com"}},
	}
	handler, err := hooks.New(hooks.Options{Receivers: receivers, Spool: queue})
	if err != nil {
		t.Fatal(err)
	}
	p := &pushes{spool: queue, handler: handler, cfg: &config.Config{Streams: config.Streams{Registry: "registry.example.com:5000"}}}
	ref, err := reference.Parse("registry.example.com:5000/team/app:v1@sha256:9fea68ab04b020141dff90ec460f46751f8634f040e6616cd420660a96af2a61")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := p.Pushed(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
	}
	jobs, err := queue.Claim(t.Context(), 2, time.Minute, hostlimit.New(2, 2, clock.RealClock{}).Available)
	if err != nil || len(jobs) != 1 || len(jobs[0].Events) != 1 {
		t.Fatalf("the jobs are %+v, %v", jobs, err)
	}
	if e := jobs[0].Events[0]; jobs[0].Source != push.OfRegistry || e.Action != push.Pushed || e.Reference() != ref {
		t.Errorf("the job is %+v", jobs[0])
	}
	all := hooks.Receiver{Name: "all", Type: hooks.Generic, SecretFile: secret, Hosts: []string{"other.example.com", "registry.example.com:5000"}}
	if err := handler.Replace(append(receivers, all)); err != nil {
		t.Fatal(err)
	}
	ref.Tag = "v2"
	if err := p.Pushed(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	if depth, err := queue.Depth(t.Context()); err != nil || depth[push.OfRegistry].Waiting != 0 {
		t.Errorf("%+v, %v: the registry's webhook tells of all pushes, and they are told of twice", depth, err)
	}
}
