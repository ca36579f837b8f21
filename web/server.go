package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/client-go/informers"
	restclient "k8s.io/client-go/rest"
	"k8s.io/component-base/tracing"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/tidewaiter/tidewaiter/internal/meter"
	"github.com/tidewaiter/tidewaiter/web/filters"
	"github.com/tidewaiter/tidewaiter/web/limits"
)

// watchDrain is how long open watches may take to end once the server stops. Each gets a request to
// end at once, and a client that does not read is cut off.
const watchDrain = 5 * time.Second

// Config says what a [Server] serves. Scheme, Codecs, Groups, OpenAPI and
// Credentials are required.
type Config struct {
	// Scheme knows every served type.
	Scheme *runtime.Scheme
	// Codecs encode and decode the types of Scheme.
	Codecs serializer.CodecFactory
	// Serializers are used instead of Codecs for the requests of these groups.
	Serializers map[string]runtime.NegotiatedSerializer
	// ParameterCodec decodes query parameters such as ListOptions.
	ParameterCodec runtime.ParameterCodec

	// Groups holds the storages by group and version, and below that by
	// resource ("images") or subresource ("pods/status").
	Groups map[schema.GroupVersion]map[string]rest.Storage
	// OpenAPI describes every served type, for explain, validation and
	// server-side apply.
	OpenAPI common.GetOpenAPIDefinitions
	// PostStartHooks run once the server answers requests.
	PostStartHooks map[string]genericapiserver.PostStartHookFunc
	// ReadyChecks join /readyz and /healthz.
	ReadyChecks []healthz.HealthChecker
	// WriteChecks also join /readyz. A server that fails one still answers reads, so
	// Server.Ready does not wait for them.
	WriteChecks []healthz.HealthChecker

	// Listener takes TLS connections; nil serves only [Server.ClientConfig].
	Listener net.Listener
	// Connections, if set, bounds the connections of Listener, which must be one of
	// its listeners.
	Connections *limits.Connections
	// Turns are the processors that long reads share with what serves requests without the handler
	// chain; nil has some for the handler chain alone.
	Turns *limits.Turns
	// MaxReads and MaxWrites bound the requests in flight that read and that change
	// something. 0 stands for Kubernetes' 400 and 200, a negative number for no bound.
	MaxReads, MaxWrites int
	// Registerer gets the metrics of refused requests; may be nil.
	Registerer meter.Registerer
	// Credentials are the server's certificates and the callers it knows.
	Credentials *Credentials
	// Authentication says how callers without such credentials prove who they are; nil for
	// the defaults.
	Authentication *Authentication
	// Cluster, if set, authenticates callers, in place of Authentication and Accounts.
	Cluster *Cluster
	// Tokens and Accounts, if set, let service accounts in: Tokens has the keys that verify
	// their tokens, and Accounts says which of them exist.
	Tokens   *Tokens
	Accounts serviceaccount.ServiceAccountTokenGetter
	// Authorizer decides what callers may do besides reading the health endpoints. If it is
	// nil, system:masters may do everything and nobody else anything.
	Authorizer authorizer.Authorizer
	// Informers, if set, are started with the server. The server is not ready before they
	// have read everything.
	Informers informers.SharedInformerFactory
	// Local, if set, is the way to the server from within the process.
	Local *Local
	// Hooks serves everything below /hooks/; nil refuses it.
	Hooks http.Handler
	// Tracer records a span for each request; nil records none.
	Tracer trace.TracerProvider
	// Console, if set, makes what serves /console/ of the handler chain, which it asks as the
	// person who looks.
	Console func(api http.Handler) http.Handler
	// Audit says what is written down about requests, and where; see
	// [filters.NewAuditOptions]. Nil writes nothing.
	Audit *options.AuditOptions
	// BeforeAPI, if set, wraps the API server's own handlers. Requests reach it after
	// authentication and authorization. It answers the requests that it can answer faster,
	// within the deadline of the request's context, and calls the wrapped handler for the
	// rest.
	BeforeAPI func(http.Handler) http.Handler

	// Version is Tidewaiter's own version. /version shows it as build metadata of the
	// Kubernetes version whose API is served.
	Version string
}

// Server is an assembled API server. It serves from [Server.Run] on.
type Server struct {
	api         *genericapiserver.GenericAPIServer
	local       *Local
	credentials *Credentials
	sessions    *sessions
	cluster     *Cluster           // nil for a server on its own
	stop        context.CancelFunc // ends what authenticates callers
	hooks       http.Handler
	notAwaited  []string // checks of /readyz that Ready does not wait for
}

// New assembles the server. It opens no port of its own and starts nothing. The
// program sets Kubernetes' runtime.ReallyCrash to false, so that a request that
// panics is answered 500 and logged, and the others go on.
func New(c Config) (_ *Server, err error) {
	if c.Local == nil {
		c.Local = NewLocal()
	}
	s := &Server{local: c.Local, credentials: c.Credentials, cluster: c.Cluster}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	defer func() {
		if err != nil {
			stop()
		}
	}()

	cfg := genericapiserver.NewConfig(c.Codecs)
	cfg.EffectiveVersion = servedVersion(c.Version)
	cfg.LongRunningFunc = genericfilters.BasicLongRunningRequestCheck(sets.NewString("watch"), sets.NewString("log"))
	cfg.ShutdownWatchTerminationGracePeriod = watchDrain
	cfg.MaxRequestsInFlight = cmp.Or(c.MaxReads, cfg.MaxRequestsInFlight)
	cfg.MaxMutatingRequestsInFlight = cmp.Or(c.MaxWrites, cfg.MaxMutatingRequestsInFlight)
	cfg.LoopbackClientConfig = s.ClientConfig()
	checks := []admission.Interface{filters.AuditNames{}, filters.LabelBound{}}
	if c.Cluster != nil {
		namespaces, informers, err := c.Cluster.namespaces()
		if err != nil {
			return nil, fmt.Errorf("reading the cluster's namespaces: %w", err)
		}
		checks, c.Informers = append(checks, namespaces), informers
	}
	cfg.AdmissionControl = admission.NewChainHandler(checks...)
	if err := filters.ApplyAudit(cfg, c.Audit); err != nil {
		return nil, err
	}
	// Profiling would bring flags that change what the server logs; see below.
	cfg.EnableProfiling = false
	cfg.ExternalAddress = c.Credentials.TLS.address(c.Listener)
	if c.Listener != nil {
		if err := c.Credentials.applyTLS(cfg, c.Listener); err != nil {
			return nil, err
		}
	}
	if cfg.Authorization.Authorizer, err = newAuthorizer(c.Authorizer); err != nil {
		return nil, err
	}
	cfg.SkipOpenAPIInstallation = true // describe does it
	namer := openapi.NewDefinitionNamer(c.Scheme)
	cfg.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(c.OpenAPI, namer)
	cfg.OpenAPIConfig.Info.Title = "Tidewaiter"
	cfg.OpenAPIConfig.Info.Version = c.Version
	cfg.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(c.OpenAPI, namer)
	cfg.OpenAPIV3Config.Info.Title = "Tidewaiter"
	cfg.OpenAPIV3Config.Info.Version = c.Version
	count := limits.NewRefused(c.Registerer)
	failures := limits.NewFailures(count)
	callers, open, err := applyAuthentication(ctx, cfg, c, failures)
	if err != nil {
		return nil, err
	}
	s.sessions = open
	cfg.AddReadyzChecks(c.ReadyChecks...)
	cfg.AddReadyzChecks(c.WriteChecks...)
	for _, check := range c.WriteChecks {
		s.notAwaited = append(s.notAwaited, check.Name())
	}
	cfg.BuildHandlerChainFunc = func(api http.Handler, cfg *genericapiserver.Config) http.Handler {
		s.hooks = http.HandlerFunc(noReceivers)
		if c.Hooks != nil {
			s.hooks = c.Hooks
		}
		if c.Tracer != nil { // a sender's trace is linked to, and not continued
			s.hooks = otelhttp.NewHandler(s.hooks, "webhook", otelhttp.WithTracerProvider(c.Tracer), otelhttp.WithPropagators(tracing.Propagators()),
				otelhttp.WithPublicEndpointFn(func(*http.Request) bool { return true }), otelhttp.WithSpanNameFormatter(func(name string, _ *http.Request) string { return name }))
		}
		s.hooks = filters.WithHookAudit(s.hooks, cfg)
		chain := handlerChain(api, c.BeforeAPI, c.Connections, c.Turns, failures, count, open, c.Tracer, cfg)
		var console http.Handler
		if c.Console != nil {
			console = c.Console(chain)
		}
		return rootRouter(chain, s.hooks, console)
	}

	s.api, err = cfg.Complete(c.Informers).New("tidewaiter", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, fmt.Errorf("assembling the API server: %w", err)
	}
	routes.Profiling{}.Install(s.api.Handler.NonGoRestfulMux)
	if c.Cluster != nil {
		c.Cluster.lead(c.Groups)
	} else {
		groups := reviews(callers, cfg.Authentication.APIAudiences)
		maps.Copy(groups, c.Groups)
		c.Groups = groups
	}
	c.Tokens.serveDiscovery(s.api, cfg.ExternalAddress)
	if err := installGroups(s.api, c); err != nil {
		return nil, err
	}
	describe(s.api, cfg)
	for name, hook := range c.PostStartHooks {
		if err := s.api.AddPostStartHook(name, hook); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// installGroups installs every version of every group of c.
func installGroups(api *genericapiserver.GenericAPIServer, c Config) error {
	infos := map[string]*genericapiserver.APIGroupInfo{}
	for gv, storages := range c.Groups {
		info, ok := infos[gv.Group]
		if !ok {
			i := genericapiserver.NewDefaultAPIGroupInfo(gv.Group, c.Scheme, c.ParameterCodec, c.Codecs)
			// The scheme may know versions of a group that are not served here.
			i.PrioritizedVersions = nil
			for _, v := range c.Scheme.PrioritizedVersionsForGroup(gv.Group) {
				if _, served := c.Groups[v]; served {
					i.PrioritizedVersions = append(i.PrioritizedVersions, v)
				}
			}
			if s, ok := c.Serializers[gv.Group]; ok {
				i.NegotiatedSerializer = s
			}
			info = &i
			infos[gv.Group] = info
		}
		info.VersionedResourcesStorageMap[gv.Version] = storages
	}
	// The groups are installed together: the schemas that they share are then parsed once.
	var named []*genericapiserver.APIGroupInfo
	for group, info := range infos {
		if group != "" {
			named = append(named, info)
			continue
		}
		if err := api.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, info); err != nil {
			return fmt.Errorf("installing the core API group: %w", err)
		}
	}
	if err := api.InstallAPIGroups(named...); err != nil {
		return fmt.Errorf("installing the API groups: %w", err)
	}
	return nil
}

// Handle adds the handler of a path outside the Kubernetes API, such as
// /tidewaiter/spool. Roles name it as a non-resource URL, with the method in lower
// case as the verb. Call it before [Server.Run].
func (s *Server) Handle(path string, h http.Handler) {
	s.api.Handler.NonGoRestfulMux.Handle(path, h)
}

// Hooks serves everything below /hooks/, for a listener of its own. It writes deliveries
// down as Config.Audit says.
func (s *Server) Hooks() http.Handler { return s.hooks }

// Run serves until ctx is done. Then it drains: new requests are refused, running ones
// finish, watches end. It returns nil after a clean stop.
func (s *Server) Run(ctx context.Context) error {
	defer s.stop()
	prepared := s.api.PrepareRun()
	local := &http.Server{Handler: s.api.Handler, ReadHeaderTimeout: time.Minute}
	localDone := make(chan error, 1)
	go func() { localDone <- local.Serve(s.local.listener) }()

	var err error
	if s.api.SecureServingInfo != nil {
		go wait.UntilWithContext(ctx, s.renew, 24*time.Hour)
		go s.credentials.reload.run(ctx, s.sessions.recheckOwn)
		go s.sessions.run(ctx)
		err = prepared.RunWithContext(ctx)
	} else {
		// RunWithContext would wait for a listener to close.
		if _, _, err = prepared.NonBlockingRunWithContext(ctx, 0); err == nil {
			<-ctx.Done()
			s.api.Destroy()
		}
	}
	// The API server has drained: there is nothing left to wait for.
	closeErr := local.Close()
	if serveErr := <-localDone; !errors.Is(serveErr, http.ErrServerClosed) {
		closeErr = errors.Join(closeErr, serveErr)
	}
	return errors.Join(err, closeErr)
}

// renew keeps a server that runs for long from outliving its certificate and the
// administrator's.
func (s *Server) renew(context.Context) {
	if err := errors.Join(s.credentials.ensureServing(time.Now()), s.credentials.ensureAdminCertificate(time.Now())); err != nil {
		slog.Error("renewing a certificate failed; retrying in a day", "err", err)
	}
}

// ClientConfig returns the configuration for clients within the process; see [Local].
func (s *Server) ClientConfig() *restclient.Config { return s.local.ClientConfig() }
