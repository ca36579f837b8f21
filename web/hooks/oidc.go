package hooks

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	jose "github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// keySet is a JSON Web Key Set of public keys.
type keySet struct{ jose.JSONWebKeySet }

func parseKeySet(b []byte, _ *keySet) (*keySet, error) {
	var ks keySet
	if err := json.Unmarshal(b, &ks.JSONWebKeySet); err != nil {
		return nil, fmt.Errorf("not a JSON Web Key Set (https://www.googleapis.com/oauth2/v3/certs serves Google's): %w", err)
	}
	if len(ks.Keys) == 0 {
		return nil, errors.New("the JSON Web Key Set has no keys")
	}
	for _, k := range ks.Keys {
		if !k.Valid() || !k.IsPublic() {
			return nil, errors.New("the JSON Web Key Set may contain public keys only")
		}
	}
	return &ks, nil
}

// Bounds of a token. Google's are under 2 KiB and valid for an hour.
const (
	maxTokenBytes = 8 << 10
	tokenLeeway   = time.Minute
)

// verify checks a push subscription's token as Pub/Sub's documentation demands: signature, issuer,
// audience, expiry, and the configured service account.
// https://cloud.google.com/pubsub/docs/authenticate-push-subscriptions
func (ks *keySet) verify(token string, want *OIDC, now time.Time) error {
	if len(token) > maxTokenBytes {
		return errors.New("token is too long")
	}
	// The key determines the algorithm. The token must not choose another (RFC 8725, section 3.1).
	t, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.RS256, jose.ES256})
	if err != nil {
		return fmt.Errorf("token is not signed with RS256 or ES256: %w", err)
	}
	keys := ks.Key(t.Headers[0].KeyID)
	if len(keys) == 0 {
		return errors.New("token is signed with an unknown key")
	}
	var claims jwt.Claims
	var google struct {
		Email    string `json:"email"`
		Verified bool   `json:"email_verified"`
	}
	if err := t.Claims(keys[0].Key, &claims, &google); err != nil {
		return err
	}
	if claims.Expiry == nil {
		return errors.New("token does not expire")
	}
	issuer := cmp.Or(want.Issuer, "https://accounts.google.com")
	expected := jwt.Expected{Issuer: issuer, AnyAudience: jwt.Audience{want.Audience}, Time: now}
	if err := claims.ValidateWithLeeway(expected, tokenLeeway); err != nil {
		return err
	}
	if google.Email != want.Email || !google.Verified {
		return errors.New("token belongs to another account")
	}
	return nil
}
