package main

import (
	"crypto/tls"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
)

// logAt has everything that is logged until the test ends, at a verbosity: 8 at most under the race
// detector (-short), since client-go's timing of requests, which begins at 9, races with the end of
// a request that is cancelled.
func logAt(t *testing.T, verbosity int) *servertest.LogBuffer {
	t.Helper()
	if testing.Short() {
		verbosity = min(verbosity, 8)
	}
	out, before := &servertest.LogBuffer{}, slog.Default()
	if err := setUpLogging(out, verbosity, logText); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		slog.SetDefault(before)
		flags := flag.NewFlagSet("klog", flag.ContinueOnError)
		klog.InitFlags(flags)
		if err := flags.Set("v", "0"); err != nil {
			t.Error(err)
		}
	})
	return out
}

// hookServer is a server with a receiver called harbour whose secret stands in the
// path.
func hookServer(t *testing.T, secret string) *rest.Config {
	t.Helper()
	config := servertest.WriteConfig(t, "receivers:\n- {name: harbour, type: quay, hosts: [quay.io], secretFile: secret}\n")
	if err := os.WriteFile(filepath.Join(filepath.Dir(config), "secret"), []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	return serveWith(t, server.Options{DataDir: t.TempDir(), ConfigFile: config}, listen(t))
}

func send(t *testing.T, config *rest.Config, method, path, token, body string) int {
	t.Helper()
	// Not client-go's, which logs requests itself.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), method, config.Host, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.URL.Opaque = "//" + req.URL.Host + path
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// Failed logins and refused hosts are warnings at the default verbosity, with address
// and path and without what was tried. A flood of them is a few lines.
func TestFailedLoginsAreWarnings(t *testing.T) {
	const secret, tried = "0123456789abcdef0123", "a-token-that-was-tried"
	out := logAt(t, 0)
	config := hookServer(t, secret)
	if code := send(t, config, "GET", "/api/v1/pods?token="+tried, tried, ""); code != 401 {
		t.Fatalf("%d", code)
	}
	if code := send(t, config, "POST", "/hooks/harbour/"+tried, "", "{}"); code != 401 {
		t.Fatalf("%d", code)
	}
	if code := send(t, config, "POST", "/hooks/"+tried, "", "{}"); code != 401 {
		t.Fatalf("%d", code)
	}
	if code := send(t, config, "POST", "/hooks/harbour/"+secret, "", "[]"); code != 200 {
		t.Errorf("a payload that means nothing: %d", code)
	}
	body := `{"name":"app","repository":"team/app","namespace":"team","docker_url":"evil.example.com/team/app","updated_tags":["v1"]}`
	if code := send(t, config, "POST", "/hooks/harbour/"+secret, "", body); code != 200 {
		t.Errorf("a host that is not accepted: %d", code)
	}
	got := out.String()
	for _, want := range []string{
		`level=WARN msg="authentication failed" address=127.0.0.1:`, "method=GET path=/api/v1/pods ",
		`level=WARN msg="a webhook without the receiver's secret was refused" address=127.0.0.1:`, "path=/hooks/harbour ",
		`level=WARN msg="a webhook contains nothing that its receiver understands" receiver=harbour address=127.0.0.1:`,
		`level=WARN msg="a webhook reports a registry that its receiver does not cover" receiver=harbour host=evil.example.com address=127.0.0.1:`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the log lacks %s:\n%s", want, got)
		}
	}
	for range 200 {
		send(t, config, "GET", "/api", tried, "")
	}
	if lines := strings.Count(out.String(), "\n"); lines > strings.Count(got, "\n")+1 {
		t.Errorf("200 failed logins made %d lines of %d:\n%.1000s", lines, strings.Count(got, "\n"), out.String()[len(got):])
	}
	for _, s := range []string{secret, tried} {
		if strings.Contains(out.String(), s) {
			t.Errorf("the log holds %q:\n%s", s, out)
		}
	}
}

// A secret that stands in the path of a webhook is in no log, however much is logged
// and however the path is written.
func TestPathSecretsAreInNoLog(t *testing.T) {
	const secret = "0123456789abcdef0123"
	out := logAt(t, 10)
	config := hookServer(t, secret)
	for _, method := range []string{"POST", "GET", "OPTIONS"} {
		for _, path := range []string{
			"/hooks/harbour/" + secret, "/hooks/harbour/" + secret + "/", "//hooks/harbour/" + secret, "/./hooks/harbour/" + secret,
			"/x/../hooks/harbour/" + secret, "/hook%73/harbour/" + secret, "/hooks%2fharbour%2f" + secret, "/Hooks/harbour/" + secret, "/hooks/absent/" + secret,
			"/hooks/harbour/" + secret + "?x=%zz", "/hooks/" + secret,
		} {
			send(t, config, method, path, "", "{}")
			send(t, config, method, path, "wrong", fmt.Sprintf("{%q:1}", "x"))
		}
	}
	got := out.String()
	if !strings.Contains(got, "msg=Webhook") || !strings.Contains(got, "msg=HTTP") {
		t.Errorf("the requests are not logged, so nothing is shown:\n%.2000s", got)
	}
	if i := strings.Index(got, secret); i >= 0 {
		t.Errorf("the log holds the secret: %s", got[max(0, i-500):min(len(got), i+100)])
	}
}
