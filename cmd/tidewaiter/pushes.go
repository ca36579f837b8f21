package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	restclient "k8s.io/client-go/rest"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/spool"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/queue"
	"github.com/tidewaiter/tidewaiter/web/admin"
	"github.com/tidewaiter/tidewaiter/web/hooks"
	"github.com/tidewaiter/tidewaiter/web/limits"
)

// pushes is the way of a push: receivers put what registries tell into the
// spool, a worker turns it into Images.
type pushes struct {
	cfg      *config
	spool    *spool.Spool
	handler  http.Handler // nil when no receiver is configured
	importer *importer.Importer
	plain    net.Listener // nil unless configured
}

// openPushes prepares the spool, and the receivers if there are any.
func openPushes(ctx context.Context, store *db.DB, cfg *config, connections *limits.Connections, isolated bool) (_ *pushes, err error) {
	if err := queue.SweepOptions(cfg.Sweep).Validate(); err != nil {
		return nil, fmt.Errorf("%s: sweep: %w", cfg.file, err)
	}
	p := &pushes{cfg: cfg}
	if p.spool, err = spool.Open(store, spool.Options{}); err != nil {
		return nil, err
	}
	if p.importer, err = newPushImporter(cfg, isolated); err != nil {
		return nil, err
	}
	if len(cfg.Receivers) == 0 {
		if cfg.Hooks.Listen != "" {
			return nil, withHint(errors.New("hooks.listen is set, but there are no receivers to serve there"), "add a section receivers to %s", cfg.file)
		}
		return p, nil
	}
	handler, err := hooks.New(hooks.Options{
		Receivers:       cfg.Receivers,
		Dir:             filepath.Dir(cfg.file),
		Spool:           hookSpool{p.spool},
		RegisterMetrics: registerMetrics,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.file, err)
	}
	p.handler = handler
	if cfg.Hooks.Listen != "" {
		plain, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Hooks.Listen)
		if err != nil {
			return nil, fmt.Errorf("%s: hooks.listen: %w", cfg.file, err)
		}
		p.plain = connections.Listen(plain)
	}
	return p, nil
}

// newPushImporter imports what is pushed; see serverOptions.isolated.
func newPushImporter(cfg *config, isolated bool) (*importer.Importer, error) {
	o, err := cfg.importerOptions()
	if err != nil {
		return nil, err
	}
	signatures := newFinder
	o.Limits.MaxWait = time.Second // a registry that asks for more is parked, and its jobs wait without a slot
	if isolated {
		o.Keychain = authn.NewMultiKeychain() // of nobody
		signatures = newIsolatedFinder
	}
	finder, err := signatures(cfg)
	if err != nil {
		return nil, err
	}
	o.Signatures = finder
	return importer.New(o)
}

// hooks is what serves /hooks/, nil when there are no receivers.
func (p *pushes) hooks() http.Handler {
	if p == nil {
		return nil
	}
	return p.handler
}

// registerMetrics registers with the registry that /metrics shows. A second
// server in one process, as in tests, leaves the first one's in place.
func registerMetrics(all ...metrics.Registerable) {
	for _, m := range all {
		_ = legacyregistry.Register(m)
	}
}

// work imports what is pushed until ctx ends.
func (p *pushes) work(ctx context.Context, client *restclient.Config, notifier queue.Notifier) error {
	defer p.importer.Close()
	images, err := imageclient.New(client)
	if err != nil {
		return err
	}
	worker, err := queue.New(queue.Options{
		Importer:        p.importer,
		Images:          images,
		Queue:           importQueue{p.spool, p.cfg.Receivers},
		Finder:          queue.ListFinder{Images: images},
		Sweep:           queue.SweepOptions(p.cfg.Sweep),
		Notifier:        notifier,
		RegisterMetrics: registerMetrics,
	})
	if err != nil {
		return err
	}
	return worker.Run(ctx)
}

// servePlain serves the receivers, and nothing else, over plain HTTP until ctx
// ends.
func (p *pushes) servePlain(ctx context.Context) error {
	s := &http.Server{Handler: p.handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
	context.AfterFunc(ctx, func() {
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := s.Shutdown(drain); err != nil {
			slog.Error("Closing the plain listener for webhooks", "err", err)
		}
	})
	if err := s.Serve(p.plain); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// hookSpool is the receivers' view of the spool.
type hookSpool struct{ spool *spool.Spool }

// Enqueue implements hooks.Spool.
func (s hookSpool) Enqueue(ctx context.Context, jobs []hooks.Job) error {
	requests := make([]spool.Request, 0, len(jobs))
	for _, j := range jobs {
		hint := queue.Hint{Action: string(j.Action), Host: j.Host, Repository: j.Repository, Tag: j.Tag, Digest: j.Digest}
		requests = append(requests, spool.Request{Key: hint.Key(), Source: j.Receiver, EventID: j.ID, Payload: hint.Encode()})
	}
	return s.spool.Enqueue(ctx, requests)
}

// importQueue is the worker's view of the spool.
type importQueue struct {
	spool     *spool.Spool
	receivers []hooks.Receiver
}

// Claim implements queue.Queue. Payloads that are no hints are of another
// release: such a job is dead at once.
func (q importQueue) Claim(ctx context.Context, n int, lease time.Duration, room func(host string) (int, time.Time)) ([]queue.Job, error) {
	spooled, err := q.spool.Claim(ctx, n, lease, room) // the lane of a hint's key is its host
	jobs := make([]queue.Job, 0, len(spooled))
	for _, s := range spooled {
		j := queue.Job{ID: s.ID, Receiver: s.Source, Received: s.Enqueued, Latest: s.Latest, Attempt: s.Attempts, Lease: s.Lease}
		var bad error
		for _, p := range s.Payloads {
			hint, err := queue.DecodeHint(p)
			if err != nil {
				bad = err
				break
			}
			j.Hints = append(j.Hints, hint)
		}
		if bad != nil {
			err = errors.Join(err, q.spool.Fail(ctx, s, spool.Failure{Error: bad.Error(), Permanent: true}))
			continue
		}
		jobs = append(jobs, j)
	}
	return jobs, err
}

// leased is what the spool must know of a job that a worker holds.
func leased(j queue.Job) *spool.Job {
	return &spool.Job{ID: j.ID, Attempts: j.Attempt, Lease: j.Lease}
}

// Renew implements queue.Queue.
func (q importQueue) Renew(ctx context.Context, j queue.Job, lease time.Duration) error {
	return q.spool.Renew(ctx, leased(j), lease)
}

// Done implements queue.Queue.
func (q importQueue) Done(ctx context.Context, j queue.Job) error {
	return q.spool.Done(ctx, leased(j))
}

// Fail implements queue.Queue.
func (q importQueue) Fail(ctx context.Context, j queue.Job, f queue.Failure) error {
	return q.spool.Fail(ctx, leased(j), spool.Failure(f))
}

// Release implements queue.Queue.
func (q importQueue) Release(ctx context.Context, j queue.Job) error {
	return q.spool.Release(ctx, leased(j))
}

// Depth implements queue.Queue. A receiver without jobs has none, and one that
// has left the configuration may have some.
func (q importQueue) Depth(ctx context.Context) (map[string]queue.Depth, error) {
	stats, err := q.spool.Stats(ctx)
	if err != nil {
		return nil, err
	}
	depths := map[string]queue.Depth{}
	for _, r := range q.receivers {
		depths[r.Name] = queue.Depth{}
	}
	for receiver, c := range stats.BySource {
		depths[receiver] = queue.Depth(c)
	}
	return depths, nil
}

// adminSpool is the administrators' view of the spool.
type adminSpool struct{ *spool.Spool }

// List implements admin.SpoolStore.
func (s adminSpool) List(ctx context.Context, state string, after int64, limit int) ([]admin.SpoolJob, error) {
	spooled, err := s.Spool.List(ctx, spool.State(state), after, limit)
	jobs := make([]admin.SpoolJob, 0, len(spooled))
	for _, j := range spooled {
		jobs = append(jobs, admin.SpoolJob{ID: j.ID, Key: j.Key, Receiver: j.Source, State: string(j.State), Due: j.Due, Enqueued: j.Enqueued, Attempts: j.Attempts, Error: j.Error})
	}
	return jobs, err
}
