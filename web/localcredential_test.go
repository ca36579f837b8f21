package web

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

func localCredentialFile(t testing.TB) (dir string, data []byte) {
	t.Helper()
	dir = t.TempDir()
	c, err := LoadCredentials(dir, ServingHosts(net.IPv4(127, 0, 0, 1)), time.Now())
	if err == nil {
		err = c.WriteLocal("https://127.0.0.1:6443")
	}
	if err != nil {
		t.Fatal(err)
	}
	data, err = os.ReadFile(c.localFile)
	if err != nil {
		t.Fatal(err)
	}
	return dir, data
}

func TestLocalConfig(t *testing.T) {
	dir, data := localCredentialFile(t)
	config, err := LocalConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	if config.Host != "https://127.0.0.1:6443" || config.BearerToken == "" || len(config.CAData) == 0 || config.Insecure || config.ExecProvider != nil {
		t.Errorf("%s", config)
	}
	file := filepath.Join(dir, "pki", "local.json")
	before, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	// A second start at the same address writes nothing, because on a full disk it could not.
	c, err := LoadCredentials(dir, ServingHosts(net.IPv4(127, 0, 0, 1)), time.Now())
	if err == nil {
		err = c.WriteLocal("https://127.0.0.1:6443")
	}
	if err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(file); err != nil || !os.SameFile(before, after) {
		t.Errorf("the credential was written anew: %v", err)
	}
	// A file that cannot be parsed is recreated, with another token.
	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	var invalid *localError
	if _, err := LocalConfig(dir); !errors.As(err, &invalid) {
		t.Errorf("a broken credential: %v", err)
	}
	if c, err = LoadCredentials(dir, nil, time.Now()); err != nil || c.local.Token == config.BearerToken {
		t.Errorf("%v, or the token of a broken credential", err)
	}
	if err := errors.Join(os.WriteFile(file, data, 0o600), os.Chmod(file, 0o640)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	var refused *trusted.Error
	if _, err := LocalConfig(dir); !errors.As(err, &refused) {
		t.Errorf("a credential that others read: %v", err)
	}
}

// Somebody who can write to a folder puts another file in the place of the credential, which then
// leads elsewhere. The file alone does not show that. So a verb uses no credential from a folder
// that others can write.
func TestPlantedLocalCredential(t *testing.T) {
	t.Parallel()
	dir, _ := localCredentialFile(t)
	for _, folder := range []string{dir, filepath.Join(dir, "pki")} {
		before, err := os.Stat(folder)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(folder, 0o777); err != nil {
			t.Fatal(err)
		}
		var refused *trusted.Error
		if _, err := LocalConfig(dir); !errors.As(err, &refused) {
			t.Errorf("%s can be written by every user: %v", folder, err)
		}
		if err := os.Chmod(folder, before.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := LocalConfig(dir); err != nil {
		t.Error(err)
	}
}

func TestLocalCredentialIsStrict(t *testing.T) {
	_, data := localCredentialFile(t)
	edit := func(name string, value any) string {
		var m map[string]any
		if err := json.Unmarshal(data, &m); err != nil {
			t.Fatal(err)
		}
		m[name] = value
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for name, text := range map[string]string{
		"a program":      edit("exec", map[string]string{"command": "sh"}),
		"plain HTTP":     edit("server", "http://127.0.0.1:6443"),
		"a host name":    edit("server", "https://evil.example.com:6443"),
		"a path":         edit("server", "https://127.0.0.1:6443/x"),
		"a user":         edit("server", "https://u:p@127.0.0.1:6443"),
		"no port":        edit("server", "https://127.0.0.1"),
		"no authority":   edit("certificateAuthority", ""),
		"a key":          edit("certificateAuthority", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"),
		"a short token":  edit("token", "AAAA"),
		"a line in it":   edit("token", "\n"+strings.Repeat("A", 43)),
		"more after it":  string(data) + "{}",
		"nothing":        "",
		"a kubeconfig":   "apiVersion: v1\nkind: Config\n",
		"one in JSON":    `{"apiVersion":"v1","kind":"Config","users":[]}`,
		"a list of them": "[" + string(data) + "]",
	} {
		if l, err := parseLocal([]byte(text)); err == nil {
			t.Errorf("%s: %+v was accepted", name, l)
		}
	}
}

// A credential that is accepted names an address, an authority and a token, and nothing else.
func FuzzLocalCredential(f *testing.F) {
	_, data := localCredentialFile(f)
	f.Add(data)
	f.Add([]byte(`{"server":"https://[::1]:1","certificateAuthority":"","token":""}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := parseLocal(data)
		if err != nil {
			return
		}
		config := l.config()
		if config.ExecProvider != nil || config.AuthProvider != nil || config.Insecure || !strings.HasPrefix(config.Host, "https://") {
			t.Fatalf("%s", config)
		}
		if _, err := rest.HTTPClientFor(config); err != nil {
			t.Fatalf("an accepted credential makes no client: %v", err)
		}
		again, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := parseLocal(again); err != nil || *b != *l {
			t.Fatalf("%+v became %+v, %v", l, b, err)
		}
	})
}
