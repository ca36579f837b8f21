package web

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

func load(t testing.TB) *Credentials {
	t.Helper()
	c, err := LoadCredentials(t.TempDir(), ServingHosts(net.IPv4(127, 0, 0, 1)), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c.reload.clock = settledClock{}
	return c
}

// settledClock is ahead, so that every file has settled.
type settledClock struct{ clock.RealClock }

func (settledClock) Now() time.Time { return time.Now().Add(time.Hour) }

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
		"nothing":         {"", 0o600},
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
	// What was revoked stays so without its list, until the server is started again.
	list, err := os.ReadFile(c.revoked.file)
	if err == nil {
		err = os.Remove(c.revoked.file)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.reload.checkFiles()
	if !c.revoked.has(own[0]) {
		t.Error("without its list, the administrator's certificate is good again")
	}
	if err := os.WriteFile(c.revoked.file, list, 0o644); err != nil {
		t.Fatal(err)
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

// Servers that share a directory of credentials all take what was rotated there. Nothing else is
// touched, and no data directory is made.
func TestRotateShared(t *testing.T) {
	shared, at := t.TempDir(), t.TempDir()
	var servers []*Credentials
	for _, name := range []string{"one", "two"} {
		c, err := LoadSharedCredentials(filepath.Join(at, name), shared, nil, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		c.reload.clock = settledClock{}
		servers = append(servers, c)
	}
	before, err := servers[0].adminToken()
	if err != nil {
		t.Fatal(err)
	}
	old, err := servers[0].ownCertificates([]string{servers[0].adminCertFile})
	if err != nil {
		t.Fatal(err)
	}
	none := filepath.Join(at, "none")
	token, err := Rotate(none, Rotation{PKIDir: shared, SigningKey: true}, time.Now())
	if err != nil || token == before {
		t.Fatalf("the token is %q, and was %q, %v", token, before, err)
	}
	for i, c := range servers {
		c.reload.checkFiles()
		if got, err := c.adminToken(); err != nil || got != token {
			t.Errorf("server %d takes the token %q, %v", i, got, err)
		}
		if !c.revoked.has(old[0]) {
			t.Errorf("server %d takes the old certificate", i)
		}
	}
	if _, err := os.Stat(none); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a data directory was made: %v", err)
	}
	if _, err := Rotate(none, Rotation{PKIDir: none}, time.Now()); err == nil || !strings.Contains(err.Error(), "servers share") {
		t.Errorf("of a directory that is not there: %v", err)
	}
	if _, err := Rotate(filepath.Join(at, "one"), Rotation{}, time.Now()); err == nil || !strings.Contains(err.Error(), "its own credentials") {
		t.Errorf("of a server that shares them: %v", err)
	}
}

// A file that cannot be read for a moment, as when there are no descriptors left, is read again
// although it does not change any more: else a revoked credential would stay good.
func TestFailedReloadIsTriedAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "revoked")
	r := reloader{clock: settledClock{}}
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

// A change counts only when it has settled: a file may be half written. The administrator's line is
// the first.
func TestHalfWrittenTokenFile(t *testing.T) {
	c := load(t)
	good, err := os.ReadFile(c.tokenFile)
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(c.tokenFile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// The group's name is cut to that of another.
	both := string(good) + "second,second,second,system:masters-of-nothing\n"
	write(both)
	c.reload.checkFiles()
	now := clocktesting.NewFakePassiveClock(time.Now())
	c.reload.clock = now
	for _, text := range []string{both[:len(both)-12], both[:len(good)+3], "", "\n", " "} {
		write(text)
		for range 2 {
			now.SetTime(now.Now().Add(time.Hour))
			c.reload.checkFiles()
		}
		resp, ok, err := c.tokens.AuthenticateToken(t.Context(), "second")
		if err != nil || !ok || !slices.Equal(resp.User.GetGroups(), []string{"system:masters-of-nothing"}) {
			t.Errorf("with %d bytes of %d the second token is of %+v, %v", len(text), len(both), resp, err)
		}
	}
	write(both)
	now.SetTime(now.Now().Add(time.Hour))
	c.reload.checkFiles()
	now.SetTime(time.Now())
	write(string(good))
	c.reload.checkFiles()
	if got := bearer(t, c.tokens, "second"); got != "second" {
		t.Errorf("while the file is written, the second token is of %q", got)
	}
	now.SetTime(time.Now().Add(settleFor))
	c.reload.checkFiles()
	if got := bearer(t, c.tokens, "second"); got != "" {
		t.Errorf("a token whose line was removed is of %q", got)
	}
}

// A file of keys that ends within one changes nothing: half a key would be left out without a word.
func TestHalfWrittenKeyFile(t *testing.T) {
	c := load(t)
	tokens, err := c.ServiceAccountTokens(NewAuthentication())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newSigningKey(c.signFile, c.publicFile); err != nil {
		t.Fatal(err)
	}
	c.reload.checkFiles()
	if n := len(tokens.GetPublicKeys(t.Context(), "")); n != 2 {
		t.Fatalf("there are %d keys", n)
	}
	data, err := os.ReadFile(c.publicFile)
	if err == nil {
		err = os.WriteFile(c.publicFile, data[:len(data)/2+40], 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := tokens.load(); err == nil {
		t.Error("half a key is left out without a word")
	}
	if n := len(tokens.GetPublicKeys(t.Context(), "")); n != 2 {
		t.Errorf("there are %d keys", n)
	}
}

// What a killed rotation left is removed, as it may hold a key or a token. What may still be
// written, and what is another's, stays.
func TestRemainsOfAKilledRotationAreRemoved(t *testing.T) {
	c := load(t)
	dir := filepath.Dir(c.Kubeconfig)
	old := time.Now().Add(-time.Hour)
	stays := map[string]bool{}
	leave := func(path string, at time.Time, kept bool) {
		t.Helper()
		stays[path] = kept
		if err := errors.Join(os.WriteFile(path, []byte("secret"), 0o600), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{c.tokenFile, c.adminKeyFile, c.adminCertFile, c.signFile, c.publicFile, c.revoked.file, c.Kubeconfig, c.CAKeyFile, c.serving.keyFile, c.localFile} {
		leave(filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+"-1234"), old, false)
	}
	leave(filepath.Join(dir, "pki", ".tokens.csv-99"), time.Now(), true)
	leave(filepath.Join(dir, "pki", ".tokens.csv-backup"), old, true)
	leave(filepath.Join(dir, "pki", "tokens.csv-77"), old, true)
	if _, err := LoadCredentials(dir, nil, time.Now()); err != nil {
		t.Fatal(err)
	}
	for path, kept := range stays {
		if _, err := os.Stat(path); (err == nil) != kept {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// An empty token file is replaced as its message says.
func TestEmptyTokenFileIsReplaced(t *testing.T) {
	c := load(t)
	dir := filepath.Dir(c.Kubeconfig)
	if err := os.Truncate(c.tokenFile, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := Rotate(dir, Rotation{}, time.Now()); err == nil || !strings.Contains(err.Error(), "remove it and run tidewaiter credentials rotate") {
		t.Errorf("it says %v", err)
	}
	if err := os.Remove(c.tokenFile); err != nil {
		t.Fatal(err)
	}
	token, err := Rotate(dir, Rotation{}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c.reload.checkFiles()
	if got := bearer(t, c.tokens, token); got != adminUser {
		t.Errorf("the new token is of %q", got)
	}
}
