package web

import (
	"context"
	"net"
	"net/http"
	"sync"

	"k8s.io/client-go/rest"
)

// Local is the way to a server from within its process. Callers are system:masters.
// They pass the same handler chain as any other caller, but without TLS or a port.
type Local struct {
	listener *localListener
	token    string
}

// NewLocal makes the way to a server that is not made yet, since making it may need the
// way; see [Config.Local].
func NewLocal() *Local {
	return &Local{&localListener{conns: make(chan net.Conn), closed: make(chan struct{})}, newToken()}
}

// ClientConfig returns the configuration for a client that goes this way. It works from
// [Server.Run] on; until then requests wait.
func (l *Local) ClientConfig() *rest.Config {
	return &rest.Config{
		Host:        "http://tidewaiter.local",
		Transport:   l.listener.transport(),
		BearerToken: l.token,
		// The rate limit of a client protects a server that it shares with others.
		QPS:       -1,
		UserAgent: "tidewaiter",
	}
}

// localListener hands connections made within the process to an http.Server.
// It holds no queue: a dial waits until the server accepts.
type localListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// Accept implements net.Listener.
func (l *localListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *localListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *localListener) Addr() net.Addr { return localAddr{} }

// dial connects to the server, whatever the address.
func (l *localListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// transport speaks plain HTTP over dial. Its idle connections are few and
// closed with the server.
func (l *localListener) transport() http.RoundTripper {
	return &http.Transport{DialContext: l.dial, MaxIdleConnsPerHost: 64, DisableCompression: true}
}

type localAddr struct{}

func (localAddr) Network() string { return "pipe" }
func (localAddr) String() string  { return "tidewaiter.local" }
