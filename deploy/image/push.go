package main

import (
	"context"
	"fmt"
	"io"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// push writes what a layout holds to a repository, tagged with the version, with the credentials
// that docker and podman have. It prints REPOSITORY@DIGEST of each image with its platform, and of
// an index that lists them.
func (r *release) push(ctx context.Context, dir, repository string, out io.Writer) error {
	at, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return err
	}
	whole, err := at.IndexManifest()
	if err != nil {
		return err
	}
	if len(whole.Manifests) != 1 {
		return fmt.Errorf("%s holds %d images, and not one", dir, len(whole.Manifests))
	}
	tag, err := name.NewTag(repository + ":" + r.version)
	if err != nil {
		return err
	}
	o := []remote.Option{remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithContext(ctx)}
	one := whole.Manifests[0]
	print := func(d v1.Descriptor) {
		platform := ""
		if d.Platform != nil {
			platform = " " + d.Platform.String()
		}
		fmt.Fprintf(out, "%s@%s%s\n", repository, d.Digest, platform)
	}
	print(one)
	if !one.MediaType.IsIndex() {
		image, err := at.Image(one.Digest)
		if err != nil {
			return err
		}
		return remote.Write(tag, image, o...)
	}
	index, err := at.ImageIndex(one.Digest)
	if err != nil {
		return err
	}
	images, err := index.IndexManifest()
	if err != nil {
		return err
	}
	for _, m := range images.Manifests {
		print(m)
	}
	return remote.WriteIndex(tag, index, o...)
}
