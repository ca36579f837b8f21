package server

import (
	"net/http"

	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/tidewaiter/tidewaiter/importer/queue"
)

// HealthPath serves the health of background work. It is apart from /readyz, which covers requests
// alone: a load balancer must not drop a server because a registry or a cluster is unreachable.
const HealthPath = "/tidewaiter/health"

// serveHealth serves HealthPath in the form of /readyz. A check by its own path gives the reason.
func (s *Server) serveHealth(worker *queue.Worker) {
	healthz.InstallPathHandler(s.Web, HealthPath,
		healthz.NamedCheck("importing", func(r *http.Request) error { return worker.Check(r.Context()) }),
		healthz.NamedCheck("following", func(*http.Request) error { return s.clusters.Check() }),
		healthz.NamedCheck("notifying", func(r *http.Request) error { return s.pushes.sends.Load().Check(r.Context()) }),
	)
}
