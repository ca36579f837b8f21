package web

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	// in the scheme k8s.io/kubernetes/pkg/api/legacyscheme
	_ "k8s.io/kubernetes/pkg/apis/authentication/install"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	"k8s.io/kubernetes/pkg/registry/authentication/selfsubjectreview"
	"k8s.io/kubernetes/pkg/registry/authentication/tokenreview"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/trusted"
	"github.com/tidewaiter/tidewaiter/web/filters"
	"github.com/tidewaiter/tidewaiter/web/limits"
)

// defaultIssuer is the issuer of service accounts' tokens, unless another is given. It
// has no host: if others are to ask the server for its keys, the server has to know its own
// issuer.
const defaultIssuer = "https://tidewaiter.local"

// maxClaimedName bounds a name from a token in a message, in bytes.
const maxClaimedName = 100

// tokenCacheTime is for how long a token that was checked, of a service account or of
// another issuer, is not checked again. Upstream has ten seconds; here a revoked token must
// be refused within one.
const tokenCacheTime = time.Second

// Authentication says how callers prove who they are, besides the credentials of the data
// directory. It has kube-apiserver's own options, with its flags.
type Authentication struct {
	*kubeoptions.BuiltInAuthenticationOptions
	// SigningKeyFile is a private key in PEM that signs the tokens of service accounts.
	// Empty means the data directory's own key.
	SigningKeyFile string
}

// NewAuthentication returns kube-apiserver's defaults, with one exception: anonymous
// callers are refused, except at the health endpoints.
func NewAuthentication() *Authentication {
	o := kubeoptions.NewBuiltInAuthenticationOptions().WithAnonymous().WithClientCert().WithOIDC().WithServiceAccounts().WithWebHook()
	o.Anonymous.Allow = false
	o.TokenSuccessCacheTTL = tokenCacheTime
	o.WebHook.Version = "v1"
	return &Authentication{BuiltInAuthenticationOptions: o}
}

// AddFlags adds kube-apiserver's flags.
func (a *Authentication) AddFlags(fs *pflag.FlagSet) {
	a.BuiltInAuthenticationOptions.AddFlags(fs)
	fs.StringVar(&a.SigningKeyFile, "service-account-signing-key-file", "", "File with the private key (PEM, RSA or ECDSA) that signs service account tokens (default: pki/sa.key in the data directory). Reread when it changes.")
	fs.Lookup("service-account-key-file").Usage = "File with public or private keys (PEM, RSA or ECDSA) that verify service account tokens; may be repeated (default: pki/sa.pub in the data directory). Reread when it changes."
	fs.Lookup("client-ca-file").Usage = "If set, client certificates signed by one of the authorities in this file are accepted, in addition to those of the data directory's authority: the user is the CommonName, the groups are the Organizations."
	fs.Lookup("anonymous-auth").Usage = "Whether to accept requests without a credential as system:anonymous, of the group system:unauthenticated. Otherwise they get 401, except at the health endpoints."
	// This flag is about tokens in Secrets, which are not served.
	_ = fs.MarkHidden("service-account-lookup")
}

// complete fills in the options that were not given, and returns what is wrong with those
// that were.
func (a *Authentication) complete(keys serviceaccount.PublicKeysGetter, accounts serviceaccount.ServiceAccountTokenGetter) error {
	a.issuers()
	if keys == nil || accounts == nil {
		a.ServiceAccounts = nil
	} else {
		// The keys that were given are among keys.
		a.ServiceAccounts.KeyFiles, a.ServiceAccounts.ExternalPublicKeysGetter = nil, keys
		a.ServiceAccounts.OptionalTokenGetter = func(informers.SharedInformerFactory) serviceaccount.ServiceAccountTokenGetter { return accounts }
	}
	return errors.Join(append(a.Validate(), a.checkTrusted())...)
}

// checkTrusted returns a *trusted.Error for a file that says who callers are and that
// another user could have written.
func (a *Authentication) checkTrusted() error {
	var errs []error
	for _, file := range []string{a.AuthenticationConfigFile, a.ClientCert.ClientCA, a.OIDC.CAFile, a.WebHook.ConfigFile} {
		if file != "" {
			errs = append(errs, trusted.CheckPath(file))
		}
	}
	return errors.Join(errs...)
}

// issuers returns the issuers of service accounts' tokens. New tokens have the first one.
func (a *Authentication) issuers() []string {
	if len(a.ServiceAccounts.Issuers) == 0 {
		a.ServiceAccounts.Issuers = []string{defaultIssuer}
	}
	return a.ServiceAccounts.Issuers
}

// applyAuthentication makes cfg know the callers of c. The data directory's own credentials
// are checked first, which costs least. Kube-apiserver's ways follow, as failures allows.
// It returns an authenticator of the callers who prove who they are, and the sessions,
// which are to hold their requests that run for long.
func applyAuthentication(ctx context.Context, cfg *genericapiserver.Config, c Config, failures *limits.Failures) (authenticator.Request, *sessions, error) {
	if c.Cluster != nil {
		if err := c.Cluster.applyAuthentication(cfg); err != nil {
			return nil, nil, err
		}
	} else if err := c.applyOptions(ctx, cfg); err != nil {
		return nil, nil, err
	}
	own := c.Credentials.authenticator()
	open := newSessions(own.request(cfg.Authentication.APIAudiences), cfg.Authentication.APIAudiences, newRights(cfg))
	requests := []authenticator.Request{open}
	if others := cfg.Authentication.Authenticator; others != nil {
		requests = append(requests, filters.CheckedInTurn{Request: others, Failures: failures})
	}
	health := make([]apiserverapi.AnonymousAuthCondition, 0, len(healthPaths))
	for _, p := range healthPaths {
		health = append(health, apiserverapi.AnonymousAuthCondition{Path: p})
	}
	callers := union.New(requests...)
	cfg.Authentication.Authenticator = union.New(callers, anonymous.NewAuthenticator(health))
	return callers, open, nil
}

// applyOptions makes cfg know callers in kube-apiserver's ways.
func (c *Config) applyOptions(ctx context.Context, cfg *genericapiserver.Config) error {
	options := c.Authentication
	if options == nil {
		options = NewAuthentication()
	}
	var keys serviceaccount.PublicKeysGetter
	if c.Tokens != nil {
		keys = c.Tokens
	}
	if err := options.complete(keys, c.Accounts); err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg.LoopbackClientConfig)
	if err != nil {
		return err
	}
	if file := options.ClientCert.ClientCA; file != "" {
		if options.ClientCert.CAContentProvider, err = c.Credentials.followAuthorities("client-ca-bundle", file); err != nil {
			return fmt.Errorf("--client-ca-file: %w", err)
		}
	}
	all, err := options.ToAuthenticationConfig()
	if err != nil {
		return err
	}
	// The ways are in upstream's order, and each is by itself, so that it is known which let a
	// caller in.
	local, issuers, webhook := *options.BuiltInAuthenticationOptions, *options.BuiltInAuthenticationOptions, *options.BuiltInAuthenticationOptions
	local.OIDC, local.AuthenticationConfigFile, local.WebHook = nil, "", nil
	issuers.ClientCert, issuers.WebHook = nil, nil
	webhook.ClientCert, webhook.OIDC, webhook.AuthenticationConfigFile = nil, nil, ""
	if file := issuers.AuthenticationConfigFile; file != "" {
		if issuers.AuthenticationConfigFile, err = c.Credentials.followIssuers(file, options.BuiltInAuthenticationOptions); err != nil {
			return fmt.Errorf("--authentication-config: %w", err)
		}
	}
	if options.ServiceAccounts != nil {
		// the issuers in it are the audiences of the API, and of no other way
		keyless := *options.ServiceAccounts
		keyless.ExternalPublicKeysGetter = nil
		issuers.ServiceAccounts, webhook.ServiceAccounts = &keyless, &keyless
	}
	// Without service accounts upstream takes its listers from here, but never uses them.
	unused := informers.NewSharedInformerFactory(client, 0)
	var ways []authenticator.Request
	for _, way := range []*kubeoptions.BuiltInAuthenticationOptions{&local, &issuers, &webhook} {
		way.Anonymous = nil
		if err := way.ApplyTo(ctx, &cfg.Authentication, cfg.SecureServing, nil, cfg.OpenAPIConfig, cfg.OpenAPIV3Config, client, unused, "tidewaiter"); err != nil {
			return err
		}
		known := cfg.Authentication.Authenticator
		switch way {
		case &issuers:
			known = claimed{known}
		case &webhook:
			known = asking{known}
		}
		ways = append(ways, known)
	}
	cfg.Authentication.Authenticator = union.New(ways...)
	if all.Anonymous.Enabled {
		cfg.Authentication.Authenticator = union.NewFailOnError(cfg.Authentication.Authenticator, anonymous.NewAuthenticator(all.Anonymous.Conditions))
	}
	return nil
}

// systemPrefix begins the names that Kubernetes keeps for itself, such as system:masters.
const systemPrefix = "system:"

// claimed refuses callers whose token claims such a name. The claims are an issuer's: it lets
// people choose names, and does not know what these mean here. It also refuses tokens whose claims
// can be read in two ways, because the verifier and those who read the claims have a parser each.
type claimed struct{ authenticator.Request }

// AuthenticateRequest implements authenticator.Request.
func (c claimed) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if err := ambiguousClaims(bearerOf(r)); err != nil {
		return nil, false, err
	}
	response, ok, err := c.Request.AuthenticateRequest(r)
	if err != nil || !ok {
		return nil, false, err
	}
	kind, name := "user", response.User.GetName()
	for _, g := range response.User.GetGroups() {
		if strings.HasPrefix(g, systemPrefix) && g != user.AllAuthenticated {
			// which everybody is in
			kind, name = "group", g
		}
	}
	if strings.HasPrefix(name, systemPrefix) {
		return nil, false, fmt.Errorf("the token claims the %s %q, but its issuer may not use names that begin with %q: give its names a prefix", kind, printable.Line(name, maxClaimedName), systemPrefix)
	}
	return response, true, nil
}

// bearerOf returns the token of a request; "" if it has none.
func bearerOf(r *http.Request) (token string) {
	note := authenticator.TokenFunc(func(_ context.Context, t string) (*authenticator.Response, bool, error) {
		token = t
		return nil, false, nil
	})
	_, _, _ = union.New(bearertoken.New(note), websocket.NewProtocolAuthenticator(note)).AuthenticateRequest(r)
	return token
}

// verifiedClaims are the claims by which upstream's verifier judges a token. It ignores the case of
// their names.
var verifiedClaims = []string{"iss", "sub", "aud", "exp", "iat", "nbf", "nonce", "at_hash", "_claim_names", "_claim_sources"}

// ambiguousClaims returns an error if a token is a JWT with a claim twice, or with another spelling
// of a claim by which it is judged.
func ambiguousClaims(token string) error {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims map[string]json.RawMessage
	if err != nil || json.Unmarshal(raw, &claims) != nil {
		return nil // it is no JWT
	}
	if err := payload.Unambiguous(raw, false); err != nil {
		return fmt.Errorf("the token's claims can be read in two ways: %w", err)
	}
	for name := range claims {
		if i := slices.IndexFunc(verifiedClaims, func(known string) bool { return strings.EqualFold(name, known) }); i >= 0 && name != verifiedClaims[i] {
			return fmt.Errorf("the token claims %q, which can be taken for %q", printable.Line(name, maxClaimedName), verifiedClaims[i])
		}
	}
	return nil
}

// ownCallers are those whose credentials are in the data directory.
type ownCallers struct {
	certificates *x509.Authenticator
	tokens       authenticator.Token
}

// request authenticates own callers for audiences, which are those of the API.
func (o *ownCallers) request(audiences authenticator.Audiences) authenticator.Request {
	tokens := authenticator.WrapAudienceAgnosticToken(audiences, o.tokens)
	return group.NewAuthenticatedGroupAdder(union.New(o.certificates, bearertoken.New(tokens), websocket.NewProtocolAuthenticator(tokens)))
}

// authenticator returns an authenticator that knows every caller with a credential of c,
// until the credential is revoked.
func (c *Credentials) authenticator() *ownCallers {
	return &ownCallers{
		certificates: x509.NewDynamic(c.clientCA.VerifyOptions, c.revoked.except(x509.CommonNameUserConversion)),
		tokens:       tokenunion.New(c.tokens, c.localToken()),
	}
}

// reviews serve the answers to who a token's bearer is, and who the caller is.
func reviews(callers authenticator.Request, audiences authenticator.Audiences) map[schema.GroupVersion]map[string]rest.Storage {
	return map[schema.GroupVersion]map[string]rest.Storage{
		authenticationv1.SchemeGroupVersion: {
			"tokenreviews":       tokenreview.NewREST(callers, audiences),
			"selfsubjectreviews": selfsubjectreview.NewREST(),
		},
	}
}
