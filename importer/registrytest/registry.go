package registrytest

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Registry is a registry in this process. It ends with the test.
type Registry struct {
	// Host is 127.0.0.1 and a port, as in references.
	Host string
	// URL is Host with its scheme.
	URL string

	t       testing.TB
	server  *httptest.Server
	content http.Handler
	auth    Auth

	mu        sync.Mutex
	requests  []*Request
	faults    []*injected
	manifests map[string]rawManifest // path → what is served instead of content's
	tokens    map[string]string      // token → scope
}

// Request is a request that came in.
type Request struct {
	Method, Path  string
	Authorization string
	Header        http.Header
	// Status is the status of the answer; 0 while there is none.
	Status int
}

// String is "METHOD /path".
func (r Request) String() string { return r.Method + " " + r.Path }

// Option configures New.
type Option func(*config)

type config struct {
	tls  bool
	auth Auth
}

// WithTLS makes the registry speak TLS with a certificate for 127.0.0.1 and
// example.com that no system trusts: see Registry.Server.
func WithTLS() Option { return func(c *config) { c.tls = true } }

// WithAuth makes the registry ask for credentials.
func WithAuth(a Auth) Option { return func(c *config) { c.auth = a } }

// New starts a registry.
func New(t testing.TB, options ...Option) *Registry {
	t.Helper()
	var c config
	for _, o := range options {
		o(&c)
	}
	r := &Registry{
		t: t, auth: c.auth, manifests: map[string]rawManifest{}, tokens: map[string]string{},
		content: registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(io.Discard, "", 0))),
	}
	r.server = httptest.NewUnstartedServer(http.HandlerFunc(r.serve))
	// It need not log a client that tries TLS first.
	r.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	// Requests that a fault holds end with the test.
	ctx, cancel := context.WithCancel(context.Background())
	r.server.Config.BaseContext = func(net.Listener) context.Context { return ctx }
	if c.tls {
		r.server.StartTLS()
	} else {
		r.server.Start()
	}
	t.Cleanup(func() {
		cancel()
		r.server.CloseClientConnections()
		r.server.Close()
	})
	u, err := url.Parse(r.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	r.URL, r.Host = r.server.URL, u.Host
	return r
}

// Server is the HTTP server below, for its certificate.
func (r *Registry) Server() *httptest.Server { return r.server }

// AliasURL is the registry's URL under the name localhost: another host for
// programs that compare names.
func (r *Registry) AliasURL() string {
	return strings.Replace(r.URL, "127.0.0.1", "localhost", 1)
}

func (r *Registry) serve(w http.ResponseWriter, req *http.Request) {
	request := &Request{req.Method, req.URL.Path, req.Header.Get("Authorization"), req.Header.Clone(), 0}
	r.mu.Lock()
	r.requests = append(r.requests, request)
	r.mu.Unlock()
	w = &answer{w, func(status int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		request.Status = cmp.Or(request.Status, status)
	}}
	handler := http.Handler(http.HandlerFunc(r.authenticated))
	if fault := r.faultFor(req); fault != nil {
		handler = fault(handler)
	}
	handler.ServeHTTP(w, req)
}

// answer notes the status of an answer before the client sees it.
type answer struct {
	http.ResponseWriter
	begins func(status int)
}

func (a *answer) WriteHeader(status int) {
	a.begins(status)
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(b []byte) (int, error) {
	a.begins(http.StatusOK)
	return a.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (r *Registry) authenticated(w http.ResponseWriter, req *http.Request) {
	if r.authenticate(w, req) {
		r.serveContent(w, req)
	}
}

// Requests returns the requests since the start or the last Reset, without the greetings
// GET /v2/ that ask how to speak to a registry.
func (r *Registry) Requests() []Request {
	return slices.DeleteFunc(r.AllRequests(), func(req Request) bool { return req.Path == "/v2/" })
}

// AllRequests returns Requests and the greetings.
func (r *Registry) AllRequests() []Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Request, 0, len(r.requests))
	for _, req := range r.requests {
		out = append(out, *req)
	}
	return out
}

// Count counts the Requests whose String matches a regular expression.
func (r *Registry) Count(pattern string) int {
	r.t.Helper()
	n, re := 0, regexp.MustCompile(pattern)
	for _, req := range r.Requests() {
		if re.MatchString(req.String()) {
			n++
		}
	}
	return n
}

// Reset forgets the requests so far.
func (r *Registry) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = nil
}

// Push stores an image under "repository:tag" and returns its digest. Pushing
// is not seen among the requests, and no fault hits it.
func (r *Registry) Push(reference string, image v1.Image) string {
	r.t.Helper()
	if err := remote.Write(r.reference(reference), image, remote.WithTransport(inside{r.content})); err != nil {
		r.t.Fatalf("pushing %s: %v", reference, err)
	}
	return r.digest(image)
}

// PushIndex is Push for an index and its children.
func (r *Registry) PushIndex(reference string, index v1.ImageIndex) string {
	r.t.Helper()
	if err := remote.WriteIndex(r.reference(reference), index, remote.WithTransport(inside{r.content})); err != nil {
		r.t.Fatalf("pushing %s: %v", reference, err)
	}
	return r.digest(index)
}

// PushLayer stores one blob.
func (r *Registry) PushLayer(repository string, layer v1.Layer) {
	r.t.Helper()
	if err := remote.WriteLayer(r.reference(repository+":x").Context(), layer, remote.WithTransport(inside{r.content})); err != nil {
		r.t.Fatalf("pushing a layer to %s: %v", repository, err)
	}
}

// Stored returns the digests of all tags in the registry's storage, as "repository:tag". It is not
// seen among the requests, and no fault hits it.
func (r *Registry) Stored() map[string]string {
	r.t.Helper()
	all := map[string]string{}
	registry, err := name.NewRegistry(r.Host, name.Insecure)
	if err != nil {
		r.t.Fatal(err)
	}
	repositories, err := remote.Catalog(context.Background(), registry, remote.WithTransport(inside{r.content}))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, repository := range repositories {
		for tag, digest := range r.storedIn(registry.Repo(repository)) {
			all[repository+":"+tag] = digest
		}
	}
	return all
}

// storedIn returns the digests of the tags of one repository.
func (r *Registry) storedIn(repository name.Repository) map[string]string {
	r.t.Helper()
	all := map[string]string{}
	tags, err := remote.List(repository, remote.WithTransport(inside{r.content}))
	if err != nil {
		return nil // the storage keeps the name of a repository that is empty
	}
	for _, tag := range tags {
		d, err := remote.Head(repository.Tag(tag), remote.WithTransport(inside{r.content}))
		if err != nil {
			r.t.Fatal(err)
		}
		all[tag] = d.Digest.String()
	}
	return all
}

// PushManifest serves any bytes as the manifest of "repository:tag" and of the
// digest, whether or not that is the bytes' own.
func (r *Registry) PushManifest(reference, mediaType, digest string, raw []byte) {
	r.t.Helper()
	ref := r.reference(reference)
	m := rawManifest{mediaType, digest, raw}
	r.mu.Lock()
	defer r.mu.Unlock()
	base := "/v2/" + ref.Context().RepositoryStr() + "/manifests/"
	r.manifests[base+ref.Identifier()] = m
	r.manifests[base+digest] = m
}

func (r *Registry) reference(s string) name.Reference {
	r.t.Helper()
	ref, err := name.ParseReference(r.Host+"/"+s, name.Insecure)
	if err != nil {
		r.t.Fatal(err)
	}
	return ref
}

func (r *Registry) digest(of interface{ Digest() (v1.Hash, error) }) string {
	r.t.Helper()
	digest, err := of.Digest()
	if err != nil {
		r.t.Fatal(err)
	}
	return digest.String()
}

type rawManifest struct {
	mediaType, digest string
	raw               []byte
}

// serveContent serves what PushManifest stored, and else the registry.
func (r *Registry) serveContent(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	m, ok := r.manifests[req.URL.Path]
	r.mu.Unlock()
	if !ok {
		r.content.ServeHTTP(w, req)
		return
	}
	w.Header().Set("Content-Type", m.mediaType)
	w.Header().Set("Docker-Content-Digest", m.digest)
	w.Header().Set("Content-Length", fmt.Sprint(len(m.raw)))
	if req.Method != http.MethodHead {
		_, _ = w.Write(m.raw) // the client may be gone
	}
}

// inside is a way to a handler that no network and no recorder sees.
type inside struct{ handler http.Handler }

func (i inside) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body == nil {
		req = req.Clone(req.Context())
		req.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	i.handler.ServeHTTP(w, req)
	resp := w.Result()
	resp.Request = req
	return resp, nil
}
