package manifest

import (
	"mime"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Media types of the manifests that Parse reads.
const (
	MediaTypeOCIManifest   = string(types.OCIManifestSchema1)
	MediaTypeOCIIndex      = string(types.OCIImageIndex)
	MediaTypeDockerSchema2 = string(types.DockerManifestSchema2)
	MediaTypeDockerList    = string(types.DockerManifestList)
	MediaTypeSchema1       = string(types.DockerManifestSchema1)
	MediaTypeSchema1Signed = string(types.DockerManifestSchema1Signed)
	// MediaTypeOCIArtifact is the type of OCI artifact manifests, which were in release candidates of
	// image-spec 1.1. Some registries have them. They are never images.
	MediaTypeOCIArtifact = "application/vnd.oci.artifact.manifest.v1+json"
)

// mediaTypeSchema1Layer is the type that a schema 1 layer has: its manifests carry no media types
// (distribution, manifest/schema1).
const mediaTypeSchema1Layer = "application/vnd.docker.container.image.rootfs.diff+x-gtar"

// mediaTypeErofsLayer is a layer that containerd mounts as it is.
const mediaTypeErofsLayer = "application/vnd.erofs.layer.v1"

// isDocument reports whether s is JSON, XML or text, which is no file system: signatures,
// attestations and SBOMs.
func isDocument(s string) bool {
	main, sub, _ := strings.Cut(s, "/")
	return main == "text" || sub == "json" || sub == "xml" || strings.HasSuffix(sub, "+json") || strings.HasSuffix(sub, "+xml")
}

// ValidMediaType reports whether s is a media type by RFC 6838 §4.2, without parameters: type "/"
// subtype, each of at most 127 restricted characters, the first of them a letter or digit.
func ValidMediaType(s string) bool {
	main, sub, _ := strings.Cut(s, "/")
	return isRestrictedName(main) && isRestrictedName(sub)
}

func isRestrictedName(s string) bool {
	if s == "" || len(s) > 127 || !isAlphanumeric(s[0]) {
		return false
	}
	for i := range len(s) {
		if !isAlphanumeric(s[i]) && strings.IndexByte("!#$&^_.+-", s[i]) < 0 {
			return false
		}
	}
	return true
}

func isAlphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// AcceptedMediaTypes lists the manifest media types that Parse reads, for a client's Accept header.
// The preferred ones come first.
func AcceptedMediaTypes() []string {
	return []string{
		MediaTypeOCIIndex, MediaTypeOCIManifest,
		MediaTypeDockerList, MediaTypeDockerSchema2,
		MediaTypeSchema1Signed, MediaTypeSchema1,
		MediaTypeOCIArtifact,
	}
}

// normalizeMediaType strips the parameters of a Content-Type header. General types, as static file
// servers send them, count as absent.
func normalizeMediaType(s string) string {
	if t, _, err := mime.ParseMediaType(s); err == nil {
		s = t
	}
	switch s {
	case "application/json", "application/octet-stream", "text/plain":
		return ""
	}
	return s
}

func isManifestMediaType(s string) bool {
	return isIndexMediaType(s) || isImageMediaType(s) || s == MediaTypeSchema1 || s == MediaTypeSchema1Signed
}

func isIndexMediaType(s string) bool { return types.MediaType(s).IsIndex() }

func isImageMediaType(s string) bool { return types.MediaType(s).IsImage() }

// isImageConfig reports whether s is the config of a container image, and not of an artifact that
// is packed in an image manifest.
func isImageConfig(s string) bool {
	return s == string(types.OCIConfigJSON) || s == string(types.DockerConfigJSON)
}

// isArtifactType reports whether an artifactType marks an artifact. For images,
// go-containerregistry, and so crane and ko, writes the config's type there.
func isArtifactType(s string) bool { return s != "" && !isImageConfig(s) }

// isRootFSLayer reports whether s is a file system layer: any compression, encryption or
// distribution variant of the OCI and Docker layer types.
func isRootFSLayer(s string) bool {
	return strings.HasPrefix(s, "application/vnd.oci.image.layer.") ||
		strings.HasPrefix(s, "application/vnd.docker.image.rootfs.") ||
		s == mediaTypeErofsLayer ||
		s == mediaTypeSchema1Layer
}
