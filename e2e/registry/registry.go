// Package registry runs real OCI registry servers on loopback for the
// end-to-end tests and pushes images to them.
package registry

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// Kind names a registry implementation.
type Kind string

// The registries the import tests run against. The first is built from its Go
// module, the second is a Debian package, which a machine without apt lacks.
const (
	Distribution Kind = "distribution" // distribution v3
	Debian       Kind = "debian"       // docker-registry 2.8
)

var programs = map[Kind]string{Distribution: "registry", Debian: "docker-registry"}

var kinds = flag.String("registries", string(Distribution)+","+string(Debian), "registries that the import tests run against")

// Kinds are the registries asked for with -registries.
func Kinds(t testing.TB) []Kind {
	t.Helper()
	var out []Kind
	for k := range strings.SplitSeq(*kinds, ",") {
		if programs[Kind(k)] == "" {
			t.Fatalf("-registries: no registry is called %q", k)
		}
		out = append(out, Kind(k))
	}
	return out
}

// Registry is a running registry server, over plain HTTP as Docker allows on
// loopback.
type Registry struct {
	Host string // 127.0.0.1:port
	Root string // folder of its files

	kind    Kind
	notify  *Endpoint
	guard   *Guard
	process *harness.Process
}

// Endpoint is where a registry sends notifications of pushes and deletions.
type Endpoint struct {
	URL           string
	Authorization string // the header's value
	// CertDir is a folder with certificates to trust beside the system's. It is
	// read when the first notification is sent.
	CertDir string
}

var listening = regexp.MustCompile(`listening on (127\.0\.0\.1:\d+)`)

// Start starts a registry with empty storage.
func Start(t testing.TB, kind Kind) *Registry {
	t.Helper()
	return start(t, &Registry{kind: kind})
}

// StartNotifying is Start for a registry that tells an endpoint what happens.
func StartNotifying(t testing.TB, kind Kind, to Endpoint) *Registry {
	t.Helper()
	return start(t, &Registry{kind: kind, notify: &to})
}

// StartGuarded is Start for a registry that speaks TLS and admits only clients with credentials.
func StartGuarded(t testing.TB, kind Kind, by Guard) *Registry {
	t.Helper()
	return start(t, &Registry{kind: kind, guard: &by})
}

func start(t testing.TB, r *Registry) *Registry {
	t.Helper()
	r.Host, r.Root = "127.0.0.1:0", filepath.Join(t.TempDir(), "storage")
	r.Resume(t)
	return r
}

// Stop ends the registry. Its files stay.
func (r *Registry) Stop(t testing.TB) {
	t.Helper()
	r.process.Kill(t)
}

// Resume starts a stopped registry again, at the same address.
func (r *Registry) Resume(t testing.TB) {
	t.Helper()
	yaml := fmt.Sprintf(`version: 0.1
log: {level: info}
storage:
  filesystem: {rootdirectory: %q}
  delete: {enabled: true}
http:
  addr: %s
  secret: of no importance here
`, r.Root, r.Host)
	if r.guard != nil {
		yaml += r.guard.config()
	}
	env := []string{"OTEL_TRACES_EXPORTER=none"} // release 3 exports traces by default
	if n := r.notify; n != nil {
		yaml += fmt.Sprintf(`notifications:
  endpoints:
  - name: tidewaiter
    url: %s
    headers: {Authorization: [%q]}
    timeout: 1s
    threshold: 3
    backoff: 1s
    ignore:
      actions: [pull]
      mediatypes: [application/octet-stream]
`, n.URL, n.Authorization)
		if n.CertDir != "" {
			env = append(env, "SSL_CERT_DIR="+n.CertDir)
		}
	}
	config := filepath.Join(t.TempDir(), "config.yml")
	if err := os.WriteFile(config, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	r.process = harness.Start(t, harness.Command{
		Path: harness.Tool(t, programs[r.kind]),
		Args: []string{"serve", config},
		Env:  env,
	})
	r.Host = r.process.Stderr.AwaitMatch(t, listening)[1]
}

// Push stores an image or an index under repository:tag and returns the
// reference with the registry's host.
func (r *Registry) Push(t testing.TB, repositoryTag string, what remote.Taggable) string {
	t.Helper()
	ref := r.Host + "/" + repositoryTag
	parsed, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	var options []remote.Option
	if r.guard != nil {
		options = r.guard.options()
	}
	switch what := what.(type) {
	case v1.ImageIndex:
		err = remote.WriteIndex(parsed, what, options...)
	case v1.Image:
		err = remote.Write(parsed, what, options...)
	default:
		err = remote.Push(parsed, what, options...)
	}
	if err != nil {
		t.Fatalf("pushing %s: %v", ref, err)
	}
	return ref
}

// PushAll stores images as repository:0 … repository:n-1.
func (r *Registry) PushAll(t testing.TB, repository string, images []v1.Image) {
	t.Helper()
	r.StartPushAll(t, repository, images)()
}

// StartPushAll begins what PushAll does. The function it returns waits for the
// end, and has to be called.
func (r *Registry) StartPushAll(t testing.TB, repository string, images []v1.Image) (wait func()) {
	t.Helper()
	pusher, err := remote.NewPusher(remote.WithJobs(8))
	if err != nil {
		t.Fatal(err)
	}
	references := r.References(repository, len(images))
	refs := make(map[name.Reference]remote.Taggable, len(images))
	for i, img := range images {
		ref, err := name.ParseReference(references[i], name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		refs[ref] = img
	}
	done := make(chan error, 1)
	go func() { done <- remote.MultiWrite(refs, remote.Reuse(pusher)) }()
	return func() {
		t.Helper()
		if err := <-done; err != nil {
			t.Fatalf("pushing %d images to %s: %v", len(images), repository, err)
		}
	}
}

// References are those of [Registry.PushAll].
func (r *Registry) References(repository string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s/%s:%d", r.Host, repository, i)
	}
	return out
}

// BlobPath is the file that holds a blob, for tests that tamper with it.
func (r *Registry) BlobPath(digest v1.Hash) string {
	return filepath.Join(r.Root, "docker", "registry", "v2", "blobs", digest.Algorithm, digest.Hex[:2], digest.Hex, "data")
}

// Request is one line of the access log.
type Request struct {
	Method, Path string
	Status       string
}

var accessLine = regexp.MustCompile(`(?m)"(GET|HEAD|PUT|POST|PATCH|DELETE) (\S+) HTTP/[\d.]+" (\d+)`)

// Requests are the requests answered so far, in order. A request of our own
// goes last through the same log, so that none before it is missed.
func (r *Registry) Requests(t testing.TB) []Request {
	t.Helper()
	marker := fmt.Sprintf("/v2/?marker=%d", len(r.process.Stdout.String()))
	resp, err := http.Get("http://" + r.Host + marker)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	var out []Request
	log := r.process.Stdout.Await(t, "access log line of "+marker, func(s string) bool { return strings.Contains(s, marker) })
	for _, m := range accessLine.FindAllStringSubmatch(log, -1) {
		out = append(out, Request{Method: m[1], Path: m[2], Status: m[3]})
	}
	return slices.DeleteFunc(out, func(q Request) bool { return strings.Contains(q.Path, "marker=") })
}

// AwaitRequest waits until a request for a path that begins so was answered with
// success: it is in the access log then.
func (r *Registry) AwaitRequest(t testing.TB, method, path string) {
	t.Helper()
	r.process.Stdout.AwaitMatch(t, regexp.MustCompile(`"`+method+` `+regexp.QuoteMeta(path)+`\S* HTTP/[\d.]+" 2\d\d`))
}
