// Package content describes what images have in them and how they run, and compares two images.
package content

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

// Content is what an image has in it, and how it runs.
type Content struct {
	// Platforms are the platform of the image, or those of the images that an index lists.
	Platforms []Platform `json:"platforms,omitempty"`
	// Size is in bytes, each layer counted once; 0 if it is not known, as for an index.
	Size   int64   `json:"size,omitempty"`
	Layers []Layer `json:"layers,omitempty"`
	// Configured is false if the fields below are not known: an index has no configuration, and an
	// image's may be left out.
	Configured bool              `json:"configured"`
	Entrypoint []string          `json:"entrypoint,omitempty"`
	Cmd        []string          `json:"cmd,omitempty"`
	User       string            `json:"user,omitempty"`
	WorkingDir string            `json:"workingDir,omitempty"`
	Ports      []string          `json:"ports,omitempty"`
	Volumes    []string          `json:"volumes,omitempty"`
	Env        []string          `json:"env,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	// Run has the rest of how the image runs, from the configuration: health check, stop signal,
	// shell.
	Run json.RawMessage `json:"run,omitempty"`
	// Base is the image on which this one was built, by the manifest's annotations or its labels.
	Base string `json:"base,omitempty"`
}

// Platform is a platform, with the digest of its image if an index lists it.
type Platform struct {
	Platform string `json:"platform"`
	Digest   string `json:"digest,omitempty"`
}

// Layer is a layer of an image.
type Layer struct {
	Digest string `json:"digest"`
	Size   int64  `json:"size"` // bytes
}

// Of reads the content of an image.
func Of(image *imagev1.Image) Content {
	metadata, err := manifest.Metadata(image)
	if err != nil {
		return Content{}
	}
	c := Content{Size: metadata.Size}
	for i, p := range manifest.Platforms(image.DockerImageManifests) {
		c.Platforms = append(c.Platforms, Platform{p.String(), image.DockerImageManifests[i].Digest})
	}
	if p := cmp.Or(image.Annotations[annotation.Platform], metadata.Architecture); p != "" && len(c.Platforms) == 0 {
		c.Platforms = []Platform{{Platform: p}}
	}
	for _, l := range image.DockerImageLayers {
		c.Layers = append(c.Layers, Layer{l.Name, l.LayerSize})
	}
	if config := metadata.Config; config != nil {
		c.Configured = true
		c.Entrypoint, c.Cmd, c.User, c.WorkingDir, c.Env, c.Labels = config.Entrypoint, config.Cmd, config.User, config.WorkingDir, config.Env, config.Labels
		c.Ports, c.Volumes = slices.Sorted(maps.Keys(config.ExposedPorts)), slices.Sorted(maps.Keys(config.Volumes))
	}
	if run := image.Annotations[annotation.RunConfig]; json.Valid([]byte(run)) {
		c.Run = json.RawMessage(run)
	}
	var digest string
	if c.Base, digest = manifest.BaseOf(image); digest != "" {
		c.Base += "@" + digest
	}
	return c
}

// Words returns a command as JSON, which shows where each word ends.
func Words(all []string) string {
	if len(all) == 0 {
		return ""
	}
	b, _ := json.Marshal(all) // strings always marshal
	return string(b)
}
