package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// What a client gets wrong is answered 4xx, and is not a fault of the server.
func TestRequestsThatCannotBe(t *testing.T) {
	t.Parallel()
	oneCaller(t)
	config := serve(t)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	const images, pods = "/apis/image.openshift.io/v1/images", "/api/v1/namespaces/default/pods"
	image := func(name, labels string) string {
		return fmt.Sprintf(`{"apiVersion":"image.openshift.io/v1","kind":"Image","metadata":{"name":%q,"labels":{%s}},"dockerImageReference":"a/b:c"}`, name, labels)
	}
	pod := func(name, labels string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"labels":{%s}},"spec":{"containers":[{"name":"c","image":"i"}]}}`, name, labels)
	}
	labels := func(n int) string {
		all := make([]string, n)
		for i := range all {
			all[i] = fmt.Sprintf(`"l%d":""`, i)
		}
		return strings.Join(all, ",")
	}
	const strategic, merge, plain = "application/strategic-merge-patch+json", "application/merge-patch+json", "application/json"
	long := strings.Repeat("n", 2000)
	for _, tt := range []struct {
		method, path, contentType, body string
		code                            int
		want                            string
	}{
		{"POST", images, plain, image("x", labels(256)), 201, ""},
		{"POST", pods, plain, pod("x", labels(256)), 201, ""},

		{"POST", images, plain, image(long, ""), 400, "the name is too long"},
		{"POST", images, plain, image("..", ""), 422, "may not be '..'"},
		{"GET", images + "/" + long, "", "", 400, "the name is too long"},
		{"DELETE", images + "/" + long, "", "", 400, "the name is too long"},
		{"PUT", images + "/" + long, plain, image(long, ""), 400, ""},
		{"PATCH", images + "/" + long, merge, "{}", 400, ""},
		{"GET", images + "/%2e%2e", "", "", 400, "may not be '..'"},
		{"GET", images + "/..", "", "", 400, ""},
		{"DELETE", images + "/..", "", "", 400, ""},
		{"GET", "/api/v1/namespaces/../pods", "", "", 400, "invalid key"},
		{"GET", "/api/v1/namespaces/%2e%2e/pods/x", "", "", 400, ""},

		{"PATCH", pods + "/x", strategic, `{"metadata":{"$patch":"replace","name":"x"`, 400, ""},
		{"PATCH", pods + "/x", strategic, `{"metadata":{"annotations":{"cost":"$5"}}}`, 200, `"cost":"$5"`},
		{"PATCH", pods + "/x", strategic, `{"metadata":{"annotations":{"$patch":"replace","a":"b"}}}`, 200, ""},

		{"POST", images, plain, image("y", labels(257)), 422, "an object has at most 256"},
		{"POST", pods, plain, pod("y", labels(257)), 422, "an object has at most 256"},
		{"POST", pods + "?dryRun=All", plain, pod("y", labels(257)), 422, "an object has at most 256"},
		{"PATCH", images + "/x", merge, `{"metadata":{"labels":{"one":"more"}}}`, 422, "an object has at most 256"},
		{"PATCH", images + "/z?fieldManager=f", "application/apply-patch+yaml", image("z", labels(257)), 422, "an object has at most 256"},
		{"PATCH", images + "/x", merge, `{"metadata":{"annotations":{"one":"more"}}}`, 200, ""},

		{"GET", "/debug/flags/v", "", "", 404, ""},
		{"PUT", "/debug/flags/v", "", "10", 404, ""},
		{"GET", "/debug/pprof/heap", "", "", 200, ""},
	} {
		req, err := http.NewRequestWithContext(context.Background(), tt.method, config.Host, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		// The path is sent as it is.
		req.URL.Opaque = "//" + req.URL.Host + tt.path
		if tt.contentType != "" {
			req.Header.Set("Content-Type", tt.contentType)
		}
		req.Header.Set("Accept", "application/json")
		resp, err := client.Transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != tt.code || !strings.Contains(string(body), tt.want) {
			t.Errorf("%s %.90s %.90s: %d %.300q, want %d and %q", tt.method, tt.path, tt.body, resp.StatusCode, body, tt.code, tt.want)
		}
	}
}

// What is answered 429 counts in /metrics. Requests whose bodies do not end stay in flight, so the
// bound of one user at one address is reached however slow the machine is.
func TestRefusedRequestsAreCounted(t *testing.T) {
	t.Parallel()
	const atOnce, counter = 4, `tidewaiter_refused_requests_total{bound="address",kind="change"}`
	s := runProcess(t, t.TempDir(), "--max-mutating-requests-inflight", strconv.Itoa(atOnce))
	if n := s.metric(t, counter); n > 0 {
		t.Errorf("%v requests were refused before there were any", n)
	}
	ctx, end := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	refused := make(chan struct{}, atOnce+1)
	for range atOnce + 1 { // half of the bound is served, as many wait, and one is too many
		body, unfinished := io.Pipe()
		clients.Go(func() {
			<-ctx.Done()
			unfinished.CloseWithError(ctx.Err())
		})
		clients.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Config.Host+benchPath+"?dryRun=All", body)
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Content-Type", "application/json")
			resp, err := s.client.Do(req)
			if err != nil {
				return // the test is over
			}
			defer resp.Body.Close()
			if resp.StatusCode == http.StatusTooManyRequests {
				refused <- struct{}{}
			}
		})
	}
	select {
	case <-refused:
	case <-time.After(5 * time.Minute):
		t.Error("no request is refused")
	}
	if n := s.metric(t, counter); n < 1 {
		t.Errorf("%s is %v", counter, n)
	}
	end()
	clients.Wait()
}
