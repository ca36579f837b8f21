package web

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/options"
	certutil "k8s.io/client-go/util/cert"
	cliflag "k8s.io/component-base/cli/flag"
)

// minTLSVersion is the oldest version of TLS that is served unless told otherwise.
const minTLSVersion = "VersionTLS12"

// TLS says under which names, and with which certificate, a server serves. The zero value
// serves with a certificate of the data directory's authority.
type TLS struct {
	// CertFile and KeyFile are a certificate and its key, in PEM. The certificates of the
	// authorities that issued it may follow it in its file. Both files are read again
	// when they change. The certificate of the data directory's authority is served
	// beside it, for this machine's own names.
	CertFile, KeyFile string
	// MinVersion is VersionTLS12, the default, or VersionTLS13.
	MinVersion string
	// CipherSuites are those of TLS 1.2, by Go's names. None means all that Go takes for
	// secure, without those in CBC mode.
	CipherSuites []string
	// SANs are names and addresses under which the server is reached, besides those of
	// its machine.
	SANs []string
	// AdvertiseURL is where clients of other machines reach the server. admin.kubeconfig
	// names it. Empty means the address that the server listens on.
	AdvertiseURL string
}

// AddFlags adds the flags. Flags that kube-apiserver has too have its names.
func (t *TLS) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&t.CertFile, "tls-cert-file", "", "File with the server's certificate (PEM), followed by those of its authorities; reread when it changes. At localhost and the addresses of this machine it serves its own, pki/serving.crt.")
	fs.StringVar(&t.KeyFile, "tls-private-key-file", "", "File with the key (PEM) of --tls-cert-file")
	fs.StringVar(&t.MinVersion, "tls-min-version", minTLSVersion, "Minimum TLS version supported. Possible values: VersionTLS12, VersionTLS13")
	fs.StringSliceVar(&t.CipherSuites, "tls-cipher-suites", nil, "Comma-separated list of TLS 1.2 cipher suites (default: those that Go considers secure, without CBC mode). Values: "+strings.Join(suiteNames(tls.CipherSuites()), ", ")+". Insecure values: "+strings.Join(suiteNames(tls.InsecureCipherSuites()), ", ")+".")
	fs.StringSliceVar(&t.SANs, "tls-san", nil, "additional name or IP address for the server's certificate; may be repeated")
	fs.StringVar(&t.AdvertiseURL, "advertise-url", "", "https://HOST[:PORT] to write into admin.kubeconfig, for use from other machines; the certificate covers HOST, too")
}

// suiteNames are the names of the suites that TLS 1.2 has.
func suiteNames(suites []*tls.CipherSuite) []string {
	var names []string
	for _, suite := range suites {
		if slices.Contains(suite.SupportedVersions, tls.VersionTLS12) {
			names = append(names, suite.Name)
		}
	}
	return names
}

// cipherSuites are the suites of TLS 1.2 that are served. Go takes suites in CBC mode for
// secure, but they have been attacked by their padding. TLS 1.3 has no such suites.
func cipherSuites() []string {
	return slices.DeleteFunc(suiteNames(tls.CipherSuites()), func(name string) bool { return strings.Contains(name, "_CBC_") })
}

// Validate says what is wrong.
func (t *TLS) Validate() error {
	var errs []error
	if (t.CertFile == "") != (t.KeyFile == "") {
		errs = append(errs, errors.New("--tls-cert-file and --tls-private-key-file must be given together"))
	}
	switch t.MinVersion {
	case "", minTLSVersion, "VersionTLS13":
	default:
		errs = append(errs, fmt.Errorf("--tls-min-version %q is not VersionTLS12 or VersionTLS13", t.MinVersion))
	}
	if _, err := cliflag.TLSCipherSuites(t.CipherSuites); err != nil {
		errs = append(errs, fmt.Errorf("--tls-cipher-suites: %w", err))
	}
	// HTTP/2 demands one of these (RFC 7540, 9.2.2).
	if len(t.CipherSuites) > 0 && !slices.Contains(t.CipherSuites, "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256") && !slices.Contains(t.CipherSuites, "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256") {
		errs = append(errs, errors.New("--tls-cipher-suites needs TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 or TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, for HTTP/2"))
	}
	for _, name := range t.SANs {
		if !isHost(name) {
			errs = append(errs, fmt.Errorf("--tls-san %q is neither an IP address nor a DNS name", name))
		}
	}
	if t.AdvertiseURL != "" {
		u, err := url.Parse(t.AdvertiseURL)
		if err != nil || u.Scheme != "https" || "https://"+u.Host != t.AdvertiseURL || !isHost(u.Hostname()) {
			errs = append(errs, fmt.Errorf("--advertise-url %q is not https://HOST[:PORT]", t.AdvertiseURL))
		}
	}
	return errors.Join(errs...)
}

func isHost(name string) bool {
	return net.ParseIP(name) != nil || len(validation.IsDNS1123Subdomain(name)) == 0 || len(validation.IsWildcardDNS1123Subdomain(name)) == 0
}

// Hosts are the names that the certificate of the data directory's authority is for,
// where the server is bound to ip.
func (t *TLS) Hosts(ip net.IP) []string {
	hosts := append(ServingHosts(ip), t.SANs...)
	if u, err := url.Parse(t.AdvertiseURL); err == nil && u.Host != "" {
		hosts = append(hosts, u.Hostname())
	}
	return hosts
}

// address is the HOST:PORT under which others reach the server, which listens on l unless
// that is nil.
func (t *TLS) address(l net.Listener) string {
	if u, err := url.Parse(t.AdvertiseURL); err == nil && u.Host != "" {
		return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443"))
	}
	if l != nil {
		if at, ok := l.Addr().(*net.TCPAddr); ok && !at.IP.IsUnspecified() {
			return at.String()
		}
	}
	return "localhost:443"
}

// applyTLS makes cfg serve on listener with c's certificate, or with the one that was
// given.
func (c *Credentials) applyTLS(cfg *genericapiserver.Config, listener net.Listener) error {
	serving := options.NewSecureServingOptions()
	serving.Listener = listener
	serving.MinTLSVersion = cmp.Or(c.TLS.MinVersion, minTLSVersion)
	serving.CipherSuites = cipherSuites()
	if len(c.TLS.CipherSuites) > 0 {
		serving.CipherSuites = c.TLS.CipherSuites
	}
	serving.ServerCert.GeneratedCert = c.serving
	if c.TLS.CertFile != "" {
		var err error
		if serving.ServerCert.GeneratedCert, err = c.followGiven(c.TLS.CertFile, c.TLS.KeyFile); err != nil {
			return fmt.Errorf("--tls-cert-file and --tls-private-key-file: %w", err)
		}
	}
	if err := serving.ApplyTo(&cfg.SecureServing); err != nil {
		return fmt.Errorf("preparing TLS: %w", err)
	}
	if c.TLS.CertFile != "" {
		given, err := c.TLS.given()
		if err != nil {
			return err
		}
		own := ownNames{serving: c.serving}
		for _, host := range c.hosts {
			if isLoopback(host) || given.VerifyHostname(host) != nil {
				own.names = append(own.names, host)
			}
		}
		cfg.SecureServing.SNICerts = append(cfg.SecureServing.SNICerts, own)
	}
	if err := cfg.Authentication.ApplyClientCert(c.clientCA, cfg.SecureServing); err != nil {
		return fmt.Errorf("preparing client certificates: %w", err)
	}
	return nil
}

// ownNames serves c's own certificate for names that the given certificate does not have:
// verbs on this machine reach the server by them.
type ownNames struct {
	*serving
	names []string
}

var _ dynamiccertificates.SNICertKeyContentProvider = ownNames{}

// SNINames implements dynamiccertificates.SNICertKeyContentProvider.
func (o ownNames) SNINames() []string { return o.names }

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// given is the certificate that was given.
func (t *TLS) given() (*x509.Certificate, error) {
	certs, err := certutil.CertsFromFile(t.CertFile)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert-file: %w", err)
	}
	return certs[0], nil
}

// trust returns what a client that reaches the server at address has to trust, in PEM;
// nil for the machine's own roots.
func (c *Credentials) trust(address string) ([]byte, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	if c.TLS.CertFile != "" && !isLoopback(u.Hostname()) {
		pem, err := os.ReadFile(c.TLS.CertFile)
		if err != nil {
			return nil, err
		}
		certs, err := certutil.ParseCertsPEM(pem)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert-file: %w", err)
		}
		if certs[0].VerifyHostname(u.Hostname()) == nil {
			others := x509.NewCertPool()
			for _, cert := range certs[1:] {
				others.AddCert(cert)
			}
			if _, err := certs[0].Verify(x509.VerifyOptions{Intermediates: others}); err == nil {
				return nil, nil
			}
			return pem, nil
		}
	}
	return os.ReadFile(c.CAFile)
}
