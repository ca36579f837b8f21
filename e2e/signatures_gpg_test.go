package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// gpg is the real OpenPGP program, with a home of its own.
type gpg struct {
	t             *testing.T
	program, home string
}

func newGPG(t *testing.T) *gpg {
	t.Helper()
	program, err := exec.LookPath("gpg")
	if err != nil {
		t.Fatalf("gpg is needed (apt-get install gnupg): %v", err)
	}
	// Sockets of gpg-agent have short paths only.
	home, err := os.MkdirTemp("", "gpg")
	if err != nil {
		t.Fatal(err)
	}
	g := &gpg{t: t, program: program, home: home}
	t.Cleanup(func() {
		harness.Run(t, harness.Command{Path: "gpgconf", Env: []string{"GNUPGHOME=" + home}, Args: []string{"--kill", "all"}})
		os.RemoveAll(home)
	})
	return g
}

func (g *gpg) run(args ...string) {
	g.t.Helper()
	harness.MustRun(g.t, harness.Command{Path: g.program, Env: []string{"GNUPGHOME=" + g.home}, Dir: g.home,
		Args: append([]string{"--batch", "--no-tty", "--pinentry-mode", "loopback", "--passphrase", ""}, args...)})
}

// keys makes a key for each algorithm and returns a keyring with their public halves.
func (g *gpg) keys(algorithms ...string) string {
	g.t.Helper()
	for _, a := range algorithms {
		g.run("--quick-generate-key", a+" <"+a+"@example.com>", a, "sign", "1y")
	}
	keyring := filepath.Join(g.home, "trusted.gpg")
	g.run(append([]string{"--armor", "--output", keyring, "--export"}, algorithms...)...)
	return keyring
}

// sign has a signer say, in the format of containers/image, that the digest is the image ref.
func (g *gpg) sign(signer, digest, ref, output string) {
	g.t.Helper()
	must(g.t, os.MkdirAll(filepath.Dir(output), 0o700))
	claim := filepath.Join(g.home, "claim.json")
	must(g.t, os.WriteFile(claim, fmt.Appendf(nil, `{"critical":{"type":"atomic container signature","image":{"docker-manifest-digest":%q},"identity":{"docker-reference":%q}},"optional":{}}`, digest, ref), 0o600))
	g.run("--local-user", signer+"@example.com", "--output", output, "--sign", claim)
}

func gpgPolicy(host, keyring string) string {
	return fmt.Sprintf(`
apiVersion: config.openshift.io/v1
kind: ClusterImagePolicy
metadata: {name: gpg}
spec:
  scopes: ["%s"]
  policy:
    rootOfTrust: {policyType: GPGKeys, gpgKeys: {keyPath: %s}}
`, host, keyring)
}

const gpgTrusted = "AtomicImageV1 Trusted=True/SignatureVerified ForImage=True"

// Signatures by the real gpg, in lookaside storage that registries.d files name: found by import
// through the user's own files, and by import, verify and the worker that imports what is pushed
// through those of their configuration.
func TestGPGSignatures(t *testing.T) {
	t.Parallel()
	g := newGPG(t)
	algorithms := []string{"rsa2048", "ed25519", "nistp256"}
	keyring := g.keys(algorithms...)
	g.run("--quick-generate-key", "stranger <stranger@example.com>", "ed25519", "sign", "1y")

	h := prepareHooked(t, registry.Distribution, true)
	policy := writePolicy(t, gpgPolicy(h.registry.Host, keyring))
	lookaside := t.TempDir()
	files := httptest.NewServer(http.FileServer(http.Dir(lookaside)))
	defer files.Close()
	configure := func(dir string) {
		t.Helper()
		must(t, os.MkdirAll(dir, 0o700))
		must(t, os.WriteFile(filepath.Join(dir, "default.yaml"), fmt.Appendf(nil, "docker:\n  %s:\n    lookaside: %s\n", h.registry.Host, files.URL), 0o600))
	}
	config := h.args[3]
	configure(filepath.Join(filepath.Dir(config), "registries.d"))
	text, err := os.ReadFile(config)
	must(t, err)
	must(t, os.WriteFile(config, append(text, "registriesDir: registries.d\n"...), 0o600))
	h.args = append(h.args, "--policy", policy)
	h.resume(t)

	all := images.Numbered(t, 3)
	// signed has an image signed by everybody, before it is pushed.
	signed := func(repository string, i int) (digest string, want []string) {
		t.Helper()
		digest = images.Digest(t, all[i]).String()
		for i, signer := range append([]string{"stranger"}, algorithms...) {
			g.sign(signer, digest, h.registry.Host+"/"+repository+":v1",
				filepath.Join(lookaside, repository+"@"+strings.Replace(digest, ":", "=", 1), fmt.Sprintf("signature-%d", i+1)))
			want = append(want, gpgTrusted)
		}
		want[0] = "AtomicImageV1 Trusted=False/NoMatchingKey ForImage=Unknown"
		return digest, want
	}

	t.Run("the user's files", func(t *testing.T) {
		digest, want := signed("demo/user", 0)
		command := harness.ImportCommand(t, "--kubeconfig", h.Kubeconfig, h.registry.Push(t, "demo/user:v1", all[0]))
		user := t.TempDir()
		configure(filepath.Join(user, ".config/containers/registries.d"))
		command.Env = append(command.Env, "HOME="+user)
		harness.MustRun(t, command)
		expectVerdicts(t, h.Server, digest, want...)
	})
	t.Run("those of the configuration", func(t *testing.T) {
		digest, want := signed("demo/config", 1)
		ref := h.registry.Push(t, "demo/config:v1", all[1])
		if v, _ := verify(t, 0, "--policy", policy, "--config", config, ref); len(v.Signatures) != len(want) {
			t.Errorf("verify finds %d signatures, want %d", len(v.Signatures), len(want))
		}
		verify(t, 1, "--policy", policy, ref) // finds none without
		h.Import(t, "--config", config, ref)
		expectVerdicts(t, h.Server, digest, want...)
	})
	t.Run("those of the server", func(t *testing.T) {
		digest, want := signed("team/pushed", 2)
		h.registry.Push(t, "team/pushed:v1", all[2])
		h.awaitStored(t, all[2])
		harness.Eventually(t, func() error {
			if got := verdicts(t, h.Server, digest); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
				return fmt.Errorf("verdicts %v, want %v", got, want)
			}
			return nil
		})
	})
}

// A registry with OpenShift's signature extension: the real one behind a proxy that adds what
// OpenShift's adds.
func TestGPGSignatureExtension(t *testing.T) {
	t.Parallel()
	g := newGPG(t)
	keyring := g.keys("ed25519")
	r := registry.Start(t, registry.Distribution)
	image := images.Busybox(t)
	digest := images.Digest(t, image).String()
	r.Push(t, "demo/app:v1", image)

	var content []byte
	real := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: r.Host})
	real.ModifyResponse = func(response *http.Response) error {
		response.Header.Set("X-Registry-Supports-Signatures", "1")
		return nil
	}
	mux := http.NewServeMux()
	mux.Handle("/", real)
	mux.HandleFunc("GET /extensions/v2/demo/app/signatures/"+digest, func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"signatures": []map[string]any{
			{"schemaVersion": 2, "name": digest + "@one", "type": "atomic", "content": content},
		}})
	})
	proxy := httptest.NewServer(mux)
	defer proxy.Close()
	host := proxy.Listener.Addr().String()
	ref := host + "/demo/app:v1"
	output := filepath.Join(g.home, "signature")
	g.sign("ed25519", digest, ref, output)
	var err error
	content, err = os.ReadFile(output)
	must(t, err)

	policy := writePolicy(t, gpgPolicy(host, keyring))
	verify(t, 0, "--policy", policy, ref)
	s := harness.StartServer(t, "--policy", policy)
	s.Import(t, ref)
	expectVerdicts(t, s, digest, gpgTrusted)
}
