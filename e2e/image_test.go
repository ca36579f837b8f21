//go:build imagetest

package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// released is the version that the image and the release of these tests have: one for both, so that
// the program is linked once.
const released = "9.8.7"

// makeTarget runs make in the parent module and returns what it says.
func makeTarget(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "make", args...)
	cmd.Dir = filepath.Dir(harness.ModuleDir(t))
	cmd.Env = append(os.Environ(), "VERSION="+released, "SOURCE_DATE_EPOCH=1790000000")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("make %s: %v\n%s", args, err, out)
	}
	return string(out)
}

// clientSystems are those that these tests make clients for. Not all: each takes minutes the first
// time.
var clientSystems = []string{"linux", "windows"}

// makeRelease is makeTarget for a release and the clients, which are made once for all tests, and
// side by side: a linker takes one processor for the most part.
func makeRelease(t *testing.T) string {
	t.Helper()
	releaseOnce.Do(func() {
		arch := goEnv(t, "GOHOSTARCH")
		releaseSaid = makeTarget(t, "-j2", "release", "clients", "CLIENTS="+strings.Join(clientSystems, "/"+arch+" ")+"/"+arch)
	})
	return releaseSaid
}

var (
	releaseOnce sync.Once
	releaseSaid string
)

// What `make image` makes runs where nothing else is, as the user that it names, and is an image
// that Tidewaiter imports.
func TestImage(t *testing.T) {
	t.Parallel()
	makeRelease(t) // whose programs the images have
	image, dir := makeImage(t)
	digest, err := image.Digest()
	must(t, err)

	t.Run("import", func(t *testing.T) {
		s := harness.SharedServer(t)
		wantContains(t, "what import says", s.Import(t, "oci:"+dir, "--store-as", "registry.example.com/tidewaiter:"+released), digest.String())
		u := getImage(t, s, digest.String())
		if user, version := field(u, "dockerImageMetadata", "Config", "User"), field(u, "dockerImageMetadata", "Config", "Labels", "org.opencontainers.image.version"); user != "65532:65532" || version != released {
			t.Errorf("the stored image has user %v and version %v", user, version)
		}
	})

	t.Run("run", func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "root")
		extract(t, image, root)
		// What can be written by the user that the image names is all that needs to be.
		as := []string{"--map-user=65532", "--map-group=65532", "--keep-caps", "chroot", root}
		if out, err := exec.CommandContext(t.Context(), "unshare", append(as, "/usr/bin/tidewaiter", "--help")...).CombinedOutput(); err != nil && !strings.Contains(string(out), "tidewaiter") {
			t.Skipf("*** SKIPPED: the image is not run, as this machine lets nobody make a user namespace and change its root: unshare %s: %v\n%s", strings.Join(as, " "), err, out)
		}
		says := harness.MustRun(t, harness.Command{Path: "unshare", Args: append(as, "/usr/bin/tidewaiter", "version")})
		wantContains(t, "version", says, "tidewaiter "+released+" ")
		config, err := image.ConfigFile()
		must(t, err)
		command := append(append(config.Config.Entrypoint, config.Config.Cmd...), "--secure-port", "0", "--data-dir", "/var/lib/tidewaiter/tidewaiter-data")
		p := harness.Start(t, harness.Command{Path: "unshare", Args: append(as, command...)})
		p.Stdout.AwaitMatch(t, regexp.MustCompile(`is ready at (https://\S+), kubeconfig /var/lib/tidewaiter/tidewaiter-data/admin.kubeconfig`))
		kubectl := harness.Command{Path: harness.Tool(t, "kubectl"), Env: []string{"HOME=" + t.TempDir()},
			Args: []string{"--kubeconfig", filepath.Join(root, "var/lib/tidewaiter/tidewaiter-data/admin.kubeconfig"), "create", "-f", "-"}, Stdin: plainImage("in-an-image")}
		wantContains(t, "create", harness.MustRun(t, kubectl), "in-an-image created")
	})
}

// makeImage is what `make image` makes, and the folder that it is in.
func makeImage(t *testing.T, args ...string) (v1.Image, string) {
	t.Helper()
	makeTarget(t, append([]string{"image"}, args...)...)
	dir := filepath.Join(filepath.Dir(harness.ModuleDir(t)), "bin", "image")
	at, err := layout.FromPath(dir)
	must(t, err)
	index, err := at.ImageIndex()
	must(t, err)
	manifest, err := index.IndexManifest()
	must(t, err)
	if len(manifest.Manifests) != 1 {
		t.Fatalf("there are %d images", len(manifest.Manifests))
	}
	image, err := at.Image(manifest.Manifests[0].Digest)
	must(t, err)
	must(t, validate.Image(image))
	return image, dir
}

// extract unpacks an image's files, all as the user who runs the test.
func extract(t *testing.T, image v1.Image, root string) {
	t.Helper()
	must(t, os.Mkdir(root, 0o755))
	flat := mutate.Extract(image)
	defer flat.Close()
	for r := tar.NewReader(flat); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		must(t, err)
		path, mode := filepath.Join(root, filepath.FromSlash(h.Name)), os.FileMode(h.Mode).Perm()
		if h.Typeflag == tar.TypeDir {
			must(t, os.Mkdir(path, mode))
			continue
		}
		content, err := io.ReadAll(r)
		must(t, err)
		must(t, os.WriteFile(path, content, mode))
	}
}

// What `make release` makes is checked by its own sums, runs, and has a unit that systemd takes.
func TestRelease(t *testing.T) {
	t.Parallel()
	said := makeRelease(t)
	dir := filepath.Join(filepath.Dir(harness.ModuleDir(t)), "bin", "release")
	sums, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	must(t, err)
	for _, arch := range []string{"amd64", "arm64"} {
		t.Run(arch, func(t *testing.T) {
			name := "tidewaiter_" + released + "_linux_" + arch + ".tar.gz"
			archive, err := os.ReadFile(filepath.Join(dir, name))
			if errors.Is(err, fs.ErrNotExist) && arch != goEnv(t, "GOHOSTARCH") {
				wantContains(t, "make release", said, "SKIPPED: "+arch, "apt-get install")
				t.Skipf("*** SKIPPED: there is no release for %s, as this machine has no C compiler for it", arch)
			}
			must(t, err)
			sum := sha256.Sum256(archive)
			wantContains(t, "SHA256SUMS", string(sums), hex.EncodeToString(sum[:])+"  "+name)
			for _, entry := range lines(harness.MustRun(t, harness.Command{Path: "tar", Args: []string{"-tzf", filepath.Join(dir, name)}})) {
				if !strings.HasPrefix(entry, "etc/") && !strings.HasPrefix(entry, "usr/") {
					t.Errorf("%s has %s: where / has a link of that name, as /lib often is, tar replaces it", name, entry)
				}
			}
		})
	}

	root := t.TempDir()
	arch := goEnv(t, "GOHOSTARCH")
	harness.MustRun(t, harness.Command{Path: "tar", Args: []string{"-C", root, "--no-same-owner", "-xzf", filepath.Join(dir, "tidewaiter_"+released+"_linux_"+arch+".tar.gz")}})
	wantContains(t, "version", harness.MustRun(t, harness.Command{Path: filepath.Join(root, "usr/bin/tidewaiter"), Args: []string{"version"}}), "tidewaiter "+released+" ")
	for _, name := range []string{"etc/tidewaiter/config.yaml", "usr/lib/systemd/system/tidewaiter.service", "usr/lib/sysusers.d/tidewaiter.conf", "usr/share/doc/tidewaiter/copyright", "usr/share/doc/tidewaiter/sbom.spdx.json"} {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			t.Error(err)
		}
	}
	s := harness.Start(t, harness.Command{Path: filepath.Join(root, "usr/bin/tidewaiter"), Args: []string{"serve", "--data-dir", filepath.Join(root, "data"), "--secure-port", "0", "--config", filepath.Join(root, "etc/tidewaiter/config.yaml")}})
	s.Stdout.AwaitMatch(t, regexp.MustCompile(`is ready at`))
	s.Kill(t)

	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("*** SKIPPED: there is no systemd-analyze to check the unit with")
	}
	// What every unit needs is this machine's.
	targets, err := filepath.Glob("/lib/systemd/system/*.target")
	must(t, err)
	for _, target := range targets {
		content, err := os.ReadFile(target)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(root, "usr/lib/systemd/system", filepath.Base(target)), content, 0o644))
	}
	check := harness.Run(t, harness.Command{Path: "systemd-analyze", Args: []string{"verify", "--root=" + root, "--man=no", "tidewaiter.service"}})
	if strings.Contains(check.Stdout+check.Stderr, "tidewaiter.service:") {
		t.Errorf("systemd-analyze verify: %s%s", check.Stdout, check.Stderr)
	}
}

// What deploy/publish pushes is what its policy trusts: the image by its tag and by its digest,
// with how it was built. helm pulls the chart. Signed with another key, and not signed, it is
// refused.
func TestPublish(t *testing.T) {
	t.Parallel()
	makeRelease(t)
	root := filepath.Dir(harness.ModuleDir(t))
	r, c := registry.Start(t, registry.Distribution), newCosign(t)
	c.key("ours", "p256")
	c.key("theirs", "p256")
	publish := func(key, below string) {
		t.Helper()
		harness.MustRun(t, harness.Command{Path: "sh", Args: []string{"deploy/publish", r.Host + "/" + below}, Dir: root, Env: []string{
			"VERSION=" + released, "SOURCE_DATE_EPOCH=1790000000", "COSIGN=" + harness.Tool(t, "cosign"), "COSIGN_PASSWORD=", "COSIGN_KEY=" + filepath.Join(c.dir, key+".key"),
			"COSIGN_FLAGS=--allow-http-registry --signing-config " + filepath.Join(c.dir, "signing-config.json") + " --trusted-root " + filepath.Join(c.dir, "trusted-root.json"),
		}})
	}
	publish("theirs", "other")
	publish("ours", "ours")
	published, err := os.ReadFile(filepath.Join(root, "bin/release/published"))
	must(t, err)

	policy, err := os.ReadFile(deployed(t, "policy.yaml"))
	must(t, err)
	verify := func(below, ref string) harness.Result {
		dir := t.TempDir()
		key, err := os.ReadFile(filepath.Join(c.dir, "ours.pub"))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, "cosign.pub"), key, 0o600))
		file := filepath.Join(dir, "policy.yaml")
		must(t, os.WriteFile(file, bytes.ReplaceAll(policy, []byte("ghcr.io/tidewaiter"), []byte(r.Host+"/"+below)), 0o600))
		return harness.Run(t, harness.Command{Path: harness.Binary(t), Args: []string{"verify", "--policy", file, ref}})
	}
	for _, line := range lines(string(published)) {
		ref, _, _ := strings.Cut(line, " ")
		if strings.Contains(ref, "/charts/") {
			continue
		}
		if got := verify("ours", ref); got.Code != 0 {
			t.Errorf("%s: %d %s%s", ref, got.Code, got.Stdout, got.Stderr)
		}
	}
	if got := verify("ours", r.Host+"/ours/tidewaiter:"+released); got.Code != 0 {
		t.Errorf("the tag: %d %s%s", got.Code, got.Stdout, got.Stderr)
	}
	if got := verify("other", r.Host+"/other/tidewaiter:"+released); got.Code != 1 {
		t.Errorf("signed by others: %d %s%s", got.Code, got.Stdout, got.Stderr)
	}
	harness.MustRun(t, helm(t, "pull", "--plain-http", "oci://"+r.Host+"/ours/charts/tidewaiter", "--version", released, "--destination", t.TempDir()))
}
