package web

import (
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"strings"

	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/path"
	authorizerunion "k8s.io/apiserver/pkg/authorization/union"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/options"
)

// healthPaths answer without a credential, exactly and not below.
var healthPaths = []string{"/healthz", "/livez", "/readyz"}

// applyTo makes cfg serve on listener (nil: not at all) with c's certificate
// and know c's callers.
func (c *Credentials) applyTo(cfg *genericapiserver.Config, listener net.Listener) error {
	clientCA, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca", c.CAFile)
	if err != nil {
		return fmt.Errorf("reading the certificate authority: %w", err)
	}
	if listener != nil {
		serving := options.NewSecureServingOptions()
		serving.Listener = listener
		serving.MinTLSVersion = "VersionTLS12"
		serving.CipherSuites = cipherSuites()
		serving.ServerCert.GeneratedCert = c.serving
		if err := serving.ApplyTo(&cfg.SecureServing); err != nil {
			return fmt.Errorf("preparing TLS: %w", err)
		}
		if err := cfg.Authentication.ApplyClientCert(clientCA, cfg.SecureServing); err != nil {
			return fmt.Errorf("preparing client certificates: %w", err)
		}
	}

	file, err := tokenfile.NewCSV(c.tokenFile)
	if err != nil {
		return fmt.Errorf("reading bearer tokens: %w", err)
	}
	tokens := tokenunion.New(file, tokenfile.New(map[string]*user.DefaultInfo{
		c.local.Token: {Name: localUser, UID: localUser, Groups: []string{user.SystemPrivilegedGroup}},
	}))
	conditions := make([]apiserverapi.AnonymousAuthCondition, 0, len(healthPaths))
	for _, p := range healthPaths {
		conditions = append(conditions, apiserverapi.AnonymousAuthCondition{Path: p})
	}
	cfg.Authentication.Authenticator = union.New(
		group.NewAuthenticatedGroupAdder(union.New(
			x509.NewDynamic(clientCA.VerifyOptions, x509.CommonNameUserConversion),
			bearertoken.New(tokens),
			websocket.NewProtocolAuthenticator(tokens),
		)),
		anonymous.NewAuthenticator(conditions),
	)
	cfg.Authorization.Authorizer, err = newAuthorizer()
	return err
}

// cipherSuites are the suites of TLS 1.2 that are served. Those in CBC mode, which Go
// takes for secure, have been attacked by their padding. TLS 1.3 has no such suites.
func cipherSuites() []string {
	var names []string
	for _, suite := range tls.CipherSuites() {
		if slices.Contains(suite.SupportedVersions, tls.VersionTLS12) && !strings.Contains(suite.Name, "_CBC_") {
			names = append(names, suite.Name)
		}
	}
	return names
}

// newAuthorizer lets everyone read the health endpoints and system:masters do
// everything. No other identity is granted anything.
func newAuthorizer() (authorizer.Authorizer, error) {
	health, err := path.NewAuthorizer(healthPaths)
	if err != nil {
		return nil, err
	}
	return authorizerunion.New(
		authorizerunion.NamedAuthorizer{AuthorizerName: "health", Authorizer: health},
		authorizerunion.NamedAuthorizer{AuthorizerName: "masters", Authorizer: authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)},
	)
}
