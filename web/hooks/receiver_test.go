package hooks_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/web/hooks"
)

func TestValidate(t *testing.T) {
	good := func() hooks.Receiver {
		return hooks.Receiver{Name: "local", Type: "distribution", Hosts: []string{"registry.example.com:5000"}, SecretFile: "s"}
	}
	tests := map[string]struct {
		change func(*hooks.Receiver)
		want   string // part of the error; empty for none
	}{
		"good":             {func(*hooks.Receiver) {}, ""},
		"localhost":        {func(r *hooks.Receiver) { r.Hosts = []string{"localhost", "127.0.0.1:5000", "[::1]:5000"} }, ""},
		"docker hub":       {func(r *hooks.Receiver) { r.Hosts = []string{"docker.io"} }, ""},
		"patterns":         {func(r *hooks.Receiver) { r.Repositories = []string{"a/*", "b/**", "c-[0-9]/x?"} }, ""},
		"no name":          {func(r *hooks.Receiver) { r.Name = "" }, "name must be"},
		"name with slash":  {func(r *hooks.Receiver) { r.Name = "a/b" }, "name must be"},
		"unknown type":     {func(r *hooks.Receiver) { r.Type = "nexus" }, `type "nexus" is not known; use one of acr, distribution`},
		"no hosts":         {func(r *hooks.Receiver) { r.Hosts = nil }, "hosts is empty; list"},
		"host with scheme": {func(r *hooks.Receiver) { r.Hosts = []string{"https://r.example.com"} }, "without a scheme"},
		"host with path":   {func(r *hooks.Receiver) { r.Hosts = []string{"r.example.com/team"} }, "without a scheme or a path"},
		"host with user":   {func(r *hooks.Receiver) { r.Hosts = []string{"u:p@r.example.com"} }, "is not a registry host"},
		"host wildcard":    {func(r *hooks.Receiver) { r.Hosts = []string{""} }, "it is empty"},
		"bare word":        {func(r *hooks.Receiver) { r.Hosts = []string{"registry"} }, "registry:443"},
		"zot, two hosts":   {func(r *hooks.Receiver) { r.Type = "zot"; r.Hosts = []string{"a.example.com", "b.example.com"} }, "hosts must have one entry"},
		"no secret":        {func(r *hooks.Receiver) { r.SecretFile = "" }, "openssl rand -hex 32"},
		"gar without oidc": {func(r *hooks.Receiver) { r.Type = "gar"; r.SecretFile = "" }, "needs oidc with keysFile, audience and email"},
		"oidc elsewhere":   {func(r *hooks.Receiver) { r.OIDC = &hooks.OIDC{} }, "oidc is only for type gar"},
		"useless header":   {func(r *hooks.Receiver) { r.Type = "quay"; r.Header = "X-A" }, "header is not used by type quay"},
		"bad header":       {func(r *hooks.Receiver) { r.Header = "X A" }, "not the name of an HTTP header"},
		"bad pattern":      {func(r *hooks.Receiver) { r.Repositories = []string{"a/["} }, "repository pattern"},
		"** inside":        {func(r *hooks.Receiver) { r.Repositories = []string{"**/a"} }, "may only be the whole last segment"},
		"empty segment":    {func(r *hooks.Receiver) { r.Repositories = []string{"a//b"} }, "empty segment"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := good()
			test.change(&r)
			err := hooks.Validate(r)
			switch {
			case test.want == "" && err != nil:
				t.Errorf("error %q, want none", err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

// TestNew covers faults that are found only when the files are read. The errors must not quote the
// files.
func TestNew(t *testing.T) {
	private, err := testSigner().privateKeySet()
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		typ, secret, want string
	}{
		"empty file":          {"generic", " \n\n", "holds no secret"},
		"too many":            {"generic", strings.Repeat("leaked-secret-value\n", 9), "more than 8 secrets"},
		"huge file":           {"generic", strings.Repeat("leaked-secret-value\n", 20000), "larger than 262144 bytes"},
		"token not for a URL": {"quay", "leaked-secret-value/with?parts", "letters, digits"},
		"keys not JSON":       {"gar", "leaked-secret-value", "not a JSON Web Key Set"},
		"no keys":             {"gar", `{"keys":[]}`, "has no keys"},
		"private keys":        {"gar", string(private), "public keys only"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			r := newReceiver(t, dir, test.typ, "r.example.com")
			writeFile(t, filepath.Join(dir, "secret"), []byte(test.secret))
			writeFile(t, filepath.Join(dir, "keys.json"), []byte(test.secret))
			_, err := hooks.New(hooks.Options{Receivers: []hooks.Receiver{r}, Dir: dir, Spool: &memorySpool{}})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("error %v, want one with %q", err, test.want)
			}
			if strings.Contains(err.Error(), "leaked") {
				t.Errorf("the error quotes the secret: %v", err)
			}
		})
	}
	t.Run("missing file", func(t *testing.T) {
		r := newReceiver(t, t.TempDir(), "generic", "r.example.com")
		if _, err := hooks.New(hooks.Options{Receivers: []hooks.Receiver{r}, Dir: t.TempDir(), Spool: &memorySpool{}}); err == nil || !strings.Contains(err.Error(), "no such file") {
			t.Errorf("error %v, want one about the file", err)
		}
	})
	t.Run("same name twice", func(t *testing.T) {
		dir := t.TempDir()
		r := newReceiver(t, dir, "generic", "r.example.com")
		if _, err := hooks.New(hooks.Options{Receivers: []hooks.Receiver{r, r}, Dir: dir, Spool: &memorySpool{}}); err == nil || !strings.Contains(err.Error(), "declared twice") {
			t.Errorf("error %v, want one about the name", err)
		}
	})
}
