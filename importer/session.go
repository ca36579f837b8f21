package importer

import (
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

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/importer/oci"
)

// session is an authenticated connection to one repository. All imports from the repository share it, and it is made
// anew after Limits.Recycle.
type session struct {
	source     PullSource
	repository name.Repository
	transport  http.RoundTripper // always a *transport.Wrapper
	registry   *oci.Client
	limits     Limits
	expires    time.Time
}

// greeting is how a host answered GET /v2/: whether it speaks TLS, and where its tokens come from.
type greeting struct {
	challenge *transport.Challenge
	expires   time.Time
}

// session returns a session for the repository of a source.
func (im *Importer) session(ctx context.Context, at PullSource) (*session, error) {
	key := at.key()
	unlock, err := im.locks.lock(ctx, "session "+key)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if v, ok := im.sessions.Get(key); ok {
		if s := v.(*session); im.clock.Now().Before(s.expires) {
			return s, nil
		}
	}
	s, err := im.newSession(ctx, at)
	if err != nil {
		return nil, err
	}
	im.sessions.Add(key, s)
	return s, nil
}

// isMirrorOf reports whether the session is with another repository than ref's.
func (s *session) isMirrorOf(ref reference.Reference) bool {
	at := s.source.Reference
	return at.Host != "" && at.Name() != ref.Name()
}

// forget drops the session for the repository of a source, so that the next import asks for credentials again.
func (im *Importer) forget(at PullSource) { im.sessions.Remove(at.key()) }

func (im *Importer) newSession(ctx context.Context, at PullSource) (*session, error) {
	config, options, err := im.rules(at.Reference.Name(), at.Insecure)
	if err != nil {
		return nil, err
	}
	repository, err := name.NewRepository(at.Reference.Name(), options...)
	if err != nil {
		return nil, err
	}
	s, err := im.connect(ctx, repository.Registry, repository, repository.RepositoryStr(), config, repository.Scope(transport.PullScope))
	if err != nil {
		return nil, err
	}
	s.source, s.repository = at, repository
	return s, nil
}

// rules returns the settings of a host or a repository. A blocked one is an error.
func (im *Importer) rules(where string, insecure bool) (config Registry, options []name.Option, err error) {
	config = im.registries.lookup(where)
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

// connect greets a registry and authenticates for scope, with the credentials of resource: a repository, which has a
// path, or the registry itself.
func (im *Importer) connect(ctx context.Context, registry name.Registry, resource authn.Resource, path string, config Registry, scope string) (*session, error) {
	challenge, err := im.greet(ctx, registry, config.Insecure)
	if err != nil {
		return nil, fmt.Errorf("greeting the registry: %w", err)
	}
	host := registry.RegistryStr() // docker.io for Docker Hub, whose API is elsewhere
	w := &wire{im: im, host: host, insecure: config.Insecure, tokenHosts: config.TokenHosts, scheme: "https"}
	if challenge.Insecure {
		w.scheme = "http"
	}
	if strings.EqualFold(challenge.Scheme, "bearer") {
		w.tokens = newTokens(challenge.Parameters["realm"])
	}
	auth, err := authn.Resolve(ctx, im.keychain, resource)
	if err != nil {
		return nil, unreadHere("credentials", err)
	}
	token := &transport.Token{}
	if strings.EqualFold(challenge.Scheme, "bearer") {
		credentials, err := authn.Authorization(ctx, auth)
		if err != nil {
			return nil, unreadHere("credentials", err)
		}
		if *credentials != (authn.AuthConfig{}) && !config.trustsRealm(w.scheme, host, challenge.Parameters["realm"]) {
			return nil, untrustedRealm(host, challenge.Parameters["realm"])
		}
		if token.Token = credentials.RegistryToken; token.Token == "" {
			token, err = transport.Exchange(ctx, registry, auth, w, []string{scope}, challenge)
			if err != nil {
				return nil, fmt.Errorf("asking for a token: %w", err)
			}
			if token.Token == "" {
				token.Token = token.AccessToken
			}
		}
	}
	authenticated, err := transport.FromToken(registry, auth, w, challenge, token)
	if err != nil {
		return nil, err
	}
	return &session{
		transport: authenticated, limits: im.limits,
		registry: oci.New(w.scheme, host, path, authenticated),
		expires:  im.clock.Now().Add(im.limits.Recycle),
	}, nil
}

// unreadHere is the error of reading what, such as credentials, on this machine. One with a reason keeps it, and who gives up has
// no wrong files.
func unreadHere(what string, err error) error {
	if ReasonOf(err) != "" || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("reading %s: %w", what, err)
	}
	return &Error{Reason: Misconfigured, Message: "reading " + what + " on this machine: " + clean(err.Error()), cause: err}
}

// greet asks a host once for all its repositories.
func (im *Importer) greet(ctx context.Context, registry name.Registry, insecure bool) (*transport.Challenge, error) {
	key := fmt.Sprintf("%s insecure=%t", registry.RegistryStr(), insecure)
	unlock, err := im.locks.lock(ctx, "greeting "+key)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if v, ok := im.greetings.Get(key); ok {
		if g := v.(*greeting); im.clock.Now().Before(g.expires) {
			return g.challenge, nil
		}
	}
	w := &wire{im: im, host: registry.RegistryStr(), insecure: insecure}
	challenge, err := transport.Ping(ctx, registry, w)
	if err != nil {
		// The certificate's error counts, and not the port's answer to plain HTTP.
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
	im.greetings.Add(key, &greeting{challenge, im.clock.Now().Add(im.limits.Recycle)})
	return challenge, nil
}

// publicTokenHosts are the token servers of public registries that are on another host.
var publicTokenHosts = map[string]string{
	"index.docker.io":     "auth.docker.io",
	"registry.gitlab.com": "gitlab.com",
}

// trustsRealm reports whether credentials for a registry may be shown to a token
// server: the registry itself, host and port, or one that the administrator named.
// Anybody may name a token server; that is how CVE-2020-15157 took credentials.
func (r Registry) trustsRealm(scheme, host, realm string) bool {
	u, err := url.Parse(realm)
	if err != nil || u.Host == "" {
		return false
	}
	registry := &url.URL{Scheme: scheme, Host: host}
	return u.Scheme == scheme && address(u) == address(registry) || slices.Contains(r.TokenHosts, u.Host) || u.Host == publicTokenHosts[host]
}

// address is a URL's host with its port, also the default one.
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
		server = clean(u.Host)
	}
	return &Error{Reason: Unauthorized, Message: fmt.Sprintf(
		"%s sends us with its credentials to another token server, %s; if that is right, add it to tokenHosts of the registry's entry in the configuration", host, server)}
}
