package archive

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strconv"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/tidewaiter/tidewaiter/imageapi/manifest"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/verdicts"
)

// RoundTrip implements http.RoundTripper. It serves manifests by tag and digest, blobs, and the signatures of dir: by
// OpenShift's signature extension. Other paths are not found.
func (s *Source) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		req.Body.Close()
	}
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	resp := &http.Response{
		StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: req,
		Header: http.Header{"X-Registry-Supports-Signatures": {"1"}}, Body: http.NoBody,
	}
	body, size, err := s.answer(resp.Header, req.URL.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		resp.StatusCode = http.StatusNotFound
	case err != nil:
		return nil, err
	case req.Method == http.MethodHead:
		body.Close()
	default:
		resp.Body = body
	}
	resp.Status = fmt.Sprintf("%d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	resp.ContentLength = size
	return resp, nil
}

func (s *Source) answer(header http.Header, path string) (io.ReadCloser, int64, error) {
	if repository, digest, ok := cutLast(strings.TrimPrefix(path, "/extensions/v2/"), "/signatures/"); ok && repository != path {
		return s.signatures(digest)
	}
	path = strings.TrimPrefix(path, "/v2/")
	if repository, id, ok := cutLast(path, "/manifests/"); ok {
		return s.manifestOf(header, repository, id)
	}
	if _, digest, ok := cutLast(path, "/blobs/"); ok && reference.IsDigest(digest) {
		return s.file(s.path(digest))
	}
	return nil, 0, fs.ErrNotExist
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// path returns the path of a blob.
func (s *Source) path(digest string) string {
	algorithm, hex, _ := strings.Cut(digest, ":")
	switch path := s.blobs[digest]; {
	case path != "":
		return path
	case s.manifest != "": // dir:
		return hex
	}
	return "blobs/" + algorithm + "/" + hex
}

func (s *Source) file(path string) (io.ReadCloser, int64, error) {
	f, err := s.fsys.Open(path)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a file", path)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

func (s *Source) manifestOf(header http.Header, repository, id string) (io.ReadCloser, int64, error) {
	digest := id
	if !reference.IsDigest(id) {
		digest = s.names[id] // something about an image, such as sha256-….sig
		for _, i := range s.images {
			if i.Reference.Repository == repository && i.Reference.Tag == id {
				digest = i.digest
			}
		}
		if digest == "" {
			return nil, 0, fs.ErrNotExist
		}
	}
	raw := s.made[digest]
	if raw == nil {
		path := s.path(digest)
		if _, hex, _ := strings.Cut(digest, ":"); s.manifest != "" && s.blobs[digest] == "" {
			path = fmt.Sprintf(s.manifest, hex)
		}
		f, size, err := s.file(path)
		if err != nil {
			return nil, 0, err
		}
		defer f.Close()
		if size > manifest.MaxManifestSize {
			return nil, 0, fmt.Errorf("manifest %s of %d bytes: at most %d are read", digest, size, manifest.MaxManifestSize)
		}
		if raw, err = io.ReadAll(io.LimitReader(f, manifest.MaxManifestSize)); err != nil {
			return nil, 0, err
		}
	}
	header.Set("Content-Type", s.mediaType(digest, raw))
	header.Set("Docker-Content-Digest", digest)
	header.Set("Content-Length", strconv.Itoa(len(raw)))
	return io.NopCloser(bytes.NewReader(raw)), int64(len(raw)), nil
}

// mediaType returns the media type of a manifest, from the file or from the manifest itself.
func (s *Source) mediaType(digest string, raw []byte) string {
	if known := s.types[digest]; known != "" {
		return known
	}
	var m struct {
		MediaType string            `json:"mediaType"`
		Manifests []json.RawMessage `json:"manifests"`
		Version   int               `json:"schemaVersion"`
	}
	_ = json.Unmarshal(raw, &m) // its reader reports what cannot be read
	switch {
	case m.MediaType != "":
		return m.MediaType
	case m.Version == 1:
		return string(types.DockerManifestSchema1Signed)
	case m.Manifests != nil:
		return manifest.MediaTypeOCIIndex
	}
	return manifest.MediaTypeOCIManifest
}

// maxSignatures bounds the signatures that are read of one image, and maxSignature the bytes of each.
const (
	maxSignatures = 64
	maxSignature  = 1 << 20
)

// signatures answers with the simple signatures that skopeo copied beside a manifest, as OpenShift's registry would.
func (s *Source) signatures(digest string) (io.ReadCloser, int64, error) {
	type signature struct {
		Version int    `json:"schemaVersion"`
		Name    string `json:"name"`
		Type    string `json:"type"`
		Content []byte `json:"content"`
	}
	list := struct {
		Signatures []signature `json:"signatures"`
	}{[]signature{}}
	format := "signature-%d"
	if s.blobs[digest] == "" {
		_, hex, _ := strings.Cut(digest, ":")
		format = hex + ".signature-%d"
	}
	for n := 1; s.manifest != "" && n <= maxSignatures; n++ {
		f, size, err := s.file(fmt.Sprintf(format, n))
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return nil, 0, err
		}
		content, err := io.ReadAll(io.LimitReader(f, maxSignature))
		f.Close()
		if err != nil {
			return nil, 0, err
		}
		// Signatures of other formats begin with 0 and the format's name.
		if size <= maxSignature && len(content) > 0 && content[0] != 0 {
			list.Signatures = append(list.Signatures, signature{2, fmt.Sprintf("%s@dir-%d", digest, n), verdicts.TypeAtomic, content})
		}
	}
	raw, err := json.Marshal(list)
	return io.NopCloser(bytes.NewReader(raw)), int64(len(raw)), err
}
