package main

import (
	"crypto/rand"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/bulk"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/server"
)

// BenchmarkPushes measures the answer to a webhook at a steady rate, while the
// same server imports what it is told of: each push is of an image of its own, in
// one of two registries. Sender, server and registries share the machine's cores;
// the registries are processes of their own, so that it shows what is asked of
// them. For 20 s of it:
//
//	go test ./cmd/tidewaiter -run '^$' -bench Pushes -benchtime 10000x
//
// With Auto=false no streams are made for the repositories, and none is told of what moves.
func BenchmarkPushes(b *testing.B) {
	const rate = 500 // a second
	for _, auto := range []bool{true, false} {
		b.Run(fmt.Sprintf("Rate=%d/Registries=2/Auto=%t", rate, auto), func(b *testing.B) { benchmarkPushes(b, rate, auto) })
	}
}

func benchmarkPushes(b *testing.B, rate int, auto bool) {
	if err := setUpLogging(io.Discard, 0, logText); err != nil {
		b.Fatal(err)
	}
	o := bulk.Options{Images: b.N, Layers: 12, Referrers: true}
	names := bulk.New(o)
	registries := []*bulkRegistry{startBulkRegistry(b, o), startBulkRegistry(b, o)}
	s := newHookedServerWith(b, fmt.Sprintf("streams: {auto: %t}\n", auto), registries[0].host, registries[1].host)
	images, err := imageclient.New(s.Config)
	if err != nil {
		b.Fatal(err)
	}
	asked := func() (all time.Duration) {
		for _, r := range registries {
			all += processorTime(b, r.cmd.Process.Pid)
		}
		return all
	}
	self, before := processorTime(b, os.Getpid()), asked()
	took := make([]time.Duration, b.N)
	var senders sync.WaitGroup
	b.ResetTimer()
	start := time.Now()
	for i := range took {
		time.Sleep(time.Until(start.Add(time.Duration(i) * time.Second / time.Duration(rate))))
		senders.Go(func() {
			sent := time.Now()
			if status, err := s.deliver(registries[i%2].host, names.Reference(i), names.Digest(i)); err != nil || status != http.StatusAccepted {
				b.Errorf("delivery %d: %d, %v", i, status, err)
			}
			took[i] = time.Since(sent)
		})
	}
	senders.Wait()
	sent := time.Since(start)
	for imported := 0; imported < b.N; time.Sleep(50 * time.Millisecond) {
		list, err := images.List(b.Context(), metav1.ListOptions{Limit: 1})
		if err != nil {
			b.Fatal(err)
		}
		imported = len(list.Items) + int(ptr.Deref(list.RemainingItemCount, 0))
		if time.Since(start) > 20*sent+time.Minute {
			b.Fatalf("of %d pushes %d are imported", b.N, imported)
		}
	}
	b.StopTimer()

	slices.Sort(took)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	b.ReportMetric(ms(took[len(took)/2]), "p50-ms")
	b.ReportMetric(ms(took[len(took)*99/100]), "p99-ms")
	b.ReportMetric(ms(took[len(took)-1]), "max-ms")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "imports/s")
	b.ReportMetric(ms(asked()-before)/float64(b.N), "registry-cpu-ms/push")
	b.ReportMetric(ms(processorTime(b, os.Getpid())-self)/float64(b.N), "own-cpu-ms/push")
	requests := int64(0)
	for _, r := range registries {
		for _, n := range r.requests(b, http.MethodGet) {
			requests += n
		}
	}
	b.ReportMetric(float64(requests)/float64(b.N), "requests/push")
}

// BenchmarkIsolation measures how soon an image appears whose push is told, from the sending to a
// watch's event, while the spool has more than a thousand pushes of ten or sixty registries that
// accept connections and never answer. Nothing is known of the registry before its first push:
//
//	go test ./cmd/tidewaiter -run '^$' -bench Isolation -benchtime 300x
func BenchmarkIsolation(b *testing.B) {
	benchmarkIsolation(b, 10, 100)
	benchmarkIsolation(b, 60, 20)
}

func benchmarkIsolation(b *testing.B, hanging, each int) {
	const rate = 20 // pushes a second of the registry that answers
	b.Run(fmt.Sprintf("Hanging=%d/Jobs=%d", hanging, hanging*each), func(b *testing.B) {
		if err := setUpLogging(io.Discard, 0, logText); err != nil {
			b.Fatal(err)
		}
		registered := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
		b.Cleanup(registered.Close)
		hosts := []string{registered.Listener.Addr().String()}
		digests := fillBench(b, hosts[0], b.N)
		for range hanging {
			l, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts, and nobody reads
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { l.Close() })
			hosts = append(hosts, l.Addr().String())
		}
		s := newHookedServer(b, hosts...)
		images, err := imageclient.New(s.Config)
		if err != nil {
			b.Fatal(err)
		}
		send := func(host string, i int, digest string) {
			if status, err := s.deliver(host, fmt.Sprintf("team/app:%d", i), digest); err != nil || status != http.StatusAccepted {
				b.Fatalf("delivery %d for %s: %d, %v", i, host, status, err)
			}
		}
		for i := range each {
			for _, host := range hosts[1:] {
				send(host, i, digests[0])
			}
		}
		appearing, err := images.Watch(b.Context(), metav1.ListOptions{})
		if err != nil {
			b.Fatal(err)
		}
		defer appearing.Stop()
		sent, took := make(map[string]time.Time, b.N), make([]time.Duration, 0, b.N)
		var mu sync.Mutex
		all := make(chan struct{})
		go func() {
			defer close(all)
			for e := range appearing.ResultChan() {
				image, ok := e.Object.(*imagev1.Image)
				if !ok || e.Type != watch.Added {
					continue
				}
				mu.Lock()
				took = append(took, time.Since(sent[image.Name]))
				n := len(took)
				mu.Unlock()
				if n == b.N {
					return
				}
			}
		}()
		b.ResetTimer()
		start := time.Now()
		for i := range b.N {
			time.Sleep(time.Until(start.Add(time.Duration(i) * time.Second / rate)))
			mu.Lock()
			sent[digests[i]] = time.Now()
			mu.Unlock()
			send(hosts[0], i, digests[i])
		}
		select {
		case <-all:
		case <-time.After(2 * time.Minute):
			b.Fatalf("of %d pushes %d have appeared", b.N, len(took))
		}
		b.StopTimer()
		if len(took) < b.N {
			b.Fatalf("the watch ended after %d of %d", len(took), b.N)
		}
		slices.Sort(took)
		ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
		b.ReportMetric(ms(took[len(took)/2]), "p50-ms")
		b.ReportMetric(ms(took[len(took)*99/100]), "p99-ms")
		b.ReportMetric(ms(took[len(took)-1]), "max-ms")
	})
}

// hookedServer is a server that registries tell of pushes.
type hookedServer struct {
	*benchServer
	secret string
}

func newHookedServer(b *testing.B, hosts ...string) hookedServer {
	b.Helper()
	return newHookedServerWith(b, "", hosts...)
}

// newHookedServerWith returns one that has more in its configuration.
func newHookedServerWith(b *testing.B, more string, hosts ...string) hookedServer {
	b.Helper()
	dir, secret := b.TempDir(), rand.Text()
	config := filepath.Join(dir, "tidewaiter.yaml")
	text := fmt.Sprintf("receivers: [{name: bench, type: distribution, hosts: ['%s'], secretFile: secret}]\n", strings.Join(hosts, "', '")) + more
	for file, text := range map[string]string{config: text, filepath.Join(dir, "secret"): secret} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	return hookedServer{connect(b, serveWith(b, server.Options{DataDir: filepath.Join(dir, "data"), ConfigFile: config, Isolated: true}, listener)), secret}
}

// deliver tells that an image was pushed as "repository:tag", as distribution does.
func (s hookedServer) deliver(host, reference, digest string) (status int, err error) {
	repository, tag, _ := strings.Cut(reference, ":")
	body := fmt.Sprintf(`{"events":[{"id":"%s/%s","timestamp":"2026-05-28T20:26:40Z","action":"push","target":{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":%q,"repository":%q,"tag":%q},"request":{"host":%q}}]}`,
		host, reference, digest, repository, tag, host)
	req, err := http.NewRequest(http.MethodPost, s.Config.Host+"/hooks/bench", strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+s.secret)
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// fillBench pushes n small images as team/app:0 and so on, and returns their
// digests.
func fillBench(b *testing.B, host string, n int) []string {
	b.Helper()
	base, err := sample.New(sample.Spec{Name: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	config, err := base.ConfigFile()
	if err != nil {
		b.Fatal(err)
	}
	digests, refs := make([]string, n), make(map[name.Reference]remote.Taggable, n)
	for i := range n {
		c := config.DeepCopy()
		c.Config.Labels = map[string]string{"number": fmt.Sprint(i)}
		image, err := mutate.ConfigFile(base, c)
		if err != nil {
			b.Fatal(err)
		}
		var digest v1.Hash
		if digest, err = image.Digest(); err != nil {
			b.Fatal(err)
		}
		ref, err := name.ParseReference(fmt.Sprintf("%s/team/app:%d", host, i))
		if err != nil {
			b.Fatal(err)
		}
		digests[i], refs[ref] = digest.String(), image
	}
	if err := remote.MultiWrite(refs, remote.WithJobs(8)); err != nil {
		b.Fatal(err)
	}
	return digests
}
