package find_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	imagev1 "github.com/openshift/api/image/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/find"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// fixture is a registry in the process with one image in it.
type fixture struct {
	t      *testing.T
	host   string
	digest string
	// its own client: the shared one loses its connections when the server of another test closes
	client *http.Client

	mu sync.Mutex
	// around, if set, handles requests before the registry does.
	around   func(http.ResponseWriter, *http.Request, http.Handler)
	requests []string
}

// setAround changes around, even while abandoned requests are still being handled.
func (f *fixture) setAround(around func(http.ResponseWriter, *http.Request, http.Handler)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.around = around
}

// inRepository is the images' repository, as policies name it.
var inRepository = reference.Reference{Host: "registry.example.com", Repository: "demo/app"}

const emptyConfig = "application/vnd.oci.empty.v1+json"

func newFixture(t *testing.T, referrersAPI bool) *fixture {
	f := &fixture{t: t}
	inner := registry.New(registry.WithReferrersSupport(referrersAPI), registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.requests = append(f.requests, r.Method+" "+r.URL.Path)
		around := f.around
		f.mu.Unlock()
		if around != nil && r.Method == http.MethodGet {
			around(w, r, inner)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	f.host, f.client = strings.TrimPrefix(server.URL, "http://"), server.Client()
	f.digest = f.push("v1", map[string]any{"config": f.blob("application/vnd.oci.image.config.v1+json", []byte("{}"))})
	return f
}

func (f *fixture) repository() string { return f.host + "/demo/app" }

func (f *fixture) send(method, path, contentType string, body []byte) {
	f.t.Helper()
	req, err := http.NewRequest(method, "http://"+f.host+path, bytes.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	resp, err := f.client.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		text, _ := io.ReadAll(resp.Body)
		f.t.Fatalf("%s %s: %s: %s", method, path, resp.Status, text)
	}
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// blob pushes a blob and returns its descriptor.
func (f *fixture) blob(mediaType string, content []byte) map[string]any {
	f.t.Helper()
	f.send(http.MethodPost, "/v2/demo/app/blobs/uploads/?digest="+digestOf(content), "application/octet-stream", content)
	return map[string]any{"mediaType": mediaType, "digest": digestOf(content), "size": len(content)}
}

// push pushes a manifest to a tag, or by its digest if that is "", and returns the digest.
func (f *fixture) push(tag string, m map[string]any) string {
	f.t.Helper()
	m["schemaVersion"] = 2
	if m["mediaType"] == nil {
		m["mediaType"] = "application/vnd.oci.image.manifest.v1+json"
	}
	if m["layers"] == nil && m["manifests"] == nil {
		m["layers"] = []any{}
	}
	b, err := json.Marshal(m)
	if err != nil {
		f.t.Fatal(err)
	}
	if tag == "" {
		tag = digestOf(b)
	}
	f.send(http.MethodPut, "/v2/demo/app/manifests/"+tag, m["mediaType"].(string), b)
	return digestOf(b)
}

// refer pushes a referrer of the image.
func (f *fixture) refer(artifactType string, annotations map[string]string, layers ...map[string]any) string {
	f.t.Helper()
	return f.push("", map[string]any{
		"artifactType": artifactType, "config": f.blob(emptyConfig, []byte("{}")), "layers": layers, "annotations": annotations,
		"subject": map[string]any{"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": f.digest, "size": 1},
	})
}

// cosignLayer pushes a cosign signature as cosign lays it out.
func (f *fixture) cosignLayer(b *payload.Blob) map[string]any {
	f.t.Helper()
	l := f.blob(b.MediaType, b.Payload)
	l["annotations"] = b.Annotations
	return l
}

func (f *fixture) tag(suffix string) string { return strings.Replace(f.digest, ":", "-", 1) + suffix }

type result struct {
	found       []imagev1.ImageSignature
	annotations map[string]string
	warnings    []string
	err         error
}

func (f *fixture) find(o find.Options) result {
	f.t.Helper()
	if o.RegistriesDirs == nil {
		o.RegistriesDirs = []string{filepath.Join(f.t.TempDir(), "absent")}
	}
	if o.Storage == "" {
		o.Storage = filepath.Join(f.t.TempDir(), "absent")
	}
	finder, err := find.New(o)
	if err != nil {
		f.t.Fatal(err)
	}
	return f.findWith(finder)
}

func (f *fixture) findWith(finder *find.Finder) result {
	f.t.Helper()
	digest, err := name.NewDigest(f.repository() + "@" + f.digest)
	if err != nil {
		f.t.Fatal(err)
	}
	f.mu.Lock()
	f.requests = nil
	f.mu.Unlock()
	var r result
	r.found, r.annotations, r.warnings, r.err = finder.Find(f.t.Context(), digest, inRepository, f.client.Transport, time.Time{}, false)
	for _, s := range r.found {
		if s.Name != signatures.Name(f.digest, s.Content) || len(s.Conditions) > 0 {
			f.t.Errorf("signature %q of type %s", s.Name, s.Type)
		}
	}
	return r
}

func (r result) types() string {
	var types []string
	for _, s := range r.found {
		types = append(types, s.Type)
	}
	return strings.Join(types, " ")
}

func (r result) attestations(t *testing.T) []find.Attestation {
	t.Helper()
	var list []find.Attestation
	if text := r.annotations[signatures.AnnotationAttestations]; text != "" {
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			t.Fatal(err)
		}
	}
	return list
}

func (r result) expect(t *testing.T, types string, warnings ...string) {
	t.Helper()
	if r.err != nil {
		t.Errorf("error: %v", r.err)
	}
	if got := r.types(); got != types {
		t.Errorf("found %q, want %q", got, types)
	}
	if len(r.warnings) != len(warnings) {
		t.Errorf("warnings %q, want %q", r.warnings, warnings)
		return
	}
	for i, w := range warnings {
		if !strings.Contains(r.warnings[i], w) {
			t.Errorf("warning %q, want %q", r.warnings[i], w)
		}
	}
	if (r.annotations[signatures.AnnotationWarnings] != "") != (len(warnings) > 0) {
		t.Errorf("annotations %v", r.annotations)
	}
}

// expectUnread checks that the search reports that there may be more signatures, and why.
func (r result) expectUnread(t *testing.T, why string) {
	t.Helper()
	if unread := r.annotations[annotation.Unread]; !strings.Contains(unread, why) {
		t.Errorf("unread is %q, want %q", unread, why)
	}
}

// expectUnusable checks that the search reports something that may be a signature and cannot be
// used, and whether it skipped anything.
func (r result) expectUnusable(t *testing.T, why string, isCut bool) {
	t.Helper()
	got := r.annotations[annotation.Unusable]
	if !strings.Contains(got, why) || (got == "") != (why == "") || (r.annotations[annotation.Cut] != "") != isCut || r.annotations[annotation.Unread] != "" {
		t.Errorf("unusable is %q, want %q; cut %v", got, why, r.annotations[annotation.Cut])
	}
}

// If an object that may be the only signature cannot be used, it is unknown whether the image is
// signed. Objects that are not signatures do not matter.
func TestFindUnusable(t *testing.T) {
	t.Parallel()
	const bundle, note = "application/vnd.dev.sigstore.bundle.v0.3+json", "application/vnd.cncf.notary.signature"
	large := bytes.Repeat([]byte("x"), find.MaxSignature+1)
	predicate := map[string]string{"dev.sigstore.bundle.predicateType": "https://spdx.dev/Document"}
	for _, tc := range []struct {
		name string
		push func(f *fixture) (gone string) // what the registry no longer has
		why  string
	}{
		{"a bundle that is too large", func(f *fixture) string { f.refer(bundle, nil, f.blob(bundle, large)); return "" }, "at most"},
		{"a bundle whose blob is gone", func(f *fixture) string {
			f.refer(bundle, nil, f.blob(bundle, []byte("x")))
			return digestOf([]byte("x"))
		}, "does not have it"},
		{"a bundle in a fallback tag that is gone", func(f *fixture) string {
			f.push(f.tag(""), map[string]any{"mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []any{
				map[string]any{"digest": "sha256:" + strings.Repeat("2", 64), "artifactType": bundle},
			}})
			return ""
		}, "does not have it"},
		{"a bundle that is no JSON", func(f *fixture) string { f.refer(bundle, nil, f.blob(bundle, []byte("x"))); return "" }, "invalid character"},
		{"an attestation that is too large", func(f *fixture) string { f.refer(bundle, predicate, f.blob(bundle, large)); return "" }, ""},
		{"a bundle in a fallback tag that is said to be a signature, and is gone", func(f *fixture) string {
			f.push(f.tag(""), map[string]any{"mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []any{
				map[string]any{"digest": "sha256:" + strings.Repeat("2", 64), "artifactType": bundle, "annotations": map[string]any{"dev.sigstore.bundle.predicateType": payload.PredicateCosignSign}},
			}})
			return ""
		}, "does not have it"},
		{"a digest alone in a fallback tag, and it is gone", func(f *fixture) string {
			f.push(f.tag(""), map[string]any{"mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []any{map[string]any{"digest": "sha256:" + strings.Repeat("2", 64)}}})
			return ""
		}, "does not have it"},
		{"an attestation that is gone", func(f *fixture) string { return f.refer(bundle, predicate, f.blob(bundle, []byte("x"))) }, ""},
		{"a Notary signature that is too large", func(f *fixture) string { f.refer(note, nil, f.blob("application/jose+json", large)); return "" }, "at most"},
		{"a chart that is gone", func(f *fixture) string { return f.refer("application/x", nil, f.blob("text/plain", []byte("x"))) }, ""},
		{"a cosign signature whose blob is gone", func(f *fixture) string {
			l := f.blob(payload.MediaTypeSimpleSigning, []byte("x"))
			f.push(f.tag(".sig"), map[string]any{"config": f.blob(emptyConfig, []byte("{}")), "layers": []any{l}})
			return digestOf([]byte("x"))
		}, "does not have it"},
		{"a cosign signature that is too large", func(f *fixture) string {
			l := f.blob(payload.MediaTypeSimpleSigning, large)
			f.push(f.tag(".sig"), map[string]any{"config": f.blob(emptyConfig, []byte("{}")), "layers": []any{l}})
			return ""
		}, "at most"},
		{"a tag of cosign signatures with none", func(f *fixture) string {
			f.push(f.tag(".sig"), map[string]any{"config": f.blob(emptyConfig, []byte("{}"))})
			return ""
		}, "it has the tag of a signature"},
		{"a fallback tag that is the image itself, as cosign copy leaves it", func(f *fixture) string {
			f.push(f.tag(""), map[string]any{"config": f.blob("application/vnd.oci.image.config.v1+json", []byte("{}"))})
			return ""
		}, ""},
		{"a fallback tag that is no index", func(f *fixture) string {
			f.push(f.tag(""), map[string]any{"config": f.blob(emptyConfig, []byte("{}"))})
			return ""
		}, "it has the name of an index"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t, !strings.Contains(tc.name, "fallback"))
			gone := tc.push(f)
			f.around = func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
				if gone != "" && strings.HasSuffix(r.URL.Path, gone) {
					http.NotFound(w, r)
					return
				}
				inner.ServeHTTP(w, r)
			}
			r := f.find(find.Options{})
			if len(r.found) > 0 {
				t.Errorf("%d signatures are found", len(r.found))
			}
			r.expectUnusable(t, tc.why, false)
		})
	}
}

func TestFindNothing(t *testing.T) {
	for _, api := range []bool{true, false} {
		f := newFixture(t, api)
		r := f.find(find.Options{Demands: nothing})
		r.expect(t, "")
		if len(r.annotations) != 0 {
			t.Errorf("annotations %v", r.annotations)
		}
		if len(f.requests) != 2 { // referrers and the list of tags
			t.Errorf("an image without signatures costs %d requests: %v", len(f.requests), f.requests)
		}
	}
}

// The signatures that are found can be verified: their bytes are unchanged.
func TestFindCosignTag(t *testing.T) {
	f := newFixture(t, false)
	key := signaturestest.NewKey(t, signaturestest.P256)
	one, two := key.SimpleSigning(t, f.digest, f.repository()), key.SimpleSigning(t, f.digest, f.repository())
	if bytes.Equal(signaturestest.Marshal(t, one), signaturestest.Marshal(t, two)) {
		t.Fatal("the two signatures are the same")
	}
	f.push(f.tag(".sig"), map[string]any{"config": f.blob("application/vnd.oci.image.config.v1+json", []byte("{}")),
		"layers": []any{f.cosignLayer(one), f.cosignLayer(two), f.cosignLayer(one), f.blob("text/plain", []byte("x"))}})
	r := f.find(find.Options{})
	r.expect(t, signatures.TypeSimpleSigning+" "+signatures.TypeSimpleSigning)
	blobs := 0
	for _, req := range f.requests {
		if strings.Contains(req, "/blobs/") {
			blobs++
		}
	}
	if blobs != 1 {
		t.Errorf("the payload that all share was fetched %d times", blobs)
	}
	set := signaturestest.SetFrom(t, signaturestest.Document("demo", "['*.example.com', localhost]", signaturestest.TrustKey(key, nil), "{matchPolicy: DigestOnly}"))
	for _, s := range r.found {
		v := signatures.Verify(signatures.Signature{Type: s.Type, Content: s.Content},
			signatures.Image{Digest: f.digest, Reference: "registry.example.com/demo/app@" + f.digest}, set, time.Unix(0, 0))
		if !v.Trusted() {
			t.Errorf("not trusted: %+v", v.Conditions)
		}
	}
}

func TestFindReferrers(t *testing.T) {
	for _, how := range []string{"api", "fallback tag", "api in pages"} {
		t.Run(how, func(t *testing.T) {
			f := newFixture(t, how != "fallback tag")
			key := signaturestest.NewKey(t, signaturestest.P256)
			const bundleType = "application/vnd.dev.sigstore.bundle.v0.3+json"
			bundle := func(predicate string) map[string]any {
				return f.blob(bundleType, signaturestest.Marshal(t, key.Bundle(t, signaturestest.Statement(f.digest, predicate))))
			}
			annotated := func(predicate string) map[string]string {
				return map[string]string{"dev.sigstore.bundle.content": "dsse-envelope", "dev.sigstore.bundle.predicateType": predicate}
			}
			// larger than a signature may be, so never fetched
			sbom := make([]byte, find.MaxSignature+1)
			digests := []string{
				f.refer(bundleType, annotated(payload.PredicateCosignSign), bundle(payload.PredicateCosignSign)),
				f.refer(bundleType, nil, bundle("https://slsa.dev/provenance/v1")),
				f.refer(bundleType, annotated("https://spdx.dev/Document"), f.blob(bundleType, sbom)),
				f.refer(bundleType, nil, f.blob(bundleType, signaturestest.Marshal(t, key.ManifestBundle(t, []byte("x"))))),
				f.refer("application/vnd.dev.cosign.artifact.sig.v1+json", nil, f.cosignLayer(key.SimpleSigning(t, f.digest, f.repository()))),
				f.refer("application/vnd.cncf.notary.signature", nil, f.blob("application/jose+json", []byte(`{"payload":""}`))),
				f.refer("application/spdx+json", nil, f.blob("application/spdx+json", []byte("{}"))),
				f.refer("", nil, f.blob("application/vnd.in-toto+json", []byte("{}"))),
			}
			switch how {
			case "fallback tag": // with descriptors as bare as cosign writes them
				var list []any
				for _, d := range digests {
					list = append(list, map[string]any{"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": d, "size": 1})
				}
				f.push(f.tag(""), map[string]any{"mediaType": "application/vnd.oci.image.index.v1+json", "manifests": list})
			case "api in pages": // three pages, and a media type that is not quite right
				f.around = func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
					if !strings.Contains(r.URL.Path, "/referrers/") {
						inner.ServeHTTP(w, r)
						return
					}
					from := 0
					fmt.Sscan(r.URL.Query().Get("last"), &from)
					until := min(from+3, len(digests))
					var list []any
					for _, d := range digests[from:until] {
						list = append(list, map[string]any{"digest": d})
					}
					w.Header().Set("Content-Type", "application/json; charset=utf-8")
					if until < len(digests) {
						w.Header().Set("Link", fmt.Sprintf(`<%s?last=%d>; rel="next"`, r.URL.Path, until))
					}
					json.NewEncoder(w).Encode(map[string]any{"manifests": list})
				}
			}
			r := f.find(find.Options{})
			if r.err != nil || len(r.warnings) > 0 {
				t.Fatalf("error %v, warnings %q", r.err, r.warnings)
			}
			count := map[string]int{}
			for _, s := range r.found {
				count[s.Type]++
			}
			if diff := cmp.Diff(map[string]int{signatures.TypeBundle: 2, signatures.TypeSimpleSigning: 1, signatures.TypeNotation: 1, signatures.TypeAttestation: 1}, count); diff != "" {
				t.Error(diff)
			}
			types := map[string]bool{}
			for _, a := range r.attestations(t) {
				types[a.Type] = true
				if a.Digest == "" {
					t.Errorf("%+v has no digest", a)
				}
				if isLarge := a.Size > find.MaxAttestation; isLarge != (a.LeftOut != "") {
					t.Errorf("%+v: left out although it is not too large, or the other way round", a)
				}
			}
			if diff := cmp.Diff(map[string]bool{"https://slsa.dev/provenance/v1": true, "https://spdx.dev/Document": true, "application/spdx+json": true, "application/vnd.in-toto+json": true}, types); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// If registries.d says so, sigstore signatures are not read from the registry, and unusable objects
// that may be one do not matter. Other signatures, and attestations, are read.
func TestFindWithoutSigstore(t *testing.T) {
	f := newFixture(t, true)
	key := signaturestest.NewKey(t, signaturestest.P256)
	const bundleType = "application/vnd.dev.sigstore.bundle.v0.3+json"
	bundle := func(predicate string) map[string]any {
		return f.blob(bundleType, signaturestest.Marshal(t, key.Bundle(t, signaturestest.Statement(f.digest, predicate))))
	}
	f.push(f.tag(".sig"), map[string]any{"config": f.blob(emptyConfig, []byte("{}")), "layers": []any{f.cosignLayer(key.SimpleSigning(t, f.digest, f.repository()))}})
	f.refer("application/vnd.dev.cosign.artifact.sig.v1+json", nil, f.cosignLayer(key.SimpleSigning(t, f.digest, f.repository()+":v1")))
	f.refer(bundleType, map[string]string{"dev.sigstore.bundle.predicateType": payload.PredicateCosignSign}, bundle(payload.PredicateCosignSign))
	f.refer(bundleType, nil, bundle(payload.PredicateCosignSign))
	f.refer(bundleType, nil, bundle("https://slsa.dev/provenance/v1"))
	f.refer("application/vnd.cncf.notary.signature", nil, f.blob("application/jose+json", []byte(`{"payload":""}`)))
	find := func(content string) result {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return f.find(find.Options{RegistriesDirs: []string{dir}})
	}
	for content, want := range map[string]int{
		"default-docker: {use-sigstore-attachments: false}": 2,
		fmt.Sprintf("default-docker: {use-sigstore-attachments: false}\ndocker: {%q: {use-sigstore-attachments: true}}", f.repository()): 6,
		"default-docker: {lookaside-staging: 'file:///nowhere'}":                                                                         6,
	} {
		if r := find(content); r.err != nil || len(r.found) != want {
			t.Errorf("%s: found %s, %v", content, r.types(), r.err)
		}
	}
	broken := f.refer(bundleType, nil, f.blob(bundleType, []byte("no JSON")))
	r := find("docker: {" + f.host + ": {use-sigstore-attachments: false}}")
	if got := strings.Fields(r.types()); !slices.Contains(got, signatures.TypeNotation) || !slices.Contains(got, signatures.TypeAttestation) {
		t.Errorf("found %s", got)
	}
	if len(r.attestations(t)) != 1 {
		t.Errorf("attestations are %v", r.attestations(t))
	}
	r.expect(t, r.types(), "use-sigstore-attachments: false", "bundle "+broken)
	r.expectUnusable(t, "", false)
	for _, request := range f.requests {
		if strings.HasSuffix(request, f.tag(".sig")) {
			t.Errorf("it asks: %s", request)
		}
	}
}

// A deleted manifest no longer shows which image it was about. So the search records which
// manifests hold signatures.
func TestFindNamesWhatHoldsSignatures(t *testing.T) {
	key := signaturestest.NewKey(t, signaturestest.P256)
	f := newFixture(t, true)
	tagged := f.push(f.tag(".sig"), map[string]any{"config": f.blob(emptyConfig, []byte("{}")), "layers": []any{f.cosignLayer(key.SimpleSigning(t, f.digest, f.repository()))}})
	referrer := f.refer("application/vnd.dev.cosign.artifact.sig.v1+json", nil, f.cosignLayer(key.SimpleSigning(t, f.digest, f.repository()+":v1")))
	f.refer("application/x", nil, f.blob("text/plain", []byte("no signature")))
	r := f.find(find.Options{})
	r.expect(t, signatures.TypeSimpleSigning+" "+signatures.TypeSimpleSigning)
	if got, want := r.annotations[annotation.Manifests], fmt.Sprintf("[%q,%q]", referrer, tagged); got != want {
		t.Errorf("manifests are %s, want %s", got, want)
	}
}

func TestFindAttestationTag(t *testing.T) {
	f := newFixture(t, false)
	layer := f.blob("application/vnd.dsse.envelope.v1+json", []byte("{}"))
	layer["annotations"] = map[string]string{"predicateType": "https://slsa.dev/provenance/v0.2", "dev.cosignproject.cosign/signature": ""}
	d := f.push(f.tag(".att"), map[string]any{"config": f.blob(emptyConfig, []byte("{}")), "layers": []any{layer}})
	r := f.find(find.Options{})
	r.expect(t, signatures.TypeAttestation)
	want := []find.Attestation{{Type: "https://slsa.dev/provenance/v0.2", Digest: d, Layer: digestOf([]byte("{}")), MediaType: "application/vnd.dsse.envelope.v1+json", Size: 2}}
	if diff := cmp.Diff(want, r.attestations(t)); diff != "" {
		t.Error(diff)
	}
}

func TestFindBounds(t *testing.T) {
	key := signaturestest.NewKey(t, signaturestest.P256)
	t.Run("signatures found", func(t *testing.T) {
		f := newFixture(t, false)
		var layers []any
		for range 12 {
			layers = append(layers, f.cosignLayer(key.SimpleSigning(t, f.digest, f.repository())))
		}
		f.push(f.tag(".sig"), map[string]any{"config": f.blob(emptyConfig, []byte("{}")), "layers": layers})
		f.find(find.Options{}).expect(t, strings.TrimSpace(strings.Repeat(signatures.TypeSimpleSigning+" ", 12)))
	})
	t.Run("referrers looked at", func(t *testing.T) {
		f := newFixture(t, true)
		for i := range 70 {
			f.refer("application/x", nil, f.blob("text/plain", fmt.Appendf(nil, "%d", i)))
		}
		r := f.find(find.Options{})
		r.expect(t, "", "more than 64 signatures and referrers")
		r.expectUnusable(t, "more than 64 signatures and referrers", true)
		if len(f.requests) > find.MaxLooked+4 || len(r.attestations(t)) != find.MaxLooked {
			t.Errorf("%d requests, %d attestations", len(f.requests), len(r.attestations(t)))
		}
	})
	t.Run("pages", func(t *testing.T) {
		f := newFixture(t, true)
		pages := 0
		f.around = func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
			if !strings.Contains(r.URL.Path, "/referrers/") {
				inner.ServeHTTP(w, r)
				return
			}
			pages++
			w.Header().Set("Link", fmt.Sprintf(`<%s?n=%d>; rel=next`, r.URL.Path, pages))
			io.WriteString(w, `{"manifests":[]}`)
		}
		r := f.find(find.Options{})
		r.expect(t, "", "pages of referrers")
		r.expectUnusable(t, "pages of referrers", true)
		if pages > 16 {
			t.Errorf("%d pages were read", pages)
		}
	})
	t.Run("pages that repeat under other names", func(t *testing.T) {
		f := newFixture(t, true)
		pages := 0
		f.around = func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
			if !strings.Contains(r.URL.Path, "/referrers/") {
				inner.ServeHTTP(w, r)
				return
			}
			pages++
			w.Header().Set("Link", fmt.Sprintf(`</v2/demo/app/referrers/%s?page=%d>; rel="next"`, f.digest, pages))
			fmt.Fprintf(w, `{"manifests":[{"digest":%q}]}`, "sha256:"+strings.Repeat("0", 64))
		}
		r := f.find(find.Options{})
		r.expect(t, "", "leads back", "does not have it")
		r.expectUnusable(t, "leads back", true)
		if pages != 2 {
			t.Errorf("%d pages were read", pages)
		}
	})
	t.Run("a page that leads back, or elsewhere", func(t *testing.T) {
		f := newFixture(t, true)
		link, pages := "", 0
		f.around = func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
			if !strings.Contains(r.URL.Path, "/referrers/") {
				inner.ServeHTTP(w, r)
				return
			}
			pages++
			w.Header().Set("Link", link)
			io.WriteString(w, `{"manifests":[]}`)
		}
		link = fmt.Sprintf(`</v2/demo/app/referrers/%s>; rel="next"`, f.digest)
		f.find(find.Options{}).expect(t, "", "leads back")
		link = `<http://169.254.169.254/latest>; rel="next"`
		r := f.find(find.Options{})
		r.expect(t, "", "on another host")
		r.expectUnread(t, "on another host")
		if pages != 2 {
			t.Errorf("%d pages were read", pages)
		}
	})
	for _, declared := range []bool{true, false} {
		t.Run(fmt.Sprintf("endless manifest, declared=%v", declared), func(t *testing.T) {
			f := newFixture(t, false)
			f.push(f.tag(".sig"), map[string]any{"config": f.blob(emptyConfig, []byte("{}"))})
			sent := make(chan int, 1) // of the first answer: the handler may end after the client
			f.around = func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
				if !strings.HasSuffix(r.URL.Path, ".sig") {
					inner.ServeHTTP(w, r)
					return
				}
				n := endless(w, declared, 1<<30)
				select {
				case sent <- n:
				default:
				}
			}
			f.find(find.Options{}).expect(t, "", "4194304")
			if n := <-sent; n > 64<<20 || declared && n > 1<<20 {
				t.Errorf("%d bytes were taken", n)
			}
		})
		t.Run(fmt.Sprintf("endless blob, declared=%v", declared), func(t *testing.T) {
			f := newFixture(t, false)
			f.push(f.tag(".sig"), map[string]any{"config": f.blob(emptyConfig, []byte("{}")), "layers": []any{f.cosignLayer(key.SimpleSigning(t, f.digest, f.repository()))}})
			sent := make(chan int, 1) // of the first answer: the handler may end after the client
			f.around = func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
				if !strings.Contains(r.URL.Path, "/blobs/") {
					inner.ServeHTTP(w, r)
					return
				}
				n := endless(w, declared, 1<<30)
				select {
				case sent <- n:
				default:
				}
			}
			f.find(find.Options{}).expect(t, "", "1048576")
			if n := <-sent; n > 64<<20 || declared && n > 1<<20 {
				t.Errorf("%d bytes were taken", n)
			}
		})
	}
	t.Run("a transport with the same bound", func(t *testing.T) {
		finder, err := find.New(find.Options{RegistriesDirs: []string{filepath.Join(t.TempDir(), "absent")}})
		if err != nil {
			t.Fatal(err)
		}
		digest, err := name.NewDigest("registry.example.com/demo/app@sha256:" + strings.Repeat("0", 64))
		if err != nil {
			t.Fatal(err)
		}
		_, _, warnings, err := finder.Find(t.Context(), digest, inRepository, cutting{}, time.Time{}, false)
		if err != nil || len(warnings) != 3 {
			t.Errorf("error %v, warnings %q", err, warnings)
		}
	})
	t.Run("large blob by its descriptor", func(t *testing.T) {
		f := newFixture(t, false)
		layer := f.cosignLayer(key.SimpleSigning(t, f.digest, f.repository()))
		layer["size"] = find.MaxSignature + 1
		f.push(f.tag(".sig"), map[string]any{"config": f.blob(emptyConfig, []byte("{}")), "layers": []any{layer}})
		f.find(find.Options{}).expect(t, "", "1048577 bytes, at most 1048576")
		for _, r := range f.requests {
			if strings.Contains(r, "/blobs/") {
				t.Errorf("%s: it was asked for", r)
			}
		}
	})
	t.Run("time", func(t *testing.T) {
		f := newFixture(t, true)
		f.around = func(_ http.ResponseWriter, r *http.Request, _ http.Handler) { <-r.Context().Done() }
		if r := f.find(find.Options{Timeout: 20 * time.Millisecond}); !errors.Is(r.err, context.DeadlineExceeded) {
			t.Errorf("error %v", r.err)
		}
	})
}

// cutting answers everything with a body that is cut at the bound of manifests.
type cutting struct{}

func (cutting) RoundTrip(r *http.Request) (*http.Response, error) {
	body := io.MultiReader(io.LimitReader(zeros{}, find.MaxManifest), iotest.ErrReader(errors.New("cut")))
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(body), ContentLength: -1, Request: r}, nil
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// endless sends zeros until the client has enough.
func endless(w http.ResponseWriter, declare bool, n int) (sent int) {
	if declare {
		w.Header().Set("Content-Length", fmt.Sprint(n))
	}
	w.WriteHeader(http.StatusOK)
	chunk := make([]byte, 64<<10)
	for sent < n {
		m, err := w.Write(chunk)
		sent += m
		if err != nil {
			break
		}
		if f, ok := w.(http.Flusher); ok {
			f.Flush()
		}
		if declare && sent > 512<<10 {
			break // socket buffers take some bytes unread, which tells nothing
		}
	}
	return sent
}

func TestFindBrokenThings(t *testing.T) {
	key := signaturestest.NewKey(t, signaturestest.P256)
	t.Run("blob of another digest", func(t *testing.T) {
		f := newFixture(t, false)
		good := key.SimpleSigning(t, f.digest, f.repository())
		f.push(f.tag(".sig"), map[string]any{"config": f.blob(emptyConfig, []byte("{}")), "layers": []any{f.cosignLayer(good)}})
		f.around = func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
			if strings.Contains(r.URL.Path, "/blobs/") {
				io.WriteString(w, "something else")
				return
			}
			inner.ServeHTTP(w, r)
		}
		f.find(find.Options{}).expect(t, "", "has the digest")
	})
	t.Run("referrer of another image, gone, of another digest", func(t *testing.T) {
		f := newFixture(t, false)
		own := f.digest
		f.digest = "sha256:" + strings.Repeat("1", 64)
		foreign := f.refer("application/x", nil, f.blob("text/plain", []byte("x")))
		f.digest = own
		real := f.refer("application/x", nil, f.blob("text/plain", []byte("y")))
		f.push(f.tag(""), map[string]any{"mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []any{
			map[string]any{"digest": foreign}, map[string]any{"digest": "sha256:" + strings.Repeat("2", 64)}, map[string]any{"digest": real},
		}})
		f.around = func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
			if strings.HasSuffix(r.URL.Path, real) {
				io.WriteString(w, "{}")
				return
			}
			inner.ServeHTTP(w, r)
		}
		r := f.find(find.Options{})
		r.expect(t, "", "does not have it", "refers to another one", "has the digest")
		if unread, ok := r.annotations[annotation.Unread]; ok {
			t.Errorf("junk makes unknown whether there are signatures: %q", unread)
		}
	})
	t.Run("not JSON", func(t *testing.T) {
		f := newFixture(t, true)
		f.around = func(w http.ResponseWriter, r *http.Request, inner http.Handler) { io.WriteString(w, "<html>") }
		f.find(find.Options{}).expect(t, "", "page 1 of the referrers cannot be read: invalid character", "invalid character", "invalid character", "invalid character")
	})
	// A proxy or a portal answers in place of the referrers API, so it is unknown whether there are
	// signatures.
	for name, answer := range map[string]string{"a web page": "<!DOCTYPE html><html>Sign in</html>", "an error that is none": `{"errors":[{"code":"DENIED"}]}`, "JSON of another kind": `[]`, "nothing": "", "cut off": `{"manifests":[`} {
		t.Run("referrers are "+name, func(t *testing.T) {
			f := newFixture(t, true)
			portal := true
			f.around = func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
				if portal && strings.Contains(r.URL.Path, "/referrers/") {
					io.WriteString(w, answer)
					return
				}
				inner.ServeHTTP(w, r)
			}
			f.push(f.tag(".sig"), map[string]any{"config": f.blob(emptyConfig, []byte("{}")), "layers": []any{f.cosignLayer(key.SimpleSigning(t, f.digest, f.repository()))}})
			r := f.find(find.Options{})
			r.expect(t, signatures.TypeSimpleSigning, "page 1 of the referrers cannot be read")
			if unread := r.annotations[annotation.Unread]; !strings.Contains(unread, "the referrers cannot be read") {
				t.Errorf("unread is %q", unread)
			}
			portal = false
			r = f.find(find.Options{})
			r.expect(t, signatures.TypeSimpleSigning)
			if unread, ok := r.annotations[annotation.Unread]; ok {
				t.Errorf("after a search that succeeded, unread is %q", unread)
			}
		})
	}
	// A proxy cache hides the tags of signatures. If it answers that a tag does not exist, the image
	// is unsigned. If it answers with something else, or with an error, that is unknown.
	for name, tc := range map[string]struct {
		status       int
		answer       string
		unread, fail bool
		unusable     bool
	}{
		"not there":      {status: 404, answer: `{"errors":[{"code":"MANIFEST_UNKNOWN"}]}`},
		"forbidden":      {status: 403, answer: `{"errors":[{"code":"DENIED"}]}`, fail: true},
		"not found here": {status: 502, answer: "bad gateway", fail: true},
		"a page":         {status: 200, answer: "<html>Sign in</html>", unread: true},
		"endless":        {status: 200, answer: strings.Repeat("x", find.MaxManifest+1), unusable: true},
	} {
		t.Run("tags of signatures are hidden: "+name, func(t *testing.T) {
			f := newFixture(t, false)
			f.push(f.tag(".sig"), map[string]any{"config": f.blob(emptyConfig, []byte("{}")), "layers": []any{f.cosignLayer(key.SimpleSigning(t, f.digest, f.repository()))}})
			f.around = func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
				if strings.HasSuffix(r.URL.Path, ".sig") {
					w.WriteHeader(tc.status)
					io.WriteString(w, tc.answer)
					return
				}
				inner.ServeHTTP(w, r)
			}
			r := f.find(find.Options{})
			if unread := r.annotations[annotation.Unread]; (r.err != nil) != tc.fail || strings.Contains(unread, ".sig") != tc.unread {
				t.Errorf("error %v, unread %q", r.err, unread)
			}
			if tc.unusable {
				r.expectUnusable(t, ".sig", true)
			}
			if len(r.found) > 0 {
				t.Errorf("%d signatures are found", len(r.found))
			}
		})
	}
	for _, status := range []int{401, 403, 429, 500, 503} {
		t.Run(fmt.Sprintf("status %d", status), func(t *testing.T) {
			f := newFixture(t, true)
			f.around = func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
				http.Error(w, `{"errors":[{"code":"DENIED","message":"no"}]}`, status)
			}
			var e *transport.Error
			if r := f.find(find.Options{}); !errors.As(r.err, &e) || e.StatusCode != status {
				t.Errorf("error %v", r.err)
			}
		})
	}
	t.Run("no secret of a redirect in an error", func(t *testing.T) {
		f := newFixture(t, true)
		f.around = func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
			http.Redirect(w, r, "http://127.0.0.1:1/blob?X-Amz-Signature=topsecret", http.StatusTemporaryRedirect)
		}
		if r := f.find(find.Options{}); r.err == nil || strings.Contains(r.err.Error(), "topsecret") {
			t.Errorf("error %v", r.err)
		}
	})
}

func TestFindExtension(t *testing.T) {
	f := newFixture(t, false)
	announce := true
	var answer string
	f.around = func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		if announce {
			w.Header().Set("X-Registry-Supports-Signatures", "1")
		}
		if r.URL.Path == "/extensions/v2/demo/app/signatures/"+f.digest {
			io.WriteString(w, answer)
			return
		}
		inner.ServeHTTP(w, r)
	}
	entry := func(typ string, version int, content string) string {
		return fmt.Sprintf(`{"schemaVersion":%d,"name":%q,"type":%q,"content":%q}`, version, f.digest+"@x", typ, base64.StdEncoding.EncodeToString([]byte(content)))
	}
	answer = `{"signatures":[` + entry("atomic", 2, "one") + "," + entry("AtomicImageV1", 2, "two") + "," + entry("atomic", 2, "one") + "," + entry("other", 2, "three") + "," + entry("atomic", 1, "four") + `]}`
	f.find(find.Options{}).expect(t, "AtomicImageV1 AtomicImageV1", `unknown type "other"`, "version 1")
	// from a registry that keeps its signatures in Tidewaiter
	answer = `{"signatures":[` + entry("SigstoreBundleV03", 2, "five") + "," + entry("SigstoreSimpleSigningV1", 2, "six") + "," + entry("atomic", 2, "one") + `]}`
	f.find(find.Options{}).expect(t, "AtomicImageV1")
	for _, unknown := range []string{entry("other", 2, "three"), entry("atomic", 1, "four"), entry("", 2, "five")} {
		// any may be a signature
		answer = `{"signatures":[` + unknown + `]}`
		r := f.find(find.Options{})
		r.expect(t, "", "signature extension")
		if r.annotations[annotation.Unusable] == "" || r.annotations[annotation.Unread] != "" {
			t.Errorf("%s: %v", unknown, r.annotations)
		}
	}
	answer = "{"
	f.find(find.Options{}).expect(t, "", "signature extension")
	announce = false
	f.find(find.Options{}).expect(t, "")
	for _, r := range f.requests {
		if strings.Contains(r, "/extensions/") {
			t.Error("a registry that did not announce the extension was asked for it")
		}
	}
}

func TestFindLookaside(t *testing.T) {
	f := newFixture(t, false)
	gpg := signaturestest.NewGPG(t, "Release", time.Unix(1700000000, 0), 0)
	messages := [][]byte{
		gpg.SimpleSigning(t, f.digest, f.repository(), time.Unix(1700000001, 0)),
		signaturestest.Marshal(t, signaturestest.NewKey(t, signaturestest.P256).SimpleSigning(t, f.digest, f.repository())),
	}
	prefix := "/sigs/demo/app@" + strings.Replace(f.digest, ":", "=", 1) + "/signature-"
	var paths []string
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.URL.Path)
		var n int
		if fmt.Sscanf(r.URL.Path, prefix+"%d", &n); n < 1 || n > len(messages) {
			http.NotFound(w, r)
			return
		}
		w.Write(messages[n-1])
	}))
	defer store.Close()
	dir := t.TempDir()
	configure := func(content string) find.Options {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "default.yaml"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return find.Options{RegistriesDirs: []string{filepath.Join(dir, "absent"), dir}, Lookaside: store.Client().Transport}
	}
	both := signatures.TypeAtomic + " " + signatures.TypeSimpleSigning
	f.find(configure("default-docker:\n  lookaside: "+store.URL+"/sigs\n  use-sigstore-attachments: true\n")).expect(t, both)
	if diff := cmp.Diff([]string{prefix + "1", prefix + "2", prefix + "3"}, paths); diff != "" {
		t.Error(diff)
	}
	scoped := fmt.Sprintf("default-docker: {lookaside: 'https://127.0.0.1:1/'}\ndocker:\n  %s: {lookaside-staging: 'file:///nowhere', sigstore: '%s/sigs'}\n", f.repository(), store.URL)
	f.find(configure(scoped)).expect(t, both)

	// Signatures as files, where containers/image writes them.
	for i, m := range messages {
		file := filepath.Join(dir, "store", "demo/app@"+strings.Replace(f.digest, ":", "=", 1), fmt.Sprintf("signature-%d", i+1))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, m, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f.find(configure("default-docker: {lookaside: 'file://"+filepath.Join(dir, "store")+"'}")).expect(t, both)
	// If nothing is configured, containers/image uses this folder.
	f.find(find.Options{Storage: filepath.Join(dir, "store")}).expect(t, both)
	o := configure("docker: {quay.io: {lookaside: 'https://127.0.0.1:1/'}}")
	o.Storage = filepath.Join(dir, "store")
	f.find(o).expect(t, both)

	// Trouble with this other server is not trouble with the registry.
	away := f.find(configure("default-docker: {lookaside: 'http://127.0.0.1:1/'}"))
	away.expect(t, "", "lookaside storage")
	away.expectUnread(t, "lookaside storage")
	back := f.find(configure("default-docker: {lookaside: '" + store.URL + "/sigs'}"))
	back.expect(t, both)
	if unread, ok := back.annotations[annotation.Unread]; ok {
		t.Errorf("after a search that succeeded, unread is %q", unread)
	}
	messages = append(messages, make([]byte, find.MaxSignature+1))
	f.find(configure("default-docker: {lookaside: '"+store.URL+"/sigs'}")).expect(t, both, "lookaside signature-3")
	endless := len(messages)
	for len(messages) < 200 {
		messages = append(messages, fmt.Appendf(nil, "%d", len(messages)))
	}
	paths = nil
	f.find(configure("default-docker: {lookaside: '"+store.URL+"/sigs'}")).expect(t,
		both+strings.Repeat(" "+signatures.TypeAtomic, find.MaxLooked-3), "lookaside signature-3")
	if len(paths) > find.MaxLooked {
		t.Errorf("%d signatures were asked for, %d of them in vain", len(paths), endless)
	}

	for what, content := range map[string]string{
		"not YAML":   "docker: [",
		"ftp":        "default-docker: {lookaside: 'ftp://x/'}",
		"wrong type": "docker: 1",
	} {
		if _, err := find.New(configure(content)); err == nil || !strings.Contains(err.Error(), "default.yaml") {
			t.Errorf("%s: %v", what, err)
		}
	}
	// Two folders: a file takes the place of one with the same name in a later folder, and the
	// others count as well.
	first := t.TempDir()
	if err := os.WriteFile(filepath.Join(first, "default.yaml"), []byte("docker: {quay.io: {lookaside: 'https://127.0.0.1:1/'}}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ours.yaml"), fmt.Appendf(nil, "docker: {%s: {lookaside: 'file://%s'}}", f.repository(), filepath.Join(dir, "store")), 0o644); err != nil {
		t.Fatal(err)
	}
	o = configure("default-docker: {lookaside: 'https://127.0.0.1:1/'}")
	o.RegistriesDirs = []string{first, dir}
	f.find(o).expect(t, both)
	if err := os.Remove(filepath.Join(dir, "ours.yaml")); err != nil {
		t.Fatal(err)
	}

	configure("docker:\n  quay.io: {lookaside: 'https://a/'}\n")
	if err := os.WriteFile(filepath.Join(dir, "second.yaml"), []byte("docker:\n  quay.io: {lookaside: 'https://b/'}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := find.New(find.Options{RegistriesDirs: []string{dir}}); err == nil || !strings.Contains(err.Error(), "quay.io is configured in") {
		t.Errorf("two files for one scope: %v", err)
	}
}

// A failing referrers API does not hide the signatures in tags. Whether it would list more is
// unknown.
func TestFindWhereReferrersFail(t *testing.T) {
	t.Parallel()
	key := signaturestest.NewKey(t, signaturestest.P256)
	faults := map[string]func(http.ResponseWriter, *http.Request){
		"a redirect to a page that refuses": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/-/v2/packages/referrers", http.StatusSeeOther)
		},
		"a redirect elsewhere": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/?X-Amz-Signature=topsecret", http.StatusTemporaryRedirect)
		},
		"no answer": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	}
	for _, status := range []int{401, 403, 409, 429, 500, 502, 503} {
		faults[fmt.Sprint("status ", status)] = func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", status) }
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, true)
			f.around = func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
				switch {
				case strings.Contains(r.URL.Path, "/referrers/"):
					fault(w, r)
				case strings.HasPrefix(r.URL.Path, "/-/"):
					http.Error(w, "too many requests", http.StatusTooManyRequests)
				default:
					inner.ServeHTTP(w, r)
				}
			}
			isUnknown := func(r result) {
				t.Helper()
				if unread := r.annotations[annotation.Unread]; !strings.Contains(unread, "referrers cannot be read") || strings.Contains(fmt.Sprint(r.warnings, r.err), "topsecret") {
					t.Errorf("unread is %q, warnings %q, error %v", unread, r.warnings, r.err)
				}
			}
			// A failure that may be temporary is returned with the findings, until it has lasted too long.
			passes := !slices.Contains([]string{"status 403", "status 409"}, name)
			clock := clocktesting.NewFakePassiveClock(time.Now())
			finder, err := find.New(find.Options{RegistriesDirs: []string{t.TempDir()}, Storage: t.TempDir(), Clock: clock})
			if err != nil {
				t.Fatal(err)
			}
			for _, later := range []time.Duration{0, 0, 0, 0, 0, time.Minute, 13 * time.Minute, 2 * time.Minute} {
				clock.SetTime(clock.Now().Add(later))
				passes = passes && later != 2*time.Minute
				r := f.findWith(finder)
				isUnknown(r)
				if partial, ok := errors.AsType[*find.PartialError](r.err); ok != passes || r.err != nil && !ok || ok && !partial.Partial() {
					t.Errorf("after %s: %v", later, r.err)
				}
			}
			f.push(f.tag(".sig"), map[string]any{"config": f.blob(emptyConfig, []byte("{}")), "layers": []any{f.cosignLayer(key.SimpleSigning(t, f.digest, f.repository()))}})
			for _, r := range []result{f.find(find.Options{}), f.findWith(finder)} {
				r.err = withoutPartial(r.err)
				r.expect(t, signatures.TypeSimpleSigning, "referrers cannot be read")
				isUnknown(r)
			}
		})
	}
}

// withoutPartial is err, or nil if it is a PartialError.
func withoutPartial(err error) error {
	if _, ok := errors.AsType[*find.PartialError](err); ok {
		return nil
	}
	return err
}

// A referrers API that fails for a moment is called again soon, however many searches met the
// failure at once.
func TestFindAfterReferrersFailed(t *testing.T) {
	t.Parallel()
	f := newFixture(t, true)
	key := signaturestest.NewKey(t, signaturestest.P256)
	f.refer("application/vnd.dev.cosign.artifact.sig.v1+json", nil, f.cosignLayer(key.SimpleSigning(t, f.digest, f.repository())))
	clock := clocktesting.NewFakePassiveClock(time.Now())
	finder, err := find.New(find.Options{RegistriesDirs: []string{t.TempDir()}, Storage: t.TempDir(), Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	f.around = func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		if strings.Contains(r.URL.Path, "/referrers/") {
			asked++
			http.Error(w, "no", http.StatusServiceUnavailable)
			return
		}
		inner.ServeHTTP(w, r)
	}
	for range 50 {
		if r := f.findWith(finder); withoutPartial(r.err) != nil || r.err == nil {
			t.Fatalf("%v", r.err)
		}
	}
	if asked != 4 {
		t.Errorf("50 searches asked %d times, want 4", asked)
	}
	f.around = nil
	clock.SetTime(clock.Now().Add(5 * time.Second))
	f.findWith(finder).expect(t, signatures.TypeSimpleSigning)
}

// A source that fails for a moment does not hide the findings of other sources, and is reported.
func TestFindPartly(t *testing.T) {
	t.Parallel()
	key := signaturestest.NewKey(t, signaturestest.P256)
	for name, part := range map[string]struct {
		api    bool // of referrers
		unread string
		fails  func(f *fixture, referrer, path string) bool
	}{
		"the fallback tag":        {false, "status", func(f *fixture, _, path string) bool { return strings.HasSuffix(path, "/"+f.tag("")) }},
		"the tag of attestations": {true, "status", func(_ *fixture, _, path string) bool { return strings.HasSuffix(path, ".att") }},
		"the list of tags":        {true, "", func(_ *fixture, _, path string) bool { return strings.HasSuffix(path, "/tags/list") }},
		"the extension":           {true, "status", func(_ *fixture, _, path string) bool { return strings.HasPrefix(path, "/extensions/") }},
		"a referrer":              {true, "status", func(_ *fixture, referrer, path string) bool { return strings.HasSuffix(path, "/"+referrer) }},
		"the tag of signatures":   {true, "status", func(_ *fixture, _, path string) bool { return strings.HasSuffix(path, ".sig") }},
	} {
		for _, status := range []int{401, 403, 429, 500, 503} {
			t.Run(fmt.Sprint(name, " ", status), func(t *testing.T) {
				t.Parallel()
				f := newFixture(t, part.api)
				signed := func() map[string]any { return f.cosignLayer(key.SimpleSigning(t, f.digest, f.repository())) }
				referrer := f.refer("application/vnd.dev.cosign.artifact.sig.v1+json", nil, signed())
				f.push(f.tag(".sig"), map[string]any{"config": f.blob(emptyConfig, []byte("{}")), "layers": []any{signed()}})
				failing := true
				f.around = func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
					w.Header().Set("X-Registry-Supports-Signatures", "1")
					if failing && part.fails(f, referrer, r.URL.Path) {
						http.Error(w, "no", status)
						return
					}
					inner.ServeHTTP(w, r)
				}
				demanded := strings.HasPrefix(name, "the list")
				o := find.Options{Demands: demands{!demanded, !demanded}}
				r := f.find(o)
				if partial, ok := errors.AsType[*find.PartialError](r.err); len(r.found) == 0 || ok != (part.unread != "") || r.err != nil && !ok || ok && !partial.Partial() {
					t.Errorf("%d found, %v", len(r.found), r.err)
				}
				r.expectUnread(t, part.unread)
				failing = false
				if again := f.find(o); again.err != nil || again.annotations[annotation.Unread] != "" {
					t.Errorf("again: %v, unread %q", again.err, again.annotations[annotation.Unread])
				}
			})
		}
	}
}

// Lookaside storage is read even if the registry has no signatures at all.
func TestFindLookasideWithoutTheRegistry(t *testing.T) {
	t.Parallel()
	f, storage := newFixture(t, true), t.TempDir()
	f.around = func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		http.Error(w, "no", http.StatusServiceUnavailable)
	}
	dir := filepath.Join(storage, "demo", "app@"+strings.Replace(f.digest, ":", "=", 1))
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "signature-1"), []byte("signature"), 0o644)); err != nil {
		t.Fatal(err)
	}
	r := f.find(find.Options{Storage: storage})
	if _, ok := errors.AsType[*find.PartialError](r.err); !ok || r.types() != signatures.TypeAtomic {
		t.Errorf("found %q, %v", r.types(), r.err)
	}
	r.expectUnread(t, "status 503")
}
