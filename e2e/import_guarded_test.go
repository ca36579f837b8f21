package e2e

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// Registries with certificates of a private authority are imported from: one that asks for a
// password, one that sends to a token server, and that one as the mirror of a registry that is not
// there.
func TestImportFromGuardedRegistries(t *testing.T) {
	t.Parallel()
	s := harness.SharedServer(t)
	for _, kind := range registry.Kinds(t) {
		t.Run(string(kind), func(t *testing.T) {
			authority := registry.NewAuthority(t)
			byTokens, tokenHost := registry.ByTokens(t, authority)
			asks, sends := registry.StartGuarded(t, kind, registry.ByPassword(t, authority)), registry.StartGuarded(t, kind, byTokens)
			hello, multi := images.HelloWorld(t), images.MultiArch(t)
			const mirrored = "registry.invalid/team/multi:v1"
			for ref, image := range map[string]string{
				asks.Push(t, "team/hello:v1", hello):  images.Digest(t, hello).String(),
				sends.Push(t, "team/hello:v1", hello): images.Digest(t, hello).String(),
				sends.Push(t, "team/multi:v1", multi): images.Digest(t, multi).String(),
				mirrored:                              images.Digest(t, multi).String(),
			} {
				out := s.Import(t, "--config", guardedConfig(t, authority, registry.Password, tokenHost, asks.Host, sends.Host), ref)
				wantContains(t, "the output", out, ref+" "+image)
				if from := "from " + sends.Host + "/team/multi"; strings.Contains(out, from) != (ref == mirrored) {
					t.Errorf("it is read from elsewhere: %s", out)
				}
			}

			for _, r := range []*registry.Registry{asks, sends} {
				ref := r.Host + "/team/hello:v1"
				for what, args := range map[string][]string{
					"unauthorized": {"--config", guardedConfig(t, authority, "wrong", tokenHost, asks.Host, sends.Host), ref},
					"certificate":  {ref},
				} {
					got := s.TryImport(t, args...)
					if got.Code != 2 || strings.Contains(got.Stdout+got.Stderr, registry.Password) {
						t.Errorf("%s: exit code %d: %s%s", what, got.Code, got.Stdout, got.Stderr)
					}
					wantContains(t, "the message", got.Stderr, ref, what)
				}
			}
		})
	}
}

// guardedConfig is a configuration for guarded registries, the last of which has a token server and
// is a mirror.
func guardedConfig(t *testing.T, a *registry.Authority, password, tokenHost string, hosts ...string) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	login := base64.StdEncoding.EncodeToString([]byte(registry.User + ":" + password))
	var auths []string
	var b strings.Builder
	fmt.Fprintf(&b, "registries:\n- {prefix: %q, caFile: %q}\n", tokenHost, a.CA)
	for _, host := range hosts {
		auths = append(auths, fmt.Sprintf("%q: {%q: %q}", host, "auth", login))
		fmt.Fprintf(&b, "- {prefix: %q, caFile: %q, tokenHosts: [%q]}\n", host, a.CA, tokenHost)
	}
	fmt.Fprintf(&b, "authFile: %q\n", write("auth.json", `{"auths":{`+strings.Join(auths, ",")+"}}"))
	fmt.Fprintf(&b, "imageTagMirrors:\n- {source: registry.invalid, mirrors: [%q], mirrorSourcePolicy: NeverContactSource}\n", hosts[len(hosts)-1])
	return write("tidewaiter.yaml", b.String())
}
