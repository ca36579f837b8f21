package importer

import (
	"context"
	"io"
	"net"

	"github.com/google/go-containerregistry/pkg/authn"
	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// DialTo makes every connection of the importer end at address, so that a test
// can use any host name. Strangers' hosts are let through if they are names and
// refused as ever if they are addresses.
func (im *Importer) DialTo(address string) {
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	t := im.transports
	t.verified, t.unverified = t.verified.WithDial(dial), t.unverified.WithDial(dial)
}

// HostsKnown is how many hosts are remembered.
func (im *Importer) HostsKnown() int { return im.hosts.known.Len() }

// LocksHeld is how many keys are locked or waited for.
func (im *Importer) LocksHeld() int {
	im.locks.mu.Lock()
	defer im.locks.mu.Unlock()
	return len(im.locks.keys)
}

// Host is the memory of one host.
func (im *Importer) Host(name string) *host { return im.hosts.get(name) }

// Acquire and Release take and give back a slot.
func (h *host) Acquire(ctx context.Context) error { return h.acquire(ctx) }
func (h *host) Release()                          { h.release() }

// Lock locks a key.
func (im *Importer) Lock(ctx context.Context, key string) (func(), error) {
	return im.locks.lock(ctx, key)
}

const (
	MaxHosts = maxHosts
)

var (
	CompareTags       = compareTags
	IsLoopback        = isLoopback
	Clean             = clean
	TrustsRealm       = Registry.trustsRealm
	NewRegistriesTest = newRegistries
)

// Lookup is registries.lookup.
func (rs registries) Lookup(where string) Registry { return rs.lookup(where) }

// VerifyStream is verifyStream in a job with a budget.
func VerifyStream(ctx context.Context, r io.Reader, digest, diffID string, budget int64) (int64, error) {
	return verifyStream(ctx, r, digest, diffID, &unpacked{free: budget})
}

// Keychain is what credentials are asked of.
func (im *Importer) Keychain() authn.Keychain { return im.keychain }

// Expected is how many repositories references are expected of.
func (a *Ahead) Expected() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.repositories)
}

// StoreImage is storeImage without a search for signatures.
func (im *Importer) StoreImage(ctx context.Context, images Images, found, fresh *imagev1.Image, repository reference.Reference) error {
	_, _, err := im.storeImage(ctx, images, found, fresh, repository, false)
	return err
}
