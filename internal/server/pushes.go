package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	configv1 "github.com/openshift/api/config/v1"
	imagev1 "github.com/openshift/api/image/v1"
	"go.opentelemetry.io/otel/trace"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	restclient "k8s.io/client-go/rest"
	"k8s.io/component-base/tracing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestream"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/notify"
	"github.com/tidewaiter/tidewaiter/importer/queue"
	"github.com/tidewaiter/tidewaiter/importer/runner"
	"github.com/tidewaiter/tidewaiter/importer/spool"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/config"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/meter"
	"github.com/tidewaiter/tidewaiter/internal/peers"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures/find"
	"github.com/tidewaiter/tidewaiter/web/hooks"
	"github.com/tidewaiter/tidewaiter/web/limits"
)

// pushes handles pushes: receivers put the registries' notifications into the spool, and a worker
// imports the images.
type pushes struct {
	cfg      *config.Config
	spool    *spool.Pushes
	handler  *hooks.Handler
	peers    *peers.Peers     // nil for a server that shares with none
	notifier *notify.Notifier // sends nothing if the configuration names no receiver
	plain    net.Listener     // nil unless configured
	tracer   trace.TracerProvider

	importer    atomic.Pointer[importer.Importer]
	newImporter func(*config.Config) (*importer.Importer, error)
	packages    importer.PackageStore // of every importer, once there is a worker
	mirrors     atomic.Pointer[config.OtherNames]
	config      atomic.Pointer[config.Config] // as it was read last
	// runs imports, and sends sends notifications; they know which hosts are left alone. Both are nil
	// until they are made.
	runs  atomic.Pointer[runner.Runner[push.Source, push.Event]]
	sends atomic.Pointer[runner.Runner[notify.To, notify.Notification]]
}

// heardSpool is the spool of webhooks. A notification of a registry is a sign that it is there.
type heardSpool struct{ *pushes }

func (s heardSpool) Enqueue(ctx context.Context, events []push.Event) error {
	for _, e := range events {
		s.sign(e.Host)
	}
	return s.spool.Enqueue(ctx, events)
}

// sign notes that a registry just gave a sign of life.
func (p *pushes) sign(host string) {
	if w := p.runs.Load(); w != nil {
		w.Sign(host)
	}
}

// confirmed notes the registries that have just answered others.
func (p *pushes) confirmed(all []tags.Check) {
	if p == nil {
		return // a server that does not listen sends no request to registries
	}
	for _, c := range all {
		if ref, err := reference.Parse(c.Reference); err == nil {
			p.sign(ref.Host)
		}
	}
}

// openPushes prepares the spool, and the receivers if there are any.
func openPushes(ctx context.Context, store *db.DB, cfg *config.Config, connections *limits.Connections, demands find.Demands, server Options, shared bool) (_ *pushes, err error) {
	if err := cfg.CheckSweep(); err != nil {
		return nil, err
	}
	p := &pushes{cfg: cfg}
	o := spool.Options{Registerer: meter.Process}
	if shared {
		if p.peers, err = peers.New(nil); err != nil {
			return nil, err
		}
		o.Servers = p.peers
	}
	if p.spool, err = spool.Open(store, o); err != nil {
		return nil, err
	}
	p.newImporter = func(cfg *config.Config) (*importer.Importer, error) {
		return NewPushImporter(cfg, demands, server, p.peers)
	}
	im, err := p.newImporter(cfg)
	if err != nil {
		return nil, err
	}
	p.importer.Store(im)
	if p.handler, err = newReceivers(cfg, heardSpool{p}, meter.Process); err != nil {
		return nil, err
	}
	if cfg.Hooks.Listen != "" {
		plain, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Hooks.Listen)
		if err != nil {
			return nil, cfg.Fault("hooks.listen", err)
		}
		p.plain = connections.Listen(plain)
	}
	return p, nil
}

// newReceivers returns the handler of the receivers of webhooks, which put what they hear into a
// spool.
func newReceivers(cfg *config.Config, spool hooks.Spool, registry meter.Registerer) (*hooks.Handler, error) {
	if err := validateReceivers(cfg); err != nil {
		return nil, err
	}
	handler, err := hooks.New(hooks.Options{Receivers: cfg.Receivers, Dir: filepath.Dir(cfg.Path()), Spool: spool, Registerer: registry})
	if err != nil {
		return nil, cfg.Fault("receivers", err)
	}
	return handler, nil
}

// validateReceivers returns what is wrong with the receivers without their files.
func validateReceivers(cfg *config.Config) error {
	var wrong []error
	for i, r := range cfg.Receivers {
		if err := hooks.Validate(r); err != nil {
			wrong = append(wrong, cfg.Fault(fmt.Sprintf("receivers[%d]", i), err))
		}
	}
	if len(cfg.Receivers) == 0 && cfg.Hooks.Listen != "" {
		wrong = append(wrong, cli.WithHint(cfg.Fault("hooks.listen", errors.New("no receivers are configured that could be served there")), "add a section receivers to %s", cfg.Path()))
	}
	return errors.Join(wrong...)
}

// NewPushImporter returns the importer of pushes of a server with options; all is nil if it shares
// with none.
func NewPushImporter(cfg *config.Config, demands find.Demands, server Options, all *peers.Peers) (*importer.Importer, error) {
	o, err := cfg.ImporterOptions()
	if err != nil {
		return nil, err
	}
	if all != nil {
		o.Others = all
	}
	signatures := config.NewFinder
	// If a registry demands a longer wait, it is paused, and its jobs wait without a slot.
	o.Limits.MaxWait = time.Second
	if o.Clock = server.Clock; server.Isolated {
		o.Keychain = authn.NewMultiKeychain() // no credentials
		signatures = config.NewIsolatedFinder
	} else if err := cfg.AddFiles(&o, cfg.Files()); err != nil {
		return nil, err
	}
	finder, err := signatures(cfg, demands)
	if err != nil {
		return nil, err
	}
	o.Signatures = finder
	// A push of an index is reported as one of each of its images: what one import has asked is not
	// asked again by the next.
	o.SignaturesAge = 2 * time.Second
	return importer.New(o)
}

// hooks returns the handler of /hooks/, nil for a server that does not listen.
func (p *pushes) hooks() http.Handler {
	if p == nil {
		return nil
	}
	return p.handler
}

// receivers are the receivers of webhooks, with their last deliveries.
type receivers struct {
	Receivers []hooks.Heard `json:"receivers"`
}

// heard returns what the receivers have received.
func (p *pushes) heard() receivers { return receivers{p.handler.Heard()} }

// Pushed queues a push to the registry of streams, as its webhook would. It does nothing if a
// receiver gets all pushes to that registry.
func (p *pushes) Pushed(ctx context.Context, ref reference.Reference) error {
	if p.handler.HearsAll(p.cfg.Streams.Registry) {
		return nil
	}
	return p.spool.Enqueue(ctx, []push.Event{{
		Source: push.OfRegistry, Action: push.Pushed, Host: ref.Host, Repository: ref.Repository, Tag: ref.Tag, Digest: ref.Digest,
	}})
}

// Importer is part of [queue.Config].
func (p *pushes) Importer() *importer.Importer { return p.importer.Load() }

// Receivers is part of [queue.Config].
func (p *pushes) Receivers() (all []push.Source) {
	for _, r := range p.handler.Receivers() {
		all = append(all, push.OfWebhook(r.Name))
	}
	return all
}

// OfScript is part of [queue.Config].
func (p *pushes) OfScript(source push.Source) bool {
	return source == push.OfPeople || source.Kind == push.Webhook && slices.ContainsFunc(p.handler.Receivers(), func(r hooks.Receiver) bool { return r.Name == source.Name && r.Type == hooks.Generic })
}

// ask queues the import of a reference, for admin.Imports.
func (p *pushes) ask(ctx context.Context, text, by string) (whole string, err error) {
	if !reference.NamesRegistry(text) {
		return "", apierrors.NewBadRequest(printable.Line(fmt.Sprintf("%q does not name its registry, as registry.example.com/team/app:v1 does", text), 300))
	}
	ref, err := reference.Parse(text)
	if err != nil {
		return "", apierrors.NewBadRequest(err.Error())
	}
	ref = ref.Pulled()
	if !imagestream.AllowedRegistry(allowedRegistries(p.cfg.Streams), ref.Host, false) {
		return "", apierrors.NewForbidden(imagev1.Resource("images"), "", fmt.Errorf("images from %s may not be imported: the configuration has no such entry (streams.allowedRegistriesForImport)", ref.Host))
	}
	e := push.Event{Source: push.OfPeople, Action: push.Pushed, Host: ref.Host, Repository: ref.Repository, Tag: ref.Tag, Digest: ref.Digest, Actor: printable.Line(by, push.MaxActor)}
	p.sign(ref.Host)
	return ref.String(), hasten(ctx, p.spool, e)
}

// worker returns the worker that imports what is pushed, used by pods and followed by streams. It
// prepares the runner of notifications, too.
func (p *pushes) worker(client *restclient.Config, notifier queue.Notifier, pods queue.Pods, running queue.Running, streams queue.Streams) (*queue.Worker, error) {
	if p.tracer != nil {
		client.Wrap(tracing.WrapperFor(p.tracer))
	}
	images, err := imageclient.New(client)
	if err != nil {
		return nil, err
	}
	p.packages = images
	p.importer.Load().KeepPackages(images)
	counted := runner.NewMetrics(meter.Process)
	sends, err := runner.New(runner.Options[notify.To, notify.Notification]{
		Queue: p.spool.Outbox, Work: p.notifier, Metrics: counted, Tracer: p.tracer,
	})
	if err != nil {
		return nil, err
	}
	p.sends.Store(sends)
	o := queue.Options{
		Config:     p,
		Images:     images,
		Queue:      p.spool,
		Pods:       pods,
		Running:    running,
		Streams:    streams,
		Finder:     queue.ListFinder{Images: images},
		Sweep:      queue.SweepOptions(p.cfg.Sweep),
		Notifier:   notifier,
		Registerer: meter.Process,
		Metrics:    counted,
		Tracer:     p.tracer,
	}
	if p.peers != nil {
		o.Owners = p.peers
	}
	worker, err := queue.New(o)
	if err == nil {
		p.runs.Store(worker.Runner)
	}
	return worker, err
}

// servePlain serves the receivers, and nothing else, over plain HTTP until ctx ends.
func (p *pushes) servePlain(ctx context.Context, receivers http.Handler) error {
	s := &http.Server{Handler: receivers, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
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

// allowedRegistries are the registries that users may have the server ask, in the form of
// OpenShift's configuration.
func allowedRegistries(c config.Streams) (out []configv1.RegistryLocation) {
	for _, l := range c.AllowedRegistriesForImport {
		out = append(out, configv1.RegistryLocation{DomainName: l.DomainName, Insecure: l.Insecure})
	}
	return out
}
