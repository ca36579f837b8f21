package importer_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/signatures/find"
)

var hostileTable = flag.String("hostile-table", "", "write the table of hostile registries into this document, and hold each import to the limits of production (some minutes)")

// hostile is one thing that a registry, or who pushes to it, can do.
type hostile struct {
	behaviour string
	// match and fault hit an ordinary image; push stores another.
	match string
	fault registrytest.Fault
	push  func(t testing.TB, r *registrytest.Registry)
	// layers are verified.
	layers bool
	// want is how the import fails; "" is not at all.
	want pull.Reason
}

var hostiles = []hostile{
	{behaviour: "sends a manifest of another digest", match: "GET .*/manifests/", fault: registrytest.Corrupt(), want: pull.DigestMismatch},
	{behaviour: "sends a config of another digest", match: "/blobs/", fault: registrytest.Corrupt(), want: pull.DigestMismatch},
	{behaviour: "sends a config with a tail", match: "/blobs/", fault: registrytest.Append(1, false), want: pull.DigestMismatch},
	{behaviour: "sends a layer of another digest", match: "/blobs/", layers: true, fault: registrytest.Corrupt(), want: pull.DigestMismatch},
	{behaviour: "answers with a page of HTML", match: "GET .*/manifests/", fault: html, want: pull.Unexpected},
	{behaviour: "lacks the config", match: "/blobs/", fault: registrytest.Status(404, "BLOB_UNKNOWN"), want: pull.Incomplete},
	{behaviour: "ends a manifest half way", match: "GET .*/manifests/", fault: registrytest.Truncate(), want: pull.Unreachable},
	{behaviour: "hangs up on every request after the greeting", match: "manifests", fault: hangUp, want: pull.Unreachable},
	{behaviour: "declares a manifest of 1 GiB", match: "GET .*/manifests/", fault: endless(true), want: pull.TooLarge},
	{behaviour: "sends a manifest without end", match: "GET .*/manifests/", fault: endless(false), want: pull.TooLarge},
	{behaviour: "sends a config without end", match: "/blobs/", fault: endless(false), want: pull.TooLarge},
	{behaviour: "sends an error without end", match: "GET .*/manifests/", fault: endlessError, want: pull.Unexpected},
	{behaviour: "greets and then says nothing", match: "manifests", fault: registrytest.StallHeaders(), want: pull.Timeout},
	{behaviour: "does not greet", match: ".", fault: registrytest.StallHeaders(), want: pull.Timeout},
	{behaviour: "stops half way in a manifest", match: "GET .*/manifests/", fault: registrytest.StallBody(), want: pull.Timeout},
	{behaviour: "sends 5 bytes a second", match: "GET .*/manifests/", fault: registrytest.Drip(200 * time.Millisecond), want: pull.Timeout},
	{behaviour: "answers 500 to everything", match: "manifests", fault: registrytest.Status(500, "UNKNOWN"), want: pull.Unavailable},
	{behaviour: "says 429 and to come back in a day", match: "manifests", fault: registrytest.Status(429, "TOOMANYREQUESTS", "Retry-After", "86400"), want: pull.RateLimited},
	{behaviour: "denies to HEAD what it gives to GET", match: "HEAD ", fault: registrytest.Status(404, "MANIFEST_UNKNOWN")},
	{behaviour: "says that its quota is back at a point in time, in 2100", match: "manifests", fault: registrytest.Status(429, "TOOMANYREQUESTS", "RateLimit-Remaining", "0", "RateLimit-Reset", "4102444800"), want: pull.RateLimited},
	{behaviour: "denies its referrers", match: "/referrers/", fault: registrytest.Status(403, "DENIED")},
	{behaviour: "redirects in a circle", match: "GET .*/manifests/", fault: circle, want: pull.Unexpected},
	{behaviour: "redirects to a service on this machine", match: "/blobs/", fault: registrytest.Redirect(307, "http://localhost:1"), want: pull.Denied},
	{behaviour: "redirects to 10.0.0.1", match: "/blobs/", fault: registrytest.Redirect(307, "https://10.0.0.1"), want: pull.Denied},
	{behaviour: "redirects to a cloud's metadata service", match: "/blobs/", fault: registrytest.Redirect(307, "https://169.254.169.254"), want: pull.Denied},
	{behaviour: "redirects to plain HTTP", match: "/blobs/", fault: registrytest.Redirect(307, "http://registry.example.com"), want: pull.Insecure},
	{behaviour: "lists 1,001 children in an index", push: wideIndex, want: pull.TooLarge},
	{behaviour: "nests indexes 5 deep", push: deepIndex, want: pull.TooLarge},
	{behaviour: "nests indexes of 30 × 30 × 30 entries, 91 manifests", push: cubicIndex},
	{behaviour: "claims a config of 8 GiB", push: greatConfig},
	{behaviour: "has a manifest with two readings", push: ambiguous},
	{behaviour: "nests JSON a million deep", push: deepJSON},
	{behaviour: "has a layer of 64 KiB zstd that unpacks to 2 GiB", push: zstdBomb, layers: true, want: pull.OverBudget},
	{behaviour: "has a layer of 2 MiB gzip that unpacks to 2 GiB", push: gzipBomb, layers: true, want: pull.OverBudget},
	{behaviour: "has a zstd layer with a window of 2 GiB", push: zstdWindow, layers: true, want: pull.InvalidImage},
	{behaviour: "lists 10,000 referrers", match: "/referrers/", fault: manyReferrers},
	{behaviour: "attaches an SBOM of a million packages", push: attaching(1, `{"bomFormat":"CycloneDX","components":[`+strings.Repeat(`{"name":"a"},`, 1_000_000)+`{"name":"b"}]}`)},
	{behaviour: "nests an SBOM's components 5,000 deep", push: attaching(1, `{"bomFormat":"CycloneDX","components":[`+strings.Repeat(`{"components":[`, 5000)+strings.Repeat(`]}`, 5000)+`]}`)},
	{behaviour: "attaches 60 SBOMs of 10,000 packages", push: attaching(60, `{"bomFormat":"CycloneDX","components":[`+strings.Repeat(`{"name":"a"},`, 9999)+`{"name":"b"}]}`)},
	{behaviour: "pages referrers without end", match: "/referrers/", fault: endlessPages},
}

func endless(declared bool) registrytest.Fault {
	return func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
			if declared {
				w.Header().Set("Content-Length", fmt.Sprint(1<<30))
			}
			for block := bytes.Repeat([]byte(" "), 64<<10); req.Context().Err() == nil; {
				if _, err := w.Write(block); err != nil {
					return
				}
			}
		})
	}
}

func endlessError(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.WriteHeader(http.StatusTeapot)
		endless(false)(next).ServeHTTP(w, req)
	})
}

func circle(http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		http.Redirect(w, req, req.URL.Path, http.StatusTemporaryRedirect)
	})
}

// pushRaw serves bytes as the manifest of app:v1.
func pushRaw(r *registrytest.Registry, mediaType types.MediaType, raw []byte) {
	r.PushManifest("app:v1", string(mediaType), manifest.Digest(raw), raw)
}

func wideIndex(_ testing.TB, r *registrytest.Registry) {
	var children []rawDescriptor
	for i := range 1001 {
		children = append(children, rawDescriptor{string(types.OCIManifestSchema1), manifest.Digest([]byte(fmt.Sprint(i))), 2})
	}
	pushIndexes(r, "v", 2, children)
}

func deepIndex(t testing.TB, r *registrytest.Registry) {
	children := []rawDescriptor{{string(types.OCIManifestSchema1), r.Push("app:leaf", newImage(t, sample.Spec{})), 1}}
	for range 4 {
		children = pushIndexes(r, "inner", 1, children)
	}
	pushIndexes(r, "v", 2, children)
}

func cubicIndex(t testing.TB, r *registrytest.Registry) {
	var leaves []rawDescriptor
	for i := range 30 {
		leaves = append(leaves, rawDescriptor{string(types.OCIManifestSchema1), r.Push("app:leaf", newImage(t, sample.Spec{Name: fmt.Sprint(i)})), 1})
	}
	pushIndexes(r, "v", 2, pushIndexes(r, "outer", 30, pushIndexes(r, "inner", 30, leaves)))
}

func greatConfig(t testing.TB, r *registrytest.Registry) {
	m, _ := newImage(t, sample.Spec{}).Manifest()
	m = m.DeepCopy()
	m.Config.Size = 8 << 30
	raw, _ := json.Marshal(m)
	pushRaw(r, types.OCIManifestSchema1, raw)
}

func ambiguous(_ testing.TB, r *registrytest.Registry) {
	pushRaw(r, types.OCIManifestSchema1, []byte(`{"schemaVersion":2,"manifests":[],"config":{},"layers":[]}`))
}

func deepJSON(_ testing.TB, r *registrytest.Registry) {
	pushRaw(r, types.OCIManifestSchema1, []byte(`{"schemaVersion":2,"x":`+strings.Repeat("[", 1e6)+strings.Repeat("]", 1e6)+`}`))
}

func pushLayer(t testing.TB, r *registrytest.Registry, mediaType types.MediaType, blob []byte) {
	image, err := mutate.AppendLayers(newImage(t, sample.Spec{}), static.NewLayer(blob, mediaType))
	if err != nil {
		t.Fatal(err)
	}
	r.Push("app:v1", image)
}

func zstdBomb(t testing.TB, r *registrytest.Registry) {
	bomb := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38}
	for range 16 << 10 {
		bomb = append(bomb, 0x02, 0x00, 0x10, 0x00)
	}
	pushLayer(t, r, types.OCILayerZStd, bomb)
}

func gzipBomb(t testing.TB, r *registrytest.Registry) {
	size := int64(64 << 20) // with less of a budget, to be quick
	if *hostileTable != "" {
		size = 2 << 30
	}
	pushLayer(t, r, types.OCILayer, gzipZeros(t, size))
}

func zstdWindow(t testing.TB, r *registrytest.Registry) {
	pushLayer(t, r, types.OCILayerZStd, []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 21 << 3, 0x03, 0x00, 0x10, 0x00})
}

func manyReferrers(http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var list []rawDescriptor
		for i := range 10_000 {
			list = append(list, rawDescriptor{string(types.OCIManifestSchema1), manifest.Digest([]byte(fmt.Sprint(i))), 2})
		}
		w.Header().Set("Content-Type", string(types.OCIImageIndex))
		_ = json.NewEncoder(w).Encode(map[string]any{"schemaVersion": 2, "manifests": list})
	})
}

func endlessPages(http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", string(types.OCIImageIndex))
		w.Header().Set("Link", fmt.Sprintf("<%s?page=%d>; rel=next", req.URL.Path, time.Now().UnixNano()))
		fmt.Fprint(w, `{"schemaVersion":2,"manifests":[]}`)
	})
}

// attaching pushes an image with n SBOMs that differ in their last byte.
func attaching(n int, content string) func(testing.TB, *registrytest.Registry) {
	return func(t testing.TB, r *registrytest.Registry) {
		image := newImage(t, sample.Spec{})
		r.Push("app:v1", image)
		for i := range n {
			attach(t, r, image, "application/vnd.cyclonedx+json", content+strings.Repeat(" ", i))
		}
	}
}

// TestHostileRegistries has each behaviour end as testdata/hostile.md says. With -hostile-table it
// writes that table, and holds each import to the limits of production:
//
//	go test ./importer -run TestHostileRegistries -hostile-table testdata/hostile.md -timeout 30m
func TestHostileRegistries(t *testing.T) {
	const longest, largest = 35 * time.Second, 32 << 20 // as the document says
	ends := map[string][]string{}
	for _, h := range hostiles {
		ending := "stored"
		if h.want != "" {
			ending = string(h.want)
		}
		ends[ending] = append(ends[ending], h.behaviour)
		t.Run(h.behaviour, func(t *testing.T) {
			registry := registrytest.New(t)
			if h.push != nil {
				h.push(t, registry)
			} else {
				registry.Push("app:v1", newImage(t, sample.Spec{}))
				registry.Inject(h.match, 0, h.fault)
			}
			finder, err := find.New(find.Options{RegistriesDirs: []string{filepath.Join(t.TempDir(), "none")}, Storage: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			o := importer.Options{Signatures: finder}
			if *hostileTable == "" {
				o.Limits = pull.Limits{Stall: 100 * time.Millisecond, Attempts: 1, JobContent: 16 << 20}
				if h.want != pull.Timeout {
					o.Limits.Stall = 0
				}
			}
			if h.layers {
				o.Layers = importer.LayersVerify
			}
			im := newImporter(t, o)
			im.KeepPackages(&packageStore{})
			peak := watchMemory()
			start := time.Now()
			_, err = im.Import(t.Context(), parse(t, registry.Host+"/app:v1"), &registrytest.Images{})
			took, used := time.Since(start), peak()
			if h.want != "" {
				wantReason(t, err, h.want)
			} else if err != nil {
				t.Error(err)
			}
			if *hostileTable != "" && (took > longest || used > largest) {
				t.Errorf("it took %s and %d MiB", took, used>>20)
			}
		})
	}
	table := "| How the import ends | What the registry does |\n|---|---|\n"
	for _, ending := range slices.Sorted(maps.Keys(ends)) {
		table += "| " + ending + " | " + strings.Join(ends[ending], "; ") + " |\n"
	}
	document := *hostileTable
	if document == "" {
		document = "testdata/hostile.md"
	}
	checkTable(t, document, table, *hostileTable != "")
}

// watchMemory returns a function that says by how much the heap has grown since, at
// most. The registry is in the same process, so its buffers count, too.
func watchMemory() (peak func() uint64) {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	base, top := m.HeapInuse, m.HeapInuse
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for {
			runtime.ReadMemStats(&m)
			top = max(top, m.HeapInuse)
			select {
			case <-ticker.C:
			case <-stop:
				return
			}
		}
	}()
	return func() uint64 {
		close(stop)
		<-stopped
		return top - base
	}
}

const tableBegin, tableEnd = "<!-- hostile registries -->\n", "<!-- /hostile registries -->"

// checkTable compares the table with the document's, or writes it.
func checkTable(t *testing.T, document, table string, write bool) {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, found := strings.Cut(string(text), tableBegin)
	old, tail, closed := strings.Cut(rest, tableEnd)
	if !found || !closed {
		t.Fatalf("%s has no place for the table", document)
	}
	if write {
		if err := os.WriteFile(document, []byte(head+tableBegin+table+tableEnd+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if old != table && !t.Failed() {
		t.Errorf("%s does not have what is true; write it with -hostile-table:\n%s", document, table)
	}
}
