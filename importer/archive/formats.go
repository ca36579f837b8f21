package archive

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	godigest "github.com/opencontainers/go-digest"

	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// readLayout reads index.json of an OCI image layout.
func (s *Source) readLayout() error {
	raw, err := s.read("index.json")
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("it is not an OCI image layout: it has no index.json")
	}
	if err != nil {
		return err
	}
	var index struct {
		Manifests []struct {
			MediaType   string            `json:"mediaType"`
			Digest      string            `json:"digest"`
			Annotations map[string]string `json:"annotations"`
		} `json:"manifests"`
	}
	if err := json.Unmarshal(raw, &index); err != nil {
		return fmt.Errorf("index.json: %w", err)
	}
	for _, m := range index.Manifests {
		if !reference.IsDigest(m.Digest) {
			return fmt.Errorf("index.json: %.100q is not a digest", m.Digest)
		}
		s.types[m.Digest] = m.MediaType
		// docker save and containerd write the whole name into the first annotation, others a name
		// or a tag into the second.
		name := cmp.Or(m.Annotations["io.containerd.image.name"], m.Annotations["org.opencontainers.image.ref.name"])
		s.add(Image{name: name, digest: m.Digest})
	}
	return nil
}

// readDir reads skopeo's dir:, whose manifest names its blobs by their hex digits.
func (s *Source) readDir() error {
	raw, err := s.read("manifest.json")
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("it is not a directory written by skopeo: it has no manifest.json; use oci: for a layout, which has index.json")
	}
	if err != nil {
		return err
	}
	digest := manifest.Digest(raw)
	if m, err := manifest.Parse(raw, ""); err == nil {
		digest = m.Digest // for a signed manifest of schema 1, its payload's digest
	}
	s.blobs[digest] = "manifest.json"
	s.manifest = "%s.manifest.json"
	s.add(Image{digest: digest})
	return nil
}

// readDocker reads manifest.json of docker save. Since version 25 its archive is a layout as well,
// and has manifests. An older archive has a config and layers: their manifest is made as
// containers/image makes it.
func (s *Source) readDocker() error {
	if err := s.readLayout(); err == nil {
		return nil
	}
	raw, err := s.read("manifest.json")
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("it is not an archive of docker save: it has no manifest.json")
	}
	if err != nil {
		return err
	}
	var images []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(raw, &images); err != nil {
		return fmt.Errorf("manifest.json: %w", err)
	}
	for _, i := range images {
		digest, err := s.makeManifest(i.Config, i.Layers)
		if err != nil {
			return err
		}
		for _, name := range i.RepoTags {
			s.add(Image{name: name, digest: digest, Made: true})
		}
		if len(i.RepoTags) == 0 {
			s.add(Image{digest: digest, Made: true})
		}
	}
	return nil
}

func (s *Source) makeManifest(config string, layers []string) (digest string, err error) {
	raw, err := s.read(config)
	if err != nil {
		return "", err
	}
	var c struct {
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return "", fmt.Errorf("%s: %w", config, err)
	}
	if len(c.RootFS.DiffIDs) != len(layers) {
		return "", fmt.Errorf("%s has %s, manifest.json has %s", config, table.Quantity(len(c.RootFS.DiffIDs), "diff ID"), table.Quantity(len(layers), "layer"))
	}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.DockerManifestSchema2, Layers: []v1.Descriptor{}}
	if m.Config, err = descriptor(types.DockerConfigJSON, manifest.Digest(raw), int64(len(raw))); err != nil {
		return "", err
	}
	s.blobs[m.Config.Digest.String()] = config
	for i, path := range layers {
		digest, size, err := s.layer(path, c.RootFS.DiffIDs[i])
		if err != nil {
			return "", fmt.Errorf("%s: %w", path, err)
		}
		layer, err := descriptor(types.DockerLayer, digest, size)
		if err != nil {
			return "", fmt.Errorf("%s: %w", path, err)
		}
		s.blobs[digest] = path
		m.Layers = append(m.Layers, layer)
	}
	made, err := json.Marshal(m)
	if err != nil {
		return "", err
	}
	digest = manifest.Digest(made)
	s.made[digest] = made
	return digest, nil
}

func descriptor(mediaType types.MediaType, digest string, size int64) (v1.Descriptor, error) {
	hash, err := v1.NewHash(digest)
	return v1.Descriptor{MediaType: mediaType, Digest: hash, Size: size}, err
}

// layer returns the digest and the size of a layer as it is in the archive. If it is not
// compressed, as docker save writes it, its digest is its diff ID.
func (s *Source) layer(path, diffID string) (digest string, size int64, err error) {
	f, err := s.fsys.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", 0, err
	}
	var begin [4]byte
	n, err := io.ReadFull(f, begin[:])
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return "", 0, err
	}
	if compression(begin[:n]) == "" {
		return diffID, info.Size(), nil
	}
	sum, err := godigest.FromReader(io.MultiReader(bytes.NewReader(begin[:n]), f))
	return sum.String(), info.Size(), err
}

// compression returns how data is compressed, by its first bytes; "" is not at all.
func compression(begin []byte) string {
	switch {
	case bytes.HasPrefix(begin, []byte{0x1f, 0x8b}):
		return "gzip"
	case bytes.HasPrefix(begin, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return "zstd"
	case bytes.HasPrefix(begin, []byte("BZh")):
		return "bzip2"
	case bytes.HasPrefix(begin, []byte{0xfd, '7', 'z', 'X'}):
		return "xz"
	}
	return ""
}
