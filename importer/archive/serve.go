package archive

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// RoundTrip implements http.RoundTripper. It serves manifests by tag and digest, blobs, the
// referrers in a layout, and the signatures of dir: by OpenShift's signature extension. Other paths
// are not found.
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
	if _, digest, ok := cutLast(path, "/referrers/"); ok && len(s.types) > 0 {
		return s.referrers(header, digest)
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

// referrers answers as the referrers API, with the manifests of index.json whose subject is a
// digest: cosign signs so, and oras copies them along.
func (s *Source) referrers(header http.Header, digest string) (io.ReadCloser, int64, error) {
	s.subjects.Do(func() {
		s.about = map[string][]v1.Descriptor{}
		for _, one := range slices.Sorted(maps.Keys(s.types)) {
			body, size, err := s.manifestOf(http.Header{}, "", one)
			if err != nil {
				continue // the import reports it
			}
			raw, _ := io.ReadAll(body) // from memory
			var m struct {
				ArtifactType string            `json:"artifactType"`
				Annotations  map[string]string `json:"annotations"`
				Config       struct {
					MediaType string `json:"mediaType"`
				} `json:"config"`
				Subject struct {
					Digest string `json:"digest"`
				} `json:"subject"`
			}
			hash, err := v1.NewHash(one)
			if err != nil || json.Unmarshal(raw, &m) != nil || m.Subject.Digest == "" {
				continue
			}
			s.about[m.Subject.Digest] = append(s.about[m.Subject.Digest], v1.Descriptor{
				MediaType: types.MediaType(s.mediaType(one, raw)), Digest: hash, Size: size,
				ArtifactType: cmp.Or(m.ArtifactType, m.Config.MediaType), Annotations: m.Annotations,
			})
		}
	})
	raw, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: append([]v1.Descriptor{}, s.about[digest]...)})
	header.Set("Content-Type", string(types.OCIImageIndex))
	return io.NopCloser(bytes.NewReader(raw)), int64(len(raw)), err
}

// maxSignatures bounds the number of an image's signatures that are read, and maxSignature the
// bytes of each. maxSignatures is one more than a search looks at (find.MaxLooked), so that the
// search can report that there are more.
const (
	maxSignatures = 65
	maxSignature  = 1 << 20
)

// signatures answers with the signatures that skopeo copied beside a manifest, as OpenShift's
// registry would: simple ones, and all others as of an unknown type, so that a warning names them.
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
		kind := verdicts.TypeAtomic
		switch {
		case size > maxSignature:
			kind, content = fmt.Sprintf("dir:file of %d bytes", size), nil
		case len(content) == 0:
			kind = "dir:empty file"
		case content[0] == 0: // then comes the format's name
			line, _, _ := bytes.Cut(content[1:], []byte("\n"))
			kind = "dir:" + string(line[:min(len(line), 64)])
		}
		list.Signatures = append(list.Signatures, signature{2, fmt.Sprintf("%s@dir-%d", digest, n), kind, content})
	}
	raw, err := json.Marshal(list)
	return io.NopCloser(bytes.NewReader(raw)), int64(len(raw)), err
}
