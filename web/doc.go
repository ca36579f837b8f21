// Package web is the HTTP server: it assembles a Kubernetes API server
// (k8s.io/apiserver) from the storages it is given, says who may call it, and
// keeps the files a client needs to reach it.
//
// Start with [LoadCredentials], which creates or reads a data directory's
// private certificate authority, serving certificate and administrator
// credential, then [New], then [Server.Run]. [Server.ClientConfig] reaches the
// same handler chain from within the process, with or without a listener, so
// that an import straight into a data directory obeys the very rules that hold
// over the network.
//
// # Who may call
//
// Callers prove themselves with a client certificate of the private authority
// or with a bearer token, or in one of kube-apiserver's ways ([Authentication]);
// everyone else is answered 401. Members of
// system:masters may do everything; what the others may do is asked of the
// authorizer that the server is given, and is nothing without one. The health endpoints alone (/healthz, /livez and /readyz, exactly) answer without
// a credential, because load balancers and probes have none.
//
// # Routing
//
// A gorilla/mux router stands at the root. /hooks/ goes to the webhook
// receivers, which authenticate callers themselves; everything else goes to the
// API server's own handler chain.
package web
