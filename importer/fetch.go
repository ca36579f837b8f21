package importer

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/tidewaiter/tidewaiter/imageapi/manifest"
)

// fetched is a manifest with its bytes.
type fetched struct {
	*manifest.Manifest
	raw []byte
}

// do sends a request for a path under /v2/<repository>/ and returns an answer
// with status 200.
func (s *session) do(ctx context.Context, method, path, accept string) (*http.Response, error) {
	u := url.URL{Scheme: s.scheme, Host: s.repository.RegistryStr(), Path: "/v2/" + s.repository.RepositoryStr() + "/" + path}
	return s.doURL(ctx, method, &u, accept)
}

func (s *session) doURL(ctx context.Context, method string, u *url.URL, accept string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	if err := transport.CheckError(resp, http.StatusOK); err != nil {
		resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

// read is do for an answer that fits in memory.
func (s *session) read(ctx context.Context, path, accept string) ([]byte, *http.Response, error) {
	resp, err := s.do(ctx, http.MethodGet, path, accept)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	return raw, resp, err
}

var acceptManifests = strings.Join(manifest.AcceptedMediaTypes(), ", ")

// head asks for the digest behind a tag or digest. It returns "" if the
// registry does not tell that way: distribution-spec makes the header of a HEAD
// a SHOULD, and some proxies refuse the method.
func (s *session) head(ctx context.Context, identifier string) (digest string, err error) {
	ctx = withBudget(ctx, budget{manifest.MaxManifestSize, s.limits.Request, jobOf(ctx)})
	resp, err := s.do(ctx, http.MethodHead, "manifests/"+identifier, acceptManifests)
	var answer *transport.Error
	if errors.As(err, &answer) {
		switch answer.StatusCode {
		case http.StatusMethodNotAllowed, http.StatusNotImplemented, http.StatusBadRequest, http.StatusNotAcceptable:
			return "", nil
		}
	}
	if err != nil {
		return "", err
	}
	digest = resp.Header.Get("Docker-Content-Digest")
	if !strings.HasPrefix(digest, "sha256:") || manifest.ValidDigest(digest) != nil {
		return "", nil
	}
	return digest, nil
}

// manifest reads and parses a manifest by tag or digest. If want is set, the
// bytes are checked against it.
func (s *session) manifest(ctx context.Context, identifier, want string) (*fetched, error) {
	ctx = withBudget(ctx, budget{manifest.MaxManifestSize, s.limits.Request, jobOf(ctx)})
	raw, resp, err := s.read(ctx, "manifests/"+identifier, acceptManifests)
	if err != nil {
		return nil, err
	}
	m, err := manifest.Parse(raw, resp.Header.Get("Content-Type"))
	if want == "" {
		return &fetched{m, raw}, err
	}
	if err != nil {
		if manifest.Digest(raw) == want {
			return nil, err
		}
		// What is wrong with bytes nobody asked for does not matter.
		return nil, &Error{Reason: DigestMismatch, Message: "the registry sent a manifest of digest " + manifest.Digest(raw), cause: err}
	}
	if err := m.Verify(want); err != nil {
		return nil, err
	}
	return &fetched{m, raw}, nil
}

// config reads the config of m and checks it against digest and size. A config
// inlined in the manifest (OCI descriptor "data") costs no request.
func (s *session) config(ctx context.Context, m *fetched) ([]byte, error) {
	if m.Config.Size > manifest.MaxConfigSize {
		return nil, tooLarge("the manifest", m.Config.Size, manifest.MaxConfigSize)
	}
	var inline struct {
		Config struct {
			Data []byte `json:"data"`
		} `json:"config"`
	}
	if err := json.Unmarshal(m.raw, &inline); err == nil && inline.Config.Data != nil {
		return inline.Config.Data, m.VerifyConfig(inline.Config.Data)
	}
	ctx = withBudget(ctx, budget{manifest.MaxConfigSize, s.limits.Request, jobOf(ctx)})
	raw, _, err := s.read(ctx, "blobs/"+m.Config.Digest, "")
	if err != nil {
		return nil, err
	}
	return raw, m.VerifyConfig(raw)
}
