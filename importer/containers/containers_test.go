package containers

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"

	"github.com/tidewaiter/tidewaiter/internal/reference"
)

func writeFile(t *testing.T, text string, path ...string) string {
	t.Helper()
	file := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return file
}

func newFiles(t *testing.T, o Options) *Files {
	t.Helper()
	f, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// auths is a file of credentials, whose passwords are "p-" and the user.
func auths(users map[string]string) string {
	var entries []string
	for at, user := range users {
		entries = append(entries, fmt.Sprintf("%q:{\"auth\":%q}", at, base64.StdEncoding.EncodeToString([]byte(user+":p-"+user))))
	}
	return `{"auths":{` + strings.Join(entries, ",") + `}}`
}

func user(t *testing.T, f *Files, repository string) string {
	t.Helper()
	r, err := name.NewRepository(repository)
	if err != nil {
		t.Fatal(err)
	}
	auth, err := f.ResolveContext(t.Context(), r)
	if err != nil {
		t.Fatalf("%s: %v", repository, err)
	}
	c, err := authn.Authorization(t.Context(), auth)
	if err != nil {
		t.Fatal(err)
	}
	if c.Username != "" && c.Password != "p-"+c.Username {
		t.Errorf("%s: %q has the password %q", repository, c.Username, c.Password)
	}
	return c.Username
}

// Credentials for a part of a registry go before those for all of it, and Docker Hub is known
// by the name that docker login writes.
func TestLongestNameHasTheCredentials(t *testing.T) {
	t.Parallel()
	f := newFiles(t, Options{AuthFile: writeFile(t, auths(map[string]string{
		"registry.example.com":          "all",
		"registry.example.com/team":     "team",
		"registry.example.com/team/app": "app",
		"https://index.docker.io/v1/":   "hub",
		"port.example.com:443/team":     "port",
		"both.example.com:443":          "with-port",
		"both.example.com":              "without",
	}), t.TempDir(), "auth.json")})
	for repository, want := range map[string]string{
		// References name no port 443; files may.
		"port.example.com/team/app":         "port",
		"port.example.com/other":            "",
		"both.example.com/app":              "without",
		"registry.example.com/other":        "all",
		"registry.example.com/team/web":     "team",
		"registry.example.com/team/app":     "app",
		"registry.example.com/team/app/sub": "app",
		"registry.example.com/teams":        "all",
		"registry.example.com:5000/team":    "",
		"docker.io/library/busybox":         "hub",
		"busybox":                           "hub",
		"quay.io/x/y":                       "",
	} {
		if got := user(t, f, repository); got != want {
			t.Errorf("%s: the credentials of %q, want %q", repository, got, want)
		}
	}
}

// What podman login and docker login left counts together, as for skopeo.
func TestDockerAndPodmanFilesCountTogether(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_RUNTIME_DIR", filepath.Join(home, "run"))
	t.Setenv("XDG_CONFIG_HOME", "")
	// the home directory is looked up once for the process
	t.Setenv("DOCKER_CONFIG", filepath.Join(home, ".docker"))
	t.Setenv("REGISTRY_AUTH_FILE", "")
	writeFile(t, auths(map[string]string{"a.example.com": "podman", "both.example.com": "podman"}), home, "run/containers/auth.json")
	writeFile(t, auths(map[string]string{"b.example.com": "docker", "both.example.com": "docker"}), home, ".docker/config.json")
	f := newFiles(t, Options{})
	for repository, want := range map[string]string{"a.example.com/x": "podman", "b.example.com/x": "docker", "both.example.com/x": "podman", "c.example.com/x": ""} {
		if got := user(t, f, repository); got != want {
			t.Errorf("%s: the credentials of %q, want %q", repository, got, want)
		}
	}

	// A file that is named counts alone.
	t.Setenv("REGISTRY_AUTH_FILE", writeFile(t, auths(map[string]string{"c.example.com": "named"}), home, "named.json"))
	f = newFiles(t, Options{})
	for repository, want := range map[string]string{"a.example.com/x": "", "c.example.com/x": "named"} {
		if got := user(t, f, repository); got != want {
			t.Errorf("REGISTRY_AUTH_FILE, %s: the credentials of %q, want %q", repository, got, want)
		}
	}
	t.Setenv("REGISTRY_AUTH_FILE", filepath.Join(home, "none.json"))
	if _, err := New(Options{}); err == nil || !strings.Contains(err.Error(), "REGISTRY_AUTH_FILE") {
		t.Errorf("REGISTRY_AUTH_FILE of a file that is not there: %v", err)
	}
}

func TestNamedCredentialsAreForEveryRegistry(t *testing.T) {
	t.Parallel()
	c, err := ParseCredentials("me:p-me")
	if err != nil {
		t.Fatal(err)
	}
	if got := user(t, newFiles(t, Options{Credentials: c, Root: t.TempDir()}), "registry.example.com/x"); got != "me" {
		t.Errorf("the credentials of %q", got)
	}
	if c, err := ParseCredentials("me:a:b"); err != nil || c.Password != "a:b" {
		t.Errorf("a password with a colon: %+v, %v", c, err)
	}
	if _, err := ParseCredentials(":x"); err == nil {
		t.Error("no user name is accepted")
	}
}

func TestDamagedCredentialsAreAnError(t *testing.T) {
	t.Parallel()
	f := newFiles(t, Options{AuthFile: writeFile(t, "{", t.TempDir(), "auth.json")})
	r, err := name.NewRepository("registry.example.com/x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Resolve(r); err == nil {
		t.Error("they are taken for none")
	}
}

// A host's folder in certs.d has its authorities and client certificates; the user's goes before
// the system's.
func TestCertificatesOfAHost(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, len(r.TLS.PeerCertificates))
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	server.StartTLS()
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "https://")
	key, cert := keyPair(t)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))

	root, home := t.TempDir(), t.TempDir()
	writeFile(t, ca, root, "etc/containers/certs.d", host, "ca.crt")
	writeFile(t, cert, root, "etc/containers/certs.d", host, "me.cert")
	writeFile(t, key, root, "etc/containers/certs.d", host, "me.key")
	own := writeFile(t, ca, t.TempDir(), "own.crt")
	for name, o := range map[string]struct {
		Options
		certificates string // that the server saw; "" for no connection
	}{
		"nothing":       {Options{Root: t.TempDir(), Home: home}, ""},
		"certs.d":       {Options{Root: root, Home: home}, "1"},
		"--cert-dir":    {Options{Root: root, Home: home, CertDir: filepath.Dir(own)}, "0"},
		"configuration": {Options{Root: root, Home: home, CertDir: t.TempDir(), Hosts: map[string]Certificates{host: {CA: []byte(ca)}}}, "0"},
		"another host":  {Options{Root: t.TempDir(), Home: home, Hosts: map[string]Certificates{"x" + host: {CA: []byte(ca)}}}, ""},
	} {
		c, err := newFiles(t, o.Options).TLS(host)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: c}}
		got := ""
		if resp, err := client.Get(server.URL); err == nil {
			var b [8]byte
			n, _ := resp.Body.Read(b[:])
			got = string(b[:n])
			resp.Body.Close()
		}
		if got != o.certificates {
			t.Errorf("%s: the server saw %q certificates, want %q", name, got, o.certificates)
		}
	}

	writeFile(t, ca, home, ".config/containers/certs.d", "tls.example.com:443", "ca.crt")
	if c, err := newFiles(t, Options{Root: root, Home: home}).TLS("tls.example.com"); err != nil || c == nil {
		t.Errorf("a folder with port 443: %v, %v", c, err)
	}

	writeFile(t, "", home, ".config/containers/certs.d", host, "lonely.cert")
	if _, err := newFiles(t, Options{Root: root, Home: home}).TLS(host); err == nil || !strings.Contains(err.Error(), "lonely") {
		t.Errorf("the user's folder has a certificate without its key: %v", err)
	}
	for what, text := range map[string]string{"no certificate": "none", "a certificate and a half": ca + ca[:len(ca)/2]} {
		if _, err := newFiles(t, Options{Hosts: map[string]Certificates{host: {CA: []byte(text)}}}).TLS(host); err == nil {
			t.Errorf("a file with %s is accepted", what)
		}
	}
}

func TestRegistriesConf(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	writeFile(t, `
[[registry]]
location = "plain.example.com:5000"
insecure = true

[[registry]]
prefix = "evil.example.com/team"
location = "evil.example.com/team"
blocked = true

[[registry]]
location = "tls.example.com:443"
insecure = true
[[registry.mirror]]
location = "mirror.example.com:443/tls"
`, root, "etc/containers/registries.conf")
	f := newFiles(t, Options{Root: root})
	sources, err := f.PullSources(reference.Reference{Host: "tls.example.com", Repository: "team", Tag: "v1"})
	if err != nil || len(sources) != 2 || sources[0].Reference.String() != "mirror.example.com/tls/team:v1" || sources[1].Reference.String() != "tls.example.com/team:v1" {
		t.Errorf("an entry with port 443: %v, %v", sources, err)
	}
	for at, want := range map[string][2]bool{
		"plain.example.com:5000":      {true, false},
		"plain.example.com:5000/team": {true, false},
		"plain.example.com/team":      {false, false},
		"tls.example.com/team":        {true, false}, // no reference has port 443, and an entry may
		"evil.example.com/team/app":   {false, true},
		"evil.example.com/teams":      {false, false},
		"docker.io/library/busybox":   {false, false},
	} {
		insecure, blocked, err := f.Registry(at)
		if err != nil || insecure != want[0] || blocked != want[1] {
			t.Errorf("%s: insecure %t, blocked %t, %v", at, insecure, blocked, err)
		}
	}

	broken := t.TempDir()
	writeFile(t, "[[registry\n", broken, "etc/containers/registries.conf")
	if _, _, err := newFiles(t, Options{Root: broken}).Registry("docker.io"); err == nil {
		t.Error("a file that cannot be read is taken for none")
	}
	if _, _, err := newFiles(t, Options{Root: t.TempDir()}).Registry("docker.io"); err != nil {
		t.Errorf("no file: %v", err)
	}
}
