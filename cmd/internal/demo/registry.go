package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
)

// Registry is a registry in memory, on loopback. It reports the pushes that it receives.
type Registry struct {
	*notifier
	Host   string
	Server *http.Server
	served chan error
}

// StartRegistry starts a registry on a free port of loopback.
func StartRegistry(ctx context.Context) (*Registry, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	host := listener.Addr().String()
	n := &notifier{host, registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithReferrersSupport(true)), make(chan string, 64)}
	r := &Registry{
		notifier: n,
		Host:     host,
		Server:   &http.Server{Handler: n, ReadHeaderTimeout: time.Minute},
		served:   make(chan error, 1),
	}
	go func() { r.served <- r.Server.Serve(listener) }()
	return r, nil
}

// Close stops the registry.
func (r *Registry) Close() {
	_ = r.Server.Close()
	<-r.served
}

type demoPush struct {
	tag   string // repository:tag
	about string // for people
	image demoImage
	// signed is what the signature under this name is for: the image, an earlier image that it has
	// replaced, or nil for no signature.
	signed  partial.Describable
	verdict string // the expected verdict
}

type demoImage interface {
	remote.Taggable
	partial.Describable
}

// Pushes returns a signed image, an unsigned one, and one that was changed after it was signed.
func Pushes() ([]demoPush, error) {
	lighthouse, err1 := sample.MultiPlatform(sample.Spec{Name: "lighthouse", Layers: 4}, true, "linux/amd64", "linux/arm64")
	buoy, err2 := sample.New(sample.Spec{Name: "buoy"})
	ferry, err3 := sample.New(sample.Spec{Name: "ferry"})
	smuggler, err4 := sample.New(sample.Spec{Name: "ferry", Labels: map[string]string{"cargo": "contraband"}})
	return []demoPush{
		{"harbour/lighthouse:v1", "signed, for two platforms", lighthouse, lighthouse, "True"},
		{"harbour/buoy:v1", "not signed", buoy, nil, "Unsigned"},
		{"harbour/ferry:v1", "changed after it was signed", smuggler, ferry, "False"},
	}, errors.Join(err1, err2, err3, err4)
}

// Push pushes an image and then its signature, and returns the reference and the
// digest.
func (r *Registry) Push(p demoPush, signer *Signer) (reference string, digest v1.Hash, err error) {
	ref, err := name.ParseReference(r.Host + "/" + p.tag)
	if err != nil {
		return "", digest, err
	}
	if digest, err = p.image.Digest(); err != nil {
		return "", digest, err
	}
	switch image := p.image.(type) {
	case v1.ImageIndex:
		err = remote.WriteIndex(ref, image)
	case v1.Image:
		err = remote.Write(ref, image)
	}
	if err == nil && p.signed != nil {
		var was v1.Hash
		if was, err = p.signed.Digest(); err == nil {
			err = signer.Sign(ref.Context(), was, digest)
		}
	}
	if err != nil {
		err = fmt.Errorf("pushing %s: %w", ref, err)
	}
	return ref.Name(), digest, err
}
