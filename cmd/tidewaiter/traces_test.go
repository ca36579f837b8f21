package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	v1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
)

// spans are those that an OpenTelemetry collector got.
type spans struct {
	collector.UnimplementedTraceServiceServer
	address string

	mu      sync.Mutex
	all     []*v1.Span
	service string        // who sent the last ones
	more    chan struct{} // is closed and replaced when there are more
}

func newSpans(t *testing.T) *spans {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &spans{address: listener.Addr().String(), more: make(chan struct{})}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, s)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

// Export is part of collector.TraceServiceServer.
func (s *spans) Export(_ context.Context, request *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range request.ResourceSpans {
		for _, a := range r.Resource.Attributes {
			if a.Key == "service.name" {
				s.service = a.Value.GetStringValue()
			}
		}
		for _, scope := range r.ScopeSpans {
			s.all = append(s.all, scope.Spans...)
		}
	}
	close(s.more)
	s.more = make(chan struct{})
	return &collector.ExportTraceServiceResponse{}, nil
}

// await waits for a span with a name, and for all above it, and returns their names from the top
// down.
func (s *spans) await(t *testing.T, name string) (way []*v1.Span) {
	t.Helper()
	patience := time.After(time.Minute)
	for {
		s.mu.Lock()
		all, more := slices.Clone(s.all), s.more
		s.mu.Unlock()
		for _, from := range all {
			if from.Name != name {
				continue
			}
			way = []*v1.Span{from}
			for len(way[0].ParentSpanId) > 0 {
				at := slices.IndexFunc(all, func(above *v1.Span) bool {
					return string(above.SpanId) == string(way[0].ParentSpanId) && string(above.TraceId) == string(way[0].TraceId)
				})
				if at < 0 {
					break
				}
				way = slices.Insert(way, 0, all[at])
			}
			if len(way[0].ParentSpanId) == 0 {
				return way
			}
		}
		select {
		case <-more:
		case <-patience:
			var names []string
			for _, span := range all {
				names = append(names, fmt.Sprintf("%x: %x below %x %s", span.TraceId, span.SpanId, span.ParentSpanId, span.Name))
			}
			t.Fatalf("no span leads to %q through all its parents; the spans are\n%s", name, strings.Join(names, "\n"))
		}
	}
}

func namesOf(way []*v1.Span) (names []string) {
	for _, span := range way {
		names = append(names, span.Name)
	}
	return names
}

// A push is one trace, from the webhook to the verdict on its signatures: what the registry is
// asked is in it, too. The sender's own trace is linked to, and the registry is not told of ours.
func TestAPushIsOneTrace(t *testing.T) {
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "50") // milliseconds, not five seconds
	got := newSpans(t)
	registry := registrytest.New(t)
	image, err := sample.New(sample.Spec{Name: "app"})
	if err != nil {
		t.Fatal(err)
	}
	digest := registry.Push("team/app:1", image)
	const secret = "whoever-reads-this-is-a-receiver"
	config := servertest.WriteConfig(t, "ownPodsOnly: true\nreceivers:\n- {name: local, type: distribution, hosts: ['"+registry.Host+"'], secretFile: secret}\n")
	tracing := filepath.Join(filepath.Dir(config), "tracing.yaml")
	for path, text := range map[string]string{
		filepath.Join(filepath.Dir(config), "secret"): secret,
		tracing: strings.NewReplacer("localhost:4317", got.address, " 10000", " 1000000").Replace(documentedTracing(t)),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	admin := serveWith(t, server.Options{DataDir: t.TempDir(), ConfigFile: config, Isolated: true, TracingFile: tracing}, listen(t))

	images, err := imageclient.New(admin)
	if err != nil {
		t.Fatal(err)
	}
	// is served by the same handlers as without traces
	watch, err := images.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	client, err := restclient.HTTPClientFor(admin)
	if err != nil {
		t.Fatal(err)
	}
	body := fmt.Sprintf(`{"events":[{"id":"1","timestamp":"2026-05-28T20:26:40Z","action":"push","target":{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":%q,"repository":"team/app","tag":"1"},"request":{"host":%q}}]}`, digest, registry.Host)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, admin.Host+"/hooks/local", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	const theirs = "0af7651916cd43dd8448eb211c80319c"
	req.Header.Set("Authorization", "Bearer "+secret)
	req.Header.Set("traceparent", "00-"+theirs+"-b7ad6b7169203331-01")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		t.Fatalf("the delivery got %s", resp.Status)
	}

	if event := <-watch.ResultChan(); event.Type != "ADDED" || event.Object.(*imagev1.Image).Name != digest {
		t.Fatalf("the watch shows %+v", event)
	}
	if _, err := images.Get(t.Context(), digest, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	create := "POST /apis/tidewaiter.dev/v1/imagerecords"
	way := got.await(t, "judge signatures")
	names := strings.Join(namesOf(way), " > ")
	at := 0
	for _, want := range []string{"webhook", " > job > ", create, " > judge signatures"} {
		i := strings.Index(names[at:], want)
		if i < 0 {
			t.Fatalf("the way to the verdict is %s, want %q in it", names, want)
		}
		at += i
	}
	top := way[0]
	if len(top.Links) != 1 || hex.EncodeToString(top.Links[0].TraceId) != theirs || hex.EncodeToString(top.TraceId) == theirs {
		t.Errorf("trace %x of the webhook has the links %v", top.TraceId, top.Links)
	}
	if asked := got.await(t, "GET "+registry.Host); string(asked[0].TraceId) != string(top.TraceId) || asked[len(asked)-2].Name != "job" {
		t.Errorf("the registry is asked in %q", namesOf(asked))
	}
	got.mu.Lock()
	defer got.mu.Unlock()
	if got.service != "tidewaiter" {
		t.Errorf("the spans are of %q", got.service)
	}
}

// documentedTracing is the file that docs/reference/metrics.md shows.
func documentedTracing(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, file, _ := strings.Cut(string(text), "```yaml\n")
	file, _, _ = strings.Cut(file, "```")
	return file
}

// What is wrong with a file for traces is said before the server starts.
func TestWrongTracing(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"another kind":    {"apiVersion: v1\nkind: Pod\n", "tracing.yaml"},
		"a wrong rate":    {"apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nsamplingRatePerMillion: 2000000\n", "less than or equal to one million"},
		"a misspelt key":  {"apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpont: x\n", "endpont"},
		"another network": {"apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: http://example.com\n", "unsupported scheme"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "tracing.yaml")
			if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			code, _, stderr := tidewaiter(t, "serve", "--data-dir", filepath.Join(dir, "data"), "--secure-port", "0", "--tracing-config-file", file)
			if code != cli.ExitUsage || !strings.Contains(stderr, "--tracing-config-file") || !strings.Contains(stderr, tt.want) {
				t.Errorf("exit code %d: %s", code, stderr)
			}
		})
	}
}
