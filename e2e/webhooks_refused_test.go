package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// client trusts what a registry would have to.
func (h *hooked) client(t *testing.T) *http.Client {
	t.Helper()
	pem, err := os.ReadFile(h.ca)
	must(t, err)
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		t.Fatalf("%s holds no certificate", h.ca)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: harness.Patience}
}

// request makes a request and returns status and body.
func (h *hooked) request(t *testing.T, method, url, secret, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	must(t, err)
	if secret != "" {
		req.Header.Set("Authorization", "Bearer "+secret)
	}
	resp, err := h.client(t).Do(req)
	must(t, err)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, string(answer)
}

// tell tells the generic receiver of references, as a script would, and
// expects that they are taken.
func (h *hooked) tell(t *testing.T, references ...string) {
	t.Helper()
	if status, answer := h.request(t, "POST", h.base+"script", hookSecret, fmt.Sprintf(`{"references":["%s"]}`, strings.Join(references, `","`))); status != http.StatusAccepted {
		t.Fatalf("%d: %s", status, answer)
	}
}

// Who has no secret, asks for what is not there, sends too much or speaks for
// another registry changes nothing, and learns no more than that.
func TestWebhookRefusals(t *testing.T) {
	t.Parallel()
	h := startHooked(t, registry.Distribution, true)
	event := func(host, rest string) string {
		return fmt.Sprintf(`{"events":[{"id":"1","action":"push","target":{"repository":"team/app","tag":"v1"%s},"request":{"host":%q}}]}`, rest, host)
	}
	ours := event(h.registry.Host, "")
	for _, listener := range []struct{ name, base string }{{"TLS", h.URL + "/hooks/"}, {"plain", h.base}} {
		t.Run(listener.name, func(t *testing.T) {
			for _, tc := range []struct {
				what, method, path, secret, body string
				status                           int
				answer                           string
			}{
				{"no secret", "POST", "local", "", ours, 401, "missing or wrong"},
				{"wrong secret", "POST", "local", "guess", ours, 401, "missing or wrong"},
				{"no such receiver", "POST", "other", hookSecret, ours, 401, "missing or wrong"},
				{"secret in the path of a type with a header", "POST", "local/" + hookSecret, "", ours, 401, "missing or wrong"},
				{"over 1 MiB", "POST", "local", hookSecret, ours + strings.Repeat(" ", 1<<20), 413, "1048576 bytes"},
				{"over 1,000 events", "POST", "script", hookSecret, `{"references":[` + strings.Repeat(`"a",`, 1000) + `"a"]}`, 413, "1000 events"},
				{"not JSON", "POST", "local", hookSecret, "payload=%7B%7D", 400, "not JSON"},
				{"not a POST", "GET", "local", hookSecret, "", 405, ""},
				{"another registry", "POST", "local", hookSecret, event("127.0.0.1:1", ""), 200, `"host":1`},
				{"the internet's metadata service", "POST", "local", hookSecret, event("169.254.169.254", ""), 200, `"host":1`},
				{"another repository", "POST", "local", hookSecret, strings.Replace(ours, "team/app", "other/app", 1), 200, `"repository":1`},
				{"a layer", "POST", "local", hookSecret, event(h.registry.Host, `,"mediaType":"application/octet-stream"`), 200, `"media_type":1`},
				{"a pull", "POST", "local", hookSecret, strings.Replace(ours, "push", "pull", 1), 200, `"action":1`},
				{"another format", "POST", "local", hookSecret, `{"events":"none"}`, 200, `"malformed":1`},
			} {
				status, answer := h.request(t, tc.method, listener.base+tc.path, tc.secret, tc.body)
				if status != tc.status || !strings.Contains(answer, tc.answer) {
					t.Errorf("%s: %d %s, want %d with %q", tc.what, status, answer, tc.status, tc.answer)
				}
			}
		})
	}

	// The plain listener has the receivers and nothing else, for nobody.
	plain := strings.TrimSuffix(h.base, "hooks/")
	for _, path := range []string{"", "healthz", "apis", "metrics", "hooks/", "hooks/../apis"} {
		if status, answer := h.request(t, "GET", plain+path, hookSecret, ""); status != http.StatusNotFound {
			t.Errorf("GET %s: %d %s, want 404", plain+path, status, answer)
		}
	}

	if list := h.spool(t, "list"); !strings.Contains(list, "the spool is empty") {
		t.Errorf("the spool holds\n%s", list)
	}
	if names := imageNames(t, h.Server); len(names) > 0 {
		t.Errorf("stored: %v", names)
	}
	h.awaitMetrics(t, // each of the above came twice
		`tidewaiter_webhook_requests_total{code="401",receiver="local"} 6`,
		`tidewaiter_webhook_requests_total{code="401",receiver=""} 2`,
		`tidewaiter_webhook_requests_total{code="413",receiver="local"} 2`,
		`tidewaiter_webhook_requests_total{code="400",receiver="local"} 2`,
		`tidewaiter_webhook_received_total{receiver="local"} 12`,
		`tidewaiter_webhook_refused_total{reason="host",receiver="local"} 4`,
		`tidewaiter_webhook_refused_total{reason="repository",receiver="local"} 2`,
		`tidewaiter_webhook_refused_total{reason="media_type",receiver="local"} 2`,
		`tidewaiter_webhook_refused_total{reason="action",receiver="local"} 2`,
		`tidewaiter_webhook_refused_total{reason="malformed",receiver="local"} 2`,
		// Receivers are shown before they have had anything to do.
		`tidewaiter_queue_jobs{receiver="local",state="waiting"} 0`,
		`tidewaiter_queue_jobs{receiver="local",state="leased"} 0`,
		`tidewaiter_queue_jobs{receiver="local",state="dead"} 0`,
		`tidewaiter_queue_jobs{receiver="script",state="dead"} 0`,
		`tidewaiter_queue_oldest_job_age_seconds{receiver="script"} 0`,
	)
	h.checkNoSecret(t)
}
