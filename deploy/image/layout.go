package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"io"
	"os"
	"path"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// Where things are in the image, and the user that runs them, whom no system knows.
const (
	binaryPath = "usr/bin/tidewaiter"
	sbomPath   = "usr/share/doc/tidewaiter/sbom.spdx.json"
	dataPath   = "var/lib/tidewaiter"
	userID     = 65532
)

// release is the information about a release in its image.
type release struct {
	version, revision string
	created           time.Time
}

// writeLayout replaces the folder dir. It returns the digest of the image, or of the index of
// several.
func (r *release) writeLayout(dir string, programs []*program) (v1.Hash, error) {
	if err := os.RemoveAll(dir); err != nil {
		return v1.Hash{}, err
	}
	at, err := layout.Write(dir, empty.Index)
	if err != nil {
		return v1.Hash{}, err
	}
	images := make([]v1.Image, len(programs))
	for i, p := range programs {
		if images[i], err = r.image(p); err != nil {
			return v1.Hash{}, err
		}
	}
	name := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": r.version})
	if len(images) == 1 {
		if err := at.AppendImage(images[0], name, layout.WithPlatform(programs[0].platform)); err != nil {
			return v1.Hash{}, err
		}
		return images[0].Digest()
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for i, image := range images {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &programs[i].platform}})
	}
	index = mutate.Annotations(index, r.labels()).(v1.ImageIndex)
	if err := at.AppendIndex(index, name); err != nil {
		return v1.Hash{}, err
	}
	return index.Digest()
}

// image makes an image of two layers, so that releases share the one that does not change.
func (r *release) image(p *program) (v1.Image, error) {
	binary, err := os.ReadFile(p.path)
	if err != nil {
		return nil, err
	}
	sbom, err := r.sbom(p)
	if err != nil {
		return nil, err
	}
	base, err := r.layer(baseFiles())
	if err != nil {
		return nil, err
	}
	top, err := r.layer([]file{{name: binaryPath, mode: 0o755, content: binary}, {name: sbomPath, mode: 0o644, content: sbom}})
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.Append(image,
		mutate.Addendum{Layer: base, History: v1.History{CreatedBy: "deploy/image: certificate authorities, user", Created: v1.Time{Time: r.created}}},
		mutate.Addendum{Layer: top, History: v1.History{CreatedBy: "deploy/image: tidewaiter " + r.version, Created: v1.Time{Time: r.created}}})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = p.platform.OS, p.platform.Architecture, v1.Time{Time: r.created}
	config.Config = v1.Config{
		User: "65532:65532", WorkingDir: "/" + dataPath, Labels: r.labels(),
		Entrypoint: []string{"/" + binaryPath},
		// the data directory is ./tidewaiter-data, where other verbs find it
		Cmd:          []string{"serve", "--bind-address", "0.0.0.0"},
		ExposedPorts: map[string]struct{}{"6443/tcp": {}},
		Volumes:      map[string]struct{}{"/" + dataPath: {}},
	}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return nil, err
	}
	return mutate.Annotations(image, r.labels()).(v1.Image), nil
}

// labels are those of https://github.com/opencontainers/image-spec/blob/main/annotations.md.
func (r *release) labels() map[string]string {
	labels := map[string]string{
		"org.opencontainers.image.title":         "tidewaiter",
		"org.opencontainers.image.description":   "What is in these images, who signed them, where do they run? A companion to container registries.",
		"org.opencontainers.image.url":           "https://github.com/tidewaiter/tidewaiter",
		"org.opencontainers.image.source":        "https://github.com/tidewaiter/tidewaiter",
		"org.opencontainers.image.documentation": "https://github.com/tidewaiter/tidewaiter/blob/main/docs/README.md",
		"org.opencontainers.image.licenses":      "Apache-2.0",
		"org.opencontainers.image.version":       r.version,
		"org.opencontainers.image.created":       r.created.Format(time.RFC3339),
	}
	if r.revision != "" {
		labels["org.opencontainers.image.revision"] = r.revision
	}
	return labels
}

// file is a file of a layer, or a folder if it has no content.
type file struct {
	name    string
	mode    int64
	owner   int
	content []byte
}

// baseFiles are the files beside the program. Go reads certificate authorities where Debian has
// them.
func baseFiles() []file {
	var roots bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			// a file cannot say that an authority is trusted for a part only
			// writing to a buffer cannot fail
			_ = pem.Encode(&roots, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
		}
	}
	return []file{
		{name: "etc/passwd", mode: 0o644, content: []byte("root:x:0:0:root:/:/sbin/nologin\ntidewaiter:x:65532:65532:Tidewaiter:/var/lib/tidewaiter:/sbin/nologin\n")},
		{name: "etc/group", mode: 0o644, content: []byte("root:x:0:\ntidewaiter:x:65532:\n")},
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, content: roots.Bytes()},
		{name: "tmp", mode: 0o1777},
		{name: dataPath, mode: 0o700, owner: userID},
	}
}

func (r *release) layer(files []file) (v1.Layer, error) {
	packed, err := r.pack(files)
	if err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(packed)), nil },
		tarball.WithMediaType(types.OCILayer))
}

// pack is an archive of files with the folders that they are in.
func (r *release) pack(files []file) ([]byte, error) {
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	made := map[string]bool{".": true}
	write := func(f file) error {
		h := &tar.Header{Name: f.name, Mode: f.mode, Uid: f.owner, Gid: f.owner, ModTime: r.created, Typeflag: tar.TypeReg, Size: int64(len(f.content))}
		if f.content == nil {
			h.Name, h.Typeflag = f.name+"/", tar.TypeDir
			made[f.name] = true
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err := w.Write(f.content)
		return err
	}
	var folders func(name string) error
	folders = func(name string) error {
		if made[name] {
			return nil
		}
		if err := folders(path.Dir(name)); err != nil {
			return err
		}
		return write(file{name: name, mode: 0o755})
	}
	for _, f := range files {
		if err := folders(path.Dir(f.name)); err != nil {
			return nil, err
		}
		if err := write(f); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return packed.Bytes(), err
}
