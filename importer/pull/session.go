package pull

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/tidewaiter/tidewaiter/internal/oci"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Session is an authenticated connection to one repository. All imports from the repository share
// it. After Limits.Recycle a new one replaces it.
type Session struct {
	Source     Source
	Repository name.Repository
	Transport  http.RoundTripper // always a *transport.Wrapper
	Registry   *oci.Client
	Limits     Limits
	expires    time.Time
	client     *Client // nil for what is on this machine
	asks       bool    // the registry demands credentials
	stranger   bool    // it does, and there are none for it
	insecure   bool    // as the registry was greeted
	tokens     *tokens // nil if there is no token server
	shown      shown
}

// greeting is how a host answered GET /v2/: whether it speaks TLS, and where its tokens come from.
type greeting struct {
	challenge *transport.Challenge
	expires   time.Time
}

// session returns a session for the repository of a source.
func (c *Client) session(ctx context.Context, at Source) (*Session, error) {
	key := at.key()
	known := func() *Session {
		if v, ok := c.sessions.Get(key); ok && c.Clock.Now().Before(v.(*Session).expires) {
			return v.(*Session)
		}
		return nil
	}
	if s := known(); s != nil {
		return s, context.Cause(ctx)
	}
	unlock, err := c.lockGreeting(ctx, "session "+key)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if s := known(); s != nil {
		return s, nil
	}
	s, err := c.newSession(ctx, at)
	if err != nil {
		return nil, err
	}
	c.sessions.Add(key, s)
	return s, nil
}

// IsMirrorOf reports whether the session reads from another repository than ref's.
func (s *Session) IsMirrorOf(ref reference.Reference) bool {
	at := s.Source.Reference
	return at.Host != "" && at.Name() != ref.Name()
}

// part names the part of a host that behaves alike: a proxy may have several kinds of registries
// behind one host, distinguished by the first element of a repository.
func (s *Session) part() string {
	first, _, _ := strings.Cut(s.Repository.RepositoryStr(), "/")
	return s.Repository.RegistryStr() + "/" + first
}

// DeniesHeads reports whether the registry is known to deny a HEAD where a GET succeeds.
func (s *Session) DeniesHeads() bool {
	if s.client == nil {
		return false
	}
	until, ok := s.client.headless.Get(s.part())
	return ok && s.client.Clock.Now().Before(until.(time.Time))
}

// NoteDeniesHeads makes DeniesHeads return true for Limits.Recycle, for all repositories of this
// part of the registry.
func (s *Session) NoteDeniesHeads() {
	if s.client != nil {
		s.client.headless.Add(s.part(), s.client.Clock.Now().Add(s.Limits.Recycle))
	}
}

// Forget drops the session for the repository of a source, so that the next import reads
// credentials again.
func (c *Client) Forget(at Source) { c.sessions.Remove(at.key()) }

func (c *Client) newSession(ctx context.Context, at Source) (*Session, error) {
	config, options, err := c.Rules(at.Reference.Name(), at.Insecure)
	if err != nil {
		return nil, err
	}
	repository, err := name.NewRepository(at.Reference.Name(), options...)
	if err != nil {
		return nil, err
	}
	s, err := c.Connect(ctx, repository.Registry, repository, repository.RepositoryStr(), config, repository.Scope(transport.PullScope))
	if err != nil {
		return nil, err
	}
	s.Source, s.Repository = at, repository
	return s, nil
}

// Rules returns the settings of a host or a repository. A blocked one is an error.
func (c *Client) Rules(where string, insecure bool) (config Registry, options []name.Option, err error) {
	config = c.registries.lookup(where)
	if config.Blocked {
		return config, nil, &Error{Reason: Denied, Message: "blocked by the configuration or by registries.conf"}
	}
	config.Insecure = config.Insecure || insecure
	host, _, _ := strings.Cut(where, "/")
	if config.Insecure || isLoopback(host) {
		options = append(options, name.Insecure)
	}
	return config, options, nil
}

// Connect greets a registry and authenticates for scope, with the credentials of resource: a
// repository, which has a path, or the registry itself.
func (c *Client) Connect(ctx context.Context, registry name.Registry, resource authn.Resource, path string, config Registry, scope string) (*Session, error) {
	challenge, err := c.greet(ctx, registry, config.Insecure)
	if err != nil {
		return nil, fmt.Errorf("contacting the registry: %w", err)
	}
	host := registry.RegistryStr() // docker.io for Docker Hub, whose API is elsewhere
	w := &registryTransport{client: c, host: host, insecure: config.Insecure, tokenHosts: config.TokenHosts, scheme: "https"}
	if challenge.Insecure {
		w.scheme = "http"
	}
	if strings.EqualFold(challenge.Scheme, "bearer") {
		w.tokens = newTokens(challenge.Parameters["realm"])
	}
	auth, err := authn.Resolve(ctx, c.Keychain, resource)
	if err != nil {
		return nil, unreadHere("credentials", err)
	}
	credentials, err := authn.Authorization(ctx, auth)
	if err != nil {
		return nil, unreadHere("credentials", err)
	}
	token := &transport.Token{}
	if strings.EqualFold(challenge.Scheme, "bearer") {
		if *credentials != (authn.AuthConfig{}) && !config.trustsRealm(w.scheme, host, challenge.Parameters["realm"]) {
			return nil, untrustedRealm(host, challenge.Parameters["realm"])
		}
		if token.Token = credentials.RegistryToken; token.Token == "" {
			token, err = transport.Exchange(ctx, registry, auth, w, []string{scope}, challenge)
			if err != nil {
				return nil, fmt.Errorf("asking for a token: %w", err)
			}
			token.Token = cmp.Or(token.Token, token.AccessToken)
		}
	}
	below := http.RoundTripper(w)
	if w.tokens != nil {
		below = &basicAfter{w, credentials, host}
	}
	authenticated, err := transport.FromToken(registry, auth, below, challenge, token)
	if err != nil {
		return nil, err
	}
	return &Session{
		Transport: authenticated, Limits: c.Limits, client: c,
		Registry: oci.New(w.scheme, host, path, authenticated),
		expires:  c.Clock.Now().Add(c.Limits.Recycle),
		asks:     challenge.Scheme != "",
		stranger: challenge.Scheme != "" && *credentials == (authn.AuthConfig{}),
		insecure: config.Insecure, tokens: w.tokens,
	}, nil
}

// unreadHere is the error of reading what, such as credentials, on this machine. An error that has
// a reason keeps it, and the end of a context is not blamed on the files.
func unreadHere(what string, err error) error {
	if ReasonOf(err) != "" || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("reading %s: %w", what, err)
	}
	return &Error{Reason: Misconfigured, Message: "reading " + what + " on this machine: " + Clean(err.Error()), cause: err}
}

// greet sends GET /v2/ to a host, once for all its repositories.
func (c *Client) greet(ctx context.Context, registry name.Registry, insecure bool) (*transport.Challenge, error) {
	key := fmt.Sprintf("%s insecure=%t", registry.RegistryStr(), insecure)
	unlock, err := c.lockGreeting(ctx, "greeting "+key)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if v, ok := c.greetings.Get(key); ok {
		if g := v.(*greeting); c.Clock.Now().Before(g.expires) {
			return g.challenge, nil
		}
	}
	challenge, err := c.ping(ctx, registry, insecure)
	if err != nil {
		// The error of the certificate counts, not the answer to plain HTTP.
		var certificate *tls.CertificateVerificationError
		var alert *net.OpError
		switch {
		case errors.As(err, &certificate):
			return nil, certificate
		case errors.As(err, &alert) && alert.Op == alertOp:
			return nil, alert
		}
		return nil, err
	}
	c.greetings.Add(key, &greeting{challenge, c.Clock.Now().Add(c.Limits.Recycle)})
	return challenge, nil
}

// ping requests a host's challenge, without the use of former answers.
func (c *Client) ping(ctx context.Context, registry name.Registry, insecure bool) (*transport.Challenge, error) {
	return transport.Ping(ctx, registry, bearerFirst{&registryTransport{client: c, host: registry.RegistryStr(), insecure: insecure}})
}

// publicTokenHosts are the token servers of public registries whose token server is on another
// host.
var publicTokenHosts = map[string]string{
	"index.docker.io":     "auth.docker.io",
	"registry.gitlab.com": "gitlab.com",
}

// trustsRealm reports whether credentials for a registry may be sent to a token server: the
// registry itself, by host and port, or one that the administrator named. A registry may name any
// token server, which is how CVE-2020-15157 leaked credentials.
func (r Registry) trustsRealm(scheme, host, realm string) bool {
	u, err := url.Parse(realm)
	if err != nil || u.Host == "" {
		return false
	}
	registry := &url.URL{Scheme: scheme, Host: host}
	return u.Scheme == scheme && address(u) == address(registry) || slices.Contains(r.TokenHosts, u.Host) || u.Host == publicTokenHosts[host]
}

// address is a URL's host with its port, even if that is the default port.
func address(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

func untrustedRealm(host, realm string) error {
	server := "an unreadable address"
	if u, err := url.Parse(realm); err == nil {
		server = Clean(u.Host)
	}
	return &Error{Reason: Unauthorized, Message: fmt.Sprintf(
		"%s asks for its credentials to be sent to another token server, %s; if that is right, add it to tokenHosts of the registry's entry in the configuration", host, server)}
}
