package importer_test

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	ocitypes "github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
)

// What cosign stores has the config of an image: it is called by what it holds.
func TestMessageNamesWhatAnArtifactHolds(t *testing.T) {
	const simple = "application/vnd.dev.cosign.simplesigning.v1+json"
	signature, err := mutate.Append(mutate.MediaType(mutate.ConfigMediaType(empty.Image, ocitypes.OCIConfigJSON), ocitypes.OCIManifestSchema1),
		mutate.Addendum{Layer: static.NewLayer([]byte("{}"), simple)})
	if err != nil {
		t.Fatal(err)
	}
	registry := registrytest.New(t)
	registry.Push("team/app:signature", signature)
	_, err = newImporter(t, importer.Options{}).Import(t.Context(), parse(t, registry.Host+"/team/app:signature"), &registrytest.Images{})
	if e := wantReason(t, err, pull.NotAnImage); !strings.HasSuffix(e.Message, "it is an artifact that holds "+simple) {
		t.Errorf("%v", err)
	}
}

// Whoever reads that something failed where a registry led to needs the name of that place.
func TestMessageNamesWhereARedirectLed(t *testing.T) {
	registry := registrytest.New(t)
	registry.Push("team/app:v1", newImage(t, sample.Spec{}))
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(secure.Close)
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	for name, tc := range map[string]struct {
		to     string
		reason pull.Reason
	}{
		"unknown authority": {secure.URL, pull.TLS},
		"nobody there":      {closed.URL, pull.Unreachable},
	} {
		t.Run(name, func(t *testing.T) {
			registry.Heal()
			registry.Inject("GET .*/blobs/", 0, func(http.Handler) http.Handler {
				return http.RedirectHandler(tc.to+"/blob?secret=1", http.StatusTemporaryRedirect)
			})
			im := newImporter(t, importer.Options{AllowedNetworks: loopback, Limits: pull.Limits{Attempts: 1}})
			_, err := im.Import(t.Context(), parse(t, registry.Host+"/team/app:v1"), &registrytest.Images{})
			_, host, _ := strings.Cut(tc.to, "://")
			if e := wantReason(t, err, tc.reason); !strings.Contains(e.Message, host) || strings.Contains(e.Error(), "secret") {
				t.Errorf("%v does not name %s", err, host)
			}
		})
	}
}

// A layer that is not there is named.
func TestMessageNamesTheMissingLayer(t *testing.T) {
	registry := registrytest.New(t)
	image := newImage(t, sample.Spec{})
	registry.Push("team/app:v1", image)
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := layers[1].Digest()
	if err != nil {
		t.Fatal(err)
	}
	registry.Inject("/blobs/"+digest.String(), 0, registrytest.Status(404, "BLOB_UNKNOWN"))
	_, err = newImporter(t, importer.Options{Layers: importer.LayersVerify}).Import(t.Context(), parse(t, registry.Host+"/team/app:v1"), &registrytest.Images{})
	if e := wantReason(t, err, pull.Incomplete); !strings.Contains(e.Message, "layer "+digest.String()) {
		t.Errorf("%v", err)
	}
	config, err := image.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	registry.Inject("/blobs/"+config.String(), 0, registrytest.Status(404, "BLOB_UNKNOWN"))
	_, err = newImporter(t, importer.Options{}).Import(t.Context(), parse(t, registry.Host+"/team/app:v1"), &registrytest.Images{})
	if e := wantReason(t, err, pull.Incomplete); !strings.Contains(e.Message, "config "+config.String()) {
		t.Errorf("%v", err)
	}
}

// A registry on loopback that speaks TLS and wants a client certificate says so, and not what its
// port says to plain HTTP.
func TestMessageOfTLSOnLoopback(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MaxVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "https://")
	ref := parse(t, host+"/team/app:v1")
	for name, o := range map[string]importer.Options{
		"unknown authority":  {},
		"client certificate": {Insecure: true},
	} {
		o.Limits.Attempts = 1
		_, err := newImporter(t, o).Import(t.Context(), ref, &registrytest.Images{})
		if e := wantReason(t, err, pull.TLS); strings.Contains(strings.ReplaceAll(e.Error(), host, ""), "400") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
