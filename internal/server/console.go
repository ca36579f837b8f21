package server

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"

	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/web/console"
	"github.com/tidewaiter/tidewaiter/web/console/openid"
)

// newConsole returns what makes the console; nil if there is to be none.
func (s *Server) newConsole() (func(api http.Handler) http.Handler, error) {
	if s.listener == nil || !s.Options.Console {
		return nil, nil
	}
	// Replicas share the key of the certificate authority, so what is sealed with it holds on each.
	key, err := os.ReadFile(s.Credentials.CAKeyFile)
	if err != nil {
		return nil, fmt.Errorf("the console: %w", err)
	}
	options := console.Options{Clock: s.Options.Clock, Secret: key}
	options.Turn = func(ctx context.Context, w http.ResponseWriter, user, remote string) console.Turn {
		return s.turns.Of(ctx, w, user, remote)
	}
	if at, ok := s.listener.Addr().(*net.TCPAddr); ok {
		options.At = console.Address{URL: s.Options.TLS.AdvertiseURL, Hosts: s.Options.TLS.Hosts(at.IP), Port: at.Port}
	}
	if s.cluster == nil { // else the cluster knows the callers
		if options.Providers, err = s.signInFlow(key); err != nil {
			return nil, fmt.Errorf("the console: %w", err)
		}
	}
	return func(api http.Handler) http.Handler { return console.New(api, options) }, nil
}

// signInFlow signs people in with the issuers whose tokens the server accepts; nil if there are
// none.
func (s *Server) signInFlow(secret []byte) (*openid.Flow, error) {
	config, err := s.authentication().ToAuthenticationConfig()
	if err != nil || config.AuthenticationConfig == nil {
		return nil, err
	}
	var all []openid.Provider
	for _, jwt := range config.AuthenticationConfig.JWT {
		if len(jwt.Issuer.Audiences) > 0 {
			all = append(all, openid.Provider{Issuer: jwt.Issuer.URL, DiscoveryURL: jwt.Issuer.DiscoveryURL, ClientID: jwt.Issuer.Audiences[0], CA: jwt.Issuer.CertificateAuthority})
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	return openid.New(all, secret, clock.RealClock{})
}
