package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/internal/benchtest"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/web"
	"github.com/tidewaiter/tidewaiter/web/filters"
)

// BenchmarkWithout tells what each mechanism buys that makes a server fast. Two servers, one
// without it, are asked the same in turn over TLS; without/with is the median of how many times as
// long the one takes that is without, and processor how many times as much of the processor, client
// included, which other programs disturb less. Of two servers that are alike they tell how far to
// trust the others.
func BenchmarkWithout(b *testing.B) {
	for _, m := range []struct {
		mechanism string
		leaveOut  func(*server.Server, *server.Parts) // clients see no other difference
		ops       []string
	}{
		{"None", nil, []string{"Get", "FirstGet", "Create", "List", "ListGzip", "WatchList"}},
		// Reads are answered by the API server's own handlers.
		{"Door", func(s *server.Server, p *server.Parts) {
			p.BeforeAPI = func(api http.Handler) http.Handler { return web.AnnounceWrites(s.DB.Announce, api) }
		}, []string{"Get", "List", "ListGzip", "WatchList"}},
		// Each watch has its own objects and encodings.
		{"SharedObjects", func(_ *server.Server, p *server.Parts) { p.Registries = p.Storage }, []string{"Watch"}},
		// Each answer reads and encodes all objects again: /proc has no room for a file.
		{"KeptForms", func(_ *server.Server, p *server.Parts) { p.Serve(p.Storage, "/proc") }, []string{"Get", "FirstGet", "List", "ListGzip", "WatchList"}},
		// Documents are read by the API machinery alone.
		{"PlainReaders", func(s *server.Server, p *server.Parts) {
			p.Serve(s.NewStorage(nil), s.Options.DataDir)
			delete(p.Serializers, imagev1.GroupName)
		}, []string{"Create", "Table", "Selector"}},
		// Creations are answered with a new encoding.
		{"StoredAnswers", func(_ *server.Server, p *server.Parts) { p.Answering = nil }, []string{"Create"}},
		// Nothing is written down.
		{"Audit", func(_ *server.Server, p *server.Parts) { p.Audit = nil }, []string{"Get", "Create"}},
		// Commits wait for no announced write.
		{"Announcements", func(_ *server.Server, p *server.Parts) {
			p.BeforeAPI = func(api http.Handler) http.Handler { return p.Served.Serve(api) }
		}, []string{"Create"}},
	} {
		b.Run("Mechanism="+m.mechanism, func(b *testing.B) {
			const stored = 1000
			var pair [2]*withoutServer // with it, and without
			for i, leaveOut := range []func(*server.Server, *server.Parts){nil, m.leaveOut} {
				pair[i] = newWithoutServer(b, leaveOut, stored)
			}
			for _, op := range m.ops {
				b.Run("Op="+op, func(b *testing.B) {
					var took [2][]time.Duration
					var times, processor []float64
					for round := 0; b.Loop(); round++ {
						var costs [2]benchtest.Cost
						for i := range pair {
							if round%2 == 1 {
								i = 1 - i
							}
							costs[i] = pair[i].do(b, op)
							took[i] = append(took[i], costs[i].Time)
						}
						times = append(times, float64(costs[1].Time)/float64(costs[0].Time))
						processor = append(processor, float64(costs[1].Processor)/float64(costs[0].Processor))
					}
					b.ReportMetric(benchtest.Median(times), "without/with")
					b.ReportMetric(benchtest.Median(processor), "processor")
					b.ReportMetric(benchtest.Median(took[0]).Seconds()*1000, "with-ms")
					b.ReportMetric(benchtest.Median(took[1]).Seconds()*1000, "without-ms")
				})
			}
		})
	}
}

// withoutServer is one of the two.
type withoutServer struct {
	*benchServer
	images *imageMaker
	names  []string
}

func newWithoutServer(b *testing.B, leaveOut func(*server.Server, *server.Parts), stored int) *withoutServer {
	b.Helper()
	if err := setUpLogging(io.Discard, 0, logText); err != nil {
		b.Fatal(err)
	}
	o := server.Options{DataDir: b.TempDir(), ReplaceParts: leaveOut}
	o.Audit = filters.NewAuditOptions(auditLog(o.DataDir))
	s := &withoutServer{benchServer: connect(b, serveWith(b, o, listen(b))), images: newImageMaker(b, 60)}
	names, bodies := s.images.make(b, stored)
	s.create(b, bodies)
	s.names = names
	return s
}

// do does op and tells what that cost.
func (s *withoutServer) do(b *testing.B, op string) benchtest.Cost {
	b.Helper()
	switch op {
	case "Create":
		_, bodies := s.images.make(b, 300)
		return benchtest.Timed(func() { s.create(b, bodies) })
	case "Watch":
		return s.watched(b, 100, 50)
	}
	ask := func(query, accept, encoding string) benchtest.Cost {
		return benchtest.Timed(func() {
			if err := s.accept(accept, http.MethodGet, benchPath+query, "", encoding, http.StatusOK); err != nil {
				b.Fatal(err)
			}
		})
	}
	switch op {
	case "Get":
		return s.got(b, s.names, 2000)
	case "FirstGet":
		names, bodies := s.images.make(b, 300)
		s.create(b, bodies)
		return s.got(b, names, len(names))
	case "List":
		return ask("", "application/json", "identity")
	case "ListGzip":
		return ask("", "application/json", "gzip")
	case "Table":
		return ask("", "application/json;as=Table;v=v1;g=meta.k8s.io", "identity")
	case "Selector":
		return ask("?labelSelector=!canary", "application/json", "identity")
	case "WatchList":
		return benchtest.Timed(func() {
			if n, err := s.initialEvents(b.Context(), watchListPath, "identity"); err != nil || n < len(s.names) {
				b.Fatal(n, err)
			}
		})
	}
	b.Fatalf("no operation is called %q", op)
	return benchtest.Cost{}
}

// got gets Images over 16 connections, n times.
func (s *withoutServer) got(b *testing.B, names []string, n int) benchtest.Cost {
	b.Helper()
	var next atomic.Int64
	return benchtest.Timed(func() {
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() {
				for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
					if err := s.benchServer.do(http.MethodGet, benchPath+"/"+names[i%len(names)], "", "", http.StatusOK); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
	})
}

// watched creates n Images that so many watchers see, who do not decode them.
func (s *withoutServer) watched(b *testing.B, watchers, n int) benchtest.Cost {
	b.Helper()
	client, err := imageclient.New(s.Config)
	if err != nil {
		b.Fatal(err)
	}
	list, err := client.List(b.Context(), metav1.ListOptions{Limit: 1})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	var seen sync.WaitGroup
	for range watchers {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Config.Host+benchPath+"?watch=1&resourceVersion="+list.ResourceVersion, nil)
		if err != nil {
			b.Fatal(err)
		}
		req.Header.Set("Accept", "application/json")
		resp, err := s.client.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		seen.Go(func() {
			defer resp.Body.Close()
			lines := bufio.NewScanner(resp.Body)
			lines.Buffer(nil, 1<<20)
			for i := range n {
				if !lines.Scan() {
					b.Errorf("a watch ended after %d events: %v", i, lines.Err())
					return
				}
			}
		})
	}
	_, bodies := s.images.make(b, n)
	return benchtest.Timed(func() {
		s.create(b, bodies)
		seen.Wait()
	})
}
