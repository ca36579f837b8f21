package answers

import (
	"context"
	"fmt"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/manifest"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/tags"
)

// maxRevisions bounds the images of a base, and maxBasePlatforms those that one lists, that an image's layers are compared with.
const maxRevisions, maxBasePlatforms = 5, 16

// based fills in what the image is built on, and whether that is an older revision of its base. Annotations name the base; where
// they have no digest, the layers tell which revision it was.
func (s *session) based(ctx context.Context, a *Answer, m *resolved) {
	if m.image == nil {
		return
	}
	name, digest := manifest.BaseOf(m.image)
	if name == "" && digest == "" {
		return
	}
	b := &Base{Outdated: BaseUnknown}
	a.Base = b
	if reference.IsDigest(digest) {
		b.Digest, b.By = digest, "annotation"
	}
	ref, err := reference.Parse(name)
	if err != nil || name == "" {
		b.Message = "the image does not name the repository of its base"
		return
	}
	ref = ref.Pulled()
	b.Reference = ref.String()
	if ref.Digest != "" {
		b.Digest, b.By, b.Message = ref.Digest, "annotation", "the image names no tag of its base"
		return
	}
	_, tag, err := s.tagOf(ctx, ref)
	now, _ := tags.Now(tag)
	switch {
	case err != nil:
		b.Message = whyNot(err)
	case now == "":
		b.Message = fmt.Sprintf("it is not known where %s leads now: tidewaiter import %s", ref, ref)
	default:
		b.Now = now
		if err := s.revision(ctx, b, m.image, tag); err != nil {
			b.Message = whyNot(err)
		}
	}
}

// revision finds out which revision of its base an image is built on.
func (s *session) revision(ctx context.Context, b *Base, image *imagev1.Image, tag *imagev1.ImageTag) error {
	items := tag.Status.Items
	for i := range items[:min(len(items), maxRevisions)] {
		digest := items[i].Image
		if digest == "" {
			continue
		}
		is := b.Digest == digest
		if !is {
			all, err := s.withPlatforms(ctx, digest)
			if err != nil {
				return err
			}
			for _, one := range all {
				if b.By == "annotation" {
					is = is || one.Name == b.Digest
				} else {
					is = is || manifest.BeginsWith(image, one)
				}
			}
		}
		if !is {
			continue
		}
		if b.By == "" {
			b.Digest, b.By = digest, "layers"
		}
		if b.Outdated = BaseCurrent; digest != b.Now {
			b.Outdated, b.Until = BaseOutdated, items[i-1].Created.DeepCopy()
		}
		return nil
	}
	if b.By == "annotation" {
		b.Outdated = BaseOutdated
		return nil
	}
	b.Message = fmt.Sprintf("the image says no digest of its base, and its layers do not begin with those of the last revisions of %s that are stored", b.Reference)
	return nil
}

// withPlatforms are the image of a digest and those that it lists, as far as they are stored.
func (s *session) withPlatforms(ctx context.Context, digest string) (all []*imagev1.Image, err error) {
	whole, err := s.image(ctx, digest)
	if err != nil || whole == nil {
		return nil, err
	}
	all = append(all, whole)
	listed := whole.DockerImageManifests
	for i := range listed[:min(len(listed), maxBasePlatforms)] {
		one, err := s.image(ctx, listed[i].Digest)
		if err != nil {
			return nil, err
		}
		if one != nil {
			all = append(all, one)
		}
	}
	return all, nil
}
