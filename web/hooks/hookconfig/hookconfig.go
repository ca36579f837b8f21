// Package hookconfig has the configuration of receivers of webhooks.
package hookconfig

// Receiver is the configuration of one webhook endpoint, POST /hooks/NAME.
type Receiver struct {
	// Name is in the path, POST /hooks/NAME: lower-case letters, digits, '-' and '.', at most 63
	// characters.
	Name string `yaml:"name" example:"harbor"`
	// Type is the vendor's format.
	Type string `yaml:"type" example:"harbor"`
	// Hosts are the registries whose events are accepted: the server connects to them. At least
	// one.
	Hosts []string `yaml:"hosts" example:"[registry.example.com:5000]"`
	// Repositories are patterns; ** at the end stands for everything below; by default all.
	Repositories []string `yaml:"repositories,omitempty" example:"[team/**]"`
	// SecretFile has secrets, one a line. Each is accepted, so that one can be replaced.
	SecretFile string `yaml:"secretFile,omitempty" example:"harbor.secret"`
	// Header carries the secret, if not Authorization (X-JFrog-Event-Auth for jfrog).
	Header string `yaml:"header,omitempty" example:"Authorization"`
	// OIDC is for the type gar, which has no secret.
	OIDC *OIDC `yaml:"oidc,omitempty"`
}

// OIDC is what a signed token in the Authorization header must have.
type OIDC struct {
	// KeysFile has the issuer's public keys (JWKS), which the server never fetches.
	KeysFile string `yaml:"keysFile" example:"google-keys.json"`
	// Audience must be the token's aud.
	Audience string `yaml:"audience" example:"tidewaiter"`
	// Email is the service account that the token must name.
	Email string `yaml:"email" example:"pusher@project.iam.gserviceaccount.com"`
	// Issuer must be the token's iss; this is the default.
	Issuer string `yaml:"issuer,omitempty" example:"https://accounts.google.com"`
}
