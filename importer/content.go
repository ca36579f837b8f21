package importer

import (
	"context"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/manifest"
)

// content puts the config into fresh: the stored one, or that of the registry. It leaves out a
// config that is too large to be asked for, or from which nothing can be derived, so that no pusher
// can keep an image from being stored. Then read is false, and config has at most a platform.
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
		p.OS, p.Architecture, _ = strings.Cut(found.Annotations[annotation.Platform], "/")
		p.Architecture, p.Variant, _ = strings.Cut(p.Architecture, "/")
		p.OSVersion = found.Annotations[annotation.OSVersion]
	}
	return p
}
