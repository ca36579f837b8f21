package sample

import (
	"archive/tar"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/compression"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Format is a family of media types.
type Format string

const (
	OCI    Format = "oci"    // OCI image manifest and index
	Docker Format = "docker" // Docker image manifest, schema 2, and manifest list
)

// Compression is how a layer is packed.
type Compression string

const (
	Gzip Compression = "gzip"
	Zstd Compression = "zstd" // OCI only
	None Compression = "none"
)

// Spec describes the content of an image. The zero value is a three-layer OCI image for
// linux/amd64.
type Spec struct {
	// Name tells images apart: another name gives other bytes. It becomes a label.
	Name string
	// Version becomes a label and part of the content.
	Version string
	// Platform is os/architecture[/variant][:os.version]; empty is linux/amd64.
	Platform string
	// Layers is how many layers there are; 0 is 3.
	Layers int
	// LayerSize is about how many bytes of files a layer has; 0 is 4096.
	LayerSize int
	Format    Format      // OCI if empty
	Packing   Compression // Gzip if empty
	// Foreign adds, at the bottom, a layer that may not be distributed, as
	// Windows images had: the manifest names it, the registry lacks it.
	Foreign bool
	// Created is the time in config and history; zero is the beginning of 2026.
	Created time.Time
	// Labels are added to the config.
	Labels map[string]string
}

func (s Spec) withDefaults() Spec {
	s.Name = cmp.Or(s.Name, "sample")
	s.Version = cmp.Or(s.Version, "1.0.0")
	s.Platform = cmp.Or(s.Platform, "linux/amd64")
	s.Layers = cmp.Or(s.Layers, 3)
	s.LayerSize = cmp.Or(s.LayerSize, 4096)
	s.Format = cmp.Or(s.Format, OCI)
	s.Packing = cmp.Or(s.Packing, Gzip)
	if s.Created.IsZero() {
		s.Created = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	return s
}

// New builds an image.
func New(spec Spec) (v1.Image, error) {
	spec = spec.withDefaults()
	platform, err := v1.ParsePlatform(spec.Platform)
	if err != nil {
		return nil, err
	}
	image := empty.Image
	if spec.Format == OCI {
		image = mutate.ConfigMediaType(mutate.MediaType(image, types.OCIManifestSchema1), types.OCIConfigJSON)
	}
	image, err = mutate.ConfigFile(image, config(spec, platform))
	if err != nil {
		return nil, err
	}
	var layers []mutate.Addendum
	if spec.Foreign {
		layers = append(layers, foreignLayer(spec))
	}
	for i := range spec.Layers {
		layer, err := newLayer(spec, i)
		if err != nil {
			return nil, err
		}
		layers = append(layers, mutate.Addendum{Layer: layer, History: history(spec, i)})
	}
	if image, err = mutate.Append(image, layers...); err != nil {
		return nil, err
	}
	// A step that changes the config only has a history but no layer.
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.History = append(file.History, v1.History{
		Created: v1.Time{Time: spec.Created}, CreatedBy: `ENTRYPOINT ["/app/server"]`, Comment: "buildkit.dockerfile.v0", EmptyLayer: true,
	})
	return mutate.ConfigFile(image, file)
}

func config(spec Spec, platform *v1.Platform) *v1.ConfigFile {
	labels := map[string]string{
		"org.opencontainers.image.title":   spec.Name,
		"org.opencontainers.image.version": spec.Version,
	}
	maps.Copy(labels, spec.Labels)
	return &v1.ConfigFile{
		Architecture: platform.Architecture,
		OS:           platform.OS,
		Variant:      platform.Variant,
		OSVersion:    platform.OSVersion,
		Author:       "Sample Authors <authors@example.com>",
		Created:      v1.Time{Time: spec.Created},
		RootFS:       v1.RootFS{Type: "layers"},
		Config: v1.Config{
			User:         "1001",
			ExposedPorts: map[string]struct{}{"8080/tcp": {}},
			Env:          []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "APP_VERSION=" + spec.Version},
			Entrypoint:   []string{"/app/server"},
			Cmd:          []string{"--listen", ":8080"},
			WorkingDir:   "/app",
			Labels:       labels,
			StopSignal:   "SIGTERM",
		},
	}
}

func history(spec Spec, layer int) v1.History {
	by := fmt.Sprintf("COPY layer%d/ / # buildkit", layer)
	if layer == 0 {
		by = "ADD rootfs.tar.xz / # buildkit"
	}
	return v1.History{Created: v1.Time{Time: spec.Created}, CreatedBy: by, Comment: "buildkit.dockerfile.v0"}
}

// newLayer builds the i-th layer of an image.
func newLayer(spec Spec, i int) (v1.Layer, error) {
	spec = spec.withDefaults()
	content, err := archive(spec, i)
	if err != nil {
		return nil, err
	}
	opener := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }
	switch {
	case spec.Packing == None && spec.Format == Docker:
		return static.NewLayer(content, types.DockerUncompressedLayer), nil
	case spec.Packing == None:
		return static.NewLayer(content, types.OCIUncompressedLayer), nil
	case spec.Packing == Zstd:
		return tarball.LayerFromOpener(opener, tarball.WithCompression(compression.ZStd), tarball.WithMediaType(types.OCILayerZStd), tarball.WithCompressedCaching)
	case spec.Format == Docker:
		return tarball.LayerFromOpener(opener, tarball.WithMediaType(types.DockerLayer), tarball.WithCompressedCaching)
	}
	return tarball.LayerFromOpener(opener, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
}

// archive is the tar of a layer: a base system at the bottom, files of an application
// above.
func archive(spec Spec, i int) ([]byte, error) {
	seed := [32]byte{}
	copy(seed[:], fmt.Sprintf("%d %s %s %s", i, spec.Name, spec.Version, spec.Platform))
	random := rand.New(rand.NewChaCha8(seed))
	files := map[string]string{}
	var names []string
	add := func(name, content string) {
		files[name] = content
		names = append(names, name)
	}
	if i == 0 {
		add("etc/os-release", "ID=sample\nPRETTY_NAME=\"Sample Linux\"\nVERSION_ID=1\n")
		add("etc/passwd", "root:x:0:0:root:/root:/bin/sh\napp:x:1001:1001::/app:/sbin/nologin\n")
	}
	add(fmt.Sprintf("app/layer%d/platform", i), spec.Platform+"\n")
	for n := 0; n*1024 < spec.LayerSize; n++ {
		var b strings.Builder
		for b.Len() < 1024 {
			fmt.Fprintf(&b, "%016x %s %s\n", random.Uint64(), spec.Name, spec.Version)
		}
		add(fmt.Sprintf("app/layer%d/data%04d", i, n), b.String())
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range names {
		header := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name])), ModTime: spec.Created, Format: tar.FormatPAX}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := io.WriteString(w, files[name]); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func foreignLayer(spec Spec) mutate.Addendum {
	mediaType := types.OCIRestrictedLayer
	if spec.Format == Docker {
		mediaType = types.DockerForeignLayer
	}
	layer := static.NewLayer([]byte("the base of "+spec.Name+" is elsewhere"), mediaType)
	return mutate.Addendum{
		Layer: layer, MediaType: mediaType, URLs: []string{"https://example.com/base.tar.gz"},
		History: v1.History{Created: v1.Time{Time: spec.Created}, CreatedBy: "Apply image 1809-amd64"},
	}
}
