package main

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
)

// unreadServer is a server with Images, and a client that need not read what it asks for.
type unreadServer struct {
	Config *restclient.Config
	client *http.Client
	before uint64 // bytes in the heap
}

// newUnreadServer stores Images of the given number and size.
func newUnreadServer(t *testing.T, images, size int) *unreadServer {
	config := serve(t)
	config.QPS = -1
	client, err := imageclient.New(config)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var next atomic.Int64
	for range 8 {
		all.Go(func() {
			for i := next.Add(1); int(i) <= images; i = next.Add(1) {
				image := &imagev1.Image{
					ObjectMeta:           metav1.ObjectMeta{Name: fmt.Sprintf("image-%d", i), Labels: map[string]string{"all": "yes"}, Annotations: map[string]string{"text": strings.Repeat("x", size)}},
					DockerImageReference: fmt.Sprintf("registry.example.com/a:%d", i),
				}
				if _, err := client.Create(t.Context(), image, metav1.CreateOptions{}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	s := &unreadServer{Config: restclient.CopyConfig(config)}
	s.Config.DisableCompression = true
	s.Config.NextProtos = []string{"http/1.1"} // over HTTP/2 the client itself would take megabytes
	// A hundred handshakes take turns with all else that two processors do.
	secure, err := restclient.TLSConfigFor(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := restclient.HTTPWrappersForConfig(s.Config, &http.Transport{TLSClientConfig: secure, TLSHandshakeTimeout: 5 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	s.client = &http.Client{Transport: transport}
	s.before = heap()
	return s
}

// heap is what is in use, in bytes.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// ask makes requests at once, reads their heads and no more, and returns how many were
// answered 200. A connection that the server ended before it answered, as a slow handshake or a
// slow head takes too long, is made again.
func (s *unreadServer) ask(t *testing.T, requests int, query string) int {
	var all sync.WaitGroup
	var ok atomic.Int64
	for range requests {
		all.Go(func() {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.Config.Host+benchPath+"?"+query, nil)
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Accept", "application/json")
			resp, err := s.client.Do(req)
			for err != nil && t.Context().Err() == nil {
				resp, err = s.client.Do(req)
			}
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { resp.Body.Close() })
			switch resp.StatusCode {
			case http.StatusOK:
				ok.Add(1)
			case http.StatusTooManyRequests:
			default:
				t.Errorf("%s: %s", query, resp.Status)
			}
		})
	}
	all.Wait()
	return int(ok.Load())
}

// holdsLess fails if the heap grows by bytes or more while honest reads go on.
func (s *unreadServer) holdsLess(t *testing.T, bytes uint64) {
	t.Helper()
	var longest time.Duration
	var most uint64
	for range 10 { // each collects the garbage of all tests
		began := time.Now()
		resp, err := s.client.Get(s.Config.Host + benchPath + "/image-1")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		longest = max(longest, time.Since(began))
		if resp.StatusCode != http.StatusOK {
			t.Errorf("an honest read: %s", resp.Status)
		}
		if now := heap(); now > s.before {
			most = max(most, now-s.before)
		}
	}
	t.Logf("%d MiB held, the longest of 10 reads %s", most>>20, longest)
	if most >= bytes {
		t.Errorf("%d MiB are held for what nobody reads", most>>20)
	}
}

// Watches that begin with what exists and do not read: written from stored bytes, and decoded.
func TestAttackWatchesThatDoNotRead(t *testing.T) {
	s := newUnreadServer(t, 120, 60<<10)
	for query, watches := range map[string]int{
		"watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true": 60,
		"watch=1&resourceVersion=0&labelSelector=all%3Dyes":                                         100,
	} {
		if ok := s.ask(t, watches, query); ok != watches {
			t.Errorf("%s: %d watches were answered", query, ok)
		}
	}
	s.holdsLess(t, 400<<20)
}

// Lists at once, by a selector that takes everything, that are not read.
func TestAttackSelectorListsThatAreNotRead(t *testing.T) {
	s := newUnreadServer(t, 250, 60<<10)
	if ok := s.ask(t, 24, "labelSelector=all%3Dyes"); ok == 0 {
		t.Error("no list was answered")
	}
	s.holdsLess(t, 400<<20)
}
