package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"syscall"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options"
	restclient "k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/coreapi"
	"github.com/tidewaiter/tidewaiter/coreapi/access"
	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/podlogs"
	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
	"github.com/tidewaiter/tidewaiter/imageapi"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/streams"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policyapi"
	"github.com/tidewaiter/tidewaiter/web"
	"github.com/tidewaiter/tidewaiter/web/admin"
	"github.com/tidewaiter/tidewaiter/web/admission"
	"github.com/tidewaiter/tidewaiter/web/limits"
	"github.com/tidewaiter/tidewaiter/web/verbatim"
)

// readyTimeout is how long a server may take from listening to ready before it
// says why it is not.
const readyTimeout = time.Minute

// reserve is the space that a server holds back for deletions on a full disk.
const reserve = 32 << 20

// serverOptions are the flags of every verb that opens a data directory.
type serverOptions struct {
	dataDir      string
	configFile   string
	eventTTL     time.Duration
	serviceCIDRs []string
	nodePorts    string
	podLogsDir   string
	policy       string
	quota        int64            // bytes; 0 for none
	backups      db.BackupOptions // none without a folder
	// isolated imports pushes without the credentials and the lookaside storage of the server's user.
	isolated bool
	// audit says what is logged of requests; nil for nothing.
	audit *options.AuditOptions
	// maxReads and maxWrites bound the requests in flight; see web.Config.
	maxReads, maxWrites int
	authentication      *web.Authentication // nil for the defaults
	tls                 web.TLS
	// access says how a listening server authorizes requests; nil for the defaults.
	access *access.Options
	// cluster has the flags of a server in a cluster that knows the callers.
	cluster aggregated
	// replaceParts, if set, changes the parts of the server, as BenchmarkWithout does.
	replaceParts func(*server, *parts)
}

func (o *serverOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.dataDir, "data-dir", defaultDataDir, "directory that holds the database, the certificates and the administrator's credential")
	f.StringVar(&o.configFile, "config", "", "configuration file (YAML)")
	f.DurationVar(&o.eventTTL, "event-ttl", coreapi.DefaultEventTTL, "how long an Event is kept after it was last written")
	f.StringSliceVar(&o.serviceCIDRs, "service-cluster-ip-range", []string{coreapi.DefaultServiceCIDR}, "range that cluster IPs come from; two, one of each IP family, for dual stack")
	f.StringVar(&o.nodePorts, "service-node-port-range", coreapi.DefaultNodePorts, "range that node ports come from, as first-last")
	f.StringVar(&o.policy, "policy", "", "file or folder of ClusterImagePolicy documents, which say who must have signed what; read again when it changes")
	f.Int64Var(&o.quota, "quota-backend-bytes", 0, "bytes that the database may use; past it only deletions and small updates are written; 0 for what the disk has")
	f.StringVar(&o.backups.Dir, "backup-dir", "", "folder for scheduled backups; none are made without")
	f.DurationVar(&o.backups.Every, "backup-every", 24*time.Hour, "time from one scheduled backup to the next")
	f.IntVar(&o.backups.Keep, "backup-keep", 7, "how many scheduled backups are kept, the newest")
	f.StringVar(&o.podLogsDir, "pod-logs-dir", "", "absolute path of a directory with the pods' CRI log directories, such as /var/log/pods")
}

// coreOptions are the options of the core kinds.
func (o *serverOptions) coreOptions(cfg *config) coreapi.Options {
	return coreapi.Options{
		EventTTL:     o.eventTTL,
		ServiceCIDRs: o.serviceCIDRs,
		NodePorts:    o.nodePorts,
		PodLogs:      podlogs.Options{Dir: o.podLogsDir, Kubelet: cfg.Kubelet.options()},
		Uncollected:  []schema.GroupResource{imagev1.Resource("images"), imagev1.Resource("imagetags")},
	}
}

// server is an API server over a data directory.
type server struct {
	options      serverOptions
	config       *config
	listener     net.Listener // nil when only the process itself reaches the server
	connections  *limits.Connections
	url          string // empty without a listener
	db           *db.DB
	local        *web.Local
	access       *access.Access        // of a server that listens on its own; others have one caller
	authorizer   authorizer.Authorizer // of a server that listens
	cluster      *web.Cluster          // nil for a server on its own
	web          *web.Server
	credentials  *web.Credentials
	tokens       *web.Tokens // of service accounts
	events       *eventRecorder
	verification *verification
	pushes       *pushes // nil without a listener
	images       rest.Getter
	followed     followedTags
	streams      *imageapi.StoredStreams
	admitter     *admitter // nil without a listener
	clusters     *clusters.Clusters
	usage        *usage.Index
	// tasks run beside a listening server from the time when it is ready until it stops.
	tasks []func(context.Context) error
	// readyTimeout is how long the server may take to be ready before notReady is called.
	readyTimeout time.Duration
	notReady     func(error)
}

// openServer takes the data directory and assembles a server over it: on listener, or reachable only from
// within the process if listener is nil. It takes over listener when it succeeds.
func openServer(ctx context.Context, o serverOptions, listener net.Listener) (_ *server, err error) {
	s := newServer(o, listener)
	defer func() {
		if err != nil && s.db != nil {
			err = errors.Join(err, s.db.Close())
		}
	}()
	for _, open := range []func(context.Context) error{
		s.loadConfig,
		s.openCluster,
		s.openTrustedRoots,
		s.openVerification,
		s.openDatabase,
		s.loadCredentials,
		s.openPushes,
		s.openLocal,
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

func newServer(o serverOptions, listener net.Listener) *server {
	s := &server{options: o, connections: limits.NewConnections(limits.DefaultConnections()), events: &eventRecorder{}, readyTimeout: readyTimeout}
	if listener != nil {
		s.listener = s.connections.Listen(listener)
	}
	s.notReady = func(err error) { slog.Error("the server answers and is not ready", "url", s.url, "err", err) }
	return s
}

func (s *server) loadConfig(context.Context) (err error) {
	s.config, err = loadConfig(s.options.configFile)
	return err
}

// openCluster prepares what a server in a cluster needs of the cluster.
func (s *server) openCluster(context.Context) (err error) {
	if s.cluster, err = s.options.cluster.open(); s.cluster != nil {
		s.options.tls.SANs = append(s.options.tls.SANs, s.cluster.Host())
	}
	return err
}

func (s *server) openVerification(context.Context) (err error) {
	s.verification, err = openVerification(s.options.policy)
	return err
}

// openDatabase takes the data directory.
func (s *server) openDatabase(context.Context) (err error) {
	o := db.Options{Dir: s.options.dataDir, Views: views(), Quota: s.options.quota}
	if s.listener != nil {
		o.Reserve = reserve
	}
	s.db, err = db.Open(o)
	return err
}

// openLocal prepares connections to the server from within the process.
func (s *server) openLocal(context.Context) (err error) {
	s.local, err = web.NewLocal()
	return err
}

// openAccess prepares the authorization of a listening server.
func (s *server) openAccess(ctx context.Context) (err error) {
	switch {
	case s.listener == nil:
	case s.cluster != nil:
		s.authorizer, err = s.cluster.Authorizer()
	default:
		if s.access, err = access.New(ctx, s.options.access, s.local.ClientConfig(), "tidewaiter"); err == nil {
			s.authorizer = s.access.Authorizer
		}
	}
	return err
}

// loadPolicies reads the policies that are API objects. A listening server also makes objects of those
// from files. A policy that cannot be read does not stop such a server, because it can be told to delete
// it; nor does a full disk.
func (s *server) loadPolicies(ctx context.Context) error {
	keeper := s.verification.keeper
	err := keeper.Load(ctx)
	if s.listener == nil {
		return err
	}
	if err == nil {
		_ = keeper.ShowFiles(ctx) // Run tries again, and says why it cannot
	}
	return nil
}

func (s *server) connectVerification(context.Context) error {
	return s.verification.connect(s.web.ClientConfig())
}

// openToNetwork adds the parts that only a listening server has.
func (s *server) openToNetwork(context.Context) error {
	if s.listener == nil {
		return nil
	}
	s.addTasks()
	s.handleAdmin()
	return errors.Join(s.feedQueue(), s.tellWhere())
}

// tellWhere writes down where the server is, for commands that look for it. The server runs even if a full
// disk prevents that.
func (s *server) tellWhere() error {
	err := errors.Join(s.credentials.KeepKubeconfig(cmp.Or(s.options.tls.AdvertiseURL, s.url)), s.credentials.WriteLocal(s.url), s.db.SetInfo(s.url))
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		slog.Warn("the disk is full: the server's address cannot be written for its clients", "url", s.url, "err", err)
		return nil
	}
	return err
}

// loadCredentials reads the credentials for the server's address.
func (s *server) loadCredentials(context.Context) (err error) {
	ip := net.IPv4(127, 0, 0, 1)
	if s.listener != nil {
		addr := s.listener.Addr().(*net.TCPAddr)
		ip = addr.IP
		s.url = "https://" + (&net.TCPAddr{IP: reachable(ip), Port: addr.Port}).String()
	}
	if s.credentials, err = web.LoadCredentials(s.options.dataDir, s.options.tls.Hosts(ip), time.Now()); err != nil {
		return err
	}
	s.credentials.TLS = s.options.tls
	if s.credentials.AuthorityMade() && s.db.Revision() > 1 {
		slog.Warn("The folder pki is gone and was made anew. All data is there. Who has a kubeconfig, a client certificate or a service account's token of before is refused: hand out admin.kubeconfig and pki/ca.crt again, and have robots ask for new tokens", "dir", s.options.dataDir)
	}
	s.tokens, err = s.credentials.ServiceAccountTokens(s.authentication())
	return err
}

// authentication is how callers prove who they are.
func (s *server) authentication() *web.Authentication {
	if s.options.authentication == nil {
		s.options.authentication = web.NewAuthentication()
	}
	return s.options.authentication
}

// openPushes prepares a listening server to receive pushes.
func (s *server) openPushes(ctx context.Context) (err error) {
	if s.listener != nil {
		s.pushes, err = openPushes(ctx, s.db, s.config, s.connections, s.verification.demands, s.options.isolated)
	}
	return err
}

// parts are what an API server consists of beside its kinds.
type parts struct {
	storage generic.RESTOptionsGetter // over the database
	served  *verbatim.Getter          // over storage: serves Images as they are stored
	// registries is the storage for the registries of all kinds.
	registries generic.RESTOptionsGetter
	// answerCreation answers creations of Images with what was stored; nil encodes the object again.
	answerCreation func(context.Context) (context.Context, func(runtime.Object) runtime.Object)
	// serializers are the serializers of groups that have their own.
	serializers map[string]runtime.NegotiatedSerializer
	// beforeAPI wraps the API server's handlers.
	beforeAPI func(http.Handler) http.Handler
	audit     *options.AuditOptions
}

// newParts returns the parts of every server.
func (s *server) newParts() *parts {
	p := &parts{
		serializers: map[string]runtime.NegotiatedSerializer{
			imagev1.GroupName:            imageapi.NewSerializer(legacyscheme.Codecs),
			policyapi.GroupVersion.Group: policyapi.NewSerializer(legacyscheme.Codecs),
		},
		audit: s.options.audit,
	}
	p.serve(s.newStorage(map[string]runtime.StorageSerializer{imagev1.GroupName: imageapi.NewStorageSerializer(legacyscheme.Codecs)}), s.options.dataDir)
	p.beforeAPI = func(api http.Handler) http.Handler {
		api = p.served.Serve(web.AnnounceWrites(s.db.Announce, imageapi.WithMetadataReads(api, p.serializers[imagev1.GroupName])))
		if s.admitter == nil {
			return api
		}
		return s.newAdmission().Serve(api)
	}
	return p
}

// newStorage returns the storage of all kinds, with the serializers of groups that have their own.
func (s *server) newStorage(serializers map[string]runtime.StorageSerializer) *kubestore.Getter {
	return kubestore.NewGetter(s.db, legacyscheme.Codecs, kubestore.Options{
		Pause:       limits.Pause,
		Begin:       limits.Begin,
		Unconverted: []schema.GroupResource{imagev1.Resource("images")},
		Serializers: serializers,
	})
}

// serve serves Images from the bytes in storage. Parts of lists are kept in formsDir.
func (p *parts) serve(storage generic.RESTOptionsGetter, formsDir string) {
	p.storage = storage
	p.served = verbatim.NewGetter(storage, legacyscheme.Codecs, formsDir, verbatim.Kind{Resource: imagev1.GroupVersion.WithResource("images"), Kind: "Image", Named: imageapi.DigestsIn})
	p.registries, p.answerCreation = p.served, p.served.AnswerCreation
}

// assemble makes the API server over the storages of all kinds.
func (s *server) assemble(context.Context) error {
	p := s.newParts()
	if s.options.replaceParts != nil {
		s.options.replaceParts(s, p)
	}
	options := s.options.coreOptions(s.config)
	options.Tokens, options.OnlyClusters = s.accountTokens(), s.cluster != nil
	if s.access != nil {
		options.Authorizer, options.Rules = s.access.Authorizer, s.access.Rules
	}
	var err error
	if options.Clusters, err = s.clusterOptions(); err != nil {
		return err
	}
	core, err := coreapi.New(p.registries, options)
	if err != nil {
		return err
	}
	var imports imageapi.Importer
	var pushed func(context.Context, reference.Reference) error
	if s.pushes != nil {
		imports = s.streamImports()
		pushed = s.pushes.pushed()
	}
	images, err := imageapi.Storage(p.registries, imageapi.Options{
		Scheme:            legacyscheme.Scheme,
		Importer:          imports,
		AllowedRegistries: s.config.Streams.allowedRegistries(),
		Verifier:          s.verification.live,
		Summarize:         summarize,
		Attested:          signatures.Attested,
		VerdictChanged:    s.events.verdictChanged,
		Vouches:           s.verification.vouches,
		Usage:             core.Usage,
		AnswerCreation:    p.answerCreation,
		Authorizer:        s.authorizer,
		Registry:          s.config.Streams.Registry,
		PublicRegistry:    s.config.Streams.PublicRegistry,
		Pushed:            pushed,
	})
	if err != nil {
		return err
	}
	policies, err := policyapi.Storage(p.registries, legacyscheme.Scheme, s.verification.keeper)
	if err != nil {
		return err
	}
	s.images, s.clusters, s.usage = images["images"].(rest.Getter), core.Clusters, core.Usage.Index
	s.followed = followedTags{imageapi.TagImportsOf(images)}
	s.streams = imageapi.StoredStreamsOf(images)
	if s.listener != nil {
		s.admitter = &admitter{
			images: s.images, tags: images["imagetags"].(rest.Getter), policies: s.verification.policiesInForce, clock: clock.RealClock{},
			queue: s.pushes.spool, clusters: core.Clusters, waiting: map[awaited][]*admission.Pod{},
		}
	}
	groups := maps.Clone(core.Groups)
	groups[imagev1.GroupVersion], groups[policyapi.GroupVersion] = images, policies
	if s.cluster == nil {
		groups[corev1.SchemeGroupVersion] = maps.Clone(groups[corev1.SchemeGroupVersion])
		groups[corev1.SchemeGroupVersion]["replicationcontrollers"] = coreapi.ReplicationControllers(imageapi.NeededOf(images))
	}
	s.web, err = web.New(s.webConfig(p, core, groups))
	return err
}

// webConfig is the configuration of a server of groups.
func (s *server) webConfig(p *parts, core *coreapi.API, groups map[schema.GroupVersion]map[string]rest.Storage) web.Config {
	c := web.Config{
		Scheme:          legacyscheme.Scheme,
		Codecs:          legacyscheme.Codecs,
		Serializers:     p.serializers,
		ParameterCodec:  legacyscheme.ParameterCodec,
		Groups:          groups,
		OpenAPI:         openAPIDefinitions,
		Listener:        s.listener,
		Connections:     s.connections,
		MaxReads:        s.options.maxReads,
		MaxWrites:       s.options.maxWrites,
		RegisterMetrics: registerMetrics,
		Credentials:     s.credentials,
		Authentication:  s.authentication(),
		Tokens:          s.tokens,
		Accounts:        core.Accounts,
		Audit:           p.audit,
		Local:           s.local,
		BeforeAPI:       p.beforeAPI,
		Hooks:           s.pushes.hooks(),
		Version:         buildVersion(),
	}
	if s.cluster != nil {
		c.Cluster, c.Tokens, c.Accounts = s.cluster, nil, nil
	}
	if s.listener != nil {
		// Without a listener nobody calls, so there is nobody to authorize and nobody who waits for readiness.
		c.Authorizer = s.authorizer
		if s.access != nil {
			c.Informers = s.access.Informers
			maps.Copy(core.PostStartHooks, s.access.Hooks())
		}
		c.PostStartHooks, c.ReadyChecks = core.PostStartHooks, []healthz.HealthChecker{usageSynced(core), policiesRead(s.verification.keeper)}
		c.WriteChecks = []healthz.HealthChecker{healthz.NamedCheck("database-writes", func(*http.Request) error { return s.db.WriteFault() })}
	}
	return c
}

// accountTokens says how the tokens of service accounts are made.
func (s *server) accountTokens() coreapi.Tokens {
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

// usageSynced fails until the images that the pods use are known.
func usageSynced(core *coreapi.API) healthz.HealthChecker {
	return healthz.NamedCheck("image-usage", func(*http.Request) error {
		if !core.Usage.Synced() { // clusters that are away hold up nobody
			return errors.New("the pods that use images are still being read")
		}
		return nil
	})
}

// policiesRead fails until the policies that are API objects are in force.
func policiesRead(keeper *policyapi.Keeper) healthz.HealthChecker {
	return healthz.NamedCheck("policies", func(r *http.Request) error {
		if keeper.Loaded() == nil {
			return nil
		}
		return keeper.Load(r.Context())
	})
}

// addTasks adds the tasks of a listening server.
func (s *server) addTasks() {
	// A second server in one process, as in tests, is not in the metrics.
	_ = legacyregistry.Registerer().Register(s.db)
	s.tasks = append(s.tasks,
		func(ctx context.Context) error { return s.verification.work(ctx, s.events) },
		func(ctx context.Context) error {
			return s.pushes.work(ctx, s.web.ClientConfig(), s.events, s.admitter, s.followed)
		},
		s.renewImages,
		s.keepStreams,
		s.feedStreams,
		s.clusters.Run,
	)
	if s.cluster != nil {
		s.tasks = append(s.tasks, s.web.KeepAPIServices)
	}
	if s.options.backups.Dir != "" {
		s.tasks = append(s.tasks, func(ctx context.Context) error {
			s.db.KeepBackups(ctx, s.options.backups)
			return nil
		})
	}
	if s.pushes.plain != nil {
		s.tasks = append(s.tasks, func(ctx context.Context) error { return s.pushes.servePlain(ctx, s.web.Hooks()) })
	}
}

// renewImages brings images that were stored in an old form to the present one. A server that cannot do so
// serves them as they are.
func (s *server) renewImages(ctx context.Context) error {
	images, err := imageclient.New(s.web.ClientConfig())
	if err != nil {
		return err
	}
	renewed, err := importer.Renew(ctx, images)
	if renewed > 0 {
		slog.Info("Brought images that were stored in an old form to the present one", "changes", renewed)
	}
	if err != nil && ctx.Err() == nil {
		slog.Error("Images stay in an old form until the next start", "err", err)
	}
	return nil
}

// keepStreams makes streams for repositories, and marks existing streams whose tags move.
func (s *server) keepStreams(ctx context.Context) error {
	client, err := imageclient.New(s.web.ClientConfig())
	if err != nil {
		return err
	}
	auto := s.config.Streams.Auto
	return (&streams.Keeper{Client: client, Streams: s.streams, Auto: auto == nil || *auto, Rules: s.config.Streams.rules}).Run(ctx)
}

// handleAdmin serves administrators beside the Kubernetes API.
func (s *server) handleAdmin() {
	s.web.Handle(admin.UserPath, admin.User())
	s.web.Handle(admin.VerificationPath, admin.Verification(s.verification.sweeper))
	s.web.Handle(admin.SpoolPath, admin.Spool(s.pushes.spool))
}

// reachable returns an address of this machine under which a server bound to ip answers.
func reachable(ip net.IP) net.IP {
	switch {
	case !ip.IsUnspecified():
		return ip
	case ip.To4() != nil:
		return net.IPv4(127, 0, 0, 1)
	default:
		return net.IPv6loopback
	}
}

// run serves until ctx is done. It calls ready once the server answers, and
// stops when that returns an error.
func (s *server) run(ctx context.Context, ready func(ctx context.Context) error) error {
	// The server outlives its tasks, which use it.
	webCtx, stopWeb := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWeb()
	served := make(chan error, 1)
	go func() { served <- s.web.Run(webCtx) }()

	err := s.awaitReady(ctx, served)
	if err == nil {
		err = s.work(ctx, served, ready)
	}
	stopWeb()
	return errors.Join(err, <-served, s.db.Close())
}

// work runs the tasks until ctx is done, the server has ended, or ready or a task fails.
func (s *server) work(ctx context.Context, served chan error, ready func(ctx context.Context) error) error {
	tasks, ctx := errgroup.WithContext(ctx)
	recording, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	events := s.web.ClientConfig()
	if s.cluster != nil {
		events = s.cluster.Client
	}
	if err := s.events.start(recording, s.web.ClientConfig(), events, "tidewaiter"); err != nil {
		return err
	}
	if s.url == "" {
		defer s.events.flush() // a listening server has sent all but the last ones long ago
	}
	for _, task := range s.tasks {
		tasks.Go(func() error { return task(ctx) })
	}
	tasks.Go(func() error {
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

// awaitReady returns nil once the server answers, or if the server is told to stop before that. A
// listening server goes on if it takes long, and says why: the cause, such as a damaged pod, can be
// removed through its API.
func (s *server) awaitReady(ctx context.Context, served chan error) error {
	for {
		readyCtx, cancel := context.WithTimeout(ctx, s.readyTimeout)
		result := make(chan error, 1)
		go func() { result <- s.web.Ready(readyCtx) }()
		select {
		case err := <-result:
			cancel()
			if ctx.Err() != nil || err == nil {
				return nil
			}
			if s.url == "" {
				return err
			}
			s.notReady(err)
		case err := <-served:
			cancel()
			served <- err
			return nil
		}
	}
}

// runLocally serves only within the process, for as long as use runs.
func (s *server) runLocally(ctx context.Context, use func(ctx context.Context, c *restclient.Config) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	return s.run(ctx, func(ctx context.Context) error {
		defer stop()
		if err := ctx.Err(); err != nil {
			return err
		}
		return use(ctx, s.web.ClientConfig())
	})
}

// ownerConfig returns the configuration for the server that holds dir; nil when none does.
func ownerConfig(dir string) (*restclient.Config, error) {
	err := db.Owner(dir)
	if err == nil {
		return nil, nil
	}
	var locked *db.LockedError
	if !errors.As(err, &locked) {
		return nil, err
	}
	if locked.Info == "" {
		return nil, withHint(err, "an import that writes straight into the directory holds it too: wait for it to end")
	}
	config, err := web.LocalConfig(dir)
	if err != nil {
		return nil, fmt.Errorf("a server holds %s, but its credential cannot be used: %w", dir, err)
	}
	return config, nil
}
