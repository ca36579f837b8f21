package answers

import (
	"context"
	"fmt"
	"slices"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// maxRevisions bounds the images of a base, and maxBasePlatforms those that one lists, that an
// image's layers are compared with.
const maxRevisions, maxBasePlatforms = 5, 16

// based fills in what the image is built on, and whether that is an older revision of its base.
// Annotations name the base; where they have no digest, the layers tell which revision it was.
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
		b.Digest, b.By = digest, BaseByAnnotation
	}
	ref := manifest.BaseReference(name)
	if ref.Host == "" {
		b.Message = "the image does not name the repository of its base"
		return
	}
	b.Reference = ref.String()
	if ref.Digest != "" {
		b.Digest, b.By, b.Message = ref.Digest, BaseByAnnotation, "the image names no tag of its base"
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
	stored := false // what the base is now, so that it is known what it lists
	for i := range items[:min(len(items), maxRevisions)] {
		digest := items[i].Image
		if digest == "" {
			continue
		}
		is, known, err := s.isOn(ctx, b, image, digest)
		if err != nil {
			return err
		}
		if digest == b.Now {
			stored = known
		}
		if !is {
			continue
		}
		if b.By == "" {
			b.Digest, b.By = digest, BaseByLayers
		}
		if b.Outdated = BaseCurrent; digest != b.Now {
			b.Outdated, b.Until = BaseOutdated, items[i-1].Created.DeepCopy()
		}
		return nil
	}
	switch {
	case b.By == "":
		b.Message = fmt.Sprintf("the image says no digest of its base, and its layers do not begin with those of the last revisions of %s that are stored", b.Reference)
	case stored:
		b.Outdated = BaseOutdated
	default:
		b.Message = fmt.Sprintf("%s leads to %s now, which is not stored, so it is not known whether that lists %s", b.Reference, b.Now, b.Digest)
	}
	return nil
}

// isOn reports whether an image is built on one revision of its base. known is false if that
// revision is not stored, so that its platforms and layers are not known.
func (s *session) isOn(ctx context.Context, b *Base, image *imagev1.Image, digest string) (is, known bool, err error) {
	if b.By == "" {
		all, err := s.withPlatforms(ctx, digest)
		return slices.ContainsFunc(all, func(one *imagev1.Image) bool { return manifest.BeginsWith(image, one) }), len(all) > 0, err
	}
	if b.Digest == digest {
		return true, true, nil
	}
	whole, err := s.image(ctx, digest)
	if err != nil || whole == nil {
		return false, false, err
	}
	return slices.Contains(manifest.Listed(whole), b.Digest), true, nil
}

// withPlatforms are the image of a digest and those that it lists, as far as they are stored, with
// their layers only. They are read once: many images of a review are built on one base.
func (s *session) withPlatforms(ctx context.Context, digest string) ([]*imagev1.Image, error) {
	if all, ok := s.bases[digest]; ok {
		return all, nil
	}
	whole, err := s.image(ctx, digest)
	if err != nil {
		return nil, err
	}
	var all []*imagev1.Image
	keep := func(image *imagev1.Image) {
		all = append(all, &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: image.Name}, DockerImageLayers: image.DockerImageLayers})
	}
	if whole != nil {
		keep(whole)
		listed := whole.DockerImageManifests
		for i := range listed[:min(len(listed), maxBasePlatforms)] {
			one, err := s.image(ctx, listed[i].Digest)
			if err != nil {
				return nil, err
			}
			if one != nil {
				keep(one)
			}
		}
	}
	if s.bases == nil {
		s.bases = map[string][]*imagev1.Image{}
	}
	s.bases[digest] = all
	return all, nil
}
