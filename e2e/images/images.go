// Package images holds what the end-to-end tests push to registries: images
// that Docker saved, a multi-architecture image with a program that really runs
// on each platform, and numbered images by the thousand.
package images

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// created is the date of every image made here, so that their digests do not
// depend on the day.
var created = time.Date(2026, time.January, 2, 3, 4, 5, 0, time.UTC)

// Busybox is a Docker schema 2 image of 14 layers that Docker built.
func Busybox(t testing.TB) v1.Image {
	t.Helper()
	return saved(t, "busybox")
}

// HelloWorld is the image of that name, of one layer.
func HelloWorld(t testing.TB) v1.Image {
	t.Helper()
	return saved(t, "hello-world")
}

func saved(t testing.TB, name string) v1.Image {
	t.Helper()
	path := filepath.Join(harness.ModuleDir(t), ".tools", "images", name+".tar")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("the %s image is not there; fetch it with:  go run -C e2e ./tools %s", name, name)
	}
	img, err := tarball.ImageFromPath(path, nil)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return img
}

// Platforms are those of [MultiArch].
var Platforms = []v1.Platform{
	{OS: "linux", Architecture: "amd64"},
	{OS: "linux", Architecture: "arm64", Variant: "v8"},
	{OS: "linux", Architecture: "arm", Variant: "v7"},
}

// MultiArch is an OCI index of one image for each of [Platforms], holding a
// program cross-compiled for it, and of a BuildKit attestation, which is no
// image though its descriptor has an image manifest's media type.
func MultiArch(t testing.TB) v1.ImageIndex {
	t.Helper()
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range Platforms {
		child := program(t, p)
		index = mutate.AppendManifests(index,
			mutate.IndexAddendum{Add: child, Descriptor: v1.Descriptor{Platform: &p}},
			mutate.IndexAddendum{Add: attestation(t, child), Descriptor: v1.Descriptor{
				Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"},
				Annotations: map[string]string{
					"vnd.docker.reference.type":   "attestation-manifest",
					"vnd.docker.reference.digest": Digest(t, child).String(),
				},
			}})
	}
	return index
}

// DockerList is a Docker manifest list of the first two of [Platforms].
func DockerList(t testing.TB) v1.ImageIndex {
	t.Helper()
	index := mutate.IndexMediaType(empty.Index, types.DockerManifestList)
	for _, p := range Platforms[:2] {
		child := mutate.ConfigMediaType(mutate.MediaType(program(t, p), types.DockerManifestSchema2), types.DockerConfigJSON)
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: child, Descriptor: v1.Descriptor{Platform: &p}})
	}
	return index
}

// programs are the images that [program] has made, by platform: most tests need all three.
var programs = struct {
	sync.Mutex
	made map[string]v1.Image
}{made: map[string]v1.Image{}}

// program is an image of two layers: files of a system, and a program.
func program(t testing.TB, p v1.Platform) v1.Image {
	t.Helper()
	programs.Lock()
	defer programs.Unlock()
	if programs.made[p.String()] == nil {
		programs.made[p.String()] = makeProgram(t, p)
	}
	return programs.made[p.String()]
}

func makeProgram(t testing.TB, p v1.Platform) v1.Image {
	t.Helper()
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.Append(img,
		mutate.Addendum{Layer: layer(t, map[string][]byte{
			"etc/passwd":     []byte("root:x:0:0:root:/:/hello\n"),
			"etc/os-release": []byte("ID=tidewaiter-e2e\n"),
		}), History: v1.History{CreatedBy: "ADD files /", Created: v1.Time{Time: created}}},
		mutate.Addendum{Layer: layer(t, map[string][]byte{"hello": compile(t, p)}),
			History: v1.History{CreatedBy: "ADD hello /", Created: v1.Time{Time: created}}},
	)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant = p.OS, p.Architecture, p.Variant
	config.Created = v1.Time{Time: created}
	config.Config = v1.Config{
		Entrypoint: []string{"/hello"},
		Env:        []string{"PATH=/"},
		User:       "1001",
		Labels:     map[string]string{"org.opencontainers.image.title": "hello"},
	}
	img, err = mutate.ConfigFile(img, config)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// compile builds a program for a platform. It prints without fmt: the run time
// alone is quick to compile for a foreign architecture.
func compile(t testing.TB, p v1.Platform) []byte {
	t.Helper()
	dir := t.TempDir()
	for file, text := range map[string]string{
		"go.mod":  "module hello\n\ngo 1.26\n",
		"main.go": "package main\n\nfunc main() { println(\"hello from " + p.String() + "\") }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=", "-o", "hello", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOOS="+p.OS, "GOARCH="+p.Architecture)
	if p.Architecture == "arm" {
		cmd.Env = append(cmd.Env, "GOARM="+p.Variant[1:])
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("compiling for %s: %v\n%s", p, err, out)
	}
	b, err := os.ReadFile(filepath.Join(dir, "hello"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// attestation is shaped as BuildKit's: an image manifest whose layer is an
// in-toto statement about another image.
func attestation(t testing.TB, subject v1.Image) v1.Image {
	t.Helper()
	statement := fmt.Sprintf(`{"_type":"https://in-toto.io/Statement/v0.1","predicateType":"https://slsa.dev/provenance/v0.2",`+
		`"subject":[{"name":"hello","digest":{"sha256":%q}}],"predicate":{}}`, Digest(t, subject).Hex)
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.AppendLayers(img, static.NewLayer([]byte(statement), "application/vnd.in-toto+json"))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// Artifact is an OCI artifact that is not a container image: its config blob is of
// another type, as Helm charts' are.
func Artifact(t testing.TB) v1.Image {
	t.Helper()
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), "application/vnd.cncf.helm.config.v1+json")
	img, err := mutate.AppendLayers(img, static.NewLayer([]byte("a chart"), "application/vnd.cncf.helm.chart.content.v1.tar+gzip"))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// Numbered are n small images that differ and share a layer.
func Numbered(t testing.TB, n int) []v1.Image {
	t.Helper()
	base, err := mutate.AppendLayers(
		mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON),
		layer(t, map[string][]byte{"etc/issue": []byte("numbered\n")}))
	if err != nil {
		t.Fatal(err)
	}
	config, err := base.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	out := make([]v1.Image, n)
	for i := range out {
		c := config.DeepCopy()
		c.OS, c.Architecture, c.Created = "linux", "amd64", v1.Time{Time: created}
		c.Config.Labels = map[string]string{"number": fmt.Sprint(i)}
		if out[i], err = mutate.ConfigFile(base, c); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// On is an image that is built on another, and says so by the annotations of OCI: name is a
// reference to the base.
func On(t testing.TB, base v1.Image, name string) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(base, layer(t, map[string][]byte{"app": []byte("on a base\n")}))
	if err != nil {
		t.Fatal(err)
	}
	return mutate.Annotations(img, map[string]string{"org.opencontainers.image.base.name": name, "org.opencontainers.image.base.digest": Digest(t, base).String()}).(v1.Image)
}

func layer(t testing.TB, files map[string][]byte) v1.Layer {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		b := files[name]
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(b)), ModTime: created}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil }, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Digest is an image's or an index's digest.
func Digest(t testing.TB, what partial.Describable) v1.Hash {
	t.Helper()
	h, err := what.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// Children are the images of an index that have a platform.
func Children(t testing.TB, index v1.ImageIndex) []v1.Descriptor {
	t.Helper()
	m, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var out []v1.Descriptor
	for _, d := range m.Manifests {
		if d.Platform != nil && d.Platform.OS != "unknown" {
			out = append(out, d)
		}
	}
	return out
}
