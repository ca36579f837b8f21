package pull

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/tidewaiter/tidewaiter/internal/oci"
)

// Login is how a registry's own API, beside the distribution API, takes credentials.
type Login int

const (
	// LoginBasic sends user name and password to the registry (RFC 7617).
	LoginBasic Login = iota
	// LoginRegistry does as the registry itself asks, with a token for the catalog.
	LoginRegistry
	// LoginOAuthToken sends the password of the user $oauthtoken as a bearer token to the registry.
	LoginOAuthToken
	// LoginPrivateToken sends the password as GitLab's PRIVATE-TOKEN. The API is at the registry's
	// token server, which must be one that may see its credentials.
	LoginPrivateToken
)

// API reads from a registry's own API, within the same limits and pauses as from the registry.
type API struct {
	Client *oci.Client
	Limits Limits
	// Anonymous says why requests have no credentials although there are some; "" otherwise.
	Anonymous string
}

// OAuthUser is the user name with which Quay takes an OAuth token as a password
// (https://github.com/quay/quay/blob/master/auth/credential_consts.py).
const OAuthUser = "$oauthtoken"

// API greets a registry and returns its API. The credentials are those for the path owner there,
// which may be empty. They are sent to the host of the API alone.
func (c *Client) API(ctx context.Context, host, owner string, login Login) (*API, error) {
	config, options, err := c.Rules(host, false)
	if err != nil {
		return nil, err
	}
	registry, err := name.NewRegistry(host, options...)
	if err != nil {
		return nil, err
	}
	if login == LoginRegistry {
		s, err := c.Connect(ctx, registry, registry, "", config, registry.Scope(transport.CatalogScope))
		if err != nil {
			return nil, err
		}
		return &API{Client: s.Registry, Limits: s.Limits}, nil
	}
	challenge, err := c.greet(ctx, registry, config.Insecure)
	if err != nil {
		return nil, err
	}
	w := &registryTransport{client: c, host: registry.RegistryStr(), insecure: config.Insecure, tokenHosts: config.TokenHosts, scheme: "https"}
	if challenge.Insecure {
		w.scheme = "http"
	}
	if realm := challenge.Parameters["realm"]; login == LoginPrivateToken && strings.EqualFold(challenge.Scheme, "bearer") {
		if !config.trustsRealm(w.scheme, w.host, realm) {
			return nil, untrustedRealm(w.host, realm)
		}
		at, err := url.Parse(realm)
		if err != nil {
			return nil, err
		}
		if at.Host != w.host {
			w.host, w.scheme, w.insecure = at.Host, at.Scheme, false
		}
	}
	resource := apiOwner{registry.RegistryStr(), owner}
	auth, err := authn.Resolve(ctx, c.Keychain, resource)
	if err != nil {
		return nil, unreadHere("credentials", err)
	}
	credentials, err := authn.Authorization(ctx, auth)
	if err != nil {
		return nil, unreadHere("credentials", err)
	}
	api := &API{Limits: c.Limits}
	t := &apiTransport{RoundTripper: w, host: w.host, login: func(http.Header) {}}
	switch {
	case *credentials == (authn.AuthConfig{}):
	case credentials.Password == "":
		api.Anonymous = "its credentials have no password"
	case login == LoginOAuthToken && credentials.Username != OAuthUser:
		api.Anonymous = "its API takes an OAuth access token alone, as the password of the user " + OAuthUser
	case login == LoginOAuthToken:
		t.login = func(h http.Header) { h.Set("Authorization", "Bearer "+credentials.Password) }
	case login == LoginPrivateToken:
		t.login = func(h http.Header) { h.Set("Private-Token", credentials.Password) }
	default:
		t.login = func(h http.Header) {
			basic := http.Request{Header: h}
			basic.SetBasicAuth(credentials.Username, credentials.Password)
		}
	}
	api.Client = oci.New(w.scheme, w.host, "", t)
	return api, nil
}

// apiOwner is an authn.Resource: a part of a registry.
type apiOwner struct{ registry, path string }

func (o apiOwner) RegistryStr() string { return o.registry }

func (o apiOwner) String() string { return strings.TrimSuffix(o.registry+"/"+o.path, "/") }

// apiTransport adds credentials to requests for one host, and to no others: a redirect may lead
// elsewhere.
type apiTransport struct {
	http.RoundTripper
	host  string
	login func(http.Header)
}

// RoundTrip implements http.RoundTripper.
func (t *apiTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Host == t.host {
		req = req.Clone(req.Context())
		t.login(req.Header)
	}
	return t.RoundTripper.RoundTrip(req)
}
