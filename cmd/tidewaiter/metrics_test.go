package main

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
	"github.com/tidewaiter/tidewaiter/web/admin"
)

// monitored is a server with a receiver of webhooks that follows a cluster which is away, and what
// asks it for a path.
func monitored(t *testing.T) (ask func(method, path string) (code int, body string)) {
	t.Helper()
	config := servertest.WriteConfig(t, "receivers:\n- {name: local, type: generic, hosts: [127.0.0.1:1], secretFile: secret}\nclusters:\n- {name: away, kubeconfig: away.kubeconfig}\n")
	for name, text := range map[string]string{
		"secret":          "a-secret-that-nobody-guesses",
		"away.kubeconfig": "{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}], clusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}], users: [{name: a, user: {token: t}}]}",
	} {
		if err := os.WriteFile(filepath.Join(filepath.Dir(config), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at := serveWith(t, server.Options{DataDir: t.TempDir(), ConfigFile: config, Isolated: true}, listen(t))
	client := httpClient(t, at)
	return func(method, path string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), method, at.Host+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(body)
	}
}

// Each metric of ours that a server shows is in docs/reference/metrics.md, and follows Prometheus'
// conventions.
func TestMetricsDocument(t *testing.T) {
	document, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, shown := monitored(t)(http.MethodGet, "/metrics")
	names := regexp.MustCompile(`(?m)^# TYPE (tidewaiter_\S+)`).FindAllStringSubmatch(shown, -1)
	if len(names) < 20 {
		t.Fatalf("%d metrics were found", len(names))
	}
	for _, name := range names {
		if !regexp.MustCompile("`" + name[1] + "[`{]").Match(document) {
			t.Errorf("docs/reference/metrics.md does not name %s", name[1])
		}
	}
	problems, err := promlint.New(bytes.NewReader([]byte(shown))).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "tidewaiter_") { // others are Kubernetes'
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// A server that serves is ready, and tells apart that a cluster is away and that a registry is.
// Each says why.
func TestHealth(t *testing.T) {
	ask := monitored(t)
	if code, body := ask(http.MethodGet, "/readyz"); code != http.StatusOK {
		t.Errorf("/readyz: %d %s", code, body)
	}
	if code, body := ask(http.MethodGet, server.HealthPath+"/importing"); code != http.StatusOK {
		t.Errorf("importing: %d %s", code, body)
	}
	if code, body := ask(http.MethodGet, server.HealthPath+"/following"); code != http.StatusInternalServerError || !strings.Contains(body, "the pods of cluster away are not known yet") {
		t.Errorf("following: %d %s", code, body)
	}
	if code, body := ask(http.MethodGet, server.HealthPath); code != http.StatusInternalServerError || !strings.Contains(body, "[+]importing ok\n[-]following failed") {
		t.Errorf("both: %d %s", code, body)
	}
	if code, body := ask(http.MethodPost, admin.ImportsPath+"?reference=127.0.0.1:1/team/app:v1"); code/100 != 2 {
		t.Fatalf("asking for an import: %d %s", code, body)
	}
	servertest.Eventually(t, "a registry that is away", func() bool {
		code, body := ask(http.MethodGet, server.HealthPath+"/importing")
		return code == http.StatusInternalServerError && strings.Contains(body, "requests are paused to 127.0.0.1:1")
	})
}
