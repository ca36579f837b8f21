// Package web is the HTTP server: it assembles a Kubernetes API server
// (k8s.io/apiserver) from the storages it is given, says who may call it, and keeps the
// files a client needs to reach it.
//
// Start with [LoadCredentials], which creates or reads a data directory's private
// certificate authority, serving certificate and administrator credential. Then call
// [New], then [Server.Run]. [Server.ClientConfig] reaches the same handler chain from
// within the process, with or without a listener. So an import straight into a data
// directory obeys the same rules as one over the network.
//
// # Who may call
//
// Callers prove themselves with a client certificate of the private authority or with a
// bearer token, or in one of kube-apiserver's ways ([Authentication]). Everyone else is
// answered 401. Members of system:masters may do everything. The authorizer that the
// server is given decides what others may do; without one they may do nothing. Only the
// health endpoints (/healthz, /livez and /readyz, exactly) answer without a credential,
// because load balancers and probes have none.
//
// # Routing
//
// At the root, /hooks/ goes to the webhook receivers, which authenticate callers themselves, and
// /console/ to the console. Everything else goes to the API server's own handler chain.
package web
