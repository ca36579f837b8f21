// Package openid signs people in with an OpenID Connect provider, by the authorization code flow
// with PKCE (RFC 7636), as a public client. It gets an ID token and does not verify it: the API
// server does, as with every token.
//
// The server keeps no state between the two halves of the flow. What the second half needs is in a
// cookie that only servers with the same secret can read, so any replica can do it.
package openid

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/utils/clock"
	kjson "sigs.k8s.io/json"

	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/web/console/internal/sealed"
)

const (
	// CookieName is the name of the cookie of a running flow.
	CookieName = "__Host-tidewaiter-signing-in"
	// patience is how long a person may take to sign in with the provider.
	patience = 10 * time.Minute
	// reading bounds one request to a provider.
	reading = 10 * time.Second
	// keeping is how long a provider's discovery document is cached.
	keeping = time.Hour
	// resting is the pause after a discovery document could not be read.
	resting = 5 * time.Second
	// maxAnswer bounds an answer of a provider, in bytes.
	maxAnswer = 1 << 20
	// maxNext bounds the address of the page that follows the sign-in, in bytes, so that browsers
	// accept the cookie.
	maxNext = 2 << 10
)

// Provider is an issuer of ID tokens that the API server accepts.
type Provider struct {
	// Issuer is its URL.
	Issuer string
	// DiscoveryURL is the address of its discovery document, if that is not below Issuer.
	DiscoveryURL string
	// ClientID is the audience of the tokens: a public client, which has no secret.
	ClientID string
	// CA has the authorities for its certificate, in PEM; if empty, the system's authorities count.
	CA string
}

// Flow signs people in. It is safe for concurrent use.
type Flow struct {
	providers []*provider
	box       *sealed.Box
	clock     clock.PassiveClock
}

// New returns a Flow. Servers with the same secret can end each other's flows.
func New(providers []Provider, secret []byte, c clock.PassiveClock) (*Flow, error) {
	f := &Flow{clock: c, box: sealed.New(secret, "sign-in")}
	for _, p := range providers {
		at, err := url.Parse(p.Issuer)
		if err != nil {
			return nil, fmt.Errorf("the issuer %q: %w", p.Issuer, err)
		}
		transport := &http.Transport{}
		if p.CA != "" {
			roots := x509.NewCertPool()
			if !roots.AppendCertsFromPEM([]byte(p.CA)) {
				return nil, fmt.Errorf("the authorities of the issuer %s are not certificates in PEM", p.Issuer)
			}
			transport.TLSClientConfig = &tls.Config{RootCAs: roots}
		}
		f.providers = append(f.providers, &provider{Provider: p, name: at.Host, clock: c, client: &http.Client{
			Transport: bounded{utilnet.SetTransportDefaults(transport)}, Timeout: reading,
			// a code must go only to its provider
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}})
	}
	return f, nil
}

// Names are the hosts of the providers, in their order.
func (f *Flow) Names() (all []string) {
	for _, p := range f.providers {
		all = append(all, p.name)
	}
	return all
}

// state holds the data for the second half of a flow.
type state struct {
	Provider int       `json:"p"`
	State    string    `json:"s"`
	Verifier string    `json:"v"`
	Nonce    string    `json:"n"`
	Next     string    `json:"x,omitempty"`
	Until    time.Time `json:"u"`
}

// Begin begins a flow with the provider at index place of Names. The caller gives the browser the
// cookie, and redirects it to the address to. The provider sends the browser back to callback; End
// then returns next.
func (f *Flow) Begin(ctx context.Context, place int, callback, next string) (to string, cookie *http.Cookie, err error) {
	if place < 0 || place >= len(f.providers) {
		return "", nil, errors.New("there is no such provider")
	}
	config, err := f.providers[place].config(ctx, callback)
	if err != nil {
		return "", nil, err
	}
	s := state{Provider: place, State: rand.Text(), Verifier: oauth2.GenerateVerifier(), Nonce: rand.Text(), Next: next, Until: f.clock.Now().Add(patience)}
	if len(next) > maxNext {
		s.Next = ""
	}
	cookie = Forget()
	if cookie.Value, err = f.box.Seal(s); err != nil {
		return "", nil, err
	}
	cookie.MaxAge = int(patience / time.Second)
	return config.AuthCodeURL(s.State, oauth2.S256ChallengeOption(s.Verifier), oauth2.SetAuthURLParam("nonce", s.Nonce)), cookie, nil
}

// Forget returns a cookie that deletes the cookie of a flow. It is SameSite=Lax, because the
// provider's page sends the browser back.
func Forget() *http.Cookie {
	return &http.Cookie{Name: CookieName, Path: "/", MaxAge: -1, Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode}
}

// End ends the flow of a browser that has come back. It returns the ID token, and next as given to
// Begin. Its errors are written for the person who signs in.
func (f *Flow) End(r *http.Request, callback string) (token, next string, err error) {
	cookie, err := r.Cookie(CookieName)
	if err != nil {
		return "", "", errors.New("this browser has not begun to sign in, or took more than ten minutes")
	}
	var s state
	if err := f.box.Open(cookie.Value, &s); err != nil || s.Provider < 0 || s.Provider >= len(f.providers) {
		return "", "", errors.New("the cookie of this sign-in was not made by this server")
	}
	p, query := f.providers[s.Provider], r.URL.Query()
	switch issuer := query.Get("iss"); { // RFC 9207
	case f.clock.Now().After(s.Until):
		return "", "", errors.New("signing in took more than ten minutes")
	case subtle.ConstantTimeCompare([]byte(query.Get("state")), []byte(s.State)) != 1:
		return "", "", errors.New("the answer is for another sign-in: two may have been under way at once")
	case issuer != "" && issuer != p.Issuer:
		return "", "", fmt.Errorf("the answer is from another provider than %s", p.name)
	case query.Get("error") != "":
		return "", "", fmt.Errorf("%s refuses: %s", p.name, printable.Line(strings.TrimSpace(query.Get("error")+" "+query.Get("error_description")), 300))
	}
	config, err := p.config(r.Context(), callback)
	if err != nil {
		return "", "", err
	}
	got, err := config.Exchange(context.WithValue(r.Context(), oauth2.HTTPClient, p.client), query.Get("code"), oauth2.VerifierOption(s.Verifier))
	if err != nil {
		return "", "", fmt.Errorf("%s gives no token for the code: %s", p.name, printable.Line(err.Error(), 300))
	}
	token, _ = got.Extra("id_token").(string)
	if nonce := nonceOf(token); nonce == "" || subtle.ConstantTimeCompare([]byte(nonce), []byte(s.Nonce)) != 1 {
		return "", "", fmt.Errorf("%s gives no ID token for this sign-in", p.name)
	}
	return token, s.Next, nil
}

// nonceOf returns the nonce of an ID token, without verifying the token.
func nonceOf(token string) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var claims struct {
		Nonce string `json:"nonce"`
	}
	// as strict as the token's verifier: "Nonce" is another claim, and duplicate claims are errors
	if twice, err := kjson.UnmarshalStrict(raw, &claims, kjson.DisallowDuplicateFields); err != nil || len(twice) > 0 {
		return ""
	}
	return claims.Nonce
}

// provider is a Provider with its cached discovery document.
type provider struct {
	Provider
	name   string
	client *http.Client

	clock clock.PassiveClock

	reads singleflight.Group // reads of its discovery document
	mu    sync.Mutex
	last  *descriptionRead
}

// discovery has the fields of a provider's discovery document that are needed (OpenID Connect
// Discovery 1.0).
type discovery struct {
	Issuer        string   `json:"issuer"`
	Authorization string   `json:"authorization_endpoint"`
	Token         string   `json:"token_endpoint"`
	Scopes        []string `json:"scopes_supported"`
}

// wanted are the scopes whose claims the API server may need. A provider must support only
// "openid".
var wanted = []string{"openid", "profile", "email", "groups"}

// config returns the OAuth 2.0 configuration for the provider.
func (p *provider) config(ctx context.Context, callback string) (*oauth2.Config, error) {
	found, err := p.description(ctx)
	if err != nil {
		return nil, fmt.Errorf("the provider %s cannot be asked: %s", p.name, printable.Line(err.Error(), 300))
	}
	scopes := slices.DeleteFunc(slices.Clone(wanted), func(scope string) bool {
		return scope != "openid" && !slices.Contains(found.Scopes, scope)
	})
	return &oauth2.Config{
		ClientID: p.ClientID, RedirectURL: callback, Scopes: scopes,
		Endpoint: oauth2.Endpoint{AuthURL: found.Authorization, TokenURL: found.Token, AuthStyle: oauth2.AuthStyleInParams},
	}, nil
}

// description returns the provider's discovery document, read within the last hour. One read serves
// all callers that wait, and continues if a caller stops waiting.
func (p *provider) description(ctx context.Context) (discovery, error) {
	if read := p.lastRead(); read != nil {
		return read.found, read.err
	}
	read := p.reads.DoChan("", func() (any, error) {
		if read := p.lastRead(); read != nil { // another read has just ended
			return read.found, read.err
		}
		found, err := p.discover(context.Background()) // the client has a limit of its own
		p.keep(found, err)
		return found, err
	})
	select {
	case got := <-read:
		return got.Val.(discovery), got.Err
	case <-ctx.Done():
		return discovery{}, ctx.Err()
	}
}

// descriptionRead is the result of a read of a discovery document.
type descriptionRead struct {
	found discovery
	err   error
	until time.Time // when it is too old
}

// lastRead returns the result of the last read; nil if it is too old.
func (p *provider) lastRead() *descriptionRead {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil || !p.clock.Now().Before(p.last.until) {
		return nil
	}
	return p.last
}

// keep caches the result of a read. It caches a failure for a moment, so that people do not wait
// one after the other for a provider that hangs.
func (p *provider) keep(found discovery, err error) {
	read := &descriptionRead{found, err, p.clock.Now().Add(keeping)}
	if err != nil {
		read.until = p.clock.Now().Add(resting)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = read
}

// discover reads the provider's discovery document.
func (p *provider) discover(ctx context.Context) (d discovery, err error) {
	at := p.DiscoveryURL
	if at == "" {
		at = strings.TrimSuffix(p.Issuer, "/") + "/.well-known/openid-configuration"
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return d, err
	}
	resp, err := p.client.Do(r)
	if err != nil {
		return d, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return d, err
	case resp.StatusCode != http.StatusOK:
		return d, fmt.Errorf("%s answers %s", at, resp.Status)
	}
	return parseDiscovery(body, p.Issuer)
}

// parseDiscovery parses the discovery document of the provider with this issuer. All URLs in it
// must be https.
func parseDiscovery(body []byte, issuer string) (d discovery, err error) {
	if err := json.Unmarshal(body, &d); err != nil {
		return discovery{}, fmt.Errorf("its description is not JSON: %w", err)
	}
	if d.Issuer != issuer {
		return discovery{}, fmt.Errorf("its description is of the issuer %q and not of %q", printable.Line(d.Issuer, 200), issuer)
	}
	for _, endpoint := range []string{d.Authorization, d.Token} {
		if u, err := url.Parse(endpoint); err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil {
			return discovery{}, fmt.Errorf("its description names %q, which is not an https address", printable.Line(endpoint, 200))
		}
	}
	return d, nil
}

type bounded struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxAnswer)
	}
	return resp, err
}
