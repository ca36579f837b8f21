package manifest

import (
	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/utils/lru"
)

const (
	// recentSize is how many manifests, configs and pairs of them are remembered.
	recentSize = 64
	// recentBytes is the longest text that is remembered. All texts together are at most 8 MiB,
	// besides the parsed values.
	recentBytes = 64 << 10
)

// One write reads the same manifest and config several times: to compute the fields that the client
// left out, to validate the others, and to find an index's children. So the last ones are
// remembered.
var (
	recentManifests = lru.New(recentSize)
	recentConfigs   = lru.New(recentSize)
	recentChecked   = lru.New(recentSize)
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
		key.mediaType = m.MediaType // Derive writes it into an image that has none
		recentManifests.Add(key, m)
	}
	return m, err
}

// ConfigOf parses the config that image carries, as ParseConfig does. The result
// may be shared and must not be changed. It may be another image's: see checkConfig.
func ConfigOf(image *imagev1.Image) (*Config, error) {
	return configOf(image.DockerImageConfig, nil)
}

// configOf is ConfigOf of a config, and of its bytes if the caller has them.
func configOf(key string, raw []byte) (*Config, error) {
	if c, ok := recentConfigs.Get(key); ok {
		return c.(*Config), nil
	}
	if raw == nil {
		raw = []byte(key)
	}
	c, err := ParseConfig(raw)
	if err == nil && len(key) <= recentBytes {
		recentConfigs.Add(key, c)
	}
	return c, err
}

// checked is the proof that a config has the digest and size that a manifest names. Only
// checkConfig makes it.
type checked struct {
	config *Config
	// metadata follows from the two alone.
	metadata []byte
}

type checkedKey struct {
	manifest *Manifest
	config   string
}

// checkConfig returns the proof for the config that image carries, or an error if it is not the one
// that m names.
func (m *Manifest) checkConfig(image *imagev1.Image) (*checked, error) {
	key := checkedKey{m, image.DockerImageConfig}
	if c, ok := recentChecked.Get(key); ok {
		return c.(*checked), nil
	}
	raw := []byte(key.config)
	if err := m.VerifyConfig(raw); err != nil {
		return nil, err
	}
	config, err := configOf(key.config, raw)
	if err != nil {
		return nil, err
	}
	metadata, err := m.metadata(image, config, nil)
	if err != nil {
		return nil, err
	}
	if metadata, err = m.fitting(image, metadata); err != nil {
		return nil, err
	}
	c := &checked{config, metadata}
	if max(len(image.DockerImageManifest), len(key.config), len(metadata)) <= recentBytes {
		recentChecked.Add(key, c)
	}
	return c, nil
}
