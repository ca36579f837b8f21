// Package guard keeps registries from leading us inside. A registry, a token server or a
// signature store names further hosts: in redirects, in realms. The addresses of such a
// host are checked when they are dialled, after the resolver and one by one, so no name
// can change between the check and the connection. Loopback, link-local, private and
// other special addresses are refused. Metadata services are refused to everybody.
//
// A host that the administrator or the user has named may be anywhere but at a metadata
// service: most companies' registries have private addresses.
//
// Behind a proxy of the environment (HTTPS_PROXY), the proxy resolves names and connects,
// so it must know what is inside. Hosts that are written as addresses are checked all the
// same.
package guard

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Networks are ranges that any host may lead to, although the ranges are not public.
type Networks []netip.Prefix

// ParseNetworks reads ranges such as 10.1.0.0/16 and single addresses.
func ParseNetworks(in []string) (Networks, error) {
	var out Networks
	for i, s := range in {
		prefix, err := netip.ParsePrefix(s)
		if addr, aerr := netip.ParseAddr(s); aerr == nil && addr.Zone() == "" {
			prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if err != nil || prefix.Addr().Is4In6() {
			return nil, fmt.Errorf("allowedNetworks[%d]: %q is not a range such as 10.1.0.0/16, or an address", i, s)
		}
		out = append(out, prefix.Masked())
	}
	return out, nil
}

func (n Networks) contain(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	return slices.ContainsFunc(n, func(prefix netip.Prefix) bool { return prefix.Contains(addr) })
}

// RefusedError is the error for a connection that was refused because of its address.
type RefusedError struct {
	// Host is the host as it was written, with its port if it had one; empty where
	// only the address is known.
	Host string
	// Addr is where it leads.
	Addr netip.Addr
	kind string
}

func (e *RefusedError) Error() string {
	s := fmt.Sprintf("%s is %s", e.Addr, e.kind)
	if e.Host != "" && !strings.HasPrefix(strings.Trim(e.Host, "["), e.Addr.String()) {
		s = fmt.Sprintf("%s leads to %s, which is %s", e.Host, e.Addr, e.kind)
	}
	return s + "; allowedNetworks in the configuration allows ranges"
}

// Options configure a Transport.
type Options struct {
	// Networks are allowed to every host.
	Networks Networks
	// TLS is copied for each pool of connections, because net/http changes it when it first uses one;
	// nil is the default.
	TLS *tls.Config
	// MaxConnsPerHost bounds the connections to one host; 0 means no bound.
	MaxConnsPerHost int
	// Resolver is for tests; nil is the system's.
	Resolver *net.Resolver
	// Proxy finds the proxy of a request; nil is http.ProxyFromEnvironment.
	Proxy func(*http.Request) (*url.URL, error)
}

// Transport sends requests. It has two pools of connections, for hosts that people named
// and for hosts that strangers named, so that no request of the second kind uses a
// connection that it could not have made.
type Transport struct {
	options          Options
	named, strangers *http.Transport
}

// New returns a Transport.
func New(o Options) *Transport {
	if o.Proxy == nil {
		o.Proxy = http.ProxyFromEnvironment
	}
	t := &Transport{options: o}
	t.named, t.strangers = newTransport(o, t.control(false)), newTransport(o, t.control(true))
	t.named.Proxy = o.Proxy
	return t
}

// WithDial is for tests: it returns a Transport like t whose connections dial makes. It
// checks only those of strangers' hosts that are written as addresses.
func (t *Transport) WithDial(dial func(ctx context.Context, network, address string) (net.Conn, error)) *Transport {
	to := New(t.options)
	to.named.DialContext = dial
	to.strangers.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if at, err := netip.ParseAddrPort(address); err == nil {
			if err := t.check(at.Addr(), true); err != nil {
				return nil, err
			}
		}
		return dial(ctx, network, address)
	}
	return to
}

func newTransport(o Options, control func(context.Context, string, string, syscall.RawConn) error) *http.Transport {
	dialer := &net.Dialer{Timeout: 15 * time.Second, KeepAlive: 30 * time.Second, ControlContext: control, Resolver: o.Resolver}
	return &http.Transport{
		DialContext:           dialer.DialContext,
		TLSClientConfig:       o.TLS.Clone(),
		ForceAttemptHTTP2:     true,
		MaxIdleConns:          100,
		MaxIdleConnsPerHost:   o.MaxConnsPerHost,
		MaxConnsPerHost:       2 * o.MaxConnsPerHost,
		IdleConnTimeout:       90 * time.Second,
		TLSHandshakeTimeout:   15 * time.Second,
		ExpectContinueTimeout: time.Second,
	}
}

// control returns a function that the dialer calls with each address before it connects.
func (t *Transport) control(stranger bool) func(context.Context, string, string, syscall.RawConn) error {
	return func(_ context.Context, _, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("guard: dialling %q: %w", address, err)
		}
		return t.check(at.Addr(), stranger)
	}
}

func (t *Transport) check(addr netip.Addr, stranger bool) error {
	kind := kindOf(addr)
	if kind == "" || t.options.Networks.contain(addr) || !stranger && kind != kindLink && kind != kindMetadata {
		return nil
	}
	return &RefusedError{Addr: addr, kind: kind}
}

// RoundTrip implements http.RoundTripper. The host of the caller's request counts as
// named by people, and hosts that redirects lead to as named by strangers.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	return t.Named(First(req).URL.Host == req.URL.Host).RoundTrip(req)
}

// First is the request at the beginning of the redirects that led to req.
func First(req *http.Request) *http.Request {
	for req.Response != nil && req.Response.Request != nil {
		req = req.Response.Request
	}
	return req
}

// Named is RoundTrip for callers that know whether people named the host.
func (t *Transport) Named(byPeople bool) http.RoundTripper { return way{t, byPeople} }

// way is one of a Transport's two pools.
type way struct {
	*Transport
	named bool
}

// RoundTrip implements http.RoundTripper.
func (w way) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := w.send(req)
	if refused, ok := errors.AsType[*RefusedError](err); ok && refused.Host == "" {
		return nil, &RefusedError{Host: req.URL.Host, Addr: refused.Addr, kind: refused.kind}
	}
	return resp, err
}

func (w way) send(req *http.Request) (*http.Response, error) {
	if w.named {
		return w.Transport.named.RoundTrip(req)
	}
	proxy, err := w.options.Proxy(req)
	if err != nil {
		return nil, err
	}
	if proxy == nil {
		return w.strangers.RoundTrip(req)
	}
	if err := w.checkWritten(req.URL.Hostname()); err != nil {
		return nil, err
	}
	// The connections are to the proxy, whatever named the host behind it.
	return w.Transport.named.RoundTrip(req)
}

// checkWritten checks a host that is not resolved here. Names that can only be inside
// count as loopback, and so do names that a resolver may take for an address although
// they are not written as one.
func (t *Transport) checkWritten(host string) error {
	if addr, err := netip.ParseAddr(host); err == nil {
		return t.check(addr, true)
	}
	name := strings.TrimSuffix(strings.ToLower(host), ".")
	last := name[strings.LastIndex(name, ".")+1:]
	if last == "localhost" || last == "" || last[0] >= '0' && last[0] <= '9' {
		return &RefusedError{Host: host, Addr: netip.AddrFrom4([4]byte{127, 0, 0, 1}), kind: kindLoopback}
	}
	return nil
}

// CloseIdleConnections closes what is not in use.
func (t *Transport) CloseIdleConnections() {
	t.named.CloseIdleConnections()
	t.strangers.CloseIdleConnections()
}
