package image

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/openshift/api/image/docker10"
	imagev1 "github.com/openshift/api/image/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

// legacyMetadataVersion is the apiVersion of dockerImageMetadata from before API groups.
const legacyMetadataVersion = "1.0"

// stampMetadata brings dockerImageMetadata to the form that is stored and served: compact, of kind
// DockerImage of image.openshift.io/1.0. Clients may leave kind and apiVersion out, or write the
// apiVersion from before API groups. It leaves alone what is not a JSON object, or is of another
// kind: validation refuses that.
func stampMetadata(image *imagev1.Image) {
	raw := image.DockerImageMetadata.Raw
	if len(raw) == 0 {
		return
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil || fields == nil {
		return
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return
	}
	image.DockerImageMetadata.Raw = compact.Bytes()
	kind, apiVersion := rawString(fields["kind"]), rawString(fields["apiVersion"])
	if kind == "DockerImage" && apiVersion == docker10.GroupVersion.String() {
		return
	}
	if (kind != "" && kind != "DockerImage") || (apiVersion != "" && apiVersion != legacyMetadataVersion && apiVersion != docker10.GroupVersion.String()) {
		return
	}
	fields["kind"] = json.RawMessage(`"DockerImage"`)
	fields["apiVersion"] = json.RawMessage(`"` + docker10.GroupVersion.String() + `"`)
	if stamped, err := json.Marshal(fields); err == nil {
		image.DockerImageMetadata.Raw = stamped
	}
}

// rawString is the string in raw: "" when raw is absent or null, and a value that no kind has when
// raw is not a string.
func rawString(raw json.RawMessage) string {
	if len(raw) == 0 {
		return ""
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return string(raw)
	}
	return s
}

// sortLayers puts dockerImageLayers into ascending order, the base layer first, and marks that with
// an annotation. Without the annotation the order follows from the manifest's type: schema 1 images
// were always stored ascending, the other known types descending (openshift-apiserver, imageutil).
func sortLayers(image *imagev1.Image) {
	if len(image.DockerImageLayers) == 0 {
		return
	}
	order := image.Annotations[imagev1.DockerImageLayersOrderAnnotation]
	if order == "" {
		switch image.DockerImageManifestMediaType {
		case manifest.MediaTypeSchema1, manifest.MediaTypeSchema1Signed:
			order = imagev1.DockerImageLayersOrderAscending
		case manifest.MediaTypeDockerSchema2, manifest.MediaTypeOCIManifest:
			order = imagev1.DockerImageLayersOrderDescending
		default:
			return
		}
	}
	if order == imagev1.DockerImageLayersOrderDescending {
		slices.Reverse(image.DockerImageLayers)
	}
	metav1.SetMetaDataAnnotation(&image.ObjectMeta, imagev1.DockerImageLayersOrderAnnotation, imagev1.DockerImageLayersOrderAscending)
}

// derivedAnnotations are the annotations that the server computes.
var derivedAnnotations = []string{imagev1.DockerImageLayersOrderAnnotation, annotation.Platform, annotation.OSVersion, annotation.RunConfig, annotation.ArtifactType, annotation.AttestationManifests}

// wantDerived returns an Image with the server-computed fields that image must have after an update
// of old. These are old's fields, made printable, unless image has a manifest or a config that old
// lacked: then fields derived from verified bytes replace old's.
func wantDerived(image, old *imagev1.Image) (*imagev1.Image, error) {
	want := *old
	addsManifest := image.DockerImageManifest != "" && old.DockerImageManifest == ""
	addsConfig := image.DockerImageConfig != "" && old.DockerImageConfig == "" && image.DockerImageManifest != ""
	if !addsManifest && !addsConfig {
		var err error
		if hasUnprintable(old) {
			err = makePrintable(&want)
		}
		return &want, err
	}
	want.DockerImageManifest, want.DockerImageConfig = image.DockerImageManifest, image.DockerImageConfig
	if image.DockerImageManifestMediaType != "" {
		want.DockerImageManifestMediaType = image.DockerImageManifestMediaType
	}
	err := derive(&want)
	return &want, err
}

// restoreDerived completes an update. Server-computed fields that the client left out, or sent in
// another encoding, become what they must be. It leaves other values alone: validation refuses
// them.
func restoreDerived(image, old *imagev1.Image) {
	want, err := wantDerived(image, old)
	if err != nil {
		return
	}
	if len(image.DockerImageMetadata.Raw) == 0 || sameMetadata(image.DockerImageMetadata.Raw, old.DockerImageMetadata.Raw) {
		image.DockerImageMetadata.Raw = want.DockerImageMetadata.Raw
	}
	if len(image.DockerImageSignatures) == 0 {
		image.DockerImageSignatures = want.DockerImageSignatures
	}
	restoreLayers(image, old, want)
	if image.DockerImageManifest != "" {
		if image.DockerImageManifestMediaType == "" || image.DockerImageManifestMediaType == old.DockerImageManifestMediaType {
			image.DockerImageManifestMediaType = want.DockerImageManifestMediaType
		}
		if len(image.DockerImageManifests) == 0 || apiequality.Semantic.DeepEqual(image.DockerImageManifests, old.DockerImageManifests) {
			image.DockerImageManifests = want.DockerImageManifests
		}
	}
	for _, key := range derivedAnnotations {
		value, ok := want.Annotations[key]
		if got := image.Annotations[key]; ok && (got == "" || got == old.Annotations[key]) {
			metav1.SetMetaDataAnnotation(&image.ObjectMeta, key, value)
		}
	}
}

// restoreLayers is restoreDerived for the layers. The annotation may mark them as in the other
// order.
func restoreLayers(image, old, want *imagev1.Image) {
	if image.Annotations[imagev1.DockerImageLayersOrderAnnotation] == imagev1.DockerImageLayersOrderDescending {
		ascending := slices.Clone(image.DockerImageLayers)
		slices.Reverse(ascending)
		if slices.Equal(ascending, old.DockerImageLayers) {
			image.DockerImageLayers = ascending
			metav1.SetMetaDataAnnotation(&image.ObjectMeta, imagev1.DockerImageLayersOrderAnnotation, imagev1.DockerImageLayersOrderAscending)
		}
	}
	if len(image.DockerImageLayers) == 0 || slices.Equal(image.DockerImageLayers, old.DockerImageLayers) {
		image.DockerImageLayers = want.DockerImageLayers
	}
}

// sameMetadata reports whether two encodings of dockerImageMetadata mean the same. Clients drop
// empty fields and reorder keys; they must not add fields that the kind does not have.
func sameMetadata(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var treeA, treeB any
	if decodeStrict(a, &treeA) && decodeStrict(b, &treeB) && apiequality.Semantic.DeepEqual(treeA, treeB) {
		return true
	}
	var imageA, imageB docker10.DockerImage
	return decodeStrict(a, &imageA) && decodeStrict(b, &imageB) && apiequality.Semantic.DeepEqual(imageA, imageB)
}

// decodeStrict decodes JSON, and refuses unknown and duplicate fields.
func decodeStrict(raw []byte, into any) bool {
	strict, err := kjson.UnmarshalStrict(raw, into)
	return err == nil && len(strict) == 0
}
