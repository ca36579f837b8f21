package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tidewaiter/e2e/harness"
	"tidewaiter/e2e/images"
	"tidewaiter/e2e/registry"
)

// Signatures by the real gpg, in lookaside storage that a registries.d file of the importing user names.
func TestGPGSignatures(t *testing.T) {
	program, err := exec.LookPath("gpg")
	if err != nil {
		t.Fatalf("gpg is needed (apt-get install gnupg): %v", err)
	}
	// Sockets of gpg-agent have short paths only.
	home, err := os.MkdirTemp("", "gpg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	gpg := func(args ...string) string {
		t.Helper()
		return harness.MustRun(t, harness.Command{Path: program, Env: []string{"GNUPGHOME=" + home}, Dir: home,
			Args: append([]string{"--batch", "--no-tty", "--pinentry-mode", "loopback", "--passphrase", ""}, args...)})
	}
	t.Cleanup(func() {
		harness.Run(t, harness.Command{Path: "gpgconf", Env: []string{"GNUPGHOME=" + home}, Args: []string{"--kill", "all"}})
	})
	algorithms := []string{"rsa2048", "ed25519", "nistp256"}
	for _, a := range algorithms {
		gpg("--quick-generate-key", a+" <"+a+"@example.com>", a, "sign", "1y")
	}
	gpg("--quick-generate-key", "stranger <stranger@example.com>", "ed25519", "sign", "1y")
	keyring := filepath.Join(home, "trusted.gpg")
	gpg(append([]string{"--armor", "--output", keyring, "--export"}, algorithms...)...)

	r := registry.Start(t, registry.Distribution)
	s := harness.StartServer(t, "--policy", writePolicy(t, fmt.Sprintf(`
apiVersion: config.openshift.io/v1
kind: ClusterImagePolicy
metadata: {name: gpg}
spec:
  scopes: ["%s"]
  policy:
    rootOfTrust: {policyType: GPGKeys, gpgKeys: {keyPath: %s}}
`, r.Host, keyring)))

	image := images.Busybox(t)
	digest := images.Digest(t, image).String()
	ref := r.Push(t, "demo/app:v1", image)
	claim := filepath.Join(home, "claim.json")
	if err := os.WriteFile(claim, fmt.Appendf(nil, `{"critical":{"type":"atomic container signature","image":{"docker-manifest-digest":%q},"identity":{"docker-reference":%q}},"optional":{}}`, digest, ref), 0o600); err != nil {
		t.Fatal(err)
	}
	store := filepath.Join(home, "lookaside/demo/app@"+strings.Replace(digest, ":", "=", 1))
	if err := os.MkdirAll(store, 0o700); err != nil {
		t.Fatal(err)
	}
	var want []string
	for i, signer := range append([]string{"stranger"}, algorithms...) {
		gpg("--local-user", signer+"@example.com", "--output", filepath.Join(store, fmt.Sprintf("signature-%d", i+1)), "--sign", claim)
		if signer == "stranger" {
			want = append(want, "AtomicImageV1 Trusted=False/NoMatchingKey ForImage=Unknown")
		} else {
			want = append(want, "AtomicImageV1 Trusted=True/SignatureVerified ForImage=True")
		}
	}
	files := httptest.NewServer(http.FileServer(http.Dir(filepath.Join(home, "lookaside"))))
	defer files.Close()
	command := harness.ImportCommand(t, "--kubeconfig", s.Kubeconfig, ref)
	user := t.TempDir()
	config := filepath.Join(user, ".config/containers/registries.d/default.yaml")
	if err := os.MkdirAll(filepath.Dir(config), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, fmt.Appendf(nil, "docker:\n  %s:\n    lookaside: %s\n", r.Host, files.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	command.Env = append(command.Env, "HOME="+user)
	harness.MustRun(t, command)
	expectVerdicts(t, s, digest, want...)
}
