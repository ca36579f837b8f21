package find_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/signatures/find"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// Whichever request of a search fails, and however: the search finds everything all the same,
// fails, or reports that there may be more. It never makes an image look unsigned.
func TestFindWhereARequestFails(t *testing.T) {
	t.Parallel()
	half := func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		answer := httptest.NewRecorder()
		inner.ServeHTTP(answer, r)
		for key, values := range answer.Header() {
			w.Header()[key] = values
		}
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes()[:answer.Body.Len()/2])
		panic(http.ErrAbortHandler)
	}
	faults := map[string]func(http.ResponseWriter, *http.Request, http.Handler){
		"half": half,
		"a page": func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, "<html>sign in</html>")
		},
		"nothing":   func(http.ResponseWriter, *http.Request, http.Handler) {},
		"an object": func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { fmt.Fprint(w, "{}") },
		"no answer": func(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) },
	}
	for _, status := range []int{204, 400, 401, 403, 404, 410, 429, 500, 501, 503} {
		faults[fmt.Sprint("status ", status)] = func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(status) }
	}
	const bundleType = "application/vnd.dev.sigstore.bundle.v0.3+json"
	for _, how := range []string{"api", "fallback tag"} {
		f := newFixture(t, how == "api")
		key := signaturestest.NewKey(t, signaturestest.P256)
		bundle := f.blob(bundleType, signaturestest.Marshal(t, key.Bundle(t, signaturestest.Statement(f.digest, payload.PredicateCosignSign))))
		signed := f.push("", map[string]any{ // the registry of tests lists the config's type
			"artifactType": bundleType, "config": f.blob(bundleType, []byte("{}")), "layers": []any{bundle},
			"annotations": map[string]any{"dev.sigstore.bundle.content": "dsse-envelope", "dev.sigstore.bundle.predicateType": payload.PredicateCosignSign},
			"subject":     map[string]any{"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": f.digest, "size": 1},
		})
		if how == "fallback tag" {
			list := []any{map[string]any{"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": signed, "size": 1}}
			f.push(f.tag(""), map[string]any{"mediaType": "application/vnd.oci.image.index.v1+json", "manifests": list})
		}
		f.push(f.tag(".sig"), map[string]any{"config": f.blob(emptyConfig, []byte("{}")), "layers": []any{f.cosignLayer(key.SimpleSigning(t, f.digest, f.repository()))}})
		names := func(r result) (all []string) {
			for _, s := range r.found {
				all = append(all, s.Name)
			}
			slices.Sort(all)
			return all
		}
		healthy := names(f.find(find.Options{}))
		if len(healthy) != 2 {
			t.Fatalf("%s: found %q", how, healthy)
		}
		requests := slices.Compact(slices.Sorted(slices.Values(f.requests)))
		for _, request := range requests {
			path := strings.Fields(request)[1]
			for name, fault := range faults {
				isListed := strings.Contains(path, "/blobs/") || strings.Contains(path, "/manifests/sha256:")
				lacksAPI := name == "status 400" || name == "status 501" // or does not know the request
				if !isListed && name == "status 404" || strings.Contains(path, "/referrers/") && lacksAPI {
					continue // the registry says that there is none
				}
				f.setAround(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
					if r.URL.Path == path {
						fault(w, r, inner)
						return
					}
					inner.ServeHTTP(w, r)
				})
				r := f.find(find.Options{})
				says := r.err != nil || r.annotations[annotation.Unread]+r.annotations[annotation.Unusable]+r.annotations[annotation.Cut] != ""
				if !says && !slices.Equal(names(r), healthy) {
					t.Errorf("%s: %s for %s: found %q, and does not say that there may be more: %v", how, name, path, names(r), r.annotations)
				}
			}
		}
		f.setAround(nil)
	}
}
