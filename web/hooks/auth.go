package hooks

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
)

// auth is how a vendor's requests prove that they come from one who knows the
// secret. At least one field is set; where several are, any of them does. All
// comparisons take the same time whatever the difference.
type auth struct {
	// hmac names headers that carry the HMAC-SHA-256 of the body in hex, with or
	// without "sha256=" before it.
	hmac []string
	// secret is set when Receiver.Header carries the secret itself: bare, or in
	// Authorization also as a Bearer token or a Basic password.
	secret bool
	// path is set when the last segment of the URL is the secret, for vendors that
	// can send nothing else.
	path bool
	// oidc is set when Authorization carries a token signed by the vendor.
	oidc bool
}

// errUnauthorized is the only thing a caller learns about a refused secret.
var errUnauthorized = errors.New("the secret is missing or wrong")

// authenticate checks a request. It calls body only when the proof covers the
// body, so that other requests are turned away unread; an error of body is
// returned as it is.
func (rc *receiver) authenticate(r *http.Request, token string, body func() ([]byte, error)) error {
	a := rc.vendor.auth
	if a.oidc {
		jwt, ok := cutScheme(r.Header.Get("Authorization"), "Bearer")
		if !ok || rc.keys.get().verify(jwt, rc.OIDC, rc.now()) != nil {
			return errUnauthorized
		}
		return nil
	}
	secrets := rc.secret.get()
	if a.path {
		if !oneOf(secrets, token) {
			return errUnauthorized
		}
		return nil
	}
	if a.secret && rc.headerHolds(r, secrets) {
		return nil
	}
	for _, h := range a.hmac {
		signature, err := hex.DecodeString(strings.TrimPrefix(r.Header.Get(h), "sha256="))
		if err != nil || len(signature) != sha256.Size {
			continue
		}
		b, err := body()
		if err != nil {
			return err
		}
		ok := false
		for _, s := range secrets {
			mac := hmac.New(sha256.New, []byte(s))
			mac.Write(b)
			ok = hmac.Equal(mac.Sum(nil), signature) || ok
		}
		if ok {
			return nil
		}
	}
	return errUnauthorized
}

// headerHolds reports whether the receiver's header holds one of the secrets.
func (rc *receiver) headerHolds(r *http.Request, secrets []string) bool {
	value := r.Header.Get(rc.Header)
	if oneOf(secrets, value) {
		return true
	}
	if !strings.EqualFold(rc.Header, "Authorization") {
		return false
	}
	if token, ok := cutScheme(value, "Bearer"); ok && oneOf(secrets, token) {
		return true
	}
	_, password, ok := r.BasicAuth()
	return ok && oneOf(secrets, password)
}

// cutScheme returns what follows the scheme of an Authorization header.
func cutScheme(value, scheme string) (string, bool) {
	got, rest, ok := strings.Cut(value, " ")
	return strings.TrimSpace(rest), ok && strings.EqualFold(got, scheme)
}

// oneOf compares digests, so that neither the place of a difference nor the
// length of a secret shows in the time taken.
func oneOf(secrets []string, got string) bool {
	g := sha256.Sum256([]byte(got))
	found := 0
	for _, s := range secrets {
		w := sha256.Sum256([]byte(s))
		found |= subtle.ConstantTimeCompare(g[:], w[:])
	}
	return found == 1
}
