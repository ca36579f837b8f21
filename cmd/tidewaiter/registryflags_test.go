package main

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/config"

	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/server"
)

// A registry of a company's own authority that wants credentials is reached with the flags that
// skopeo has, and with the same keys of the configuration.
func TestImportFromARegistryOfOnesOwn(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	for _, name := range []string{"XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "KUBECONFIG"} {
		t.Setenv(name, "")
	}
	registry := registrytest.New(t, registrytest.WithTLS(), registrytest.WithAuth(registrytest.Auth{Scheme: "basic", Username: "robot", Password: "pass"}))
	image, err := sample.New(sample.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	registry.Push("team/app:v1", image)
	ref := registry.Host + "/team/app:v1"

	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: registry.Server().Certificate().Raw}))
	write("certs/ca.crt", ca)
	auth := write("auth.json", fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, registry.Host+"/team", base64.StdEncoding.EncodeToString([]byte("robot:pass"))))
	wrong := write("wrong.json", fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, registry.Host, base64.StdEncoding.EncodeToString([]byte("robot:s3cr3t"))))
	config := func(name, keys string) string {
		return write(name, "authFile: auth.json\nregistries:\n- prefix: "+registry.Host+"\n"+keys)
	}

	for _, tc := range []struct {
		name string
		args []string
		want string // what the error says; "" is none
	}{
		{"nothing given", nil, "certificate"},
		{"authority only", []string{"--cert-dir", filepath.Join(dir, "certs")}, "UNAUTHORIZED"},
		{"authority and file", []string{"--cert-dir", filepath.Join(dir, "certs"), "--authfile", auth}, ""},
		{"authority and credentials", []string{"--cert-dir", filepath.Join(dir, "certs"), "--creds", "robot:pass"}, ""},
		{"wrong file", []string{"--cert-dir", filepath.Join(dir, "certs"), "--authfile", wrong}, "UNAUTHORIZED"},
		{"flag before key", []string{"--config", config("a.yaml", "  caFile: certs/ca.crt\n"), "--authfile", wrong}, "UNAUTHORIZED"},
		{"no verification", []string{"--tls-verify=false", "--authfile", auth}, ""},
		{"key caFile", []string{"--config", config("b.yaml", "  caFile: certs/ca.crt\n")}, ""},
		{"key certDir", []string{"--config", config("c.yaml", "  certDir: certs\n")}, ""},
		{"key insecure", []string{"--config", config("d.yaml", "  insecure: true\n")}, ""},
		{"key insecure false, no verification", []string{"--tls-verify=false", "--config", config("e.yaml", "  insecure: false\n")}, "certificate"},
		{"blocked", []string{"--config", config("f.yaml", "  caFile: certs/ca.crt\n  blocked: true\n")}, "blocked"},
		{"certificates of a part", []string{"--config", write("g.yaml", "registries:\n- prefix: "+registry.Host+"/team\n  caFile: certs/ca.crt\n")}, "whole host"},
		{"no such file", []string{"--authfile", filepath.Join(dir, "none.json")}, "--authfile"},
		{"no such folder", []string{"--cert-dir", filepath.Join(dir, "none")}, "--cert-dir"},
		{"no user", []string{"--creds", ":pass"}, "USER[:PASSWORD]"},
	} {
		code, stdout, stderr := tidewaiter(t, append([]string{"import", "--dry-run", ref}, tc.args...)...)
		if (code == cli.ExitOK) != (tc.want == "") || !strings.Contains(stderr, tc.want) {
			t.Errorf("%s: exit code %d, %s%s, want %q", tc.name, code, stdout, stderr, tc.want)
		}
		if strings.Contains(stdout+stderr, "s3cr3t") || strings.Contains(stdout+stderr, base64.StdEncoding.EncodeToString([]byte("robot:"))[:8]) {
			t.Errorf("%s: a secret is shown: %s%s", tc.name, stdout, stderr)
		}
	}

	// The folder of the user counts without a word.
	certs := filepath.Join(home, ".config/containers/certs.d", registry.Host)
	if err := os.MkdirAll(certs, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(certs, "ca.crt"), []byte(ca), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("REGISTRY_AUTH_FILE", auth)
	if code, stdout, stderr := tidewaiter(t, "import", "--dry-run", ref); code != cli.ExitOK {
		t.Errorf("certs.d and REGISTRY_AUTH_FILE: exit code %d, %s%s", code, stdout, stderr)
	}
}

// What the user's environment says of registries is not a concern of the demonstration.
func TestIsolatedImporterReadsNoFiles(t *testing.T) {
	t.Setenv("REGISTRY_AUTH_FILE", filepath.Join(t.TempDir(), "none.json"))
	cfg := &config.Config{}
	if _, err := server.NewPushImporter(cfg, nil, server.Options{Isolated: true}, nil); err != nil {
		t.Error(err)
	}
	if _, err := server.NewPushImporter(cfg, nil, server.Options{}, nil); err == nil || !strings.Contains(err.Error(), "REGISTRY_AUTH_FILE") {
		t.Errorf("a server starts without the file that it was told of: %v", err)
	}
}

// The configuration takes mirrors as the specs of OpenShift's mirror sets have them, and the report
// says which was read.
func TestImportFromAMirror(t *testing.T) {
	source, mirror := registrytest.New(t), registrytest.New(t)
	image, err := sample.New(sample.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	digest := mirror.Push("copies/team/app:v1", image)
	config := filepath.Join(t.TempDir(), "config.yaml")
	write := func(policy string) {
		t.Helper()
		text := fmt.Sprintf("imageTagMirrors:\n- source: %[1]s\n  mirrors: [%[2]s/copies]\n  mirrorSourcePolicy: %[3]s\nimageDigestMirrors:\n- source: %[1]s\n  mirrors: [%[2]s/copies]\n", source.Host, mirror.Host, policy)
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("NeverContactSource")
	for _, ref := range []string{source.Host + "/team/app:v1", source.Host + "/team/app@" + digest} {
		code, stdout, stderr := tidewaiter(t, "import", "--dry-run", "--config", config, ref)
		if want := ref + " " + digest + " (dry run, from " + mirror.Host + "/copies/team/app)\n"; code != cli.ExitOK || stdout != want {
			t.Errorf("exit code %d, %q, want %q; %s", code, stdout, want, stderr)
		}
	}
	if got := source.AllRequests(); len(got) > 0 {
		t.Errorf("the source was contacted: %v", got)
	}
	write("Never")
	if code, _, stderr := tidewaiter(t, "import", "--dry-run", "--config", config, source.Host+"/team/app:v1"); code == cli.ExitOK || !strings.Contains(stderr, `line 4: imageTagMirrors[0].mirrorSourcePolicy: "Never" is neither`) {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}
