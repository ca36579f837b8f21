package manifest

import (
	"encoding/json"
	"fmt"

	"github.com/openshift/api/image/docker10"
	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// LeftOut is the content that an Image does not hold. If a part is nil, the Image holds it, or it
// does not exist.
type LeftOut struct {
	Manifest *LeftOutPart `json:"manifest,omitempty"`
	Config   *LeftOutPart `json:"config,omitempty"`
}

// LeftOutPart describes a manifest or a config that is left out.
type LeftOutPart struct {
	Digest string `json:"digest"`
	// Size is in bytes.
	Size int64 `json:"size"`
	// Reason is one of the LeftOut… constants; others may come.
	Reason string `json:"reason"`
}

// Why content is left out.
const (
	LeftOutTooLarge = "too large"
	// JSON or YAML cannot hold it: it is not UTF-8, or has control characters
	LeftOutUnprintable = "unprintable"
	LeftOutUnreadable  = "unreadable" // nothing can be derived from it
	LeftOutAmbiguous   = "ambiguous"  // a manifest that programs read in different ways
)

// Bounds of what Fit keeps, in bytes of JSON. An Image is at most 3 MiB, the API server's limit on
// a request: the rest is for signatures, their verdicts and the fields that others write.
const (
	// maxContent is for manifest and config together with the fields derived from them. A config of 1
	// MiB fits, even if a quarter of its bytes take two bytes each in JSON. The rest of the 1.5 MiB
	// that etcd accepts by default is for signatures.
	maxContent = 5 << 18
	// maxMetadata is for dockerImageMetadata if the config is left out.
	maxMetadata = 256 << 10
	// surelyFits is a length at which manifest and config together always fit: a byte takes at most
	// six in JSON, and derived fields are no longer than their source.
	surelyFits = maxContent / 12
)

// LeftOutOf reads annotation.LeftOut. Without one, nothing is left out.
func LeftOutOf(image *imagev1.Image) (LeftOut, error) {
	var l LeftOut
	text, ok := image.Annotations[annotation.LeftOut]
	if !ok {
		return l, nil
	}
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		return LeftOut{}, fmt.Errorf("annotation %s: %w JSON: %v", annotation.LeftOut, ErrInvalid, err)
	}
	return l, nil
}

// Set writes annotation.LeftOut, or removes it when nothing is left out.
func (l LeftOut) Set(image *imagev1.Image) {
	if l == (LeftOut{}) {
		delete(image.Annotations, annotation.LeftOut)
		return
	}
	b, _ := json.Marshal(l) // strings and numbers always marshal
	metav1.SetMetaDataAnnotation(&image.ObjectMeta, annotation.LeftOut, string(b))
}

// DropHeld removes content that an Image holds from its list of left-out content.
func DropHeld(image *imagev1.Image) {
	before, err := LeftOutOf(image)
	if err != nil {
		return // not readable: the server refuses it
	}
	left := before
	if image.DockerImageManifest != "" {
		left.Manifest = nil
	}
	if image.DockerImageConfig != "" {
		left.Config = nil
	}
	if left != before {
		left.Set(image)
	}
}

// Fit makes an Image with a manifest, and maybe a config, small enough to be stored. It replaces
// the config, the manifest or both by digest and size, as little as necessary, see LeftOut. Then it
// fills in the derived fields, as far as they fit. It does not change an Image that fits already.
func Fit(image *imagev1.Image) error {
	holdsManifest, holdsConfig := printable.IsYAML(image.DockerImageManifest), printable.IsYAML(image.DockerImageConfig)
	if holdsManifest && holdsConfig && len(image.DockerImageManifest)+len(image.DockerImageConfig) <= surelyFits {
		return nil
	}
	m, err := Of(image)
	if err != nil {
		return err
	}
	derived := *image
	if err := Derive(&derived); err != nil {
		return err
	}
	short, err := shorten(&derived, maxMetadata)
	if err != nil {
		return err
	}
	for _, leave := range []struct{ manifest, config bool }{{false, false}, {false, true}, {true, false}, {true, true}} {
		if !leave.manifest && !holdsManifest || !leave.config && !holdsConfig || leave.config && image.DockerImageConfig == "" {
			continue
		}
		fitting := derived
		if leave.config {
			fitting.DockerImageConfig, fitting.DockerImageMetadata.Raw = "", short
		}
		if leave.manifest {
			fitting.DockerImageManifest = ""
			if image.DockerImageConfig == "" { // schema 1 has it in the manifest
				fitting.DockerImageMetadata.Raw = short
			}
			if size(&fitting) > maxContent {
				fitting.DockerImageLayers, fitting.DockerImageManifests = nil, nil
			}
		}
		if size(&fitting) > maxContent && !(leave.manifest && leave.config) {
			continue
		}
		left, err := LeftOutOf(image)
		if err != nil {
			return err
		}
		if leave.config {
			left.Config = &LeftOutPart{Digest: m.Config.Digest, Size: m.Config.Size, Reason: reason(holdsConfig)}
		}
		if leave.manifest {
			left.Manifest = &LeftOutPart{Digest: m.Digest, Size: int64(len(image.DockerImageManifest)), Reason: reason(holdsManifest)}
		}
		if leave.config || leave.manifest {
			*image = fitting
			left.Set(image)
		}
		return nil
	}
	// impossible: in the last case the Image holds nothing
	return fmt.Errorf("manifest %s is %w for an Image", m.Digest, ErrTooLarge)
}

func reason(isYAML bool) string {
	if isYAML {
		return LeftOutTooLarge
	}
	return LeftOutUnprintable
}

// size is the length of an Image's content as JSON.
func size(image *imagev1.Image) int {
	b, err := json.Marshal(imagev1.Image{
		DockerImageManifest: image.DockerImageManifest, DockerImageConfig: image.DockerImageConfig,
		DockerImageMetadata: image.DockerImageMetadata,
		DockerImageLayers:   image.DockerImageLayers, DockerImageManifests: image.DockerImageManifests,
	})
	if err != nil {
		return maxContent + 1 // an Image that cannot be encoded cannot be stored
	}
	return len(b)
}

// mayBeShort reports whether manifest and config are so long that the derived metadata may be
// shortened, see fitting.
func mayBeShort(image *imagev1.Image) bool {
	return image.DockerImageConfig != "" && len(image.DockerImageManifest)+len(image.DockerImageConfig) > surelyFits
}

// fitting returns metadata unchanged if the content of image then has at most maxContent, and
// shortened otherwise: labels and environment are in the config, too.
func (m *Manifest) fitting(image *imagev1.Image, metadata []byte) ([]byte, error) {
	if !mayBeShort(image) {
		return metadata, nil
	}
	content := imagev1.Image{
		DockerImageManifest: image.DockerImageManifest, DockerImageConfig: image.DockerImageConfig,
		DockerImageLayers: m.imageLayers(image),
	}
	room := maxContent - size(&content)
	content.DockerImageMetadata.Raw = metadata
	if size(&content) <= maxContent {
		return metadata, nil
	}
	short, err := shorten(&content, max(room, 0))
	if err != nil || len(short) > room { // the config is left out, see Fit
		return metadata, err
	}
	return short, nil
}

// shorten returns the metadata of image. If it has more than limit bytes, shorten drops the fields
// about running the image, and then the texts that people wrote.
func shorten(image *imagev1.Image, limit int) ([]byte, error) {
	raw := image.DockerImageMetadata.Raw
	d, err := metadataAsIs(image)
	if err != nil {
		return nil, err
	}
	for _, drop := range []func(){
		func() { d.ContainerConfig = docker10.DockerConfig{} },
		func() { d.Config = nil },
		func() { d.Parent, d.Comment, d.Container, d.DockerVersion, d.Author = "", "", "", "", "" },
		func() { d.Architecture = "" },
	} {
		if len(raw) <= limit {
			break
		}
		drop()
		if raw, err = json.Marshal(d); err != nil {
			return nil, err
		}
	}
	return raw, nil
}
