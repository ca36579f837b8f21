package main

import (
	"crypto/tls"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/internal/cli"
)

// askedServer is a server that refuses everybody and keeps whom it was asked by.
type askedServer struct {
	*httptest.Server
	ca string // file

	mu    sync.Mutex
	asked []string
}

func newAskedServer(t *testing.T) *askedServer {
	t.Helper()
	s := &askedServer{ca: filepath.Join(t.TempDir(), "ca.crt")}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		who := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if len(r.TLS.PeerCertificates) > 0 {
			who += " with a certificate"
		}
		s.asked = append(s.asked, who)
		http.Error(w, "no", http.StatusUnauthorized)
	}))
	s.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	s.StartTLS()
	t.Cleanup(s.Close)
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(s.ca, block, 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// by is whom the server was asked by, the first time since by was called last.
func (s *askedServer) by() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := "nobody"
	if len(s.asked) > 0 {
		first = s.asked[0]
	}
	s.asked = nil
	return first
}

// kubeconfig names the server, with a token.
func (s *askedServer) kubeconfig(t *testing.T, token string) string {
	t.Helper()
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: s.URL, CertificateAuthority: s.ca}
	c.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token}
	c.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	c.CurrentContext = "x"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*c, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// Which server a verb asks, and as whom: what is named goes before the server that holds
// the data directory, that before KUBECONFIG, and a token before every other credential.
// The first line on standard error says which.
func TestWhichServerIsAsked(t *testing.T) {
	folder := t.TempDir()
	t.Chdir(folder)
	one, other := newAskedServer(t), newAskedServer(t)
	local := serveOn(t, filepath.Join(folder, cli.DefaultDataDir), listen(t)).Host
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("from-a-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	kubeconfig, fromEnv := one.kubeconfig(t, "in-kubeconfig"), other.kubeconfig(t, "in-KUBECONFIG")
	for _, tc := range []struct {
		name       string
		args       []string
		kubeconfig string // of the environment
		token      string // of the environment
		where      string
		one, other string // whom they are asked by
	}{
		{"--kubeconfig", []string{"--kubeconfig", kubeconfig}, fromEnv, "", one.URL + " (" + kubeconfig + ")", "in-kubeconfig", "nobody"},
		{"--kubeconfig and --server", []string{"--kubeconfig", kubeconfig, "--server", other.URL, "--certificate-authority", other.ca}, "", "",
			other.URL, "nobody", "in-kubeconfig"},
		{"--server alone", []string{"--server", one.URL, "--certificate-authority", one.ca}, fromEnv, "", one.URL + " (--server)", "", "nobody"},
		{"--server and --token", []string{"--server", one.URL, "--certificate-authority", one.ca, "--token", "given"}, "", "in-env", one.URL, "given", "nobody"},
		{"--server and --token-file", []string{"--server", one.URL, "--certificate-authority", one.ca, "--token-file", file}, "", "in-env", one.URL, "from-a-file", "nobody"},
		{"--server and the environment's token", []string{"--server", one.URL, "--certificate-authority", one.ca}, "", "in-env", one.URL, "in-env", "nobody"},
		{"--kubeconfig and --token", []string{"--kubeconfig", kubeconfig, "--token", "given"}, "", "", one.URL, "given", "nobody"},
		{"the directory before KUBECONFIG", nil, fromEnv, "", local + " (which holds ./tidewaiter-data)", "nobody", "nobody"},
		{"KUBECONFIG, as none holds the directory", nil, fromEnv, "", other.URL + " (KUBECONFIG)", "nobody", "in-KUBECONFIG"},
		{"KUBECONFIG and a token", []string{"--token", "given"}, fromEnv, "", other.URL, "nobody", "given"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", tc.kubeconfig)
			t.Setenv(tokenEnv, tc.token)
			if strings.HasPrefix(tc.name, "KUBECONFIG") {
				t.Chdir(t.TempDir())
			}
			for _, verb := range [][]string{{"spool", "list"}, {"verify", "--all"}, {"import", "127.0.0.1:1/a:b"}} {
				_, _, stderr := tidewaiter(t, append(verb, tc.args...)...)
				first, _, _ := strings.Cut(stderr, "\n")
				where := strings.TrimPrefix(strings.TrimPrefix(first, "importing into "), "asking ")
				if !strings.HasPrefix(where, tc.where) {
					t.Errorf("%v: the first line is %q, want %q:\n%s", verb, first, tc.where, stderr)
				}
				if verb[0] == "import" {
					one.by() // the reference cannot be reached: who is asked first is the registry
					other.by()
					continue
				}
				if got := one.by(); got != tc.one {
					t.Errorf("%v: the one was asked by %q, want %q:\n%s", verb, got, tc.one, stderr)
				}
				if got := other.by(); got != tc.other {
					t.Errorf("%v: the other was asked by %q, want %q:\n%s", verb, got, tc.other, stderr)
				}
			}
		})
	}
}

// A token is in the place of the local server's credential, too.
func TestTokenForTheServerThatHoldsTheDirectory(t *testing.T) {
	dir := t.TempDir()
	config := serveOn(t, dir, listen(t))
	if code, _, stderr := tidewaiter(t, "spool", "list", "--data-dir", dir); code != cli.ExitOK {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if code, _, stderr := tidewaiter(t, "spool", "list", "--data-dir", dir, "--token", "wrong"); code == cli.ExitOK || !strings.Contains(stderr, "rejected the credential") {
		t.Errorf("with a wrong token: exit code %d: %s", code, stderr)
	}
	if code, _, stderr := tidewaiter(t, "spool", "list", "--data-dir", dir, "--token", config.BearerToken); code != cli.ExitOK {
		t.Errorf("with a token: exit code %d: %s", code, stderr)
	}
}

// No import makes a data directory unless it is told to, and what is written where is in
// what it prints.
func TestImportMakesNoDataDirectory(t *testing.T) {
	t.Chdir(t.TempDir())
	registry := registrytest.New(t)
	reference := registry.Host + "/team/app:v1"
	pushed(t, registry, "team/app:v1", `{"os":"linux","architecture":"amd64"}`, nil)
	for _, args := range [][]string{{reference}, {"--data-dir", "elsewhere", reference}, {"--token", "x", reference}} {
		code, _, stderr := tidewaiter(t, append([]string{"import"}, args...)...)
		if code != cli.ExitNone || !strings.Contains(stderr, "hint: ") || !strings.Contains(stderr, "--server") {
			t.Errorf("%v: exit code %d: %s", args, code, stderr)
		}
		if left := entries(t, "."); len(left) > 0 {
			t.Fatalf("%v made %v", args, left)
		}
	}
	for args, want := range map[string]string{
		"--create-data-dir --server https://127.0.0.1:1": "without a server", "--server 127.0.0.1:1": "does not begin with https://",
		"--server http://127.0.0.1:1": "does not begin with https://", "--data-dir x --kubeconfig y": "conflicts with",
		"--token a --token-file b": "token-file",
	} {
		code, _, stderr := tidewaiter(t, append([]string{"import", reference}, strings.Fields(args)...)...)
		if code != cli.ExitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d: %s", args, code, stderr)
		}
	}
	for _, format := range []string{"json", "jsonl", "yaml"} { // the first time it is made
		args := []string{"import", "-o", format, reference}
		if len(entries(t, ".")) == 0 {
			args = append(args, "--create-data-dir")
		}
		code, stdout, stderr := tidewaiter(t, args...)
		var first struct{ Destination string }
		// A stream of JSON documents is one, too.
		if err := yaml.NewYAMLOrJSONDecoder(strings.NewReader(stdout), 1<<10).Decode(&first); err != nil || code != cli.ExitOK || first.Destination != cli.DefaultDataDir {
			t.Errorf("-o %s: exit code %d, %v, %+v: %s", format, code, err, first, stderr)
		}
		if !strings.HasPrefix(stderr, "importing into "+cli.DefaultDataDir+" (a data directory that no server holds)\n") {
			t.Errorf("the first line: %s", stderr)
		}
	}
}
