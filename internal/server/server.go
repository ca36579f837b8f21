// Package server puts a server together: it reads the configuration, opens the data directory, and
// connects storage, verification, imports, clusters and the HTTP server.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"syscall"
	"time"

	authorizationv1 "github.com/openshift/api/authorization/v1"
	imagev1 "github.com/openshift/api/image/v1"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/coreapi"
	"github.com/tidewaiter/tidewaiter/coreapi/access"
	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/backup"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/etcd"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
	"github.com/tidewaiter/tidewaiter/imageapi"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestream"
	"github.com/tidewaiter/tidewaiter/imageapi/streams"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/checks"
	"github.com/tidewaiter/tidewaiter/importer/queue"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/config"
	"github.com/tidewaiter/tidewaiter/internal/controllers/feeder"
	"github.com/tidewaiter/tidewaiter/internal/controllers/imageevents"
	"github.com/tidewaiter/tidewaiter/internal/controllers/inventory"
	"github.com/tidewaiter/tidewaiter/internal/controllers/overwrites"
	"github.com/tidewaiter/tidewaiter/internal/controllers/promotion"
	"github.com/tidewaiter/tidewaiter/internal/controllers/runs"
	"github.com/tidewaiter/tidewaiter/internal/image/imagejson"
	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/image/record"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/meter"
	"github.com/tidewaiter/tidewaiter/internal/version"
	"github.com/tidewaiter/tidewaiter/signatures/policyapi"
	"github.com/tidewaiter/tidewaiter/web"
	"github.com/tidewaiter/tidewaiter/web/admin"
	"github.com/tidewaiter/tidewaiter/web/admission"
	"github.com/tidewaiter/tidewaiter/web/limits"
	"github.com/tidewaiter/tidewaiter/web/storedjson"
	"github.com/tidewaiter/tidewaiter/web/wholelist"
)

// readyTimeout is how long a server may take from listening to ready. Then it logs why it is not
// ready.
const readyTimeout = time.Minute

// reserve is the space that a server holds back for deletions on a full disk.
const reserve = 32 << 20

// Open takes the data directory and assembles a server over it: on listener, or reachable only from
// within the process if listener is nil. It takes over listener when it succeeds.
func Open(ctx context.Context, o Options, listener net.Listener) (_ *Server, err error) {
	s := newServer(o, listener)
	defer func() {
		if err != nil && s.DB != nil {
			err = errors.Join(err, s.DB.Close())
		}
	}()
	for _, open := range []func(context.Context) error{
		s.loadConfig,
		s.openTracing,
		s.openCluster,
		s.openTrustedRoots,
		s.openVerification,
		s.openDatabase,
		s.loadCredentials,
		s.openPushes,
		s.openNotifier,
		s.openAccess,
		s.assemble,
		s.loadPolicies,
		s.connectVerification,
		s.openToNetwork,
	} {
		if err := open(ctx); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func newServer(o Options, listener net.Listener) *Server {
	o.Clock = cmp.Or[clock.WithTickerAndDelayedExecution](o.Clock, clock.RealClock{})
	s := &Server{Options: o, connections: limits.NewConnections(limits.DefaultConnections()), turns: limits.NewTurns(), Events: &imageevents.Recorder{}, local: web.NewLocal(), ReadyTimeout: readyTimeout}
	if listener != nil {
		s.listener = s.connections.Listen(listener)
	}
	s.NotReady = func(err error) { slog.Error("the server answers and is not ready", "url", s.URL, "err", err) }
	return s
}

func (s *Server) loadConfig(context.Context) (err error) {
	s.Config, err = config.Load(s.Options.ConfigFile)
	return err
}

// openTracing prepares the sending of spans. It opens no connection yet.
func (s *Server) openTracing(ctx context.Context) (err error) {
	if s.tracer, err = web.NewTracer(ctx, s.Options.TracingFile, version.Build()); err != nil {
		err = cli.Misuse(fmt.Errorf("--tracing-config-file: %w", err), "docs/reference/metrics.md has such a file")
	}
	return err
}

// tracesTimeout is how long a server that stops tries to send the last spans.
const tracesTimeout = 5 * time.Second

// closeTracing sends the last spans.
func (s *Server) closeTracing(ctx context.Context) {
	if s.tracer == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tracesTimeout)
	defer cancel()
	if err := s.tracer.Shutdown(ctx); err != nil {
		slog.Warn("The last spans were not sent", "err", err)
	}
}

// openCluster prepares what a server in a cluster needs of the cluster.
func (s *Server) openCluster(context.Context) (err error) {
	if s.cluster, err = s.Options.Cluster.open(); s.cluster != nil {
		s.Options.TLS.SANs = append(s.Options.TLS.SANs, s.cluster.Host())
	}
	return err
}

func (s *Server) openVerification(context.Context) (err error) {
	s.Verification, err = openVerification(s.Options.Policy, s.Options.Clock)
	return err
}

// openDatabase takes the data directory.
func (s *Server) openDatabase(ctx context.Context) (err error) {
	o := db.Options{Dir: s.Options.DataDir, Views: Views(), Quota: s.Options.Quota, Clock: s.Options.Clock}
	if s.listener != nil {
		o.Reserve = reserve
	}
	if len(s.Options.Etcd.Servers) > 0 {
		if s.Options.Backups.Dir != "" || s.Options.Quota > 0 {
			return cli.Misuse(errors.New("with --etcd-servers the objects are etcd's: --backup-dir and --quota-backend-bytes are of a server by itself"), "back up etcd with etcdctl snapshot save, and give --quota-backend-bytes to etcd")
		}
		if s.etcd, err = etcd.New(s.Options.Etcd); err != nil {
			return err
		}
		o.Truth = s.etcd
		slog.Warn("--etcd-servers is experimental.", "dir", o.Dir)
		warnOfPlainEtcd(s.Options.Etcd)
	}
	if s.DB, err = db.Open(o); err != nil {
		return err
	}
	s.checks = checks.New(s.DB, s.Options.Clock)
	s.Tasks = append(s.Tasks, Task{Name: "checks", Run: s.checks.Run})
	if s.etcd != nil {
		if err := claim(ctx, s.etcd); err != nil {
			return err
		}
	}
	return s.DB.Filled(ctx)
}

// openAccess prepares the authorization of a listening server.
func (s *Server) openAccess(ctx context.Context) (err error) {
	switch {
	case s.listener == nil:
	case s.cluster != nil:
		s.authorizer, err = s.cluster.Authorizer()
	default:
		if s.Access, err = access.New(ctx, s.Options.Access, s.local.ClientConfig(), "tidewaiter"); err == nil {
			s.authorizer = s.Access.Authorizer
		}
	}
	return err
}

// loadPolicies reads the policies that are API objects. A listening server also makes objects from
// policies in files. Such a server starts even if a policy cannot be read, so that users can delete
// the policy, and even if the disk is full.
func (s *Server) loadPolicies(ctx context.Context) error {
	keeper := s.Verification.Keeper
	err := keeper.Load(ctx)
	if s.listener == nil {
		return err
	}
	if err == nil {
		_ = keeper.ShowFiles(ctx) // Run tries again, and logs errors
	}
	return nil
}

// connectVerification prepares to judge, compare and count what is stored.
func (s *Server) connectVerification(context.Context) (err error) {
	o := inventory.Options{Pods: podVerdicts{s}, Use: s.answerer.Use, Gone: goneImages, Verified: runningPods, Clock: clock.RealClock{}}
	if s.listener != nil {
		if err := s.followDrift(); err != nil {
			return err
		}
		o.Drift = s.drift
	}
	s.Sweeper, s.inventory, err = s.Verification.connect(s.Web.ClientConfig(), o)
	return err
}

// openToNetwork adds the parts that only a listening server has.
func (s *Server) openToNetwork(context.Context) error {
	if s.listener == nil {
		return nil
	}
	meter.Register(meter.Process, goneImages, runningPods)
	worker, err := s.pushes.worker(s.Web.ClientConfig(), goneNotifier{s}, s.admitter, runningImages{s}, s.followed)
	if err != nil {
		return err
	}
	err = errors.Join(s.addTasks(worker), s.feedQueue(), s.followOverwrites(), s.measureTags(), s.writeEndpointFiles())
	s.handleAdmin(worker)
	return err
}

// writeEndpointFiles writes down where the server is, for commands that look for it. The server
// runs even if a full disk prevents that.
func (s *Server) writeEndpointFiles() error {
	err := errors.Join(s.Credentials.KeepKubeconfig(cmp.Or(s.Options.TLS.AdvertiseURL, s.URL)), s.Credentials.WriteLocal(s.URL), s.DB.SetInfo(s.URL))
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		slog.Warn("the disk is full: cannot write the server's address for its clients", "url", s.URL, "err", err)
		return nil
	}
	return err
}

// loadCredentials reads the credentials for the server's address.
func (s *Server) loadCredentials(context.Context) (err error) {
	ip := net.IPv4(127, 0, 0, 1)
	if s.listener != nil {
		addr := s.listener.Addr().(*net.TCPAddr)
		ip = addr.IP
		s.URL = "https://" + (&net.TCPAddr{IP: reachable(ip), Port: addr.Port}).String()
	}
	hosts, now := s.Options.TLS.Hosts(ip), time.Now()
	if shared := s.Options.PKIDir; shared != "" {
		s.Credentials, err = web.LoadSharedCredentials(s.Options.DataDir, shared, hosts, now)
	} else {
		s.Credentials, err = web.LoadCredentials(s.Options.DataDir, hosts, now)
	}
	if err != nil {
		return err
	}
	s.Credentials.TLS = s.Options.TLS
	if s.Credentials.AuthorityMade() && s.DB.Revision() > 1 {
		slog.Warn("pki/ was missing and has been recreated. No data was lost, but existing kubeconfigs, certificates and tokens are no longer valid: distribute admin.kubeconfig and pki/ca.crt again, and create new service account tokens", "dir", s.Options.DataDir)
	}
	s.tokens, err = s.Credentials.ServiceAccountTokens(s.authentication())
	return err
}

// authentication returns how the server authenticates callers.
func (s *Server) authentication() *web.Authentication {
	if s.Options.Authentication == nil {
		s.Options.Authentication = web.NewAuthentication()
	}
	return s.Options.Authentication
}

// openPushes prepares a listening server to receive pushes.
func (s *Server) openPushes(ctx context.Context) (err error) {
	if s.listener != nil {
		s.pushes, err = openPushes(ctx, s.DB, s.Config, s.connections, s.Verification, s.Options, s.etcd != nil)
		if err == nil {
			s.pushes.tracer = s.tracer
		}
	}
	return err
}

func (s *Server) newParts() *Parts {
	p := &Parts{
		Serializers: map[string]runtime.NegotiatedSerializer{
			imagev1.GroupName:            imagejson.NewSerializer(legacyscheme.Codecs),
			record.GroupVersion.Group:    imagejson.NewSerializer(legacyscheme.Codecs),
			policyapi.GroupVersion.Group: policyapi.NewSerializer(legacyscheme.Codecs),
		},
		Audit: s.Options.Audit,
	}
	p.Serve(s.NewStorage(map[string]runtime.StorageSerializer{
		imagev1.GroupName:           imagejson.NewStorageSerializer(legacyscheme.Codecs),
		clusters.GroupVersion.Group: imageruns.NewStorageSerializer(legacyscheme.Codecs),
	}), s.Options.DataDir)
	confirm := s.checks.Confirm
	if s.etcd != nil {
		confirm = s.checks.Share
	}
	confirmed := func(all []tags.Check) {
		s.pushes.confirmed(all)
		confirm(all)
	}
	p.BeforeAPI = func(api http.Handler) http.Handler {
		writes := web.AnnounceWrites(s.DB.Announce, api)
		creates := admin.Batch(writes, tags.ChecksPath, tags.MaxChecks, confirmed)
		if s.admitter != nil {
			creates = s.newAdmission().Serve(creates)
		}
		reads := p.Served.Serve(wholeLists(imagestream.WithMetadataReads(api, p.Serializers[imagev1.GroupName])))
		return web.ByMethod{
			http.MethodGet:   reads,
			http.MethodHead:  reads,
			http.MethodPost:  creates,
			http.MethodPatch: policyapi.NameFields(writes, p.Serializers[policyapi.GroupVersion.Group]),
			"":               writes,
		}
	}
	return p
}

// wholeLists answers the lists of all kinds: each is of one collection of the storage, or computed
// from one.
func wholeLists(api http.Handler) http.Handler {
	return wholelist.Serve(api, wholelist.Options{Serializer: legacyscheme.Codecs, Pages: kubestore.WholeList, Computed: isOfStreams})
}

// isOfStreams reports whether a list is computed from streams and the tags that they follow.
func isOfStreams(info *request.RequestInfo) bool {
	switch info.Resource {
	case "imagestreams", "imagestreamtags":
		return true
	case "imagetags":
		return info.Namespace != "" && info.Namespace != tags.Namespace
	}
	return false
}

// NewStorage returns the storage of all kinds, with the serializers of groups that have their own.
func (s *Server) NewStorage(serializers map[string]runtime.StorageSerializer) *kubestore.Getter {
	return kubestore.NewGetter(s.DB, legacyscheme.Codecs, kubestore.Options{
		Pause:       limits.Pause,
		Begin:       limits.Begin,
		Read:        limits.Read,
		User:        limits.User,
		Unconverted: []schema.GroupResource{imagev1.Resource("images")},
		Serializers: serializers,
	})
}

// Serve serves Images from the bytes in storage. Parts of lists are kept in formsDir.
func (p *Parts) Serve(storage generic.RESTOptionsGetter, formsDir string) {
	p.Storage = storage
	p.Served = storedjson.NewGetter(storage, legacyscheme.Codecs, formsDir, storedjson.Kind{Resource: imagev1.GroupVersion.WithResource("images"), Kind: "Image", Named: imageregistry.DigestsIn})
	p.Registries, p.Answering = p.Served, p.Served
}

// assemble makes the API server over the storages of all kinds.
func (s *Server) assemble(ctx context.Context) error {
	p := s.newParts()
	if s.Options.ReplaceParts != nil {
		s.Options.ReplaceParts(s, p)
	}
	options := s.Options.coreOptions(s.Config)
	options.Tokens, options.OnlyClusters = s.accountTokens(), s.cluster != nil
	options.NoLease = s.etcd != nil // then package peers holds one
	if s.Access != nil {
		options.Authorizer, options.Rules = s.Access.Authorizer, s.Access.Rules
	}
	var err error
	if options.Clusters, err = s.clusterOptions(); err != nil {
		return err
	}
	core, err := coreapi.New(p.Registries, options)
	if err != nil {
		return err
	}
	storage, stored := p.Storage.(*kubestore.Getter)
	kept := policyapi.Options{Live: s.Verification.live, Clock: clock.RealClock{}, Changed: s.Verification.resync, Registerer: meter.Process}
	if stored {
		kept.Changes = func() (policyapi.Changes, error) { return storage.Changes(policyapi.Resources...) }
	}
	policies, err := policyapi.New(p.Registries, legacyscheme.Scheme, kept)
	if err != nil {
		return err
	}
	s.Verification.Keeper = policies.Keeper
	images, err := s.newImages(p, core)
	if err != nil {
		return err
	}
	if stored && s.listener != nil {
		if s.Verification.changes, err = storage.Changes(imagev1.Resource("images")); err != nil {
			return err
		}
		defer func() { s.followChanges(storage) }() // when it is known what runs
	}
	s.clusters, s.Usage, s.answerer = core.Clusters, core.Usage.Index, images.Answerer
	s.runs = runs.New(runs.Options{Store: core.Runs, Clusters: core.Clusters, Verdicts: runVerdicts{s}, SeveralServers: s.etcd != nil, Fills: s.DB.Fills, Clock: s.Options.Clock})
	s.followed, s.streams = followedTags{images.TagImports}, images.StoredStreams
	s.promotions, s.unverified = promotion.New(s.streams), imageevents.NewUnverified(s.answerer)
	if s.listener != nil {
		s.admitter = &Admitter{
			Answerer: s.answerer, Queue: s.pushes.spool, clusters: core.Clusters, waiting: map[awaited][]*admission.Pod{},
		}
		if s.etcd != nil {
			s.admitter.lent = s.DB
		}
	}
	s.clusterPods = clusters.NewPodsREST(core.Clusters, s.answerer, verdicts.All)
	groups := core.Resources(s.clusterPods, images.Needed)
	groups[clusters.GroupVersion][imageruns.Resource] = imageruns.NewREST(core.Runs, imageruns.Options{Images: s.answerer, Verdicts: verdicts.All, Clusters: core.Clusters, Clock: s.Options.Clock})
	maps.Copy(groups[answers.GroupVersion], images.Reviews())
	groups[packages.GroupVersion][packages.Resource] = images.Packages
	groups[record.GroupVersion][record.Resource] = images.Records
	groups[imagev1.GroupVersion], groups[policyapi.GroupVersion] = images.Resources(), policies.Resources()
	if s.Access != nil {
		groups[authorizationv1.GroupVersion] = s.Access.Storage()
	}
	s.ownPods = ownPodsRead(core.Clusters.OwnStaleReason, s.DB.WriteFault, clock.RealClock{})
	c := s.webConfig(p, core, groups)
	if c.Console, err = s.newConsole(ctx); err != nil {
		return err
	}
	s.Web, err = web.New(c)
	return err
}

// newImages makes the storages of the image API.
func (s *Server) newImages(p *Parts, core *coreapi.API) (*imageapi.Storages, error) {
	answerer, err := s.answererOf(core)
	if err != nil {
		return nil, err
	}
	o := imageapi.Options{
		Scheme: legacyscheme.Scheme,
		Images: imageregistry.Options{
			Verifier: s.Verification.Keeper, Observer: observer{s}, Answering: p.Answering, Usage: core.Usage, Drift: drifting{s, core.Usage},
		},
		Answerer:          answerer,
		Checks:            s.checks,
		Clock:             s.Options.Clock,
		Authorizer:        s.authorizer,
		Registry:          s.Config.Streams.Registry,
		PublicRegistry:    s.Config.Streams.PublicRegistry,
		Guarded:           s.Events,
		AllowedRegistries: allowedRegistries(s.Config.Streams),
	}
	if s.pushes != nil {
		o.Importer, o.Pushes = s.streamImports(), s.pushes
	}
	return imageapi.New(p.Registries, o)
}

func (s *Server) webConfig(p *Parts, core *coreapi.API, groups map[schema.GroupVersion]map[string]rest.Storage) web.Config {
	c := web.Config{
		Scheme:         legacyscheme.Scheme,
		Codecs:         legacyscheme.Codecs,
		Serializers:    p.Serializers,
		ParameterCodec: legacyscheme.ParameterCodec,
		Groups:         groups,
		OpenAPI:        openAPIDefinitions,
		Listener:       s.listener,
		Connections:    s.connections,
		Turns:          s.turns,
		Tracer:         s.tracer,
		MaxReads:       s.Options.MaxReads,
		MaxWrites:      s.Options.MaxWrites,
		Registerer:     meter.Process,
		Credentials:    s.Credentials,
		Authentication: s.authentication(),
		Tokens:         s.tokens,
		Accounts:       core.Accounts,
		Audit:          p.Audit,
		Local:          s.local,
		BeforeAPI:      p.BeforeAPI,
		Hooks:          s.pushes.hooks(),
		Version:        version.Build(),
	}
	if s.cluster != nil {
		c.Cluster, c.Tokens, c.Accounts = s.cluster, nil, nil
	}
	if s.listener != nil {
		// Without a listener there are no callers to authorize, and nothing waits for readiness.
		c.Authorizer = s.authorizer
		if s.Access != nil {
			c.Informers = s.Access.Informers
			maps.Copy(core.PostStartHooks, s.Access.Hooks())
		}
		c.PostStartHooks, c.ReadyChecks = core.PostStartHooks, []healthz.HealthChecker{usageSynced(core), policiesRead(s.Verification.Keeper)}
		if s.etcd != nil {
			c.ReadyChecks = append(c.ReadyChecks, healthz.NamedCheck("etcd", s.checkEtcd))
		}
		c.WriteChecks = []healthz.HealthChecker{healthz.NamedCheck("database-writes", func(*http.Request) error { return s.DB.WriteFault() }), s.ownPods}
	}
	return c
}

// accountTokens configures how tokens of service accounts are made.
func (s *Server) accountTokens() coreapi.Tokens {
	o := s.authentication()
	audiences := o.APIAudiences
	if len(audiences) == 0 {
		audiences = o.ServiceAccounts.Issuers
	}
	return coreapi.Tokens{
		Generator: s.tokens, Audiences: audiences, MaxExpiration: o.ServiceAccounts.MaxExpiration,
		ExtendExpiration: o.ServiceAccounts.ExtendExpiration, MaxExtendedExpiration: o.ServiceAccounts.MaxExtendedExpiration,
	}
}

// etcdPatience is how long a check waits for etcd's answer, and for the copy to have what etcd has.
const etcdPatience = 5 * time.Second

// checkEtcd fails while what is read here is not what the other servers have.
func (s *Server) checkEtcd(r *http.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), etcdPatience)
	defer cancel()
	return s.DB.CatchUp(ctx, 0)
}

func (s *Server) addTasks(worker *queue.Worker) error {
	s.serveHealth(worker)
	// A second server in one process, as in tests, is not in the metrics.
	_ = legacyregistry.Registerer().Register(s.DB)
	backups := backup.NewSchedule(s.DB, s.Options.DataDir, slog.Default())
	_ = legacyregistry.Registerer().Register(backups)
	_ = legacyregistry.Registerer().Register(s.clusters)
	sends := s.pushes.sends.Load()
	imports := func(ctx context.Context) error {
		var both errgroup.Group
		both.Go(func() error { return sends.Run(ctx) })
		both.Go(func() error { return worker.Run(ctx) })
		return both.Wait()
	}
	if s.pushes.peers != nil { // for each registry, one of the servers sends requests and sweeps
		client, err := kubernetes.NewForConfig(s.Web.ClientConfig())
		if err != nil {
			return err
		}
		alone := imports
		imports = func(ctx context.Context) error {
			return s.pushes.peers.Run(ctx, client, func() string { return announcement(worker.Losses()) }, alone)
		}
		s.pushes.peers.OnChange(func() { s.etcd.Compress(s.pushes.peers.AllReadCompressed()) })
	}
	// If several servers run the same task, they do no harm: the task writes only differences. Each
	// server follows the clusters, because it must know itself whether they answer, and which images
	// their workloads need. Kubernetes' controllers, which are not tasks, also run at each server:
	// they do not elect a leader.
	s.keepRecords(s.Config.Records)
	s.Tasks = append(s.Tasks,
		Task{Name: "policies", Run: func(ctx context.Context) error { return s.Verification.keepVerdicts(ctx, s.Sweeper, s.Events) }},
		Task{Name: "pushes", Run: imports},
		Task{Name: "pushes-metrics", Run: worker.WatchDepth},
		Task{Name: "notifications-metrics", Run: sends.WatchDepth},
		Task{Name: "renew", Run: s.renewImages, One: true},
		Task{Name: "streams", Run: s.keepStreams, One: true},
		Task{Name: "promotions", Run: s.promotions.Run},
		Task{Name: "followed-tags", Run: (&feeder.Streams{Followed: s.followed, Queue: s.pushes.spool}).Run, One: true},
		Task{Name: "clusters", Run: func(ctx context.Context) error { return s.clusters.Run(ctx, s.runs) }},
		Task{Name: "counts", Run: s.inventory.Run},
		Task{Name: "records", Run: s.runs.Run, One: true},
	)
	if s.etcd != nil {
		s.Tasks = append(s.Tasks, Task{Name: "etcd-compaction", Run: s.etcd.KeepCompact, One: true}, Task{Name: "shared-checks", Run: s.checks.Follow})
	}
	if s.cluster != nil {
		s.Tasks = append(s.Tasks, Task{Name: "apiservices", Run: s.Web.KeepAPIServices})
	}
	if s.Options.Backups.Dir != "" {
		s.Tasks = append(s.Tasks, Task{Name: "backups", Run: func(ctx context.Context) error {
			backups.Keep(ctx, s.Options.Backups)
			return nil
		}})
	}
	if s.Options.ConfigFile != "" {
		s.Tasks = append(s.Tasks, Task{Name: "config", Run: func(ctx context.Context) error { return s.followConfig(ctx, worker) }})
	}
	if s.pushes.plain != nil {
		s.Tasks = append(s.Tasks, Task{Name: "hooks", Run: func(ctx context.Context) error { return s.pushes.servePlain(ctx, s.Web.Hooks()) }})
	}
	return nil
}

// renewImages brings images that were stored in an old form to the present one. A server that
// cannot do so serves them as they are.
func (s *Server) renewImages(ctx context.Context) error {
	images, err := imageclient.New(s.Web.ClientConfig())
	if err != nil {
		return err
	}
	renewed, err := importer.Renew(ctx, images)
	if renewed > 0 {
		slog.Info("Migrated stored images and tags to the current format", "changes", renewed)
	}
	if err != nil && ctx.Err() == nil {
		slog.Error("Images keep an old storage format until the next start", "err", err)
	}
	return nil
}

// keepStreams makes streams for repositories, and marks existing streams whose tags move.
func (s *Server) keepStreams(ctx context.Context) error {
	client, err := imageclient.New(s.Web.ClientConfig())
	if err != nil {
		return err
	}
	auto := s.Config.Streams.Auto
	return (&streams.Keeper{Client: client, Streams: s.streams, Auto: auto == nil || *auto, Rules: s.Config.Streams.Rules()}).Run(ctx)
}

// handleAdmin serves administrators beside the Kubernetes API.
func (s *Server) handleAdmin(worker *queue.Worker) {
	s.Web.Handle(admin.UserPath, admin.User())
	s.Web.Handle(admin.VerificationPath, admin.Verification(sweeps{s.Sweeper, s}))
	s.Web.Handle(admin.SpoolPath, admin.Spool(s.pushes.administered()))
	s.Web.Handle(admin.ImportsPath, admin.Imports(s.pushes.ask))
	s.Web.Handle(admin.SummaryPath, admin.Get(func(query url.Values) (summary, error) { return s.summary(query, worker) }))
	s.Web.Handle(admin.ReceiversPath, admin.Get(func(url.Values) (receivers, error) { return s.pushes.heard(), nil }))
}

// summary is what is stored, in numbers, and when the server's certificates end.
type summary struct {
	inventory.Summary
	// Overwritten counts the tags that have moved although they must not; nil if that is not known.
	Overwritten *int `json:"overwritten,omitempty"`
	// OverwrittenTags are those that moved last, at most 100.
	OverwrittenTags []overwrites.Tag `json:"overwrittenTags,omitempty"`
	// LostRegistries may have lost their storage.
	LostRegistries []lostRegistry    `json:"lostRegistries"`
	Certificates   []web.Certificate `json:"certificates"`
}

// maxOverwritten is how many tags the summary names.
const maxOverwritten = 100

func (s *Server) summary(query url.Values, worker *queue.Worker) (all summary, err error) {
	all.Summary = s.inventory.Summary()
	if named, n, known := s.overwrites.Tags(maxOverwritten); known {
		all.Overwritten, all.OverwrittenTags = &n, named
	}
	all.LostRegistries = lostRegistries(worker.Losses(), s.pushes.peers)
	clientCA := ""
	if own := s.authentication().ClientCert; s.cluster == nil && own != nil {
		clientCA = own.ClientCA
	}
	all.Certificates = s.Credentials.Certificates(clientCA)
	all.First, err = s.inventory.First(query.Get("first"), inventory.Among{Verified: query.Get("verified"), Used: query.Get("used") == "true"})
	return all, err
}

// reachable returns an address at which clients on this machine reach a server bound to ip. If ip
// stands for all addresses, net.Listen has the server answer over IPv4, too, whatever ip's family.
func reachable(ip net.IP) net.IP {
	if ip.IsUnspecified() {
		return net.IPv4(127, 0, 0, 1)
	}
	return ip
}

// Run serves until ctx is done. It calls ready once the server answers, and
// stops when that returns an error.
func (s *Server) Run(ctx context.Context, ready func(ctx context.Context) error) error {
	// The server outlives its tasks, which use it.
	webCtx, stopWeb := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWeb()
	served := make(chan error, 1)
	go func() { served <- s.Web.Run(webCtx) }()

	err := s.awaitReady(ctx, served)
	if err == nil {
		err = s.runTasks(ctx, served, ready)
	}
	stopWeb()
	err = errors.Join(err, <-served)
	if s.pushes != nil {
		s.pushes.importer.Load().Close()
	}
	s.checks.Flush(context.WithoutCancel(ctx))
	s.closeTracing(ctx)
	return errors.Join(err, s.DB.Close())
}

// runTasks runs the tasks until ctx is done, the server has ended, or ready or a task fails.
func (s *Server) runTasks(ctx context.Context, served chan error, ready func(ctx context.Context) error) error {
	tasks, ctx := errgroup.WithContext(ctx)
	recording, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	events := s.Web.ClientConfig()
	if s.cluster != nil {
		events = s.cluster.Client
	}
	if err := s.Events.Start(recording, s.Web.ClientConfig(), events, "tidewaiter"); err != nil {
		return err
	}
	if s.URL == "" {
		defer s.Events.Flush() // a listening server has sent all but the last ones long ago
	}
	tasks.Go(func() error { return s.electAndRun(ctx) })
	tasks.Go(func() error {
		if s.listener != nil && passes(ctx, s.ownPods) != nil {
			return nil // the server is stopped
		}
		if err := ready(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-served:
			served <- err
			return errServerEnded
		}
	})
	if err := tasks.Wait(); !errors.Is(err, errServerEnded) {
		return err
	}
	return nil
}

// errServerEnded ends the tasks of a server that ended by itself.
var errServerEnded = errors.New("the server has ended")

// awaitReady returns nil once the server answers, or if the server is stopped before that. If a
// listening server takes long, awaitReady logs the reason and continues to wait: a cause such as a
// damaged pod can be removed through the API.
func (s *Server) awaitReady(ctx context.Context, served chan error) error {
	for {
		readyCtx, cancel := context.WithTimeout(ctx, s.ReadyTimeout)
		result := make(chan error, 1)
		go func() { result <- s.Web.Ready(readyCtx) }()
		select {
		case err := <-result:
			cancel()
			if ctx.Err() != nil || err == nil {
				return nil
			}
			if s.URL == "" {
				return err
			}
			s.NotReady(err)
		case err := <-served:
			cancel()
			served <- err
			return nil
		}
	}
}

// RunLocally serves only within the process, for as long as use runs.
func (s *Server) RunLocally(ctx context.Context, use func(ctx context.Context, c *restclient.Config) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	return s.Run(ctx, func(ctx context.Context) error {
		defer stop()
		if err := ctx.Err(); err != nil {
			return err
		}
		return use(ctx, s.Web.ClientConfig())
	})
}

// OwnerConfig returns the configuration for the server that holds dir; nil when none does.
func OwnerConfig(dir string) (*restclient.Config, error) {
	err := datafile.Owner(dir)
	if err == nil {
		return nil, nil
	}
	var locked *datafile.LockedError
	if !errors.As(err, &locked) {
		return nil, err
	}
	if !locked.IsServer() {
		return nil, cli.WithHint(err, "an import that writes directly into the directory locks it, too: wait for it to finish")
	}
	config, err := web.LocalConfig(dir)
	if err != nil {
		return nil, fmt.Errorf("a server holds %s, but its credential cannot be used: %w", dir, err)
	}
	return config, nil
}

// KubeconfigPath is where the server of a data directory keeps the administrator's credential.
func KubeconfigPath(dir string) string { return filepath.Join(dir, "admin.kubeconfig") }
