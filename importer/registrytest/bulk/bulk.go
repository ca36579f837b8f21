// Package bulk is a registry of many images for measuring importers. It makes images when they are
// requested, which costs little, and counts requests by kind. Answers can be late and can fail.
package bulk

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Options configure what the registry has and how it answers.
type Options struct {
	// Images is how many images there are, tagged 0, 1, … in Repositories (1) repositories
	// bulk/0, bulk/1, … in turn.
	Images, Repositories int
	// Layers is how many layers an image has. Layers themselves are not served.
	Layers int
	// Latency is how long each answer takes.
	Latency time.Duration
	// Referrers turns on the referrers API. No image has a signature.
	Referrers bool
	// Packages is how many packages the SPDX document of each image lists, which is among its
	// referrers. Zero means no document.
	Packages int
	// FailEvery makes every n-th answer a 503 with a Retry-After of a second; zero is none.
	FailEvery int
}

// Registry is an http.Handler.
type Registry struct {
	options  Options
	digests  map[string]int // of manifests and configs → image
	sboms    map[string]int // of documents and their manifests → image
	attached [][]byte       // the manifests of the documents, by image
	failing  atomic.Int64
	mu       sync.Mutex
	requests map[string]int64
}

// New makes a registry.
func New(o Options) *Registry {
	o.Repositories = max(1, o.Repositories)
	r := &Registry{options: o, digests: make(map[string]int, 2*o.Images), sboms: map[string]int{}, requests: map[string]int64{}}
	for i := range o.Images {
		config := r.config(i)
		r.digests[digest(config)] = i
		r.digests[digest(r.manifest(config))] = i
		if o.Packages > 0 {
			document := r.sbom(i)
			r.attached = append(r.attached, r.sbomManifest(i, document))
			r.sboms[digest(document)] = i
			r.sboms[digest(r.attached[i])] = i
		}
	}
	return r
}

// Reference is "repository:tag" of the i-th image.
func (r *Registry) Reference(i int) string {
	return fmt.Sprintf("bulk/%d:%d", i%r.options.Repositories, i)
}

// Digest is the digest of the i-th image's manifest.
func (r *Registry) Digest(i int) string {
	return digest(r.manifest(r.config(i)))
}

const (
	mediaTypeManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaTypeConfig   = "application/vnd.oci.image.config.v1+json"
	mediaTypeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
	mediaTypeSPDX     = "application/spdx+json"
)

// config is the config of the i-th image, with history, environment and labels as builders write
// them.
func (r *Registry) config(i int) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, `{"architecture":"amd64","os":"linux","created":"2026-01-01T00:00:00Z","config":{"Env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin","APP_VERSION=1.0.%d"],"Entrypoint":["/app/server"],"Cmd":["--listen",":8080"],"WorkingDir":"/app","User":"1001","Labels":{"org.opencontainers.image.title":"bulk","org.opencontainers.image.version":"1.0.%d"}},"rootfs":{"type":"layers","diff_ids":[`, i, i)
	for n := range r.options.Layers {
		if n > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"sha256:%064x"`, 1_000_000_000+i*r.options.Layers+n)
	}
	b.WriteString(`]},"history":[`)
	for n := range r.options.Layers {
		if n > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"created":"2026-01-01T00:00:00Z","created_by":"COPY layer%d/ / # buildkit","comment":"buildkit.dockerfile.v0"}`, n)
	}
	b.WriteString(`]}`)
	return []byte(b.String())
}

// manifest is the manifest of the image with a config.
func (r *Registry) manifest(config []byte) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, `{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":%q,"digest":%q,"size":%d},"layers":[`, mediaTypeManifest, mediaTypeConfig, digest(config), len(config))
	for n := range r.options.Layers {
		if n > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"mediaType":%q,"digest":"sha256:%064x","size":%d}`, mediaTypeLayer, 2_000_000_000+n, 1_000_000+n)
	}
	b.WriteString(`]}`)
	return []byte(b.String())
}

// sbom is the SPDX document of the i-th image. One package in 400 is of a few images alone.
func (r *Registry) sbom(i int) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, `{"spdxVersion":"SPDX-2.3","SPDXID":"SPDXRef-DOCUMENT","name":"bulk-%d","packages":[`, i)
	for n := range r.options.Packages {
		if n > 0 {
			b.WriteByte(',')
		}
		name := fmt.Sprintf("library-%d", n)
		if n%400 == 0 {
			name = fmt.Sprintf("rare-%d", i/10)
		}
		fmt.Fprintf(&b, `{"name":%q,"SPDXID":"SPDXRef-%d","versionInfo":"1.%d.%d-2","licenseDeclared":"Apache-2.0","downloadLocation":"NOASSERTION","externalRefs":[{"referenceCategory":"PACKAGE-MANAGER","referenceType":"purl","referenceLocator":"pkg:deb/debian/%s@1.%d.%d-2?arch=amd64"}]}`,
			name, n, n%30, i%7, name, n%30, i%7)
	}
	b.WriteString(`]}`)
	return []byte(b.String())
}

// sbomManifest is the manifest of the i-th image's document.
func (r *Registry) sbomManifest(i int, document []byte) []byte {
	image := r.manifest(r.config(i))
	return fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"artifactType":%q,"config":{"mediaType":"application/vnd.oci.empty.v1+json","digest":%q,"size":2},"layers":[{"mediaType":%q,"digest":%q,"size":%d}],"subject":{"mediaType":%q,"digest":%q,"size":%d}}`,
		mediaTypeManifest, mediaTypeSPDX, digest([]byte("{}")), mediaTypeSPDX, digest(document), len(document), mediaTypeManifest, digest(image), len(image))
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Kinds of requests, as they are counted.
const (
	Greeting     = "greeting"
	Head         = "HEAD manifest"
	Manifest     = "GET manifest"
	Config       = "GET config"
	Referrers    = "referrers"
	SignatureTag = "signature tag"
	SBOM         = "GET SBOM" // a manifest or a document
	Tags         = "tag list"
	Catalog      = "catalog"
	Other        = "other"
	Failed       = "failed on purpose"
)

// Requests returns the counts since the last Reset, by kind.
func (r *Registry) Requests() map[string]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string]int64, len(r.requests))
	maps.Copy(out, r.requests)
	return out
}

// Reset forgets the requests so far.
func (r *Registry) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.requests)
}

// ServeHTTP implements http.Handler. GET /requests answers the counts as JSON, and DELETE forgets
// them.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path == "/requests" {
		if req.Method == http.MethodDelete {
			r.Reset()
		}
		_ = json.NewEncoder(w).Encode(r.Requests()) // the client may be gone
		return
	}
	if r.options.Latency > 0 {
		select {
		case <-time.After(r.options.Latency):
		case <-req.Context().Done():
			return
		}
	}
	kind := r.serve(w, req)
	r.mu.Lock()
	r.requests[kind]++
	r.mu.Unlock()
}

func (r *Registry) serve(w http.ResponseWriter, req *http.Request) (kind string) {
	if n := int64(r.options.FailEvery); n > 0 && r.failing.Add(1)%n == 0 {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "later", http.StatusServiceUnavailable)
		return Failed
	}
	path, ok := strings.CutPrefix(req.URL.Path, "/v2/")
	switch {
	case !ok:
		http.NotFound(w, req)
		return Other
	case path == "":
		return Greeting
	case path == "_catalog":
		repositories := make([]string, r.options.Repositories)
		for i := range repositories {
			repositories[i] = fmt.Sprintf("bulk/%d", i)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"repositories": repositories}) // the client may be gone
		return Catalog
	}
	repository, what, last := cut(path)
	switch what {
	case "manifests":
		return r.serveManifest(w, req, repository, last)
	case "blobs":
		if i, ok := r.digests[last]; ok {
			w.Header().Set("Content-Type", "application/octet-stream")
			send(w, req, r.config(i))
			return Config
		}
		if i, ok := r.sboms[last]; ok {
			w.Header().Set("Content-Type", "application/octet-stream")
			send(w, req, r.sbom(i))
			return SBOM
		}
	case "referrers":
		if r.options.Referrers {
			w.Header().Set("Content-Type", "application/vnd.oci.image.index.v1+json")
			listed := ""
			if i, ok := r.digests[last]; ok && r.options.Packages > 0 {
				m := r.attached[i]
				listed = fmt.Sprintf(`{"mediaType":%q,"artifactType":%q,"digest":%q,"size":%d}`, mediaTypeManifest, mediaTypeSPDX, digest(m), len(m))
			}
			fmt.Fprintf(w, `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[%s]}`, listed)
			return Referrers
		}
		http.NotFound(w, req)
		return Referrers
	case "tags":
		r.serveTags(w, req, repository)
		return Tags
	}
	http.NotFound(w, req)
	return Other
}

// cut splits "bulk/0/manifests/1".
func cut(path string) (repository, what, last string) {
	i := strings.LastIndexByte(path, '/')
	if i < 0 {
		return path, "", ""
	}
	path, last = path[:i], path[i+1:]
	if i = strings.LastIndexByte(path, '/'); i < 0 {
		return "", path, last
	}
	return path[:i], path[i+1:], last
}

func (r *Registry) serveManifest(w http.ResponseWriter, req *http.Request, repository, reference string) (kind string) {
	if i, ok := r.sboms[reference]; ok {
		w.Header().Set("Content-Type", mediaTypeManifest)
		send(w, req, r.attached[i])
		return SBOM
	}
	i, ok := r.digests[reference]
	if !ok {
		var err error
		i, err = strconv.Atoi(reference)
		ok = err == nil && i >= 0 && i < r.options.Images && r.Reference(i) == repository+":"+reference
	}
	if !ok {
		http.NotFound(w, req)
		if strings.HasPrefix(reference, "sha256-") {
			return SignatureTag
		}
		return Other
	}
	body := r.manifest(r.config(i))
	w.Header().Set("Content-Type", mediaTypeManifest)
	w.Header().Set("Docker-Content-Digest", digest(body))
	send(w, req, body)
	if req.Method == http.MethodHead {
		return Head
	}
	return Manifest
}

func send(w http.ResponseWriter, req *http.Request, body []byte) {
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	if req.Method != http.MethodHead {
		_, _ = w.Write(body) // the client may be gone
	}
}

// serveTags lists the tags of a repository in pages of n.
func (r *Registry) serveTags(w http.ResponseWriter, req *http.Request, repository string) {
	n, err := strconv.Atoi(req.FormValue("n"))
	if err != nil || n < 1 {
		n = r.options.Images
	}
	number, err := strconv.Atoi(strings.TrimPrefix(repository, "bulk/"))
	if err != nil || number < 0 || number >= r.options.Repositories {
		http.NotFound(w, req)
		return
	}
	first := number
	if last := req.FormValue("last"); last != "" {
		i, err := strconv.Atoi(last)
		if err != nil {
			http.Error(w, "last is not a tag", http.StatusBadRequest)
			return
		}
		first = i + r.options.Repositories
	}
	tags := []string{}
	for i := first; i < r.options.Images && len(tags) < n; i += r.options.Repositories {
		tags = append(tags, strconv.Itoa(i))
		if next := i + r.options.Repositories; len(tags) == n && next < r.options.Images {
			w.Header().Set("Link", fmt.Sprintf(`</v2/%s/tags/list?n=%d&last=%d>; rel="next"`, repository, n, i))
		}
	}
	w.Header().Set("Content-Type", "application/json")
	// the client may be gone
	_ = json.NewEncoder(w).Encode(map[string]any{"name": repository, "tags": tags})
}
