package importer

import (
	"context"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

// content puts the config into fresh: the stored config, or the one that it reads from the
// registry. It leaves out a config that is too large to be read, or from which nothing can be
// derived; otherwise a pusher could use such a config to keep an image from being stored. Then read
// is false, and config has at most a platform.
func (r *run) content(ctx context.Context, n node, found *imagev1.Image, m *fetched, fresh *imagev1.Image) (config *manifest.Config, read bool, err error) {
	leaveOut := func(reason string) (*manifest.Config, bool, error) {
		fresh.DockerImageConfig = ""
		manifest.LeftOut{Config: &manifest.LeftOutPart{Digest: m.Config.Digest, Size: m.Config.Size, Reason: reason}}.Set(fresh)
		return &manifest.Config{Platform: knownPlatform(n, found)}, false, nil
	}
	if found != nil {
		fresh.DockerImageConfig = found.DockerImageConfig
		// A config that was left out is read again only to verify layers.
		if left, err := manifest.LeftOutOf(found); err == nil && left.Config != nil && !r.toVerify(found) {
			return leaveOut(left.Config.Reason)
		}
	}
	if fresh.DockerImageConfig == "" {
		if m.Config.Size > manifest.MaxConfigSize {
			return leaveOut(manifest.LeftOutTooLarge)
		}
		raw, err := fetchConfig(ctx, n.session, m)
		if err != nil {
			return nil, false, err
		}
		fresh.DockerImageConfig = string(raw)
	}
	if config, err = manifest.ConfigOf(fresh); err != nil {
		return leaveOut(manifest.LeftOutUnreadable)
	}
	return config, true, nil
}

// toVerify reports whether the layers of an image must be verified; found is the stored image, if
// any.
func (r *run) toVerify(found *imagev1.Image) bool {
	return r.verify && (found == nil || found.Annotations[annotation.Layers] != annotation.LayersVerified)
}

// knownPlatform returns the platform of an image without its config: from the index that lists the
// image, or from the stored image.
func knownPlatform(n node, found *imagev1.Image) (p manifest.Platform) {
	if n.child != nil && n.child.Platform != nil {
		return *n.child.Platform
	}
	if found != nil {
		p = manifest.ParsePlatform(found.Annotations[annotation.Platform])
		p.OSVersion = found.Annotations[annotation.OSVersion]
	}
	return p
}
