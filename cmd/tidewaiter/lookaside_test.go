package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/config"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
)

// A signature store that the administrator named redirects to a service inside: the
// body of that came back as the content of a signature.
func TestLookasideRedirectDoesNotReadServicesInside(t *testing.T) {
	var reached atomic.Int32
	inside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if reached.Add(1); strings.HasSuffix(req.URL.Path, "signature-1") {
			fmt.Fprint(w, "the secrets of the house")
			return
		}
		http.NotFound(w, req)
	}))
	t.Cleanup(inside.Close)
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		http.Redirect(w, req, inside.URL+req.URL.Path, http.StatusFound)
	}))
	t.Cleanup(store.Close)
	registry := registrytest.New(t)
	image, err := sample.New(sample.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	registry.Push("team/app:v1", image)

	for _, tc := range []struct {
		allowed string
		found   int
	}{{"", 0}, {"allowedNetworks: [127.0.0.0/8]\n", 1}} {
		file := servertest.WriteConfig(t, "registriesDir: registries.d\n"+tc.allowed)
		dir := filepath.Join(filepath.Dir(file), "registries.d")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "default.yaml"), []byte("default-docker:\n  lookaside: "+store.URL+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Load(file)
		if err != nil {
			t.Fatal(err)
		}
		finder, err := config.NewFinder(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		im, err := importer.New(importer.Options{Signatures: finder, Keychain: authn.NewMultiKeychain()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(im.Close)
		found, warnings, err := im.Find(t.Context(), reference.Reference{Host: registry.Host, Repository: "team/app", Tag: "v1"})
		if err != nil || len(found.Signatures) != tc.found || reached.Load() == 0 != (tc.found == 0) {
			t.Errorf("%q: reached %d times, found %v, %v", tc.allowed, reached.Load(), found, err)
		}
		if tc.found == 0 && !strings.Contains(strings.Join(warnings, " "), "loopback address") {
			t.Errorf("warnings %q do not say why", warnings)
		}
	}
}
