package main

import (
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	restclient "k8s.io/client-go/rest"
)

// BenchmarkFloodOfLists measures what an administrator's get takes while the same
// administrator asks for 1,000 lists with a selector over 1,500 Images at once, and
// how much memory the server takes at most.
func BenchmarkFloodOfLists(b *testing.B) {
	const images, lists, gets = 1500, 1000, 500
	dir := b.TempDir()
	names := seed(b, dir, images)
	s := runProcess(b, dir)
	honest := func() []time.Duration {
		took := make([]time.Duration, gets)
		for i := range took {
			start := time.Now()
			if err := s.do(http.MethodGet, benchPath+"/"+names[i], "", "", http.StatusOK); err != nil {
				b.Fatal(err)
			}
			took[i] = time.Since(start)
		}
		slices.Sort(took)
		return took
	}
	quiet := honest()
	for b.Loop() {
		// HTTP/1.1 has a connection for each list, as different clients have.
		config := restclient.CopyConfig(s.config)
		config.NextProtos = []string{"http/1.1"}
		flood, err := restclient.HTTPClientFor(config)
		if err != nil {
			b.Fatal(err)
		}
		var over atomic.Bool
		var answered [600]atomic.Int64
		var clients sync.WaitGroup
		for range lists {
			clients.Go(func() {
				for !over.Load() {
					resp, err := flood.Get(config.Host + benchPath + "?labelSelector=repo%3Dteam-1")
					if err != nil {
						continue
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
					answered[resp.StatusCode].Add(1)
					if resp.StatusCode == http.StatusTooManyRequests {
						time.Sleep(time.Second) // as Retry-After says
					}
				}
			})
		}
		for answered[http.StatusOK].Load() == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		took := honest()
		over.Store(true)
		clients.Wait()
		flood.CloseIdleConnections()
		b.ReportMetric(took[gets/2].Seconds()*1e3, "ms-median")
		b.ReportMetric(took[gets*99/100].Seconds()*1e3, "ms-p99")
		b.ReportMetric(quiet[gets*99/100].Seconds()*1e3, "ms-p99-quiet")
		b.ReportMetric(float64(answered[200].Load()), "lists-served")
		b.ReportMetric(float64(answered[429].Load()), "lists-refused")
		b.ReportMetric(s.mostMemory(b), "MiB")
		b.ReportMetric(0, "ns/op")
		if n := answered[200].Load() + answered[429].Load(); n == 0 {
			b.Error("no list was answered")
		}
	}
}
