package importer

import (
	"context"
	"io"
	"net"

	"github.com/google/go-containerregistry/pkg/authn"
	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// DialTo makes every connection of the importer end at address, so that a test
// can use any host name. Strangers' hosts are let through if they are names and
// refused as ever if they are addresses.
func (im *Importer) DialTo(address string) {
	im.Client.DialWith(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	})
}

// CompareTags is compareTags.
var CompareTags = compareTags

// VerifyStream is verifyStream in a job with a budget.
func VerifyStream(ctx context.Context, r io.Reader, digest, diffID string, budget int64) (int64, error) {
	return verifyStream(ctx, r, digest, diffID, pull.NewUnpacked(budget), nil)
}

// Keychain is what credentials are asked of.
func (im *Importer) Keychain() authn.Keychain { return im.Client.Keychain }

// Expected is how many repositories references are expected of.
func (a *Prefetcher) Expected() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.repositories)
}

// StoreImage is storeImage without a search for signatures.
func (im *Importer) StoreImage(ctx context.Context, images Images, found, fresh *imagev1.Image, repository reference.Reference) error {
	_, _, err := im.storeImage(ctx, images, found, fresh, repository, false)
	return err
}
