package e2e

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// One process owns a data directory, and the second is told which.
func TestDataDirectoryHasOneOwner(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t)
	got := harness.Run(t, harness.ServeCommand(t, s.DataDir))
	if got.Code == 0 {
		t.Error("a second server took the data directory")
	}
	wantContains(t, "the message", got.Stderr, fmt.Sprint(s.PID()), s.DataDir)
	s.Kubectl(t, "get", "images") // the first is unharmed

	// A process that was killed holds nothing.
	s.Kill(t)
	harness.StartServerOn(t, s.DataDir)
}

// So does an import without a server, for as long as it runs.
func TestImportOwnsDataDirectory(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	dataDir := filepath.Join(t.TempDir(), "data")
	first := harness.Start(t, harness.ImportCommand(t, "--data-dir", dataDir, "--create-data-dir", silent.Addr().String()+"/team/app:v1"))
	harness.Eventually(t, func() error {
		_, err := os.Stat(filepath.Join(dataDir, "tidewaiter.db"))
		return err
	})
	second := harness.Run(t, harness.ImportCommand(t, "--data-dir", dataDir, "127.0.0.1:1/team/app:v1"))
	if second.Code != 2 {
		t.Errorf("exit code %d, want 2", second.Code)
	}
	wantContains(t, "the message", second.Stderr, dataDir, fmt.Sprint(first.PID()), "wait")
}

// A database of a newer program is refused, not guessed at.
func TestNewerDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t)
	if code := s.Terminate(t); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(s.DataDir, "tidewaiter.db"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("PRAGMA user_version = 9999"); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	got := harness.Run(t, harness.ServeCommand(t, s.DataDir))
	if got.Code == 0 {
		t.Error("exit code 0")
	}
	wantContains(t, "the message", got.Stderr, "9999", "newer", "tidewaiter.db")
}

func TestMisuseOfServe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, tc := range map[string]struct {
		args []string
		want []string
	}{
		"unknown flag":       {[]string{"--secure-prt", "0"}, []string{"--secure-port"}},
		"unknown command":    {nil, []string{"serve"}},
		"bind address":       {[]string{"--bind-address", "everywhere"}, []string{"everywhere", "--bind-address 127.0.0.1"}},
		"port":               {[]string{"--secure-port", "70000"}, []string{"70000"}},
		"data dir is a file": {[]string{"--data-dir", file("file", "")}, []string{filepath.Join(dir, "file")}},
		"config: missing":    {[]string{"--config", filepath.Join(dir, "none.yaml")}, []string{"none.yaml"}},
		"config: unknown key": {[]string{"--config", file("unknown.yaml", "registries:\n- prefix: a.example.com\n  secure: false\n")},
			[]string{"unknown.yaml", "secure", "3"}},
		"config: not YAML": {[]string{"--config", file("broken.yaml", "registries: [\n")}, []string{"broken.yaml"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := harness.ServeCommand(t, filepath.Join(t.TempDir(), "data"), tc.args...)
			if name == "unknown command" {
				c.Args[0] = "serv"
			}
			got := harness.Run(t, c)
			if got.Code == 0 {
				t.Error("exit code 0")
			}
			wantContains(t, "the message", got.Stderr, tc.want...)
			if strings.Contains(got.Stderr, "panic") || strings.Contains(got.Stderr, "goroutine ") {
				t.Errorf("a stack trace:\n%s", got.Stderr)
			}
		})
	}
}

// SIGTERM: a watch is ended as after its timeout, a request under way is
// answered, the exit code is 0, and a new start has everything.
func TestTerminationIsClean(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			s := harness.StartServer(t)
			s.KubectlStdin(t, plainImage("kept"), "create", "-f", "-")
			token := s.Config(t).BearerToken

			watch := openWatch(t, s)
			if event := watch.next(t); event.Object.Metadata.Name != "kept" {
				t.Fatalf("first event is of %q", event.Object.Metadata.Name)
			}
			s.Signal(t, sig)
			if left, err := io.ReadAll(watch.reader); err != nil {
				t.Errorf("the watch broke: %v", err)
			} else if len(left) > 0 {
				t.Errorf("the watch ended with %q", left)
			}
			if code := s.Wait(t); code != 0 {
				t.Errorf("exit code %d, want 0", code)
			}

			again := harness.StartServerOn(t, s.DataDir)
			again.Kubectl(t, "get", "image", "kept")
			if got := again.Config(t).BearerToken; got != token {
				t.Error("the administrator's token changed")
			}
			checkIntegrity(t, s.DataDir)
		})
	}
}

// watchStream is a watch as its bytes, for tests of how it ends.
type watchStream struct {
	reader *bufio.Reader
}

type watchEvent struct {
	Type   string
	Object struct {
		Metadata struct{ Name, ResourceVersion string }
	}
}

func openWatch(t *testing.T, s *harness.Server) *watchStream {
	t.Helper()
	client, err := rest.HTTPClientFor(s.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, s.Config(t).Host+imagesPath+"?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("watch: status %s", resp.Status)
	}
	return &watchStream{bufio.NewReader(resp.Body)}
}

func (w *watchStream) next(t *testing.T) watchEvent {
	t.Helper()
	line, err := w.reader.ReadBytes('\n')
	if err != nil {
		t.Fatalf("watch: %v", err)
	}
	var e watchEvent
	if err := json.Unmarshal(line, &e); err != nil {
		t.Fatalf("watch: %v: %s", err, line)
	}
	return e
}

// Everything a cluster's tools ask a Kubernetes server for is there.
func TestServerEndpoints(t *testing.T) {
	t.Parallel()
	s := harness.SharedServer(t)
	for path, want := range map[string][]string{
		"/healthz":                               {"ok"},
		"/livez?verbose":                         {"livez check passed"},
		"/readyz?verbose":                        {"readyz check passed"},
		"/version":                               {`"gitVersion"`, `"major"`},
		"/metrics":                               {"apiserver_request_total", "process_resident_memory_bytes"},
		"/api":                                   {"APIVersions"},
		"/apis":                                  {"image.openshift.io"},
		"/apis/image.openshift.io":               {`"preferredVersion"`, "image.openshift.io/v1"},
		"/apis/image.openshift.io/v1":            {`"name":"images"`, `"name":"imagesignatures"`, `"deletecollection"`},
		"/openapi/v2":                            {`"swagger":"2.0"`, "/apis/image.openshift.io/v1/images/{name}", "/apis/image.openshift.io/v1/watch/images"},
		"/openapi/v3":                            {"apis/image.openshift.io/v1"},
		"/openapi/v3/apis/image.openshift.io/v1": {`"openapi":"3.0.0"`, "dockerImageReference"},
	} {
		t.Run(path, func(t *testing.T) {
			wantContains(t, path, s.Kubectl(t, "get", "--raw", path), want...)
		})
	}
	t.Run("aggregated discovery", func(t *testing.T) {
		b, err := restClient(t, s.Config(t)).Get().AbsPath("/apis").
			SetHeader("Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList").Do(t.Context()).Raw()
		if err != nil {
			t.Fatal(err)
		}
		wantContains(t, "/apis", string(b), `"kind":"APIGroupDiscoveryList"`, `"resource":"images"`)
	})
}
