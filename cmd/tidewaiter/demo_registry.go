package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"tidewaiter/importer/registrytest/sample"
)

// noCredentials asks nobody for credentials: the demo's registry wants none, and
// the user's helpers are none of its business.
var noCredentials = authn.NewMultiKeychain()

// demoRegistry is a registry on loopback that lives in memory.
type demoRegistry struct {
	host   string
	server *http.Server
	served chan error
}

func startDemoRegistry(ctx context.Context) (*demoRegistry, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &demoRegistry{
		host: listener.Addr().String(),
		server: &http.Server{
			Handler:           registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithReferrersSupport(true)),
			ReadHeaderTimeout: time.Minute,
		},
		served: make(chan error, 1),
	}
	go func() { r.served <- r.server.Serve(listener) }()
	return r, nil
}

func (r *demoRegistry) close() {
	_ = r.server.Close()
	<-r.served
}

// fill pushes the demo's images and returns their references: one that signer
// signed, one that nobody signed, and one that was changed after it was signed.
func (r *demoRegistry) fill(signer *demoSigner) ([]string, error) {
	signed, err := sample.MultiPlatform(sample.Spec{Name: "lighthouse", Layers: 4}, true, "linux/amd64", "linux/arm64")
	if err != nil {
		return nil, err
	}
	unsigned, err := sample.New(sample.Spec{Name: "buoy"})
	if err != nil {
		return nil, err
	}
	genuine, err := sample.New(sample.Spec{Name: "ferry"})
	if err != nil {
		return nil, err
	}
	tampered, err := sample.New(sample.Spec{Name: "ferry", Labels: map[string]string{"cargo": "contraband"}})
	if err != nil {
		return nil, err
	}
	var references []string
	push := func(path string, put func(name.Reference) error, signed partial.Describable, image partial.Describable) error {
		ref, err := name.ParseReference(r.host + "/" + path)
		if err != nil {
			return err
		}
		references = append(references, ref.Name())
		if err := put(ref); err != nil {
			return fmt.Errorf("pushing %s: %w", ref, err)
		}
		if signed == nil {
			return nil
		}
		was, err := signed.Digest()
		if err != nil {
			return err
		}
		is, err := image.Digest()
		if err != nil {
			return err
		}
		return signer.sign(ref.Context(), was, is)
	}
	err = errors.Join(
		push("harbour/lighthouse:v1", func(ref name.Reference) error { return remote.WriteIndex(ref, signed) }, signed, signed),
		push("harbour/buoy:v1", func(ref name.Reference) error { return remote.Write(ref, unsigned) }, nil, unsigned),
		push("harbour/ferry:v1", func(ref name.Reference) error { return remote.Write(ref, tampered) }, genuine, tampered),
	)
	return references, err
}
