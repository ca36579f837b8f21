package importer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// fetched is a manifest with its bytes.
type fetched struct {
	*manifest.Manifest
	raw []byte
	// name is the digest in the request or, for a tag, the digest in the registry's answer.
	name string
}

var acceptManifests = strings.Join(manifest.AcceptedMediaTypes(), ", ")

// fetchHead reads the digest behind a tag or digest, and its media type. They are "" if the
// caller must send a GET: the digest in a HEAD's answer is optional in the distribution-spec, some
// proxies refuse the method, and some answer 404 to a HEAD where a GET succeeds. So a HEAD never
// proves that something is absent. denied is true if the registry denied the HEAD. If the GET then
// succeeds, call noteDenied.
func fetchHead(ctx context.Context, s *pull.Session, identifier string) (digest, mediaType string, denied bool, err error) {
	if s.DeniesHeads() {
		return "", "", false, nil
	}
	ctx = pull.WithBudget(ctx, maxUnread, s.Limits.Request, pull.JobOf(ctx))
	resp, err := s.Registry.Do(ctx, http.MethodHead, s.Registry.Path("manifests/"+identifier), acceptManifests)
	if isDenied(err) {
		return "", "", true, nil
	}
	if err != nil {
		return "", "", false, err
	}
	digest = resp.Header.Get("Docker-Content-Digest")
	if !reference.IsDigest(digest) {
		digest = ""
	}
	return digest, resp.Header.Get("Content-Type"), false, nil
}

// isDenied reports whether err is a registry's answer that it lacks what was requested, refuses it,
// or refuses the method.
func isDenied(err error) bool {
	answer, ok := errors.AsType[*transport.Error](err)
	return ok && (answer.StatusCode < http.StatusInternalServerError || answer.StatusCode == http.StatusNotImplemented) && pull.ReasonOf(err) != pull.RateLimited
}

// noteDenied is called when a GET succeeded after a HEAD was denied. It makes later requests to the
// registry skip the HEAD, unless the manifest was pushed between the two.
func noteDenied(ctx context.Context, s *pull.Session, identifier string) {
	if _, _, denied, err := fetchHead(ctx, s, identifier); err == nil && denied {
		s.NoteDeniesHeads()
	}
}

// fetchManifest reads and parses a manifest by tag or digest. The bytes are checked against want if
// it is set, otherwise against the digest that the registry names. An error may be an *unread.
func fetchManifest(ctx context.Context, s *pull.Session, identifier, want string) (*fetched, error) {
	ctx = pull.WithBudget(ctx, maxUnread, s.Limits.Request, pull.JobOf(ctx))
	resp, err := s.Registry.Do(ctx, http.MethodGet, s.Registry.Path("manifests/"+identifier), acceptManifests)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if named := resp.Header.Get("Docker-Content-Digest"); want == "" && reference.IsDigest(named) {
		want = named
	}
	raw, part, err := readManifest(resp, want)
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
		// the answer may be incomplete, as there is no digest to check it against
		return nil, pull.CausedBy(pull.Unexpected, fmt.Sprintf("the registry sent %d bytes that are not a manifest", part.Size), err)
	}
	if err != nil {
		if want == "" || part.Digest == want {
			return nil, notRead(part, resp.Header.Get("Content-Type"), err)
		}
		// A wrong digest counts more than any other fault of these bytes.
		return nil, pull.CausedBy(pull.DigestMismatch, "the registry sent a manifest of digest "+part.Digest, err)
	}
	if want != "" {
		if err := m.Verify(want); err != nil {
			return nil, err
		}
	}
	return &fetched{m, raw, cmp.Or(want, m.Digest)}, nil
}

// fetchConfig reads the config of m and checks it against digest and size. A config that is inlined
// in the manifest (OCI descriptor "data") costs no request. Inlined data with a wrong digest or
// size is ignored, as containers/image ignores it: otherwise a pusher could keep an image that runs
// from being read.
func fetchConfig(ctx context.Context, s *pull.Session, m *fetched) ([]byte, error) {
	if m.Config.Size > manifest.MaxConfigSize {
		return nil, pull.TooLargeError("the manifest", m.Config.Size, manifest.MaxConfigSize)
	}
	var inline struct {
		Config struct {
			Data []byte `json:"data"`
		} `json:"config"`
	}
	if err := json.Unmarshal(m.raw, &inline); err == nil && inline.Config.Data != nil && m.VerifyConfig(inline.Config.Data) == nil {
		return inline.Config.Data, nil
	}
	ctx = pull.WithBudget(ctx, manifest.MaxConfigSize, s.Limits.Request, pull.JobOf(ctx))
	raw, _, err := s.Registry.Read(ctx, s.Registry.Path("blobs/"+m.Config.Digest), "", manifest.MaxConfigSize)
	if err != nil {
		return nil, pull.PartFailed("config "+m.Config.Digest, err)
	}
	return raw, m.VerifyConfig(raw)
}
