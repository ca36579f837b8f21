package manifest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	kjson "sigs.k8s.io/json"
)

// MaxManifestSize is the largest manifest that is read, in bytes: the least that the distribution
// specification requires registries to accept, and the limit that they enforce.
const MaxManifestSize = 4 << 20

// Kind is what a manifest describes.
type Kind string

const (
	// KindImage is one image for one platform: OCI image manifest or Docker schema 2.
	KindImage Kind = "Image"
	// KindIndex is a list of manifests: OCI index or Docker manifest list.
	KindIndex Kind = "Index"
	// KindSchema1 is one image in Docker's first format. It has no config blob.
	KindSchema1 Kind = "Schema1"
	// KindArtifact is anything else that is packed in the same formats: signatures, attestations,
	// SBOMs, charts.
	KindArtifact Kind = "Artifact"
)

// Descriptor points to a blob or a manifest (OCI descriptor).
type Descriptor struct {
	MediaType    string            `json:"mediaType"`
	Digest       string            `json:"digest"`
	Size         int64             `json:"size"` // bytes
	Annotations  map[string]string `json:"annotations,omitempty"`
	ArtifactType string            `json:"artifactType,omitempty"`
	// children of an index only; may be absent
	Platform *Platform `json:"platform,omitempty"`
}

// IsAttestation reports whether an index's child is a BuildKit attestation (provenance, SBOM) and
// not an image. BuildKit marks them by an annotation, which no runtime looks at, and by the
// platform unknown/unknown, which no runtime chooses.
func (d Descriptor) IsAttestation() bool {
	return d.Platform != nil && d.Platform.OS == "unknown" && d.Platform.Architecture == "unknown"
}

// Manifest is a parsed manifest. It shares memory with the bytes that it was parsed from.
type Manifest struct {
	// MediaType is the manifest's own: one of AcceptedMediaTypes.
	MediaType string
	Kind      Kind
	// SchemaVersion is 1 for Docker schema 1, else 2.
	SchemaVersion int
	// Digest is the sha256 digest of the canonical bytes.
	Digest string
	// Config is nil for an index, for schema 1 and for an OCI artifact manifest.
	Config *Descriptor
	// Layers are ascending: the base layer first. Empty for an index. For an OCI artifact manifest,
	// they are its blobs.
	Layers []Descriptor
	// Children are an index's entries, attestations included, in the order of the manifest.
	Children     []Descriptor
	Subject      *Descriptor
	ArtifactType string
	Annotations  map[string]string

	// canonical has the bytes that the digest covers: the manifest itself, or the payload of a signed
	// schema 1 manifest without its signatures.
	canonical []byte
	// history is the config of a schema 1 manifest: its newest v1Compatibility.
	history *Config
}

// wireManifest is the union of the fields of all formats. Presence of a field matters, therefore
// pointers.
type wireManifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	ArtifactType  string            `json:"artifactType"`
	Config        *Descriptor       `json:"config"`
	Layers        *[]Descriptor     `json:"layers"`
	Manifests     *[]Descriptor     `json:"manifests"`
	Subject       *Descriptor       `json:"subject"`
	Annotations   map[string]string `json:"annotations"`

	FSLayers   *[]schema1Layer   `json:"fsLayers"`
	History    *[]schema1History `json:"history"`
	Signatures *[]jwsSignature   `json:"signatures"`
}

// Parse reads a manifest. mediaType is from the registry's Content-Type or from the referring
// descriptor; empty if neither is known. An artifact is no error here: its Kind is KindArtifact.
//
// Rules beyond JSON: the manifest's own mediaType, the given one and its shape must agree
// (CVE-2021-41190, OCI image-spec "mediaType"); digests are well-formed and sizes not negative; no
// key occurs twice, or in another case than in its specification.
func Parse(raw []byte, mediaType string) (*Manifest, error) {
	if len(raw) > MaxManifestSize {
		return nil, fmt.Errorf("manifest of %d bytes is %w: the limit is %d", len(raw), ErrTooLarge, MaxManifestSize)
	}
	wire, err := decode(raw)
	if err != nil {
		return nil, err
	}
	given := normalizeMediaType(mediaType)
	var m *Manifest
	switch {
	case given == MediaTypeOCIArtifact || wire.MediaType == MediaTypeOCIArtifact:
		m, err = parseArtifact(raw, wire, given)
	case wire.SchemaVersion == 1:
		m, err = parseSchema1(raw, wire, given)
	case wire.SchemaVersion == 2:
		m, err = parseSchema2(raw, wire, given)
	default:
		return nil, fmt.Errorf("manifest: %w schemaVersion %d: want 1 or 2", ErrUnsupported, wire.SchemaVersion)
	}
	if err != nil {
		return nil, err
	}
	if err := m.check(); err != nil {
		return nil, err
	}
	m.Digest = Digest(m.canonical)
	return m, nil
}

func decode(raw []byte) (*wireManifest, error) {
	if wire, ok := readManifest(raw); ok {
		return wire, nil
	}
	var wire wireManifest
	strict, err := kjson.UnmarshalStrict(raw, &wire, kjson.DisallowDuplicateFields)
	if err != nil && !beginsWithObject(raw) {
		return nil, fmt.Errorf("manifest: %w: %v", ErrNoManifest, err)
	}
	if err != nil {
		return nil, fmt.Errorf("manifest: %w JSON: %v", ErrInvalid, err)
	}
	if len(strict) > 0 {
		return nil, fmt.Errorf("manifest is %w: %v", ErrAmbiguous, strict[0])
	}
	if err := checkKeys(raw); err != nil {
		return nil, err
	}
	return &wire, nil
}

// beginsWithObject reports whether raw begins with a complete JSON object, nested to any depth.
func beginsWithObject(raw []byte) bool {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	for depth := 0; ; {
		token, err := decoder.Token()
		if err != nil {
			return false
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 0 {
			return token == json.Delim('}')
		}
	}
}

// parseSchema2 reads the four formats with schemaVersion 2.
func parseSchema2(raw []byte, wire *wireManifest, given string) (*Manifest, error) {
	if wire.FSLayers != nil || wire.History != nil || wire.Signatures != nil {
		return nil, fmt.Errorf("manifest is %w: schemaVersion 2 with fields of schemaVersion 1", ErrAmbiguous)
	}
	isIndex := wire.Manifests != nil
	isImage := wire.Layers != nil || wire.Config != nil
	switch {
	case isIndex && isImage:
		return nil, fmt.Errorf("manifest is %w: it has both manifests and layers or config (CVE-2021-41190)", ErrAmbiguous)
	case !isIndex && !isImage:
		return nil, fmt.Errorf("manifest: %w: it has neither manifests nor layers and config", ErrNoManifest)
	}
	if wire.MediaType != "" && given != "" && wire.MediaType != given {
		return nil, fmt.Errorf("manifest is %w: its mediaType is %q but it was served as %q", ErrAmbiguous, wire.MediaType, given)
	}
	m := &Manifest{
		MediaType: wire.MediaType, SchemaVersion: 2, canonical: raw,
		Subject: wire.Subject, ArtifactType: wire.ArtifactType, Annotations: wire.Annotations,
	}
	m.MediaType = cmp.Or(m.MediaType, given)
	if m.MediaType == "" {
		// OCI manifests may omit it; Docker's may not.
		m.MediaType = MediaTypeOCIManifest
		if isIndex {
			m.MediaType = MediaTypeOCIIndex
		}
	}
	switch {
	case isIndexMediaType(m.MediaType):
		if !isIndex {
			return nil, fmt.Errorf("manifest is %w: mediaType %q without manifests", ErrAmbiguous, m.MediaType)
		}
		m.Kind, m.Children = KindIndex, *wire.Manifests
		if isArtifactType(m.ArtifactType) && len(m.ImageChildren()) == 0 {
			m.Kind = KindArtifact
		}
	case isImageMediaType(m.MediaType):
		if isIndex {
			return nil, fmt.Errorf("manifest is %w: mediaType %q with manifests", ErrAmbiguous, m.MediaType)
		}
		if wire.Config == nil || wire.Layers == nil {
			return nil, fmt.Errorf("manifest: %w: an image manifest needs both config and layers", ErrInvalid)
		}
		m.Config, m.Layers = wire.Config, *wire.Layers
		m.Kind = classify(m)
	case m.MediaType == MediaTypeSchema1 || m.MediaType == MediaTypeSchema1Signed:
		return nil, fmt.Errorf("manifest is %w: mediaType %q with schemaVersion 2", ErrAmbiguous, m.MediaType)
	default:
		return nil, fmt.Errorf("manifest: %w mediaType %q", ErrUnsupported, m.MediaType)
	}
	return m, nil
}

// parseArtifact reads an OCI artifact manifest, which has no schemaVersion.
func parseArtifact(raw []byte, wire *wireManifest, given string) (*Manifest, error) {
	if wire.MediaType != "" && given != "" && wire.MediaType != given {
		return nil, fmt.Errorf("manifest is %w: its mediaType is %q but it was served as %q", ErrAmbiguous, wire.MediaType, given)
	}
	if wire.Config != nil || wire.Layers != nil || wire.Manifests != nil || wire.FSLayers != nil {
		return nil, fmt.Errorf("manifest is %w: mediaType %q with fields of an image or an index", ErrAmbiguous, MediaTypeOCIArtifact)
	}
	var artifact struct {
		Blobs []Descriptor `json:"blobs"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &artifact); err != nil {
		return nil, fmt.Errorf("manifest: %w JSON: %v", ErrInvalid, err)
	}
	return &Manifest{
		MediaType: MediaTypeOCIArtifact, Kind: KindArtifact, SchemaVersion: 2, canonical: raw,
		Layers: artifact.Blobs, Subject: wire.Subject, ArtifactType: wire.ArtifactType, Annotations: wire.Annotations,
	}, nil
}

// classify distinguishes an image from an artifact in an image manifest, as runtimes do: everything
// that containerd (core/images, core/unpack) or containers/image (manifest, internal/image) would
// run is an image. Both ignore artifactType. Both check the config's type, but containers/image
// does not in Docker's format. containers/image unpacks layers of any type, and containerd layers
// of some types. So a manifest with an image's config is an artifact only if all its layers are
// documents, as in cosign's .sig manifests and BuildKit's attestations. docs/reference/images.md
// has the shapes.
func classify(m *Manifest) Kind {
	isDocuments, isFiles := len(m.Layers) > 0, false
	for _, l := range m.Layers {
		isDocuments = isDocuments && isDocument(l.MediaType)
		isFiles = isFiles || isRootFSLayer(l.MediaType)
	}
	switch {
	case isImageConfig(m.Config.MediaType) && !isDocuments:
		return KindImage
	case m.MediaType == MediaTypeDockerSchema2 && isFiles:
		return KindImage
	}
	return KindArtifact
}

// check validates every descriptor and that sizes can be summed.
func (m *Manifest) check() error {
	if m.Config != nil {
		if err := m.Config.check("config", -1); err != nil {
			return err
		}
	}
	if m.Subject != nil {
		if err := m.Subject.check("subject", -1); err != nil {
			return err
		}
	}
	for i, d := range m.Children {
		if err := d.check("manifests", i); err != nil {
			return err
		}
	}
	var sum int64
	if m.Config != nil {
		sum = m.Config.Size
	}
	sizes := make(map[string]int64, len(m.Layers))
	for i, d := range m.Layers {
		if err := d.check("layers", i); err != nil {
			return err
		}
		if known, ok := sizes[d.Digest]; ok {
			// Sizes of schema 1 are unreliable; in other formats a blob has one size.
			if known != d.Size && m.Kind != KindSchema1 {
				return fmt.Errorf("manifest: %w: layers[%d].size: %s has size %d and %d", ErrInvalid, i, d.Digest, known, d.Size)
			}
			continue
		}
		sizes[d.Digest] = d.Size
		if d.Size > math.MaxInt64-sum {
			return fmt.Errorf("manifest: %w: layers[%d].size: the sum of sizes overflows 64 bits", ErrInvalid, i)
		}
		sum += d.Size
	}
	return nil
}

// check validates a descriptor that is the value of a field, or its item at index; -1 for none.
func (d Descriptor) check(field string, index int) error {
	digestErr := validateDigest(d.Digest)
	if digestErr == nil && d.Size >= 0 && ValidMediaType(d.MediaType) {
		return nil
	}
	path := field
	if index >= 0 {
		path = fmt.Sprintf("%s[%d]", field, index)
	}
	if digestErr != nil {
		return fmt.Errorf("manifest: %w: %s.digest: %q: %v", ErrInvalid, path, d.Digest, digestErr)
	}
	if d.Size < 0 {
		return fmt.Errorf("manifest: %w: %s.size: %d is negative", ErrInvalid, path, d.Size)
	}
	return fmt.Errorf("manifest: %w: %s.mediaType: %q is not a media type", ErrInvalid, path, d.MediaType)
}

// Size is the number of bytes that the image takes in a registry, without its manifest: each
// distinct layer once, plus the config. 0 for an index.
func (m *Manifest) Size() int64 {
	var sum int64
	if m.Config != nil {
		sum = m.Config.Size
	}
	seen := make(map[string]bool, len(m.Layers))
	for _, l := range m.Layers {
		if !seen[l.Digest] {
			seen[l.Digest] = true
			sum += l.Size
		}
	}
	return sum
}

// ImageChildren are the children of an index that may be images, or indexes of images: not
// attestations, or media types that are not manifests. A child's own manifest decides whether it is
// an image: runtimes ignore an entry's artifactType.
func (m *Manifest) ImageChildren() []Descriptor {
	var out []Descriptor
	for _, d := range m.Children {
		if d.IsAttestation() || !isManifestMediaType(d.MediaType) {
			continue
		}
		out = append(out, d)
	}
	return out
}

// ListsReferrers reports whether an index can be one of referrers: everything it lists is an
// artifact, by its descriptor, and of no platform. It may also be another index of artifacts; which
// one it is depends on the tag under which it is found (OCI distribution-spec, "Referrers Tag
// Schema").
func (m *Manifest) ListsReferrers() bool {
	return m.Kind == KindIndex && !slices.ContainsFunc(m.Children, func(d Descriptor) bool { return !isArtifactType(d.ArtifactType) || d.Platform != nil })
}

// Verify checks that dgst, of any algorithm, is the digest of this manifest. The digest of a signed
// schema 1 manifest covers its payload without signatures.
func (m *Manifest) Verify(dgst string) error {
	if dgst == m.Digest {
		return nil
	}
	return VerifyDigest(m.canonical, dgst)
}

// Digest returns the sha256 digest of raw. The digest of a signed schema 1 manifest is not the
// digest of its raw bytes: parse it and read Manifest.Digest.
func Digest(raw []byte) string { return digest.FromBytes(raw).String() }

// ValidDigest reports whether s is a well-formed digest of a registered algorithm (sha256, sha384,
// sha512).
func ValidDigest(s string) error {
	if err := validateDigest(s); err != nil {
		return fmt.Errorf("%w digest %q: %v", ErrInvalid, s, err)
	}
	return nil
}

// validateDigest is digest.Digest.Validate, but faster for sha256, which most digests are.
func validateDigest(s string) error {
	if isSHA256(s) {
		return nil
	}
	return digest.Digest(s).Validate()
}

func isSHA256(s string) bool {
	encoded, ok := strings.CutPrefix(s, "sha256:")
	if !ok || len(encoded) != 64 {
		return false
	}
	for i := range len(encoded) {
		if c := encoded[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// VerifyDigest checks that dgst, of any registered algorithm, is the digest of raw.
func VerifyDigest(raw []byte, dgst string) error {
	d := digest.Digest(dgst)
	if err := ValidDigest(dgst); err != nil {
		return err
	}
	if got := d.Algorithm().FromBytes(raw); got != d {
		return fmt.Errorf("%w: the bytes are %s, not %s", ErrDigestMismatch, got, d)
	}
	return nil
}

// readManifest reads a manifest that is plain JSON and has no unknown field; ok is false for any
// other.
func readManifest(raw []byte) (*wireManifest, bool) { return plain(raw, readWire) }
