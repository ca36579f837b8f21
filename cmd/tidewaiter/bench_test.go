package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

// imageMaker makes Images as an import sends them: ten layers, a config with
// history, environment and labels, and the raw bytes of both.
type imageMaker struct {
	manifest, Config string
	layers           []string
	made             int
}

// newImageMaker makes Images of 12.6 kB with 60 labels.
func newImageMaker(b testing.TB, labelled int) *imageMaker {
	b.Helper()
	labels := map[string]string{}
	for i := range labelled {
		labels[fmt.Sprintf("org.example.label%02d", i)] = strings.Repeat("text ", 20)
	}
	img, err := sample.New(sample.Spec{Name: "bench", Layers: 10, LayerSize: 64, Labels: labels})
	if err != nil {
		b.Fatal(err)
	}
	raw, err := img.RawManifest()
	if err != nil {
		b.Fatal(err)
	}
	config, err := img.RawConfigFile()
	if err != nil {
		b.Fatal(err)
	}
	var layers []string
	read, err := img.Layers()
	if err != nil {
		b.Fatal(err)
	}
	for _, l := range read {
		digest, err := l.Digest()
		if err != nil {
			b.Fatal(err)
		}
		layers = append(layers, digest.String())
	}
	return &imageMaker{manifest: string(raw), Config: string(config), layers: layers}
}

// make returns n Images that differ from all others.
func (m *imageMaker) make(b *testing.B, n int) (names []string, bodies [][]byte) {
	b.Helper()
	for range n {
		m.made++
		own := m.manifest
		for i, layer := range m.layers {
			own = strings.Replace(own, layer, manifest.Digest(fmt.Appendf(nil, "%d/%d", m.made, i)), 1)
		}
		raw := strings.TrimSuffix(own, "}") + fmt.Sprintf(`,"annotations":{"number":"%d"}}`, m.made)
		digest := manifest.Digest([]byte(raw))
		body, err := json.Marshal(&imagev1.Image{
			TypeMeta:             metav1.TypeMeta{APIVersion: imagev1.GroupVersion.String(), Kind: "Image"},
			ObjectMeta:           metav1.ObjectMeta{Name: digest},
			DockerImageReference: "registry.example.com/team/app@" + digest,
			DockerImageManifest:  raw,
			DockerImageConfig:    m.Config,
		})
		if err != nil {
			b.Fatal(err)
		}
		names, bodies = append(names, digest), append(bodies, body)
	}
	return names, bodies
}

const (
	benchPath = "/apis/image.openshift.io/v1/images"
	// watchListPath is what client-go's informers ask for.
	watchListPath = benchPath + "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
)

// benchServer is a server and the client side of its connections.
type benchServer struct {
	client *http.Client
	Config *restclient.Config
}

func newBenchServer(b *testing.B) *benchServer {
	b.Helper()
	if err := setUpLogging(io.Discard, 0, logText); err != nil {
		b.Fatal(err)
	}
	return connect(b, serve(b))
}

// connect makes the client side.
func connect(t testing.TB, config *restclient.Config) *benchServer {
	t.Helper()
	config.DisableCompression = true
	config.QPS = -1
	client, err := restclient.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return &benchServer{client: client, Config: config}
}

// create posts the bodies over 16 connections.
func (s *benchServer) create(b *testing.B, bodies [][]byte) {
	b.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := next.Add(1) - 1; int(i) < len(bodies); i = next.Add(1) - 1 {
				if err := s.do(http.MethodPost, benchPath, string(bodies[i]), "", http.StatusCreated); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// do makes a request and reads its answer away.
func (s *benchServer) do(method, path, body, encoding string, want int) error {
	return s.accept("application/json", method, path, body, encoding, want)
}

// accept is do of whoever accepts these media types.
func (s *benchServer) accept(accept, method, path, body, encoding string, want int) error {
	req, err := http.NewRequest(method, s.Config.Host+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", accept)
	if encoding != "" {
		req.Header.Set("Accept-Encoding", encoding)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != want {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// BenchmarkServer measures a whole server over TLS on loopback; the client
// shares the machine's cores with it.
func BenchmarkServer(b *testing.B) {
	const stored = 2000
	s, images := newBenchServer(b), newImageMaker(b, 60)
	names, bodies := images.make(b, stored)
	s.create(b, bodies)
	b.Run(fmt.Sprintf("Op=Get/Objects=%d", stored), func(b *testing.B) {
		b.SetParallelism(8)
		var next atomic.Int64
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				name := names[int(next.Add(1))%len(names)]
				if err := s.do(http.MethodGet, benchPath+"/"+name, "", "", http.StatusOK); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
	for _, encoding := range []string{"identity", "gzip"} {
		b.Run(fmt.Sprintf("Op=List/Objects=%d/Encoding=%s", stored, encoding), func(b *testing.B) {
			b.SetBytes(listSize(b, s))
			before := processorTime(b, os.Getpid())
			b.ResetTimer()
			for range b.N {
				if err := s.do(http.MethodGet, benchPath, "", encoding, http.StatusOK); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((processorTime(b, os.Getpid())-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
	}
	b.Run(fmt.Sprintf("Op=Table/Objects=%d/Limit=500", stored), func(b *testing.B) {
		// a page of kubectl get images
		config := restclient.CopyConfig(s.Config)
		config.QPS = -1
		client := newReviewer(b, config).client
		before := processorTime(b, os.Getpid())
		b.ResetTimer()
		for range b.N {
			if _, err := client.Get().AbsPath(benchPath).Param("limit", "500").SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64((processorTime(b, os.Getpid())-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
	})
	b.Run("Op=Create", func(b *testing.B) {
		_, bodies := images.make(b, b.N)
		b.SetBytes(int64(len(bodies[0])))
		before := processorTime(b, os.Getpid())
		b.ResetTimer()
		s.create(b, bodies)
		b.ReportMetric(float64((processorTime(b, os.Getpid())-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
	})
	b.Run("Op=Watch/Watchers=100", func(b *testing.B) {
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
		for range 100 {
			w, err := client.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
			if err != nil {
				b.Fatal(err)
			}
			seen.Go(func() {
				defer w.Stop()
				for range b.N {
					if _, ok := <-w.ResultChan(); !ok {
						b.Error("a watch ended early")
						return
					}
				}
			})
		}
		_, bodies := images.make(b, b.N)
		b.ResetTimer()
		s.create(b, bodies)
		seen.Wait()
		b.ReportMetric(100*float64(b.N)/b.Elapsed().Seconds(), "events/s")
	})
}

// BenchmarkWatchList lists as client-go's informers do since 1.35: by a watch that begins with what
// exists, of so many informers at once. An operation is one that all of them have done.
func BenchmarkWatchList(b *testing.B) {
	const stored = 2000
	s, images := newBenchServer(b), newImageMaker(b, 60)
	_, bodies := images.make(b, stored)
	s.create(b, bodies)
	for _, encoding := range []string{"identity", "gzip"} {
		for _, informers := range []int{1, 20} {
			b.Run(fmt.Sprintf("Informers=%d/Objects=%d/Encoding=%s", informers, stored, encoding), func(b *testing.B) {
				for b.Loop() {
					var all sync.WaitGroup
					for range informers {
						all.Go(func() {
							if n, err := s.initialEvents(b.Context(), watchListPath, encoding); err != nil || n != stored {
								b.Errorf("%d events, %v", n, err)
							}
						})
					}
					all.Wait()
				}
				b.ReportMetric(float64(b.N*informers*stored)/b.Elapsed().Seconds(), "events/s")
			})
		}
	}
}

// initialEvents counts the events of a watch before the bookmark that ends what exists.
func (s *benchServer) initialEvents(ctx context.Context, path, encoding string) (n int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Config.Host+path, nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Accept-Encoding", encoding)
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var body io.Reader = resp.Body
	if resp.Header.Get("Content-Encoding") == "gzip" {
		if body, err = gzip.NewReader(body); err != nil {
			return 0, err
		}
	}
	lines := bufio.NewReaderSize(body, 1<<20)
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			return n, err
		}
		if bytes.HasPrefix(line, []byte(`{"type":"BOOKMARK"`)) {
			return n, nil
		}
		n++
	}
}

// listSize is the length of the whole list, uncompressed.
func listSize(b *testing.B, s *benchServer) int64 {
	b.Helper()
	resp, err := s.client.Get(s.Config.Host + benchPath)
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err != nil {
		b.Fatal(err)
	}
	return n
}
