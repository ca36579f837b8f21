package web

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/tidewaiter/tidewaiter/db/trusted"
)

func load(t testing.TB) *Credentials {
	t.Helper()
	c, err := LoadCredentials(t.TempDir(), ServingHosts(net.IPv4(127, 0, 0, 1)), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// bearer returns the name of a token's bearer, or "".
func bearer(t testing.TB, a authenticator.Token, token string) string {
	t.Helper()
	r, ok, err := a.AuthenticateToken(t.Context(), token)
	if err != nil || !ok {
		return ""
	}
	return r.User.GetName()
}

// A token file that cannot be read changes nothing. An editor that empties a file first
// must lock nobody out, and a file that others can read is not to be trusted.
func TestBrokenTokenFileLocksNobodyOut(t *testing.T) {
	c := load(t)
	good, err := os.ReadFile(c.tokenFile)
	if err != nil {
		t.Fatal(err)
	}
	token, err := c.adminToken()
	if err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string]struct {
		text string
		mode os.FileMode
	}{
		"one column":      {"lonely\n", 0o600},
		"an open quote":   {`a,b,"c` + "\n", 0o600},
		"others read it":  {"planted,admin,admin,system:masters\n", 0o644},
		"others write it": {"planted,admin,admin,system:masters\n", 0o622},
	} {
		if err := errors.Join(os.WriteFile(c.tokenFile, []byte(file.text), file.mode), os.Chmod(c.tokenFile, file.mode)); err != nil {
			t.Fatal(err)
		}
		c.reload.checkFiles()
		if got := bearer(t, c.tokens, token); got != adminUser {
			t.Errorf("%s: the administrator is %q", name, got)
		}
		if got := bearer(t, c.tokens, "planted"); got != "" {
			t.Errorf("%s: a planted token is of %q", name, got)
		}
	}
	// A rename cannot be seen half-way, and the new file may have the old one's time.
	if err := trusted.Replace(c.tokenFile, append(good, "added,somebody,somebody\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	c.reload.checkFiles()
	if got := bearer(t, c.tokens, "added"); got != "somebody" {
		t.Errorf("a token that was added is of %q", got)
	}
}

// A list of revoked certificates counts only if the authority signed it.
func TestForgedRevocationsAreIgnored(t *testing.T) {
	c, stranger := load(t), load(t)
	own, err := c.ownCertificates([]string{c.adminCertFile})
	if err != nil {
		t.Fatal(err)
	}
	if err := stranger.revoked.add(time.Now(), own...); err != nil {
		t.Fatal(err)
	}
	forged, err := os.ReadFile(stranger.revoked.file)
	if err != nil {
		t.Fatal(err)
	}
	for name, list := range map[string][]byte{"of another authority": forged, "nothing": nil, "no list": []byte("serial\n")} {
		if err := os.WriteFile(c.revoked.file, list, 0o644); err != nil {
			t.Fatal(err)
		}
		c.reload.checkFiles()
		if c.revoked.has(own[0]) {
			t.Errorf("a list %s revoked the administrator's certificate", name)
		}
		if err := c.revoked.add(time.Now(), own...); err == nil {
			t.Errorf("a list %s was taken for ours and written over", name)
		}
	}
	if err := os.Remove(c.revoked.file); err != nil {
		t.Fatal(err)
	}
	if err := c.revoked.add(time.Now(), own...); err != nil {
		t.Fatal(err)
	}
	c.reload.checkFiles()
	if !c.revoked.has(own[0]) {
		t.Error("the authority's own list does not count")
	}
	// The next start has another certificate.
	again, err := LoadCredentials(filepath.Dir(c.Kubeconfig), nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	fresh, err := again.ownCertificates([]string{again.adminCertFile})
	if err != nil || again.revoked.has(fresh[0]) || !again.revoked.has(own[0]) {
		t.Errorf("after a restart: %v", err)
	}
}

// Every rotation revokes one certificate more, and none is forgotten.
func TestRotationsForgetNoCertificate(t *testing.T) {
	c := load(t)
	dir := filepath.Dir(c.Kubeconfig)
	var revoked []string
	for range 3 {
		revoked = append(revoked, filepath.Join(t.TempDir(), "old.crt"))
		cert, err := os.ReadFile(c.adminCertFile)
		if err == nil {
			err = os.WriteFile(revoked[len(revoked)-1], cert, 0o644)
		}
		if err == nil {
			_, err = Rotate(dir, Rotation{}, time.Now())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	c.reload.checkFiles()
	certs, err := c.ownCertificates(revoked)
	if err != nil {
		t.Fatal(err)
	}
	for i, cert := range certs {
		if !c.revoked.has(cert) {
			t.Errorf("certificate %d is good", i)
		}
	}
}

// A file that cannot be read for a moment, as when there are no descriptors left, is read again
// although it does not change any more: else a revoked credential would stay good.
func TestFailedReloadIsTriedAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "revoked")
	var r reloader
	var fault error
	loads := 0
	load := func() error { loads++; return fault }
	if err := r.watchFiles(load, file); err != nil {
		t.Fatal(err)
	}
	if r.checkFiles() {
		t.Error("a file that did not change was read again")
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fault = syscall.EMFILE
	for range 2 {
		if r.checkFiles() {
			t.Error("a file was used that could not be read")
		}
	}
	fault = nil
	if !r.checkFiles() {
		t.Error("a reload that failed was not tried again")
	}
	if r.checkFiles() || loads != 4 {
		t.Errorf("the file was read %d times, want 4", loads)
	}
}
