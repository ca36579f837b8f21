package server

import (
	"context"
	"net"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/component-base/tracing"

	"github.com/tidewaiter/tidewaiter/coreapi/access"
	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/etcd"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestream"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestreamimport"
	"github.com/tidewaiter/tidewaiter/importer/checks"
	"github.com/tidewaiter/tidewaiter/internal/config"
	"github.com/tidewaiter/tidewaiter/internal/controllers/drift"
	"github.com/tidewaiter/tidewaiter/internal/controllers/imageevents"
	"github.com/tidewaiter/tidewaiter/internal/controllers/inventory"
	"github.com/tidewaiter/tidewaiter/internal/controllers/notices"
	"github.com/tidewaiter/tidewaiter/internal/controllers/overwrites"
	"github.com/tidewaiter/tidewaiter/internal/controllers/reverify"
	"github.com/tidewaiter/tidewaiter/internal/controllers/runs"
	"github.com/tidewaiter/tidewaiter/internal/reconcile"
	"github.com/tidewaiter/tidewaiter/web"
	"github.com/tidewaiter/tidewaiter/web/limits"
	"github.com/tidewaiter/tidewaiter/web/storedjson"
)

// followedTags are the tags of streams whose references the queue of pushes imports.
type followedTags struct{ *imagestreamimport.TagImports }

// Server is an API server over a data directory.
type Server struct {
	Options     Options
	Config      *config.Config
	listener    net.Listener // nil when only the process itself reaches the server
	connections *limits.Connections
	turns       *limits.Turns
	tracer      tracing.TracerProvider // nil if nothing is traced
	URL         string                 // empty without a listener
	DB          *db.DB
	etcd        *etcd.Store // nil for a server whose database is its own
	local       *web.Local
	// of a server that listens on its own; others have one caller
	Access       *access.Access
	authorizer   authorizer.Authorizer // of a server that listens
	cluster      *web.Cluster          // nil for a server on its own
	Web          *web.Server
	Credentials  *web.Credentials
	tokens       *web.Tokens // of service accounts
	Events       *imageevents.Recorder
	Verification *verification
	Sweeper      *reverify.Sweeper
	inventory    *inventory.Counter
	overwrites   *overwrites.Tracker // knows the tags that have moved although they must not; nil without a listener
	checks       *checks.Checks
	drift        *drift.Tracker // nil without a listener
	unverified   *imageevents.Unverified
	promotions   *reconcile.Controller[string]
	runs         *runs.Recorder
	pushes       *pushes           // nil without a listener
	notices      *notices.Follower // nil without a listener
	followed     followedTags
	streams      *imagestream.StoredStreams
	admitter     *Admitter // nil without a listener
	answerer     *answers.Answerer
	clusters     *clusters.Clusters
	clusterPods  *clusters.PodsREST
	ownPods      healthz.HealthChecker // see ownPodsRead
	Usage        *usage.Index
	// Tasks run beside a listening server from the time when it is ready until it stops.
	Tasks []Task
	// ReadyTimeout is how long the server may take to be ready before NotReady is called.
	ReadyTimeout time.Duration
	NotReady     func(error)
}

// Task is work beside a listening server.
type Task struct {
	Name string
	Run  func(context.Context) error
	// One is true if only one of several servers with the same objects runs the task at a time.
	One bool
}

// Parts are the parts of an API server beside its kinds.
type Parts struct {
	Storage generic.RESTOptionsGetter // over the database
	Served  *storedjson.Getter        // over storage: serves Images as they are stored
	// Registries is the storage for the registries of all kinds.
	Registries generic.RESTOptionsGetter
	// Answering answers creations of Images with the stored bytes; nil encodes the object again.
	Answering imageregistry.Answering
	// Serializers are the serializers of groups that have their own.
	Serializers map[string]runtime.NegotiatedSerializer
	// BeforeAPI wraps the API server's handlers.
	BeforeAPI func(http.Handler) http.Handler
	Audit     *options.AuditOptions
}
