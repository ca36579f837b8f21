package importer_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// keychain has the same credentials for everybody.
type keychain struct{ config authn.AuthConfig }

func (k keychain) Resolve(authn.Resource) (authn.Authenticator, error) {
	return authn.FromConfig(k.config), nil
}

var (
	secret  = keychain{authn.AuthConfig{Username: "user", Password: "s3cr3t"}}
	rightly = registrytest.Auth{Username: "user", Password: "s3cr3t"}
)

func with(scheme string, change func(*registrytest.Auth)) registrytest.Auth {
	a := rightly
	a.Scheme = scheme
	if change != nil {
		change(&a)
	}
	return a
}

func TestCredentials(t *testing.T) {
	for _, tc := range []struct {
		name     string
		auth     registrytest.Auth
		keychain authn.Keychain
		want     pull.Reason
	}{
		{"basic", with("basic", nil), secret, ""},
		{"basic, wrong", with("basic", nil), keychain{authn.AuthConfig{Username: "user", Password: "wrong"}}, pull.Unauthorized},
		{"basic, none", with("basic", nil), nil, pull.Unauthorized},
		{"bearer", with("bearer", nil), secret, ""},
		{"bearer, wrong", with("bearer", nil), keychain{authn.AuthConfig{Username: "user", Password: "wrong"}}, pull.Unauthorized},
		{"bearer, none", with("bearer", nil), nil, pull.Unauthorized},
		{"bearer, anonymous", with("bearer", func(a *registrytest.Auth) { a.Anonymous = true }), nil, ""},
		{"bearer, same host by another port", with("bearer", nil), secret, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			registry := registrytest.New(t, registrytest.WithAuth(tc.auth))
			registry.Push("team/app:v1", newImage(t, sample.Spec{}))
			im := newImporter(t, importer.Options{Keychain: tc.keychain})
			_, err := im.Import(t.Context(), parse(t, registry.Host+"/team/app:v1"), &registrytest.Images{})
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if e := wantReason(t, err, tc.want); !strings.Contains(e.Message, "docker login") || strings.Contains(e.Error(), "wrong") {
				t.Errorf("%v", e)
			}
		})
	}
}

func TestExpiredTokenIsRenewed(t *testing.T) {
	registry := registrytest.New(t, registrytest.WithAuth(with("bearer", nil)))
	image := newImage(t, sample.Spec{})
	registry.Push("team/app:v1", image)
	images := &registrytest.Images{}
	im := newImporter(t, importer.Options{Keychain: secret})
	mustImport(t, im, registry.Host+"/team/app:v1", images)
	registry.Reset()
	mustImport(t, im, registry.Host+"/team/app:v1", images)
	if n := len(registry.AllRequests()); n != 1 {
		t.Errorf("a token at hand costs %d requests, want 1: %v", n, registry.AllRequests())
	}
	registry.RevokeTokens()
	mustImport(t, im, registry.Host+"/team/app:v1", images)
}

func TestDockerConfigIsRead(t *testing.T) {
	registry := registrytest.New(t, registrytest.WithAuth(with("basic", nil)))
	registry.Push("team/app:v1", newImage(t, sample.Spec{}))
	for _, tc := range []struct{ name, env, file string }{
		{"docker", "DOCKER_CONFIG", "config.json"},
		{"podman", "REGISTRY_AUTH_FILE", "auth.json"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("HOME", dir)
			t.Setenv("XDG_RUNTIME_DIR", "")
			t.Setenv("XDG_CONFIG_HOME", "")
			t.Setenv("DOCKER_CONFIG", "")
			t.Setenv("REGISTRY_AUTH_FILE", "")
			path := filepath.Join(dir, tc.file)
			value := dir
			if tc.env == "REGISTRY_AUTH_FILE" {
				value = path
			}
			t.Setenv(tc.env, value)
			auth := base64.StdEncoding.EncodeToString([]byte("user:s3cr3t"))
			if err := os.WriteFile(path, []byte(`{"auths":{"`+registry.Host+`":{"auth":"`+auth+`"}}}`), 0o600); err != nil {
				t.Fatal(err)
			}
			im, err := importer.New(importer.Options{}) // the default keychain
			if err != nil {
				t.Fatal(err)
			}
			defer im.Close()
			mustImport(t, im, registry.Host+"/team/app:v1", &registrytest.Images{})
		})
	}
}

func TestCredentialHelperIsAsked(t *testing.T) {
	registry := registrytest.New(t, registrytest.WithAuth(with("basic", nil)))
	registry.Push("team/app:v1", newImage(t, sample.Spec{}))
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	t.Setenv("DOCKER_CONFIG", dir)
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	script := "#!/bin/sh\necho '{\"ServerURL\":\"x\",\"Username\":\"user\",\"Secret\":\"s3cr3t\"}'\n"
	if err := os.WriteFile(filepath.Join(dir, "docker-credential-test"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"credHelpers":{"`+registry.Host+`":"test"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	im, err := importer.New(importer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	mustImport(t, im, registry.Host+"/team/app:v1", &registrytest.Images{})
}

// Changed credentials count at once after a refusal, and after Limits.Recycle
// in any case.
func TestCredentialsAreReadAgain(t *testing.T) {
	registry := registrytest.New(t, registrytest.WithAuth(with("basic", nil)))
	registry.Push("team/app:v1", newImage(t, sample.Spec{}))
	keys := &keychain{}
	im := newImporter(t, importer.Options{Keychain: keys})
	_, err := im.Import(t.Context(), parse(t, registry.Host+"/team/app:v1"), &registrytest.Images{})
	wantReason(t, err, pull.Unauthorized)
	*keys = secret
	mustImport(t, im, registry.Host+"/team/app:v1", &registrytest.Images{})
}

// The registry is 127.0.0.1, the other host localhost: two names, so two hosts.
func TestRedirectsCarryNoCredentials(t *testing.T) {
	for _, scheme := range []string{"basic", "bearer"} {
		for _, match := range []string{"HEAD .*/manifests/", "GET .*/manifests/", "/blobs/"} {
			for _, status := range []int{301, 302, 303, 307, 308} {
				registry := registrytest.New(t, registrytest.WithAuth(with(scheme, nil)))
				other := registrytest.New(t)
				image := newImage(t, sample.Spec{})
				registry.Push("team/app:v1", image)
				other.Push("team/app:v1", image)
				to := other.AliasURL()
				if status == 307 {
					to = other.URL // the same host, but for the port
				}
				images := &registrytest.Images{}
				if strings.HasPrefix(match, "HEAD") { // known tags get one
					mustImport(t, newImporter(t, importer.Options{Keychain: secret}), registry.Host+"/team/app:v1", images)
				}
				registry.Inject(match, 0, redirectIfAuthenticated(registry, status, to))
				im := newImporter(t, importer.Options{Keychain: secret, AllowedNetworks: loopback})
				mustImport(t, im, registry.Host+"/team/app:v1", images)
				if len(other.AllRequests()) == 0 {
					t.Errorf("%s %s %d: the redirect was not followed", scheme, match, status)
				}
				checkNoSecrets(t, other)
			}
		}
	}
}

// redirectIfAuthenticated lets the registry see to its credentials first.
func redirectIfAuthenticated(_ *registrytest.Registry, status int, to string) registrytest.Fault {
	return func(next http.Handler) http.Handler {
		redirect := registrytest.Redirect(status, to)(next)
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.Header.Get("Authorization") == "" {
				next.ServeHTTP(w, req)
				return
			}
			redirect.ServeHTTP(w, req)
		})
	}
}

func checkNoSecrets(t *testing.T, heard *registrytest.Registry) {
	t.Helper()
	for _, req := range heard.AllRequests() {
		for name, values := range req.Header {
			if name == "Authorization" || name == "Cookie" || strings.Contains(strings.Join(values, " "), "s3cr3t") {
				t.Errorf("%s heard %s: %v", req, name, values)
			}
		}
	}
}

// Where the other host asks for credentials itself, it gets none of ours.
func TestRedirectedHostThatAsksForCredentialsGetsNone(t *testing.T) {
	for _, scheme := range []string{"basic", "bearer"} {
		registry := registrytest.New(t, registrytest.WithAuth(with("bearer", nil)))
		other := registrytest.New(t, registrytest.WithAuth(with(scheme, nil)))
		image := newImage(t, sample.Spec{})
		registry.Push("team/app:v1", image)
		other.Push("team/app:v1", image)
		registry.Inject("/blobs/", 0, redirectIfAuthenticated(registry, 307, other.AliasURL()))
		im := newImporter(t, importer.Options{Keychain: secret, AllowedNetworks: loopback})
		_, err := im.Import(t.Context(), parse(t, registry.Host+"/team/app:v1"), &registrytest.Images{})
		wantReason(t, err, pull.Unauthorized)
		checkNoSecrets(t, other)
	}
}

func TestTokenRealmOfAnotherHostGetsNoCredentials(t *testing.T) {
	tokens := registrytest.New(t, registrytest.WithAuth(with("", nil)))
	realm := func(a *registrytest.Auth) { a.Realm = tokens.AliasURL() + "/token" }
	registry := registrytest.New(t, registrytest.WithAuth(with("bearer", realm)))
	registry.Push("team/app:v1", newImage(t, sample.Spec{}))

	im := newImporter(t, importer.Options{Keychain: secret})
	_, err := im.Import(t.Context(), parse(t, registry.Host+"/team/app:v1"), &registrytest.Images{})

	alias, _ := url.Parse(tokens.AliasURL())
	if e := wantReason(t, err, pull.Unauthorized); !strings.Contains(e.Message, alias.Host) || !strings.Contains(e.Message, "tokenHosts") {
		t.Errorf("%v does not say what to do", e)
	}
	if n := len(tokens.AllRequests()); n != 0 {
		t.Errorf("it heard %v", tokens.AllRequests())
	}

	// Named by the administrator it gets them.
	im = newImporter(t, importer.Options{Keychain: secret, Registries: []pull.Registry{{Prefix: registry.Host, TokenHosts: []string{alias.Host}}}})
	_, _ = im.Import(t.Context(), parse(t, registry.Host+"/team/app:v1"), &registrytest.Images{})
	if reqs := tokens.AllRequests(); len(reqs) == 0 || reqs[0].Authorization == "" {
		t.Errorf("it heard %v", reqs)
	}
}

func TestTokenServerThatRedirectsGivesNothingAway(t *testing.T) {
	for name, config := range map[string]authn.AuthConfig{
		"password":      {Username: "user", Password: "s3cr3t"},
		"refresh token": {IdentityToken: "s3cr3t"},
	} {
		for _, status := range []int{302, 307, 308} {
			t.Run(name, func(t *testing.T) {
				other := registrytest.New(t)
				registry := registrytest.New(t, registrytest.WithAuth(with("bearer", nil)))
				registry.Push("team/app:v1", newImage(t, sample.Spec{}))
				registry.Inject("(GET|POST) /token", 0, registrytest.Redirect(status, other.AliasURL()))
				im := newImporter(t, importer.Options{Keychain: keychain{config}, AllowedNetworks: loopback})
				_, err := im.Import(t.Context(), parse(t, registry.Host+"/team/app:v1"), &registrytest.Images{})
				if err == nil {
					t.Error("no error")
				}
				checkNoSecrets(t, other)
				for _, req := range other.AllRequests() {
					if req.Method == http.MethodPost {
						t.Errorf("%s was repeated there, body and all", req)
					}
				}
			})
		}
	}
}

// What stands before a token server fails now and then, as it does before a registry.
func TestTokenIsAskedForAgain(t *testing.T) {
	for name, config := range map[string]authn.AuthConfig{
		"GET":  {Username: "user", Password: "s3cr3t"},
		"POST": {IdentityToken: "s3cr3t"},
	} {
		t.Run(name, func(t *testing.T) {
			registry := registrytest.New(t, registrytest.WithAuth(with("bearer", nil)))
			registry.Push("team/app:v1", newImage(t, sample.Spec{}))
			var mu sync.Mutex
			var bodies []string
			registry.Inject(name+" /token", 0, func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					body, _ := io.ReadAll(req.Body)
					req.Body = io.NopCloser(bytes.NewReader(body))
					mu.Lock()
					bodies = append(bodies, string(body))
					first := len(bodies) <= 2
					mu.Unlock()
					if first {
						registrytest.Status(502, "UNKNOWN")(next).ServeHTTP(w, req)
						return
					}
					next.ServeHTTP(w, req)
				})
			})
			im := newImporter(t, importer.Options{Keychain: keychain{config}, Clock: &skippingClock{}})
			_, err := im.Import(t.Context(), parse(t, registry.Host+"/team/app:v1"), &registrytest.Images{})
			if len(bodies) < 3 || bodies[0] != bodies[2] || (bodies[0] == "") != (name == "GET") {
				t.Errorf("%d requests with different bodies; %v", len(bodies), err)
			}
			if name == "GET" && err != nil {
				t.Error(err)
			}
		})
	}
}

// A client certificate without its key is told as what it is, and not as an answer of the registry.
func TestCertificatesThatCannotBeRead(t *testing.T) {
	registry := registrytest.New(t)
	im := newImporter(t, importer.Options{Files: noCertificates{}})
	_, err := im.Import(t.Context(), parse(t, registry.Host+"/team/app:v1"), &registrytest.Images{})
	if e := wantReason(t, err, pull.Misconfigured); !strings.Contains(e.Message, "missing key client.key") {
		t.Errorf("%v", e)
	}
}

// noCertificates are files of which those with certificates cannot be read.
type noCertificates struct{ pull.Files }

func (noCertificates) Registry(string) (insecure, blocked bool, err error) { return false, false, nil }

func (noCertificates) PullSources(ref reference.Reference) ([]pull.Source, error) {
	return []pull.Source{{Reference: ref}}, nil
}

func (noCertificates) TLS(string) (*tls.Config, error) {
	return nil, errors.New("missing key client.key for client certificate client.cert")
}

func TestKeychainThatFails(t *testing.T) {
	registry := registrytest.New(t)
	registry.Push("team/app:v1", newImage(t, sample.Spec{}))
	im := newImporter(t, importer.Options{Keychain: broken{}})
	_, err := im.Import(t.Context(), parse(t, registry.Host+"/team/app:v1"), &registrytest.Images{})
	if e := wantReason(t, err, pull.Misconfigured); !strings.Contains(e.Message, "helper is missing") {
		t.Errorf("%v", e)
	}
}

type broken struct{}

func (broken) Resolve(authn.Resource) (authn.Authenticator, error) {
	return nil, &os.PathError{Op: "exec", Path: "docker-credential-x", Err: errHelper}
}

var errHelper = errorString("the helper is missing")

type errorString string

func (e errorString) Error() string { return string(e) }

// keychainFunc is a function that is a keychain.
type keychainFunc func(authn.Resource) (authn.Authenticator, error)

func (f keychainFunc) Resolve(r authn.Resource) (authn.Authenticator, error) { return f(r) }

// Helpers hand out credentials that are soon over, so that any keychain is asked again.
func TestCredentialsAreAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		im, err := importer.New(importer.Options{Keychain: keychainFunc(func(authn.Resource) (authn.Authenticator, error) {
			asked++
			return authn.FromConfig(authn.AuthConfig{Username: fmt.Sprint("user", asked)}), nil
		})})
		if err != nil {
			t.Fatal(err)
		}
		repository, err := name.NewRepository("registry.example.com/app")
		if err != nil {
			t.Fatal(err)
		}
		auth, err := authn.Resolve(t.Context(), im.Keychain(), repository)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"user1", "user1", "user2"} {
			got, err := authn.Authorization(t.Context(), auth)
			if err != nil || got.Username != want {
				t.Errorf("%+v, %v, want %s", got, err, want)
			}
			time.Sleep(3 * time.Minute)
		}
	})
}

// waits is a keychain that has no credentials before the caller gives up.
type waits struct{ asked chan struct{} }

func (waits) Resolve(authn.Resource) (authn.Authenticator, error) { return authn.Anonymous, nil }

func (w waits) ResolveContext(ctx context.Context, _ authn.Resource) (authn.Authenticator, error) {
	close(w.asked)
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// Who gives up while credentials are looked for has no wrong ones.
func TestGivingUpWhileCredentialsAreLookedFor(t *testing.T) {
	registry := registrytest.New(t, registrytest.WithAuth(with("basic", nil)))
	registry.Push("team/app:v1", newImage(t, sample.Spec{}))
	w := waits{make(chan struct{})}
	im := newImporter(t, importer.Options{Keychain: w})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-w.asked
		cancel()
	}()
	_, err := im.Import(ctx, parse(t, registry.Host+"/team/app:v1"), &registrytest.Images{})
	wantReason(t, err, pull.Canceled)
}

// asks answers with challenges unless a request has what is good for the registry.
func asks(isGood func(*http.Request) bool, lines ...string) registrytest.Fault {
	return func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if isGood(req) {
				inner.ServeHTTP(w, req)
				return
			}
			w.Header()["Www-Authenticate"] = lines
			w.WriteHeader(http.StatusUnauthorized)
		})
	}
}

// Who has no user name can do nothing with Basic, which Artifactory and others offer first.
func TestBasicAndBearerOfferedTogether(t *testing.T) {
	isElsewhere := func(req *http.Request) bool { return req.URL.Path != "/v2/" }
	for name, lines := range map[string]func(bearer string) []string{
		"two lines": func(bearer string) []string { return []string{`Basic realm="a, basic b=c"`, bearer} },
		"one line":  func(bearer string) []string { return []string{`Basic realm="a", ` + bearer} },
		"three":     func(bearer string) []string { return []string{`Negotiate`, `basic realm="a",charset="UTF-8"`, bearer} },
	} {
		t.Run(name, func(t *testing.T) {
			registry := registrytest.New(t, registrytest.WithAuth(registrytest.Auth{Scheme: "bearer", Anonymous: true}))
			registry.Push("team/app:v1", newImage(t, sample.Spec{}))
			registry.Inject("GET /v2/", 0, asks(isElsewhere, lines(fmt.Sprintf(`Bearer realm="%s/token",service="test"`, registry.URL))...))
			mustImport(t, newImporter(t, importer.Options{}), registry.Host+"/team/app:v1", &registrytest.Images{})
		})
	}
}

// Harbor answers a request that has a token, and each one for its catalog, with Basic.
func TestBasicAfterAToken(t *testing.T) {
	isBasic := func(req *http.Request) bool {
		user, password, ok := req.BasicAuth()
		return ok && user == "user" && password == "s3cr3t"
	}
	for _, tc := range []struct {
		name     string
		keychain authn.Keychain
		want     pull.Reason
	}{
		{"with a user name", secret, ""},
		{"anonymous", nil, pull.Unauthorized},
		{"an identity token", keychain{authn.AuthConfig{RegistryToken: "t0ken"}}, pull.Unauthorized},
	} {
		t.Run(tc.name, func(t *testing.T) {
			registry := registrytest.New(t, registrytest.WithAuth(with("bearer", func(a *registrytest.Auth) { a.Anonymous = true })))
			listed := catalogPages(t, []string{"team/app"})(nil)
			registry.Inject("GET /v2/_catalog", 0, func(http.Handler) http.Handler { return asks(isBasic, `Basic realm="harbor"`)(listed) })
			got, _, err := newImporter(t, importer.Options{Keychain: tc.keychain, Limits: pull.Limits{Attempts: 1}}).Repositories(t.Context(), registry.Host)
			if pull.ReasonOf(err) != tc.want || tc.want == "" && len(got) != 1 {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}
