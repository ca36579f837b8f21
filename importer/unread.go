package importer

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/oci"
)

// maxUnread bounds the bytes that are read to know the digest and size of a manifest that is larger
// than manifest.MaxManifestSize. go-containerregistry, and so crane and ko, has the same bound. No
// runtime makes a container of a larger manifest.
const maxUnread = 100 << 20

// unread is the error of a manifest that has the right digest but cannot be used: it is too large,
// or programs may read it differently. A container runtime may run it all the same, so the
// inventory must have it.
type unread struct {
	manifest.LeftOutPart
	mediaType string // the registry's Content-Type, one of manifest.AcceptedMediaTypes
	err       error
}

func (u *unread) Error() string { return u.err.Error() }

func (u *unread) Unwrap() error { return u.err }

// asUnread returns the unread manifest in err's tree, or nil.
func asUnread(err error) *unread {
	var u *unread
	errors.As(err, &u)
	return u
}

// readManifest reads the bytes of a manifest. If the manifest is too large, it returns only digest
// and size. The digest has the algorithm of want, a digest, or else SHA-256.
func readManifest(resp *http.Response, want string) (raw []byte, part manifest.LeftOutPart, err error) {
	raw, err = oci.ReadBody(resp, manifest.MaxManifestSize+1)
	part.Size = int64(len(raw))
	by, h := "sha256:", sha256.New()
	if strings.HasPrefix(want, "sha512:") {
		by, h = "sha512:", sha512.New()
	}
	h.Write(raw)
	if err != nil || len(raw) <= manifest.MaxManifestSize {
		part.Digest = by + hex.EncodeToString(h.Sum(nil))
		return raw, part, err
	}
	n, err := io.Copy(h, resp.Body)
	part.Size, part.Digest = part.Size+n, by+hex.EncodeToString(h.Sum(nil))
	return nil, part, err
}

// notRead is the error for a manifest that Parse refuses. It is an *unread if the bytes may be a
// manifest and the registry's Content-Type is a manifest's, and not, for instance, a login page's.
// It is not an *unread if the digest is ambiguous (a signed manifest of schema 1) or if no runtime
// reads the type.
func notRead(part manifest.LeftOutPart, contentType string, err error) error {
	mediaType, _, _ := strings.Cut(contentType, ";")
	switch mediaType = strings.TrimSpace(mediaType); mediaType {
	case manifest.MediaTypeOCIManifest, manifest.MediaTypeOCIIndex, manifest.MediaTypeDockerSchema2, manifest.MediaTypeDockerList:
	default:
		return err
	}
	switch {
	case errors.Is(err, manifest.ErrNoManifest):
		return err
	case errors.Is(err, manifest.ErrTooLarge):
		part.Reason = manifest.LeftOutTooLarge
	case errors.Is(err, manifest.ErrAmbiguous):
		part.Reason = manifest.LeftOutAmbiguous
	case errors.Is(err, manifest.ErrInvalid):
		part.Reason = manifest.LeftOutUnreadable
	default:
		return err
	}
	return &unread{LeftOutPart: part, mediaType: mediaType, err: err}
}
