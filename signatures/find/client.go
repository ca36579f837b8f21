package find

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/tidewaiter/tidewaiter/internal/oci"
	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// client reads manifests and blobs that contain signatures, from one repository of a registry.
type client struct {
	*oci.Client
	repo string
	// hasExtension is true after the registry has announced OpenShift's signature extension, which it
	// does in every answer.
	hasExtension bool
}

func newClient(repo name.Repository, rt http.RoundTripper) *client {
	return &client{Client: oci.New(repo.Scheme(), repo.RegistryStr(), repo.RepositoryStr(), rt), repo: repo.RepositoryStr()}
}

// errUnusable is an error about one object: it is too large, malformed or gone, or its bytes do not
// match its digest. The search warns and continues. Every other error is about the registry and
// ends the search.
var errUnusable = errors.New("cannot be used")

func unusable(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errUnusable, fmt.Errorf(format, args...))
}

const acceptManifests = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.v2+json"

// isTooLarge reports whether an object is too large to be read. A pusher may have made it, or the
// answer may be from a server that is not a registry.
func isTooLarge(err error) bool {
	var large *oci.TooLargeError
	return errors.As(err, &large)
}

// get fetches a path of the registry. An answer with one of the statuses in also is returned with
// its status and no body; any other status but 200 is an error.
func (c *client) get(ctx context.Context, path, accept string, limit int64, also ...int) (body []byte, status int, header http.Header, err error) {
	body, header, err = c.Read(ctx, path, accept, limit)
	if header.Get("X-Registry-Supports-Signatures") == "1" {
		c.hasExtension = true
	}
	var answer *transport.Error
	var large *oci.TooLargeError
	switch {
	case errors.As(err, &answer) && slices.Contains(also, answer.StatusCode):
		return nil, answer.StatusCode, header, nil
	case errors.As(err, &large):
		return nil, 0, header, unusable("%w", large)
	case err != nil:
		return nil, 0, header, err
	}
	return body, http.StatusOK, header, nil
}

// manifest has the fields of an image manifest or an index that are needed here.
type manifest struct {
	MediaType    string            `json:"mediaType"`
	ArtifactType string            `json:"artifactType"`
	Config       descriptor        `json:"config"`
	Layers       []descriptor      `json:"layers"`
	Manifests    []descriptor      `json:"manifests"`
	Subject      *descriptor       `json:"subject"`
	Annotations  map[string]string `json:"annotations"`

	digest string
}

type descriptor struct {
	MediaType    string            `json:"mediaType"`
	ArtifactType string            `json:"artifactType"`
	Digest       string            `json:"digest"`
	Size         int64             `json:"size"`
	Annotations  map[string]string `json:"annotations"`
}

// manifest fetches a manifest by tag or digest; nil if there is none.
func (c *client) manifest(ctx context.Context, reference string) (*manifest, error) {
	body, status, _, err := c.get(ctx, c.Path("manifests/"+reference), acceptManifests, MaxManifest, http.StatusNotFound)
	if err != nil || status == http.StatusNotFound {
		return nil, err
	}
	m := &manifest{digest: digestOf(body)}
	if digestPattern.MatchString(reference) && reference != m.digest {
		return nil, unusable("it has the digest %s", m.digest)
	}
	if err := json.Unmarshal(body, m); err != nil {
		return nil, unusable("%w", err)
	}
	return m, nil
}

// blob fetches a blob that is no larger than a signature may be.
func (c *client) blob(ctx context.Context, d descriptor) ([]byte, error) {
	switch {
	case !digestPattern.MatchString(d.Digest):
		return nil, unusable("its digest %q is not sha256", clip(d.Digest))
	case d.Size > MaxSignature:
		return nil, unusable("%d bytes, at most %d are read", d.Size, MaxSignature)
	}
	body, status, _, err := c.get(ctx, c.Path("blobs/"+d.Digest), "", MaxSignature, http.StatusNotFound)
	if err != nil {
		return nil, err
	}
	if status == http.StatusNotFound {
		return nil, unusable("the registry does not have it")
	}
	if got := digestOf(body); got != d.Digest {
		return nil, unusable("it has the digest %s", got)
	}
	return body, nil
}

var digestPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// clip makes text from a registry safe for a message: one line, bounded, valid UTF-8.
func clip(text string) string {
	return printable.Line(text, maxWarningBytes)
}
