package manifest

import (
	"bytes"
	"slices"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/utils/lru"
)

const (
	// recentSize is how many manifests and how many configs are remembered.
	recentSize = 64
	// recentBytes is the longest text that is remembered: all together are at
	// most 8 MiB of text, and what was read of it.
	recentBytes = 64 << 10
)

// One write reads the same manifest and config several times: to compute what
// the client left out, to validate what it sent, to find an index's children.
// What was read last is remembered.
var (
	recentManifests = lru.New(recentSize)
	recentConfigs   = lru.New(recentSize)
	recentMetadata  = lru.New(recentSize)
)

type recentKey struct{ raw, mediaType string }

// Of parses the manifest that image carries, as Parse does. The result may be
// shared and must not be changed.
func Of(image *imagev1.Image) (*Manifest, error) {
	key := recentKey{image.DockerImageManifest, image.DockerImageManifestMediaType}
	if m, ok := recentManifests.Get(key); ok {
		return m.(*Manifest), nil
	}
	m, err := Parse([]byte(key.raw), key.mediaType)
	if err == nil && len(key.raw) <= recentBytes {
		recentManifests.Add(key, m)
	}
	return m, err
}

// ConfigOf parses the config that image carries, as ParseConfig does. The result
// may be shared and must not be changed.
func ConfigOf(image *imagev1.Image) (*Config, error) {
	key := image.DockerImageConfig
	if c, ok := recentConfigs.Get(key); ok {
		return c.(*Config), nil
	}
	return rememberConfig(key, []byte(key))
}

// rememberConfig parses a config, whose text is key.
func rememberConfig(key string, raw []byte) (*Config, error) {
	c, err := ParseConfig(raw)
	if err == nil && len(key) <= recentBytes {
		recentConfigs.Add(key, c)
	}
	return c, err
}

type metadataKey struct {
	manifest *Manifest
	config   *Config
}

// recentConfig is the config of image, nil if it is not remembered. verified says that what it says
// together with m is remembered too: then it is known to be the one that m names.
func (m *Manifest) recentConfig(image *imagev1.Image) (config *Config, verified bool) {
	c, ok := recentConfigs.Get(image.DockerImageConfig)
	if !ok {
		return nil, false
	}
	config = c.(*Config)
	_, verified = recentMetadata.Get(metadataKey{m, config})
	return config, verified
}

// recentMetadata is metadata. Where there is a config, manifest and config are all that it depends on.
func (m *Manifest) recentMetadata(image *imagev1.Image, config *Config, children []*imagev1.Image) ([]byte, error) {
	if m.Kind != KindImage || config == nil {
		return m.metadata(image, config, children)
	}
	key := metadataKey{m, config}
	if raw, ok := recentMetadata.Get(key); ok {
		if own := image.DockerImageMetadata.Raw; bytes.Equal(own, raw.([]byte)) {
			return own, nil
		}
		return slices.Clone(raw.([]byte)), nil
	}
	raw, err := m.metadata(image, config, children)
	if err == nil && len(raw) <= recentBytes {
		recentMetadata.Add(key, slices.Clone(raw)) // who decodes into an Image writes over its bytes
	}
	return raw, err
}
