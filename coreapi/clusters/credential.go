package clusters

import (
	"time"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	restclient "k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
)

// CredentialEndsSoon is how long before the end of a credential that is said.
const CredentialEndsSoon = 14 * 24 * time.Hour

// Reasons of the condition Credential.
const (
	reasonValid    = "Valid"
	reasonEndsSoon = "EndsSoon"
	reasonEnded    = "Ended"
	reasonNoEnd    = "NoEnd"
)

// credentialEnd returns when the credential of config ends, its client certificate or its token,
// whichever is first. It is zero for one that names no end, and for one that something else
// renews: a file with a token, or a program.
func credentialEnd(config *restclient.Config) (end time.Time) {
	earlier := func(t time.Time) {
		if end.IsZero() || t.Before(end) {
			end = t
		}
	}
	config = restclient.CopyConfig(config)
	// What cannot be read here cannot be used either: then the cluster is not reachable.
	if restclient.LoadTLSFiles(config) == nil && len(config.CertData) > 0 {
		if certs, err := certutil.ParseCertsPEM(config.CertData); err == nil {
			earlier(certs[0].NotAfter)
		}
	}
	if config.BearerTokenFile == "" && config.BearerToken != "" {
		var claims jwt.Claims
		if token, err := jwt.ParseSigned(config.BearerToken); err == nil && token.UnsafeClaimsWithoutVerification(&claims) == nil && claims.Expiry != nil {
			earlier(claims.Expiry.Time())
		}
	}
	return end
}

// credentialCondition says whether a credential that ends at a time, or at none that is known,
// ends soon.
func credentialCondition(end, now time.Time) metav1.Condition {
	c := metav1.Condition{Type: ConditionCredential, Status: metav1.ConditionTrue, Reason: reasonNoEnd, Message: "the credential for the cluster names no end, or is renewed"}
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
