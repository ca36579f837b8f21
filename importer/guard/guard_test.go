package guard_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/tidewaiter/tidewaiter/importer/guard"
)

func TestKindOf(t *testing.T) {
	for _, inside := range []string{
		"127.0.0.1", "127.8.9.1", "::1", "0.0.0.0", "::", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1",
		"100.64.0.1", "100.127.255.255", "169.254.1.1", "169.254.169.254", "fe80::1", "fe80::1%eth0", "febf::1", "fc00::1", "fd00:ec2::254",
		"fd12:3456::1", "168.63.129.16", "100.100.100.200", "192.0.0.192", "198.18.0.1", "224.0.0.1", "255.255.255.255", "ff02::1", "fec0::1",
		// IPv4 within IPv6.
		"::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "::ffff:0:10.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1",
		"2002:7f00:1::", "2002:a00:1::1", "2002:a9fe:a9fe::", "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2606:4700::5efe:10.0.0.1",
	} {
		if kind := guard.KindOf(netip.MustParseAddr(inside)); kind == "" {
			t.Errorf("%s is taken for public", inside)
		}
	}
	for _, public := range []string{"1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "172.15.0.1", "172.32.0.1", "192.167.1.1", "223.255.255.255",
		"2606:4700:4700::1111", "2a00:1450::1", "::ffff:1.1.1.1", "64:ff9b::1.1.1.1", "2002:101:101::1"} {
		if kind := guard.KindOf(netip.MustParseAddr(public)); kind != "" {
			t.Errorf("%s is %s", public, kind)
		}
	}
}

// FuzzKindOf says that no spelling of an address of IPv4 within IPv6 is more public
// than the address.
func FuzzKindOf(f *testing.F) {
	f.Add([]byte{10, 0, 0, 1})
	f.Add([]byte{169, 254, 169, 254})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != 4 {
			return
		}
		v4 := netip.AddrFrom4([4]byte(b))
		if guard.KindOf(v4) == "" {
			return
		}
		for _, prefix := range []string{"::ffff:", "::", "64:ff9b::", "::ffff:0:", "2606:4700::5efe:"} {
			v6 := netip.MustParseAddr(prefix + v4.String())
			if guard.KindOf(v6) == "" {
				t.Errorf("%s is taken for public", v6)
			}
		}
		six := netip.AddrFrom16([16]byte{0x20, 0x02, b[0], b[1], b[2], b[3]})
		if guard.KindOf(six) == "" {
			t.Errorf("%s is taken for public", six)
		}
	})
}

// internal is a service that no stranger should reach.
func internal(t *testing.T) (url, port string, reached *atomic.Int32) {
	t.Helper()
	reached = &atomic.Int32{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reached.Add(1)
		_, _ = io.WriteString(w, "the secrets of the house")
	}))
	t.Cleanup(s.Close)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return s.URL, port, reached
}

func get(t *testing.T, rt http.RoundTripper, url string) error {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: rt}).Do(req)
	if err == nil {
		resp.Body.Close()
	}
	return err
}

func wantRefused(t *testing.T, err error) {
	t.Helper()
	var refused *guard.RefusedError
	if !errors.As(err, &refused) {
		t.Errorf("error is %v, want a refusal", err)
	} else if !strings.Contains(refused.Error(), "allowedNetworks") {
		t.Errorf("%v does not say what to do", err)
	}
}

func direct(*http.Request) (*url.URL, error) { return nil, nil }

func TestStrangersDoNotLeadInside(t *testing.T) {
	t.Parallel()
	inside, port, reached := internal(t)
	g := guard.New(guard.Options{Proxy: direct})
	t.Cleanup(g.CloseIdleConnections)
	for _, written := range []string{inside, "http://localhost:" + port, "http://[::ffff:127.0.0.1]:" + port, "http://0.0.0.0:" + port} {
		wantRefused(t, get(t, g.Named(false), written))
	}
	if n := reached.Load(); n != 0 {
		t.Fatalf("it was reached %d times", n)
	}
	// People may name it, and the connection that stays open is not for strangers.
	if err := get(t, g.Named(true), inside); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, get(t, g.Named(false), inside))
	if n := reached.Load(); n != 1 {
		t.Errorf("it was reached %d times, want once", n)
	}
	// Nobody may name a metadata service.
	wantRefused(t, get(t, g.Named(true), "http://169.254.169.254/latest/meta-data/"))
	wantRefused(t, get(t, g.Named(true), "http://[fd00:ec2::254]/latest/meta-data/"))

	networks, err := guard.ParseNetworks([]string{"127.0.0.0/8"})
	if err != nil {
		t.Fatal(err)
	}
	allowing := guard.New(guard.Options{Networks: networks, Proxy: direct})
	t.Cleanup(allowing.CloseIdleConnections)
	if err := get(t, allowing.Named(false), inside); err != nil {
		t.Error(err)
	}
}

// A redirect is a stranger's word, whoever named the host that sent it.
func TestRedirectsDoNotLeadInside(t *testing.T) {
	t.Parallel()
	inside, _, reached := internal(t)
	outside := httptest.NewServer(http.RedirectHandler(inside, http.StatusFound))
	t.Cleanup(outside.Close)
	g := guard.New(guard.Options{Proxy: direct})
	t.Cleanup(g.CloseIdleConnections)
	wantRefused(t, get(t, g, outside.URL))
	if n := reached.Load(); n != 0 {
		t.Errorf("it was reached %d times", n)
	}
}

// rebinder is a name server whose names lead to a public address at first, and
// inside whenever they are asked for again.
func rebinder(t *testing.T) (*net.Resolver, *atomic.Int32) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	asked := &atomic.Int32{}
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
			if q.Type == dnsmessage.TypeA {
				a := [4]byte{127, 0, 0, 1}
				if asked.Add(1) == 1 {
					a = [4]byte{1, 1, 1, 1}
				}
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 0},
					Body:   &dnsmessage.AResource{A: a},
				}}
			}
			if answer, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}, asked
}

// A name that led outside when somebody looked leads inside when it is dialled.
func TestDNSRebindingDoesNotLeadInside(t *testing.T) {
	t.Parallel()
	_, port, reached := internal(t)
	resolver, asked := rebinder(t)
	if addrs, err := resolver.LookupHost(t.Context(), "rebind.example.com"); err != nil || addrs[0] != "1.1.1.1" {
		t.Fatal(addrs, err)
	}
	g := guard.New(guard.Options{Resolver: resolver, Proxy: direct})
	t.Cleanup(g.CloseIdleConnections)
	wantRefused(t, get(t, g.Named(false), "http://rebind.example.com:"+port))
	if reached.Load() != 0 || asked.Load() < 2 {
		t.Errorf("asked %d times, reached %d times", asked.Load(), reached.Load())
	}
}

func TestBehindAProxy(t *testing.T) {
	t.Parallel()
	inside, port, reached := internal(t)
	var seen atomic.Pointer[string]
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		target := req.URL.String()
		seen.Store(&target)
	}))
	t.Cleanup(proxy.Close)
	through, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	g := guard.New(guard.Options{Proxy: func(*http.Request) (*url.URL, error) { return through, nil }})
	t.Cleanup(g.CloseIdleConnections)
	// The proxy is inside, and that is right.
	if err := get(t, g.Named(false), "http://registry.example.com/"); err != nil || *seen.Load() != "http://registry.example.com/" {
		t.Fatal(err, seen.Load())
	}
	seen.Store(nil)
	for _, written := range []string{inside, "http://localhost:" + port, "http://a.localhost.:" + port, "http://127.1:" + port, "http://2130706433:" + port, "http://[64:ff9b::7f00:1]:" + port} {
		wantRefused(t, get(t, g.Named(false), written))
	}
	if s := seen.Load(); s != nil || reached.Load() != 0 {
		t.Errorf("the proxy was asked for %v, the inside reached %d times", s, reached.Load())
	}
}

// net/http changes the configuration of TLS when it first uses it, and one pool may be closed
// unused while the other one connects. So they share none, and the caller's stays as it is.
func TestPoolsShareNoConfiguration(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(server.Close)
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AddCert(server.Certificate())
	transport := guard.New(guard.Options{TLS: config})
	t.Cleanup(transport.CloseIdleConnections)
	var requests sync.WaitGroup
	for range 4 {
		requests.Go(func() {
			resp, err := (&http.Client{Transport: transport}).Get(server.URL)
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
		})
	}
	transport.CloseIdleConnections()
	requests.Wait()
	if len(config.NextProtos) > 0 {
		t.Errorf("the caller's configuration has %q now", config.NextProtos)
	}
}

func TestParseNetworks(t *testing.T) {
	if n, err := guard.ParseNetworks([]string{"10.1.2.3/8", "fd00::/8", "192.168.1.1"}); err != nil || n[0].String() != "10.0.0.0/8" || n[2].Bits() != 32 {
		t.Error(n, err)
	}
	for _, bad := range []string{"", "10.0.0.0", "10/8", "::ffff:10.0.0.0/104", "fe80::1%eth0", "example.com"} {
		if _, err := guard.ParseNetworks([]string{bad}); err == nil != (bad == "10.0.0.0") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
