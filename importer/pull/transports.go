package pull

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/tidewaiter/tidewaiter/importer/guard"
)

// transports are the lowest transports, which all registry transports share: one that verifies
// certificates, one that does not, and one of each for every host that has TLS settings of its own
// and was used recently.
type transports struct {
	files   Files
	options guard.Options
	rootCAs *x509.CertPool
	age     time.Duration // how long a host's certificates are used
	clock   clock.PassiveClock

	verified, unverified *guard.Transport

	mu  sync.Mutex
	own *lru.Cache // transportKey → *ownTransport
}

type transportKey struct {
	host   string
	verify bool
}

// ownTransport is the transport of one host; nil if the host has no settings of its own.
type ownTransport struct {
	*guard.Transport
	expires time.Time
}

func newTransports(o Options) *transports {
	t := &transports{
		files: o.Files, options: guard.Options{Networks: o.AllowedNetworks, MaxConnsPerHost: o.Limits.HostConcurrency}, rootCAs: o.RootCAs,
		age: o.Limits.Recycle, clock: o.Clock,
	}
	t.own = lru.NewWithEvictionFunc(maxHosts, func(_ lru.Key, value any) {
		if own := value.(*ownTransport); own.Transport != nil {
			own.CloseIdleConnections()
		}
	})
	t.verified, t.unverified = t.make(&tls.Config{}, true), t.make(&tls.Config{}, false)
	return t
}

func (t *transports) make(c *tls.Config, verify bool) *guard.Transport {
	if c.RootCAs == nil {
		c.RootCAs = t.rootCAs
	}
	c.InsecureSkipVerify, c.MinVersion = !verify, tls.VersionTLS12
	o := t.options
	o.TLS = c
	return guard.New(o)
}

// get returns the transport to a URL's host.
func (t *transports) get(host string, verify bool) (*guard.Transport, error) {
	shared := t.verified
	if !verify {
		shared = t.unverified
	}
	if t.files == nil {
		return shared, nil
	}
	key := transportKey{host, verify}
	t.mu.Lock()
	defer t.mu.Unlock()
	if v, ok := t.own.Get(key); ok {
		if own := v.(*ownTransport); t.clock.Now().Before(own.expires) {
			return cmp.Or(own.Transport, shared), nil
		}
		t.own.Remove(key)
	}
	c, err := t.files.TLS(canonicalHost(host))
	if err != nil {
		return nil, err
	}
	own := &ownTransport{expires: t.clock.Now().Add(t.age)}
	if c != nil {
		own.Transport = t.make(c, verify)
	}
	t.own.Add(key, own)
	return cmp.Or(own.Transport, shared), nil
}

// closeIdle drops the idle connections.
func (t *transports) closeIdle() {
	t.verified.CloseIdleConnections()
	t.unverified.CloseIdleConnections()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.own.Clear()
}
