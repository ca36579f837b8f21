package find

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/tidewaiter/tidewaiter/imageapi/printable"
)

// client speaks to one repository of one registry. go-containerregistry's remote package is not used: it reads the
// first page of referrers only, takes any unusual Content-Type for a missing API, and reads up to 100 MiB.
type client struct {
	base string // scheme://host
	repo string
	http *http.Client
	// hasExtension is set once the registry announced OpenShift's signature extension, which it does with every answer.
	hasExtension bool
}

func newClient(repo name.Repository, rt http.RoundTripper) *client {
	return &client{
		base: repo.Scheme() + "://" + repo.RegistryStr(),
		repo: repo.RepositoryStr(),
		http: &http.Client{Transport: rt},
	}
}

// errUnusable is about one object: it is too large, malformed, not what its digest says, or gone. It is a reason to
// warn and go on; every other error is about the registry and ends the search.
var errUnusable = errors.New("cannot be used")

func unusable(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errUnusable, fmt.Errorf(format, args...))
}

const acceptManifests = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.v2+json"

// get fetches a URL, which may be relative to the registry. An answer with one of the statuses also is returned with
// its status and no body; any other but 200 is an error.
func (c *client) get(ctx context.Context, target, accept string, limit int64, also ...int) (body []byte, status int, header http.Header, err error) {
	u, err := url.Parse(c.base)
	if err == nil {
		u, err = u.Parse(target)
	}
	if err != nil {
		return nil, 0, nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, 0, nil, err
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) { // its URL may be where a redirect led, with a secret in the query
			err = wrapped.Err
		}
		return nil, 0, nil, fmt.Errorf("GET %s: %w", u.Path, err)
	}
	defer resp.Body.Close()
	if resp.Header.Get("X-Registry-Supports-Signatures") == "1" {
		c.hasExtension = true
	}
	for _, s := range also {
		if resp.StatusCode == s {
			return nil, s, resp.Header, nil
		}
	}
	body, readErr := readLimited(resp, limit)
	if resp.StatusCode != http.StatusOK {
		resp.Body = io.NopCloser(strings.NewReader(string(body)))
		return nil, resp.StatusCode, resp.Header, fmt.Errorf("GET %s: %w", u.Path, transport.CheckError(resp, http.StatusOK))
	}
	if readErr != nil {
		return nil, resp.StatusCode, resp.Header, fmt.Errorf("GET %s: %w", u.Path, readErr)
	}
	return body, resp.StatusCode, resp.Header, nil
}

// readLimited reads at most limit bytes; it does not begin with a body that declares more.
func readLimited(resp *http.Response, limit int64) ([]byte, error) {
	if resp.ContentLength > limit {
		return nil, unusable("%d bytes, at most %d are read", resp.ContentLength, limit)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil && int64(len(body)) < limit {
		return nil, err
	}
	// An error at the limit is a transport that has the same bound.
	if err != nil || int64(len(body)) > limit {
		return nil, unusable("more than %d bytes", limit)
	}
	return body, nil
}

// manifest is what matters of an image manifest or an index.
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
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations"`
}

// manifest fetches a manifest by tag or digest; nil if there is none.
func (c *client) manifest(ctx context.Context, reference string) (*manifest, error) {
	body, status, _, err := c.get(ctx, "/v2/"+c.repo+"/manifests/"+reference, acceptManifests, MaxManifest, http.StatusNotFound)
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
	body, status, _, err := c.get(ctx, "/v2/"+c.repo+"/blobs/"+d.Digest, "", MaxSignature, http.StatusNotFound)
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

// clip makes text from a registry fit for a message: one line, bounded, valid UTF-8.
func clip(text string) string {
	return printable.Line(text, maxWarningBytes)
}
