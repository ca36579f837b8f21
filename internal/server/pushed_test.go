package server

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/hostlimit"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/spool"
	"github.com/tidewaiter/tidewaiter/internal/config"
	"github.com/tidewaiter/tidewaiter/internal/job"
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

// Admission is not told for ever that the registry was away when an import failed: whoever may push
// could have what takes long to import admitted as unknown, once the registry is back.
func TestRegistryIsAwayUntilItAnswers(t *testing.T) {
	t.Parallel()
	registry := registrytest.New(t)
	queue, err := spool.Open(dbtest.Open(t), spool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	im, err := importer.New(importer.Options{Keychain: authn.NewMultiKeychain()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(im.Close)
	p := &pushes{spool: queue}
	p.importer.Store(im)
	e := push.Event{Source: push.OfCluster("prod"), Action: push.Runs, Host: registry.Host, Repository: "team/app", Tag: "v1"}
	if err := queue.Enqueue(t.Context(), []push.Event{e}); err != nil {
		t.Fatal(err)
	}
	claim := func() {
		t.Helper()
		jobs, err := queue.Claim(t.Context(), 1, time.Minute, hostlimit.New(1, 1, clock.RealClock{}).Available)
		if err != nil || len(jobs) != 1 {
			t.Fatalf("claimed %v, %v", jobs, err)
		}
		if err := queue.Fail(t.Context(), jobs[0], job.Failure{Error: "connection refused", Unread: true}); err != nil {
			t.Fatal(err)
		}
	}
	away := func(when string, want bool) {
		t.Helper()
		found, err := imports{p}.Find(t.Context(), e.Source, e.Key())
		if err != nil || found == nil || found.Unread != want || found.Error != "connection refused" {
			t.Fatalf("%s: %+v, %v", when, found, err)
		}
	}
	claim()
	away("after it failed", true)
	if err := queue.Retry(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	away("while it is to be tried again", true)
	if _, err := im.Resolve(t.Context(), e.Reference()); err != nil {
		t.Fatal(err)
	}
	away("once the registry has answered", false)
	claim()
	away("after it failed again", true)
}
