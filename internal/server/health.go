package server

import (
	"net/http"

	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/tidewaiter/tidewaiter/importer/queue"
)

// HealthPath is where a server tells whether it does what no request asks of it. /readyz tells
// whether it serves: a load balancer must not give a server up because a registry or a cluster is
// away.
const HealthPath = "/tidewaiter/health"

// serveHealth serves HealthPath in the form of /readyz. A check by its own path gives the reason.
func (s *Server) serveHealth(worker *queue.Worker) {
	healthz.InstallPathHandler(s.Web, HealthPath,
		healthz.NamedCheck("importing", func(r *http.Request) error { return worker.Check(r.Context()) }),
		healthz.NamedCheck("following", func(*http.Request) error { return s.clusters.Check() }),
		healthz.NamedCheck("notifying", func(r *http.Request) error { return s.pushes.sends.Load().Check(r.Context()) }),
	)
}
