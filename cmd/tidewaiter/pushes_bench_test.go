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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
)

// BenchmarkPushes measures the answer to a webhook at a steady rate, while the
// same server imports what it is told of: each push is of an image of its own.
// Sender, server and registry share the machine's cores. For 20 s of it:
//
//	go test ./cmd/tidewaiter -run '^$' -bench Pushes -benchtime 10000x
func BenchmarkPushes(b *testing.B) {
	const rate = 500 // a second
	b.Run(fmt.Sprintf("Rate=%d", rate), func(b *testing.B) {
		if err := setUpLogging(io.Discard, 0); err != nil {
			b.Fatal(err)
		}
		// Not the demo's: support for referrers makes it slow when it holds much.
		registered := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
		b.Cleanup(registered.Close)
		host := registered.Listener.Addr().String()
		digests := fillBench(b, host, b.N)

		dir, secret := b.TempDir(), rand.Text()
		config := filepath.Join(dir, "tidewaiter.yaml")
		text := fmt.Sprintf("receivers: [{name: bench, type: distribution, hosts: [%q], secretFile: secret}]\n", host)
		for file, text := range map[string]string{config: text, filepath.Join(dir, "secret"): secret} {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				b.Fatal(err)
			}
		}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		s := connect(b, serveWith(b, serverOptions{dataDir: filepath.Join(dir, "data"), configFile: config, isolated: true}, listener))
		deliver := func(i int) (int, error) {
			body := fmt.Sprintf(`{"events":[{"id":"%d","timestamp":"2026-05-28T20:26:40Z","action":"push","target":{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":%q,"repository":"team/app","tag":"%d"},"request":{"host":%q}}]}`,
				i, digests[i], i, host)
			req, err := http.NewRequest(http.MethodPost, s.config.Host+"/hooks/bench", strings.NewReader(body))
			if err != nil {
				return 0, err
			}
			req.Header.Set("Authorization", "Bearer "+secret)
			resp, err := s.client.Do(req)
			if err != nil {
				return 0, err
			}
			defer resp.Body.Close()
			_, err = io.Copy(io.Discard, resp.Body)
			return resp.StatusCode, err
		}

		took := make([]time.Duration, b.N)
		var senders sync.WaitGroup
		b.ResetTimer()
		start := time.Now()
		for i := range took {
			time.Sleep(time.Until(start.Add(time.Duration(i) * time.Second / rate)))
			senders.Go(func() {
				sent := time.Now()
				if status, err := deliver(i); err != nil || status != http.StatusAccepted {
					b.Errorf("delivery %d: %d, %v", i, status, err)
				}
				took[i] = time.Since(sent)
			})
		}
		senders.Wait()
		b.StopTimer()

		images, err := imageclient.New(s.config)
		if err != nil {
			b.Fatal(err)
		}
		list, err := images.List(b.Context(), metav1.ListOptions{})
		if err != nil {
			b.Fatal(err)
		}
		slices.Sort(took)
		ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
		b.ReportMetric(ms(took[len(took)/2]), "p50-ms")
		b.ReportMetric(ms(took[len(took)*99/100]), "p99-ms")
		b.ReportMetric(ms(took[len(took)-1]), "max-ms")
		b.ReportMetric(float64(len(list.Items))/b.Elapsed().Seconds(), "imports/s")
	})
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
