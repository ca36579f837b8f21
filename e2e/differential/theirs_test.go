//go:build containers_image_openpgp

package differential

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.podman.io/image/v5/docker"
	"go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/image"
	"go.podman.io/image/v5/signature"
	"go.podman.io/image/v5/types"
)

// hosts are registries that the tests name. Their requests go to one server on this machine.
var hosts = []string{"registry.example.com", "registry.example.com:5000", "other.example.com", "docker.io", "192.168.64.2:5000"}

// theirs is containers/image with a registry that has one image everywhere, and signatures in
// lookaside storage.
type theirs struct {
	context *types.SystemContext
	storage string
	served  *[]byte // the manifest
}

func newTheirs(t *testing.T) *theirs {
	t.Helper()
	served := new([]byte)
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v2/":
		case strings.Contains(r.URL.Path, "/manifests/"):
			w.Header().Set("Content-Type", "application/vnd.docker.distribution.manifest.v2+json")
			_, _ = w.Write(*served)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(registry.Close)
	dir := t.TempDir()
	var registries strings.Builder
	for _, host := range hosts {
		fmt.Fprintf(&registries, "[[registry]]\nprefix = %q\nlocation = %q\ninsecure = true\n", host, strings.TrimPrefix(registry.URL, "http://"))
	}
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	storage := filepath.Join(dir, "storage")
	write("registries.d/default.yaml", "default-docker:\n  lookaside: file://"+storage+"\n")
	return &theirs{storage: storage, served: served, context: &types.SystemContext{
		SystemRegistriesConfPath:    write("registries.conf", registries.String()),
		SystemRegistriesConfDirPath: filepath.Join(dir, "absent"),
		RegistriesDirPath:           filepath.Join(dir, "registries.d"),
		AuthFilePath:                write("auth.json", "{}"),
		BlobInfoCacheDir:            filepath.Join(dir, "cache"),
	}}
}

// allow tells whether an image with one signature may run, and why not. digest is the manifest's.
func (o *theirs) allow(t *testing.T, requirement signature.PolicyRequirement, intended string, manifest []byte, digest string, content []byte) error {
	t.Helper()
	named, err := reference.ParseNormalizedNamed(intended)
	if err != nil {
		return err
	}
	ref, err := docker.NewReference(named)
	if err != nil {
		return err
	}
	*o.served = manifest
	dir := filepath.Join(o.storage, reference.Path(named)+"@"+strings.Replace(digest, ":", "=", 1))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "signature-1"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	source, err := ref.NewImageSource(t.Context(), o.context)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	policy, err := signature.NewPolicyContext(&signature.Policy{Default: signature.PolicyRequirements{requirement}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = policy.Destroy() }()
	allowed, err := policy.IsRunningImageAllowed(t.Context(), image.UnparsedInstance(source, nil))
	if err == nil && !allowed {
		t.Fatal("neither allowed nor an error")
	}
	return err
}
