package importer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/tidewaiter/tidewaiter/imageapi/manifest"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/importer/pull"
)

// fetched is a manifest with its bytes.
type fetched struct {
	*manifest.Manifest
	raw []byte
}

var acceptManifests = strings.Join(manifest.AcceptedMediaTypes(), ", ")

// fetchHead asks for the digest behind a tag or digest, and for its media type. They are "" if the
// registry does not say: the distribution-spec makes the header of a HEAD a SHOULD, and some
// proxies refuse the method.
func fetchHead(ctx context.Context, s *pull.Session, identifier string) (digest, mediaType string, err error) {
	ctx = pull.WithBudget(ctx, maxUnread, s.Limits.Request, pull.JobOf(ctx))
	resp, err := s.Registry.Do(ctx, http.MethodHead, s.Registry.Path("manifests/"+identifier), acceptManifests)
	if answer, ok := errors.AsType[*transport.Error](err); ok {
		switch answer.StatusCode {
		case http.StatusMethodNotAllowed, http.StatusNotImplemented, http.StatusBadRequest, http.StatusNotAcceptable:
			return "", "", nil
		}
	}
	if err != nil {
		return "", "", err
	}
	digest = resp.Header.Get("Docker-Content-Digest")
	if !reference.IsDigest(digest) {
		digest = ""
	}
	return digest, resp.Header.Get("Content-Type"), nil
}

// fetchManifest reads and parses a manifest by tag or digest. If want is set, the
// bytes are checked against it. An error may be an *unread.
func fetchManifest(ctx context.Context, s *pull.Session, identifier, want string) (*fetched, error) {
	ctx = pull.WithBudget(ctx, maxUnread, s.Limits.Request, pull.JobOf(ctx))
	resp, err := s.Registry.Do(ctx, http.MethodGet, s.Registry.Path("manifests/"+identifier), acceptManifests)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, part, err := readManifest(resp.Body, want)
	if err != nil {
		return nil, err
	}
	var m *manifest.Manifest
	if raw == nil {
		err = fmt.Errorf("manifest of %d bytes is %w: the limit is %d", part.Size, manifest.ErrTooLarge, manifest.MaxManifestSize)
	} else {
		m, err = manifest.Parse(raw, resp.Header.Get("Content-Type"))
	}
	if want == "" && errors.Is(err, manifest.ErrNoManifest) {
		// it may have been cut, as no digest says what to expect
		return nil, pull.CausedBy(pull.Unexpected, fmt.Sprintf("the registry sent %d bytes that are not a manifest", part.Size), err)
	}
	if err != nil {
		if want == "" || part.Digest == want {
			return nil, notRead(part, resp.Header.Get("Content-Type"), err)
		}
		// If these bytes were not requested, it does not matter what is wrong with them.
		return nil, pull.CausedBy(pull.DigestMismatch, "the registry sent a manifest of digest "+part.Digest, err)
	}
	if want != "" {
		if err := m.Verify(want); err != nil {
			return nil, err
		}
	}
	return &fetched{m, raw}, nil
}

// fetchConfig reads the config of m and checks it against digest and size. A config
// inlined in the manifest (OCI descriptor "data") costs no request.
func fetchConfig(ctx context.Context, s *pull.Session, m *fetched) ([]byte, error) {
	if m.Config.Size > manifest.MaxConfigSize {
		return nil, pull.TooLargeError("the manifest", m.Config.Size, manifest.MaxConfigSize)
	}
	var inline struct {
		Config struct {
			Data []byte `json:"data"`
		} `json:"config"`
	}
	if err := json.Unmarshal(m.raw, &inline); err == nil && inline.Config.Data != nil {
		return inline.Config.Data, m.VerifyConfig(inline.Config.Data)
	}
	ctx = pull.WithBudget(ctx, manifest.MaxConfigSize, s.Limits.Request, pull.JobOf(ctx))
	raw, _, err := s.Registry.Read(ctx, s.Registry.Path("blobs/"+m.Config.Digest), "", manifest.MaxConfigSize)
	if err != nil {
		return nil, pull.PartFailed("config "+m.Config.Digest, err)
	}
	return raw, m.VerifyConfig(raw)
}
