package clusters

import (
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	restclient "k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
)

// CredentialEndsSoon is how long before a credential ends the Cluster's condition warns about it.
const CredentialEndsSoon = 14 * 24 * time.Hour

// Reasons of the condition Credential.
const (
	reasonValid    = "Valid"
	reasonEndsSoon = "EndsSoon"
	reasonEnded    = "Ended"
	reasonNoEnd    = "NoEnd"
	reasonUnknown  = "EndUnknown"
)

// tokenAlgorithms are the algorithms of tokens whose end is read. Only the cluster verifies them.
var tokenAlgorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512,
	jose.ES256, jose.ES384, jose.ES512, jose.EdDSA, jose.HS256, jose.HS384, jose.HS512,
}

// credentialEnd returns when the credential of config ends: its client certificate or its token,
// whichever is first. It returns zero if the credential has no end, or if something else renews it:
// a file with a token, or a program. known is false if it may end at an unknown time: a token that
// is not a JWT, or a password.
func credentialEnd(config *restclient.Config) (end time.Time, known bool) {
	known = config.Password == ""
	earlier := func(t time.Time) {
		if end.IsZero() || t.Before(end) {
			end = t
		}
	}
	config = restclient.CopyConfig(config)
	// A credential that cannot be read here cannot be used either: then the cluster is not
	// reachable.
	if restclient.LoadTLSFiles(config) == nil && len(config.CertData) > 0 {
		if certs, err := certutil.ParseCertsPEM(config.CertData); err == nil {
			earlier(certs[0].NotAfter)
		}
	}
	if config.BearerTokenFile == "" && config.BearerToken != "" {
		var claims jwt.Claims
		token, err := jwt.ParseSigned(config.BearerToken, tokenAlgorithms)
		switch {
		case err != nil || token.UnsafeClaimsWithoutVerification(&claims) != nil:
			known = false
		case claims.Expiry != nil:
			earlier(claims.Expiry.Time())
		}
	}
	return end, known || !end.IsZero()
}

// credentialCondition is the condition for whether a credential ends soon. end and known come from
// credentialEnd.
func credentialCondition(end time.Time, known bool, now time.Time) metav1.Condition {
	c := metav1.Condition{Type: ConditionCredential, Status: metav1.ConditionTrue, Reason: reasonNoEnd, Message: "the credential for the cluster has no end, or is renewed"}
	if !known {
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, reasonUnknown, "the credential for the cluster does not say when it ends"
	}
	if end.IsZero() {
		return c
	}
	c.Reason, c.Message = reasonValid, "the credential for the cluster ends at "+end.UTC().Format(time.RFC3339)
	switch {
	case !now.Before(end):
		c.Status, c.Reason = metav1.ConditionFalse, reasonEnded
	case end.Sub(now) <= CredentialEndsSoon:
		c.Reason = reasonEndsSoon
	}
	return c
}
