// Package pull sends requests to registries. It decides which hosts get requests, over which
// transport, with which credentials and at which rate, how much of an answer is read, and what an
// error means. A [Session] is an authenticated connection to one repository, and a [Client]
// remembers all of them. The caller decides what to read.
package pull

import (
	"cmp"
	"context"
	"crypto/x509"
	"net"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/tidewaiter/tidewaiter/importer/guard"
	"github.com/tidewaiter/tidewaiter/internal/oci"
)

// Client reads from registries, within [Limits] and the pauses that registries ask for. Make one
// with New and keep it: it remembers hosts, greetings and sessions.
type Client struct {
	Keychain   authn.Keychain
	registries registries
	userAgent  string
	Limits     Limits
	Clock      clock.WithDelayedExecution

	transports *transports
	traffic    *traffic

	hosts     *hosts
	greetings *lru.Cache // host → *greeting
	sessions  *lru.Cache // host/repository → *session
	headless  *lru.Cache // part of a host that denies to HEAD what it gives to GET → until when
	locks     *KeyLocks
}

// Options configure a Client. All but Limits may be zero. The Options of package importer explain
// them.
type Options struct {
	Keychain        authn.Keychain
	Registries      []Registry
	Files           Files
	Insecure        bool
	AllowedNetworks guard.Networks
	RootCAs         *x509.CertPool
	UserAgent       string
	Limits          Limits // with defaults
	Others          Others // nil for none
	Clock           clock.WithDelayedExecution
}

// credentialsAge is how long credentials are used before they are read from the keychain again:
// credential helpers return short-lived ones.
const credentialsAge = 5 * time.Minute

// New checks the settings of registries. It does not touch the network.
func New(o Options) (*Client, error) {
	registries, err := newRegistries(o.Registries, o.Files, o.Insecure)
	if err != nil {
		return nil, err
	}
	o.Keychain = cmp.Or[authn.Keychain](o.Keychain, authn.DefaultKeychain)
	o.UserAgent = cmp.Or(o.UserAgent, "tidewaiter")
	o.Clock = cmp.Or[clock.WithDelayedExecution](o.Clock, clock.RealClock{})
	return &Client{
		Keychain:   authn.RefreshingKeychain(o.Keychain, credentialsAge),
		registries: registries,
		userAgent:  o.UserAgent,
		Limits:     o.Limits,
		Clock:      o.Clock,
		transports: newTransports(o),
		traffic:    &traffic{},
		hosts:      newHosts(o.Limits, registries, o.Others, o.Clock),
		greetings:  lru.New(maxHosts),
		sessions:   lru.New(maxRepositories),
		headless:   lru.New(maxHosts),
		locks:      &KeyLocks{},
	}, nil
}

// With returns a client that uses the credentials of keychain or, for registries without
// credentials there, the credentials of c. The two share everything but sessions.
func (c *Client) With(keychain authn.Keychain) *Client {
	with := *c
	with.Keychain = authn.NewMultiKeychain(keychain, c.Keychain)
	with.sessions = lru.New(maxRepositories)
	return &with
}

// Local returns a session with transport in place of a registry.
func (c *Client) Local(repository name.Repository, transport http.RoundTripper) *Session {
	return &Session{
		Repository: repository, Transport: transport, Limits: c.Limits,
		Registry: oci.New("http", repository.RegistryStr(), repository.RepositoryStr(), transport),
	}
}

// Close drops the idle connections. A client can be used after it.
func (c *Client) Close() { c.transports.closeIdle() }

// Now is the time by the client's clock.
func (c *Client) Now() time.Time { return c.Clock.Now() }

// Lock waits for a key, or for ctx.
func (c *Client) Lock(ctx context.Context, key string) (unlock func(), err error) {
	return c.locks.Lock(ctx, key)
}

// Locked is how many keys are locked or waited for.
func (c *Client) Locked() int {
	c.locks.mu.Lock()
	defer c.locks.mu.Unlock()
	return len(c.locks.keys)
}

// DialWith makes all connections with dial. It is for tests.
func (c *Client) DialWith(dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	t := c.transports
	t.verified, t.unverified = t.verified.WithDial(dial), t.unverified.WithDial(dial)
}
