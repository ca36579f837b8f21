package web

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"

	webfilters "github.com/tidewaiter/tidewaiter/web/filters"
	"github.com/tidewaiter/tidewaiter/web/limits"
	"github.com/tidewaiter/tidewaiter/web/storedjson"
)

// handlerChain puts Kubernetes' filters before api, and before beforeAPI if that is not
// nil. It is genericapiserver.DefaultBuildHandlerChain in another order and without some
// filters: the timing of each costs as much as a read. Without a tracer nothing is
// traced.
//
// beforeAPI stands before the goroutine, the copies and the trackers that guard handlers
// which may run long. A request that it answers has passed authentication, impersonation,
// the limits of requests in flight and authorization like any other. The request's context
// has a deadline, and beforeAPI must honour it itself.
func handlerChain(api http.Handler, beforeAPI func(http.Handler) http.Handler, connections *limits.Connections, turns *limits.Turns, failures *limits.Failures, count *limits.Refused, open *sessions, tracer trace.TracerProvider, c *genericapiserver.Config) http.Handler {
	h := withOneNamespace(api)
	h = webfilters.WithoutAuditedObjects(h)
	h = filters.WithWarningRecorder(h)
	h = genericfilters.WithTimeoutForNonLongRunningRequests(h, c.LongRunningFunc)
	h = filters.WithLatencyTrackers(h)
	if beforeAPI != nil {
		h = beforeAPI(h)
	}
	h = withArtifacts(h)
	turns = cmp.Or(turns, limits.NewTurns())
	h = limits.WithBodyLimits(h, limits.BodyOptions{Bound: webfilters.BodyBound(c.MaxRequestBodyBytes), Serializer: c.Serializer, Refused: count, Turns: turns})
	h = withoutCustomResources(filters.WithAuthorization(h, c.Authorization.Authorizer, c.Serializer))
	// This filter counts for apiserver_current_inflight_requests. It does not bound
	// administrators; the limits do.
	h = genericfilters.WithMaxInFlightLimit(h, c.MaxRequestsInFlight, c.MaxMutatingRequestsInFlight, c.LongRunningFunc)
	h = impersonation.WithConstrainedImpersonation(h, c.Authorization.Authorizer, c.Serializer)
	h = limits.WithRequestLimits(h, limits.RequestOptions{
		MaxReads: c.MaxRequestsInFlight, MaxWrites: c.MaxMutatingRequestsInFlight, LongRunning: c.LongRunningFunc, Cheap: storedjson.Cheap, Connections: connections, Turns: turns, Refused: count,
	})
	h = webfilters.CutOff(filters.WithAudit(webfilters.AuditCutOff(h), c.AuditBackend, c.AuditPolicyRuleEvaluator, c.LongRunningFunc))
	if tracer != nil {
		h = filters.WithTracing(h, tracer)
	}
	refused := filters.WithFailedAuthenticationAudit(limits.WithFailureLimit(filters.Unauthorized(c.Serializer), failures), c.AuditBackend, c.AuditPolicyRuleEvaluator)
	h = filters.WithAuthentication(h, &webfilters.Logins{Request: c.Authentication.Authenticator}, refused, c.Authentication.APIAudiences, c.Authentication.RequestHeaderConfig)
	h = open.keep(h, c.Authentication.Authenticator, c.LongRunningFunc)
	h = webfilters.WithWriteDeadlines(h, c.LongRunningFunc, webfilters.ReaderTimeout)
	h = filters.WithRequestDeadline(h, c.AuditBackend, c.AuditPolicyRuleEvaluator, c.LongRunningFunc, c.Serializer, c.RequestTimeout)
	h = genericfilters.WithWaitGroup(h, c.LongRunningFunc, c.NonLongRunningRequestWaitGroup)
	h = genericfilters.WithWatchTerminationDuringShutdown(h, shutdownSignal(c.ShutdownInitiatedNotify()), c.WatchRequestWaitGroup)
	h = withLogsEndedAtShutdown(h, c.ShutdownInitiatedNotify())
	h = withHealthOnlyRead(h)
	h = filters.WithCacheControl(h)
	h = genericfilters.WithHTTPLogging(h)
	h = filters.WithRequestInfo(h, c.RequestInfoResolver)
	h = filters.WithRequestReceivedTimestamp(h)
	h = genericfilters.WithPanicRecovery(h, c.RequestInfoResolver)
	return filters.WithAuditInit(h)
}

// customResources is the path of CustomResourceDefinitions.
const customResources = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// withoutCustomResources answers, to everybody with a credential, that there are no
// CustomResourceDefinitions. kubectl lists them before it creates an object of a kind that cannot
// be patched, such as a review, and creates none if it gets no list.
func withoutCustomResources(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != customResources || r.URL.Query().Has("watch") {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinitionList","metadata":{"resourceVersion":"1"},"items":[]}`)
	})
}

// withHealthOnlyRead answers 405 to writes to a health endpoint, which callers reach without a
// credential.
func withHealthOnlyRead(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		first, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		if r.Method != http.MethodGet && r.Method != http.MethodHead && slices.Contains(healthPaths, "/"+first) {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "health can only be read", http.StatusMethodNotAllowed)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// shutdownSignal tells watches that the server shuts down.
type shutdownSignal <-chan struct{}

// ShuttingDown implements request.ServerShutdownSignal.
func (s shutdownSignal) ShuttingDown() <-chan struct{} { return s }

// withLogsEndedAtShutdown ends the requests for logs once the server shuts down. A client
// that follows a log would delay the shutdown until its time is up.
func withLogsEndedAtShutdown(next http.Handler, shutdown <-chan struct{}) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info, ok := request.RequestInfoFrom(r.Context()); !ok || info.Subresource != "log" {
			next.ServeHTTP(w, r)
			return
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		go func() {
			select {
			case <-shutdown:
				cancel()
			case <-ctx.Done():
			}
		}()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}
