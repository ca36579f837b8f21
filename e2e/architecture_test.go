//go:build imagetest && nightly

package e2e

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
)

// The image for the architecture that this machine does not have is made, and serves in an
// emulator.
func TestOtherArchitecture(t *testing.T) {
	t.Parallel()
	other := otherArchitecture(t)
	if _, err := exec.LookPath(other.compiler); err != nil {
		t.Skipf("*** SKIPPED: there is no image for %s, as this machine has no %s", other.name, other.compiler)
	}
	image, _ := makeImage(t, "ARCH="+other.name)
	config, err := image.ConfigFile()
	must(t, err)
	if config.OS != "linux" || config.Architecture != other.name {
		t.Errorf("the image is for %s/%s", config.OS, config.Architecture)
	}
	root := filepath.Join(t.TempDir(), "root")
	extract(t, image, root)
	other.serves(t, filepath.Join(root, "usr/bin/tidewaiter"))
}

// architecture is one that a release has a program for.
type architecture struct{ name, compiler, emulator string }

// otherArchitecture is the one that this machine does not have.
func otherArchitecture(t *testing.T) architecture {
	t.Helper()
	if goEnv(t, "GOHOSTARCH") == "arm64" {
		return architecture{"amd64", "x86_64-linux-gnu-gcc", "qemu-x86_64-static"}
	}
	return architecture{"arm64", "aarch64-linux-gnu-gcc", "qemu-aarch64-static"}
}

// serves runs a program of the architecture, which serves and imports, in an emulator.
func (a architecture) serves(t *testing.T, program string) {
	t.Helper()
	emulator, err := exec.LookPath(a.emulator)
	if err != nil {
		t.Skipf("*** SKIPPED: the program for %s is made and not run, as this machine has no %s", a.name, a.emulator)
	}
	wantContains(t, "version", harness.MustRun(t, harness.Command{Path: emulator, Args: []string{program, "version"}}), "tidewaiter "+released+" ", a.name)
	data := filepath.Join(t.TempDir(), "data")
	p := harness.Start(t, harness.Command{Path: emulator, Args: []string{program, "serve", "--secure-port", "0", "--data-dir", data}})
	kubeconfig := p.Stdout.AwaitMatch(t, regexp.MustCompile(`is ready at \S+, kubeconfig (\S+)`))[1]
	busybox := filepath.Join(t.TempDir(), "busybox")
	at, err := layout.Write(busybox, empty.Index)
	must(t, err)
	must(t, at.AppendImage(images.Busybox(t)))
	digest := images.Digest(t, images.Busybox(t)).String()
	harness.MustRun(t, harness.Command{Path: emulator, Args: []string{program, "import", "--kubeconfig", kubeconfig, "oci:" + busybox, "--store-as", "registry.example.com/busybox:1"}})
	wantContains(t, "the images", harness.MustRun(t, harness.Command{Path: harness.Tool(t, "kubectl"), Env: []string{"HOME=" + t.TempDir()}, Args: []string{"--kubeconfig", kubeconfig, "get", "images", "-o", "name"}}), digest)
}
