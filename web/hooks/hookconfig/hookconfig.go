// Package hookconfig has the configuration of receivers of webhooks.
package hookconfig

// Receiver is the configuration of one webhook endpoint, POST /hooks/NAME.
type Receiver struct {
	// Name is the path segment: lower-case letters, digits, '-' and '.', at most
	// 63 characters.
	Name string `yaml:"name"`
	// Type is the vendor's format, one of hooks.Types.
	Type string `yaml:"type"`
	// Hosts are the registries, host[:port], that the receiver accepts events for. At
	// least one is required: an event makes the server connect to its host.
	Hosts []string `yaml:"hosts"`
	// Repositories, when not empty, are patterns. A repository must match one of them:
	// path.Match by segment, and a last segment ** for everything below.
	Repositories []string `yaml:"repositories,omitempty"`
	// SecretFile holds the secrets, one a line. Each is accepted, so that one can be
	// replaced without losing an event. The file is read again when it changes.
	SecretFile string `yaml:"secretFile,omitempty"`
	// Header names the request header that carries the secret, for the types that
	// send it in a header. Empty means Authorization (X-JFrog-Event-Auth for jfrog).
	Header string `yaml:"header,omitempty"`
	// OIDC says how the tokens of a receiver of type gar are checked.
	OIDC *OIDC `yaml:"oidc,omitempty"`
}

// OIDC says which signed tokens are accepted in the Authorization header.
type OIDC struct {
	// KeysFile holds the issuer's public keys, a JSON Web Key Set (RFC 7517). It
	// is read again when it changes; the server never fetches keys.
	KeysFile string `yaml:"keysFile"`
	// Audience must be the token's aud, as set on the push subscription.
	Audience string `yaml:"audience"`
	// Email is the service account whose token it must be.
	Email string `yaml:"email"`
	// Issuer must be the token's iss. Empty means https://accounts.google.com.
	Issuer string `yaml:"issuer,omitempty"`
}
