package hooks

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"strings"
)

// auth is how a vendor's requests prove that their sender knows the secret. At least one field is
// set. If several are set, one proof is enough. All comparisons take constant time.
type auth struct {
	// hmac names headers with the HMAC-SHA-256 of the body in hex, with or without the prefix
	// "sha256=".
	hmac []string
	// secret is set if the header Receiver.Header has the secret itself: as it is or, in
	// Authorization, also as a Bearer token or a Basic password.
	secret bool
	// path is set if the last segment of the URL is the secret. It is for vendors that cannot send
	// anything else.
	path bool
	// oidc is set if Authorization has a token signed by the vendor.
	oidc bool
}

// errUnauthorized is the only answer to an unauthenticated caller. It is the same for a receiver
// that does not exist.
var errUnauthorized = errors.New("there is no such receiver, or its secret is missing or wrong")

// knows reports whether the path and header of the request alone prove that its sender knows the
// secret. token is the part of the path after the receiver's name.
func (rc *receiver) knows(r *http.Request, token string) bool {
	a := rc.vendor.auth
	switch {
	case a.path:
		return oneOf(rc.secret.Get(), token)
	case token != "":
		return false
	case a.oidc:
		jwt, ok := cutScheme(r.Header.Get("Authorization"), "Bearer")
		return ok && rc.keys.Get().verify(jwt, rc.OIDC, rc.now()) == nil
	default:
		return a.secret && rc.headerHolds(r, rc.secret.Get())
	}
}

// signatureHeaders are the headers of all vendors that carry a signature of the body.
var signatureHeaders = func() []string {
	var all []string
	for _, v := range vendors {
		all = append(all, v.auth.hmac...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}()

// signatures returns the well-formed signatures in the request that the receiver accepts. claimed
// is true if the request has a signature in any vendor's form. The body of such a request is always
// read, whether the receiver has that type, another type, or does not exist. Otherwise a sender
// that holds back the body could find out which.
func (rc *receiver) signatures(r *http.Request, token string) (all [][]byte, claimed bool) {
	if token != "" {
		return nil, false
	}
	for _, h := range signatureHeaders {
		s, err := hex.DecodeString(strings.TrimPrefix(r.Header.Get(h), "sha256="))
		if err != nil || len(s) != sha256.Size {
			continue
		}
		claimed = true
		if slices.Contains(rc.vendor.auth.hmac, h) {
			all = append(all, s)
		}
	}
	return all, claimed
}

// signed reports whether one of the signatures matches the body.
func (rc *receiver) signed(body []byte, signatures [][]byte) bool {
	ok := false
	for _, secret := range rc.secret.Get() {
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write(body)
		sum := mac.Sum(nil)
		for _, s := range signatures {
			ok = hmac.Equal(sum, s) || ok
		}
	}
	return ok
}

// headerHolds reports whether the receiver's header has one of the secrets.
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

// cutScheme returns the part of an Authorization header after the scheme.
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
