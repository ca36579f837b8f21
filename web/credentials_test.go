package web_test

import (
	"bytes"
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	certutil "k8s.io/client-go/util/cert"

	"github.com/tidewaiter/tidewaiter/internal/trusted"
	"github.com/tidewaiter/tidewaiter/web"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func read(t *testing.T, elem ...string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestLoadCredentialsKeepsWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	files := []string{"pki/ca.crt", "pki/ca.key", "pki/serving.crt", "pki/serving.key", "pki/tokens.csv"}
	first := map[string][]byte{}
	for round := range 2 {
		c, err := web.LoadCredentials(dir, []string{"localhost", "127.0.0.1"}, now)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.WriteKubeconfig("https://127.0.0.1:1"); err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			b := read(t, dir, f)
			if round == 1 && !bytes.Equal(first[f], b) {
				t.Errorf("%s changed on the second start", f)
			}
			first[f] = b
		}
	}
}

func TestSecretsAreTheOwnersAlone(t *testing.T) {
	dir := t.TempDir()
	c, err := web.LoadCredentials(dir, []string{"localhost"}, now)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.WriteKubeconfig("https://127.0.0.1:1"); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]fs.FileMode{
		"pki": 0o700, "pki/ca.key": 0o600, "pki/serving.key": 0o600, "pki/tokens.csv": 0o600, "admin.kubeconfig": 0o600, "pki/ca.crt": 0o644,
	} {
		info, err := os.Stat(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", file, got, want)
		}
	}
}

func TestServingCertificateIsRenewed(t *testing.T) {
	tests := []struct {
		name  string
		hosts []string
		now   time.Time
		spoil func(t *testing.T, dir string)
		renew bool
	}{
		{name: "same hosts, same day", hosts: []string{"localhost", "127.0.0.1"}, now: now},
		{name: "fewer hosts", hosts: []string{"127.0.0.1"}, now: now},
		{name: "a new address", hosts: []string{"localhost", "192.0.2.1"}, now: now, renew: true},
		{name: "soon to end", hosts: []string{"localhost"}, now: now.Add(336 * 24 * time.Hour), renew: true},
		{name: "not valid yet", hosts: []string{"localhost"}, now: now.Add(-48 * time.Hour), renew: true},
		{name: "key lost", hosts: []string{"localhost"}, now: now, renew: true, spoil: func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, "pki/serving.key")); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "certificate unreadable", hosts: []string{"localhost"}, now: now, renew: true, spoil: func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, "pki/serving.crt"), []byte("-----BEGIN"), 0o644); err != nil {
				t.Fatal(err)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if _, err := web.LoadCredentials(dir, []string{"localhost", "127.0.0.1"}, now); err != nil {
				t.Fatal(err)
			}
			before := read(t, dir, "pki/serving.crt")
			if tt.spoil != nil {
				tt.spoil(t, dir)
			}
			if _, err := web.LoadCredentials(dir, tt.hosts, tt.now); err != nil {
				t.Fatal(err)
			}
			after := read(t, dir, "pki/serving.crt")
			if renewed := !bytes.Equal(before, after); renewed != tt.renew {
				t.Fatalf("renewed: %v, want %v", renewed, tt.renew)
			}
			certs, err := certutil.ParseCertsPEM(after)
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range tt.hosts {
				if err := certs[0].VerifyHostname(h); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestHalfAnAuthorityIsAnError(t *testing.T) {
	dir := t.TempDir()
	if _, err := web.LoadCredentials(dir, []string{"localhost"}, now); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "pki/ca.key")); err != nil {
		t.Fatal(err)
	}
	_, err := web.LoadCredentials(dir, []string{"localhost"}, now)
	if err == nil || !strings.Contains(err.Error(), "ca.key") {
		t.Fatalf("error %v, want one that names ca.key", err)
	}
}

// If a certificate was never written, or was lost, it is made of the key again. Clients
// that trust the old one are served.
func TestAuthorityWithoutItsCertificate(t *testing.T) {
	dir := t.TempDir()
	if _, err := web.LoadCredentials(dir, []string{"localhost"}, now); err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(read(t, dir, "pki/ca.crt"))
	for _, lost := range []string{"pki/ca.crt", "pki/serving.crt"} {
		if err := os.Remove(filepath.Join(dir, lost)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := web.LoadCredentials(dir, []string{"localhost"}, now); err != nil {
		t.Fatal(err)
	}
	certs, err := certutil.ParseCertsPEM(read(t, dir, "pki/serving.crt"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := certs[0].Verify(x509.VerifyOptions{DNSName: "localhost", Roots: trusted, CurrentTime: now}); err != nil {
		t.Error(err)
	}
}

func TestTokenFileWithoutAnAdministrator(t *testing.T) {
	dir := t.TempDir()
	c, err := web.LoadCredentials(dir, []string{"localhost"}, now)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "pki/tokens.csv"), []byte("abc,viewer,1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.WriteKubeconfig("https://127.0.0.1:1"); err == nil || strings.Contains(err.Error(), "abc") {
		t.Fatalf("error %v, want one without the token", err)
	}
}

// TestSharedCredentials: servers that start at once over one directory of credentials know the same
// callers, and each has its own serving certificate. A directory that is missing, or that others
// can write, is refused.
func TestSharedCredentials(t *testing.T) {
	t.Parallel()
	shared := filepath.Join(t.TempDir(), "pki")
	if _, err := web.LoadSharedCredentials(t.TempDir(), shared, nil, time.Now()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory that is missing: %v", err)
	}
	if err := os.Mkdir(shared, 0o700); err != nil {
		t.Fatal(err)
	}
	const servers = 4
	dirs, made := make([]string, servers), make([]bool, servers)
	var loading sync.WaitGroup
	for i := range servers {
		dirs[i] = t.TempDir()
		loading.Go(func() {
			c, err := web.LoadSharedCredentials(dirs[i], shared, []string{"localhost"}, time.Now())
			if err != nil {
				t.Error(err)
				return
			}
			made[i] = c.AuthorityMade()
		})
	}
	loading.Wait()
	n := 0
	for i := range servers {
		if made[i] {
			n++
		}
		for file, want := range map[string]bool{"serving.crt": true, "serving.key": true, "ca.crt": false, "ca.key": false, "tokens.csv": false, "sa.key": false} {
			if _, err := os.Stat(filepath.Join(dirs[i], "pki", file)); (err == nil) != want {
				t.Errorf("%s in the server's own directory: %v", file, err)
			}
		}
	}
	if n != 1 {
		t.Errorf("the authority was made by %d servers", n)
	}
	for _, file := range []string{"ca.crt", "ca.key", "tokens.csv"} {
		if _, err := os.Stat(filepath.Join(shared, file)); err != nil {
			t.Error(err)
		}
	}
	if err := os.Chmod(shared, 0o777); err != nil {
		t.Fatal(err)
	}
	var distrusted *trusted.Error
	if _, err := web.LoadSharedCredentials(dirs[0], shared, nil, time.Now()); !errors.As(err, &distrusted) {
		t.Errorf("a directory that others can write: %v", err)
	}
}
