package manifest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/openshift/api/image/docker10"
	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// MetadataVersion is the version of dockerImageMetadata: docker10.GroupVersion's.
const MetadataVersion = "1.0"

// maxPlatform bounds the text derived from a platform, or from a part of one, in bytes.
const maxPlatform = 128

// maxArtifactType bounds the derived type of an artifact, in bytes.
const maxArtifactType = 256

// mediaTypeEmpty is the type of the config of a manifest that has none (OCI image-spec, "Guidance
// for an Empty Descriptor").
const mediaTypeEmpty = "application/vnd.oci.empty.v1+json"

// createdAnnotation holds the time of creation in the annotations of an index (OCI image-spec,
// "Pre-Defined Annotation Keys").
const createdAnnotation = "org.opencontainers.image.created"

// Derive fills the fields of image that follow from its dockerImageManifest and dockerImageConfig,
// replacing what they held: dockerImageMetadata (final bytes), dockerImageMetadataVersion,
// dockerImageLayers with the annotation for their ascending order, dockerImageManifests,
// dockerImageManifestMediaType and the annotations annotation.Platform, OSVersion and RunConfig.
//
// Fields that the bytes do not determine are kept: the metadata of an image whose config is absent,
// and the layer sizes of a schema 1 manifest, which has none. children are the Images of an index's
// children as far as they are known; the newest of them dates the index.
//
// Without a manifest Derive does nothing. After an error image is unchanged. Deriving twice gives
// the same as deriving once.
func Derive(image *imagev1.Image, children ...*imagev1.Image) error {
	if image.DockerImageManifest == "" {
		return nil
	}
	m, err := Of(image)
	if err != nil {
		return err
	}
	if m.Kind == KindArtifact {
		return NotAnImage(m)
	}
	config, metadata, err := m.describe(image, children)
	if err != nil {
		return err
	}

	image.DockerImageMetadata = runtime.RawExtension{Raw: metadata}
	image.DockerImageMetadataVersion = MetadataVersion
	image.DockerImageManifestMediaType = m.MediaType
	image.DockerImageLayers = m.imageLayers(image)
	image.DockerImageManifests = imageManifests(m.ImageChildren())
	annotations := map[string]string{}
	maps.Copy(annotations, image.Annotations)
	if m.Kind != KindIndex {
		annotations[imagev1.DockerImageLayersOrderAnnotation] = imagev1.DockerImageLayersOrderAscending
	}
	if config != nil {
		if p := config.Platform.String(); p != "" {
			annotations[annotation.Platform] = printable.Line(p, maxPlatform)
		}
		set := func(key, value string) {
			if delete(annotations, key); value != "" {
				annotations[key] = value
			}
		}
		set(annotation.OSVersion, printable.Line(config.OSVersion, maxPlatform))
		set(annotation.RunConfig, config.Config.beside())
	}
	if len(annotations) > 0 {
		image.Annotations = annotations
	}
	return nil
}

// DeriveArtifact is Derive for an artifact. Its config is not an image's, so dockerImageMetadata
// has only the config's digest as Id and the total size, and dockerImageManifests has everything
// that the artifact's index lists. The annotation annotation.ArtifactType has the kind of artifact.
// Only the caller can know that an index for which ListsReferrers is true is an artifact. For an
// image, the error is ErrInvalid.
func DeriveArtifact(image *imagev1.Image) error {
	if image.DockerImageManifest == "" {
		return nil
	}
	m, err := Of(image)
	if err != nil {
		return err
	}
	if m.Kind != KindArtifact && !m.ListsReferrers() {
		return fmt.Errorf("manifest %s: %w: it is an image, not an artifact", m.Digest, ErrInvalid)
	}
	if image.DockerImageConfig != "" {
		if err := m.VerifyConfig([]byte(image.DockerImageConfig)); err != nil {
			return err
		}
	}
	d := docker10.DockerImage{TypeMeta: metav1.TypeMeta{Kind: "DockerImage", APIVersion: docker10.GroupVersion.String()}, ID: m.Digest, Size: m.Size()}
	if m.Config != nil {
		d.ID = m.Config.Digest
	}
	metadata, err := json.Marshal(d)
	if err != nil {
		return err
	}
	image.DockerImageMetadata = runtime.RawExtension{Raw: metadata}
	image.DockerImageMetadataVersion = MetadataVersion
	image.DockerImageManifestMediaType = m.MediaType
	image.DockerImageLayers = m.imageLayers(image)
	image.DockerImageManifests = imageManifests(m.Children)
	annotations := maps.Clone(image.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	for _, key := range []string{annotation.Platform, annotation.OSVersion, annotation.RunConfig, imagev1.DockerImageLayersOrderAnnotation} {
		delete(annotations, key)
	}
	if m.Config != nil {
		annotations[imagev1.DockerImageLayersOrderAnnotation] = imagev1.DockerImageLayersOrderAscending
	}
	annotations[annotation.ArtifactType] = cmp.Or(m.TypeOfArtifact(), m.MediaType)
	image.Annotations = annotations
	return nil
}

// NotAnImage returns the error for a manifest of KindArtifact where an image is required. It names
// the apparent type of the artifact.
func NotAnImage(m *Manifest) error {
	return fmt.Errorf("manifest %s is %w: %s", m.Digest, ErrNotAnImage, m.describeArtifact())
}

func (m *Manifest) describeArtifact() string {
	switch kind := m.TypeOfArtifact(); {
	case m.ArtifactType != "":
		return "artifactType " + kind
	case m.Config != nil && m.Config.MediaType == kind:
		return "config of type " + kind
	case len(m.Layers) > 0:
		return "layers of type " + kind
	}
	return m.MediaType
}

// TypeOfArtifact returns the apparent type of a manifest of KindArtifact, on one line: its
// artifactType; else the type of its config (OCI image-spec, "Guidelines for Artifact Usage"); else
// the type of its first layer, because artifacts of cosign and other tools have an image's config.
// It is "" for other kinds, and never for an artifact.
func (m *Manifest) TypeOfArtifact() string {
	if m.Kind != KindArtifact {
		return ""
	}
	kind := m.ArtifactType
	if kind == "" && m.Config != nil && !isImageConfig(m.Config.MediaType) && m.Config.MediaType != mediaTypeEmpty {
		kind = m.Config.MediaType
	}
	if kind == "" && len(m.Layers) > 0 {
		kind = m.Layers[0].MediaType
	}
	return printable.Line(cmp.Or(kind, m.MediaType), maxArtifactType)
}

// describe returns the config that image carries, after checking that it is the manifest's, and the
// final JSON of dockerImageMetadata. The config is nil when there is none.
func (m *Manifest) describe(image *imagev1.Image, children []*imagev1.Image) (*Config, []byte, error) {
	if image.DockerImageConfig == "" {
		metadata, err := m.metadata(image, m.history, children)
		return m.history, metadata, err // nil but for schema 1
	}
	c, err := m.checkConfig(image)
	if err != nil {
		return nil, nil, err
	}
	if own := image.DockerImageMetadata.Raw; bytes.Equal(own, c.metadata) {
		return c.config, own, nil
	}
	return c.config, slices.Clone(c.metadata), nil // a decoder into an Image writes over its bytes
}

// VerifyConfig checks that raw is the config that the manifest names, by digest and size.
func (m *Manifest) VerifyConfig(raw []byte) error {
	if m.Config == nil {
		return fmt.Errorf("config: %w: a manifest of kind %s has none", ErrInvalid, m.Kind)
	}
	if err := VerifyDigest(raw, m.Config.Digest); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	if int64(len(raw)) != m.Config.Size {
		return fmt.Errorf("config: %w: it has %d bytes but the manifest says %d", ErrInvalid, len(raw), m.Config.Size)
	}
	return nil
}

// metadata is the final JSON of dockerImageMetadata.
func (m *Manifest) metadata(image *imagev1.Image, config *Config, children []*imagev1.Image) ([]byte, error) {
	d := docker10.DockerImage{TypeMeta: metav1.TypeMeta{Kind: "DockerImage", APIVersion: docker10.GroupVersion.String()}}
	switch {
	case m.Kind == KindIndex:
		d.ID = m.Digest
		d.Created = metav1.Time{Time: m.created(children)}
	case config == nil && len(image.DockerImageMetadata.Raw) > 0:
		return image.DockerImageMetadata.Raw, nil
	default:
		d.Size = m.Size()
		if m.Config != nil {
			d.ID = m.Config.Digest
		}
	}
	if config != nil {
		if m.Kind == KindSchema1 {
			d.ID = printable.Line(config.ID, 0)
			d.Size = m.sizeWith(image)
		}
		config.fill(&d)
	}
	return json.Marshal(d)
}

// fill sets the fields of d that follow from a config alone.
func (c *Config) fill(d *docker10.DockerImage) {
	d.Parent, d.Comment, d.Container = c.Parent, c.Comment, c.Container
	d.DockerVersion, d.Author, d.Architecture = c.DockerVersion, c.Author, c.Architecture
	for _, text := range []*string{&d.Parent, &d.Comment, &d.Container, &d.DockerVersion, &d.Author, &d.Architecture} {
		*text = printable.Text(*text)
	}
	if c.Created != nil {
		d.Created = metav1.Time{Time: c.Created.UTC()}
	}
	d.Config = c.Config.docker()
	if before := c.ContainerConfig.docker(); before != nil {
		d.ContainerConfig = *before
	}
}

// created dates an index: by its annotation, else by its newest known child, else not at all.
func (m *Manifest) created(children []*imagev1.Image) time.Time {
	if t, err := time.Parse(time.RFC3339, m.Annotations[createdAnnotation]); err == nil {
		if y := t.UTC().Year(); y >= 0 && y <= 9999 {
			return t.UTC()
		}
	}
	var newest time.Time
	for _, child := range children {
		known := slices.ContainsFunc(m.Children, func(d Descriptor) bool { return d.Digest == child.Name })
		if meta, err := Metadata(child); err == nil && known && meta.Created.After(newest) {
			newest = meta.Created.UTC()
		}
	}
	return newest
}

// Metadata decodes the dockerImageMetadata of image, as Kubernetes' clients do. Absent metadata is
// the zero DockerImage. If the metadata is shortened, Metadata reads the missing fields from the
// config.
func Metadata(image *imagev1.Image) (*docker10.DockerImage, error) {
	d, err := metadataAsIs(image)
	if err == nil && d.Config == nil && mayBeShort(image) && image.Annotations[annotation.ArtifactType] == "" {
		if config, unread := ConfigOf(image); unread == nil {
			config.fill(d)
		}
	}
	return d, err
}

func metadataAsIs(image *imagev1.Image) (*docker10.DockerImage, error) {
	d := &docker10.DockerImage{}
	if len(image.DockerImageMetadata.Raw) == 0 {
		return d, nil
	}
	if plain, ok := readMetadata(image.DockerImageMetadata.Raw); ok {
		return plain, nil
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(image.DockerImageMetadata.Raw, d); err != nil {
		return nil, fmt.Errorf("dockerImageMetadata: %w JSON: %v", ErrInvalid, err)
	}
	return d, nil
}

// imageLayers are the manifest's layers. Manifests of schema 1 lack sizes, but a registry that
// stores such images knows them. So sizes that image already has for the same layers are kept.
func (m *Manifest) imageLayers(image *imagev1.Image) []imagev1.ImageLayer {
	if m.Kind == KindIndex || len(m.Layers) == 0 {
		return nil
	}
	keep := m.Kind == KindSchema1 && m.sameLayers(image.DockerImageLayers)
	layers := make([]imagev1.ImageLayer, len(m.Layers))
	for i, l := range m.Layers {
		layers[i] = imagev1.ImageLayer{Name: l.Digest, LayerSize: l.Size, MediaType: l.MediaType}
		if keep {
			layers[i].LayerSize = image.DockerImageLayers[i].LayerSize
		}
	}
	return layers
}

func (m *Manifest) sameLayers(layers []imagev1.ImageLayer) bool {
	return slices.EqualFunc(m.Layers, layers, func(d Descriptor, l imagev1.ImageLayer) bool {
		return d.Digest == l.Name && l.LayerSize >= 0
	})
}

// sizeWith is Size with the layer sizes that imageLayers chooses; 0 when they cannot be summed.
func (m *Manifest) sizeWith(image *imagev1.Image) int64 {
	var sum int64
	seen := map[string]bool{}
	for _, l := range m.imageLayers(image) {
		if seen[l.Name] {
			continue
		}
		seen[l.Name] = true
		if sum += l.LayerSize; sum < 0 {
			return 0
		}
	}
	return sum
}

// imageManifests lists children of an index. An index of images has only images there:
// dockerImageManifests points to Images, and attestations are not images.
func imageManifests(children []Descriptor) []imagev1.ImageManifest {
	var out []imagev1.ImageManifest
	for _, d := range children {
		p := Platform{}
		if d.Platform != nil {
			p = *d.Platform
		}
		out = append(out, imagev1.ImageManifest{
			Digest: d.Digest, MediaType: d.MediaType, ManifestSize: d.Size,
			Architecture: printable.Line(p.Architecture, maxPlatform), OS: printable.Line(p.OS, maxPlatform), Variant: printable.Line(p.Variant, maxPlatform),
		})
	}
	return out
}
