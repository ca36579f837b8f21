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

// auth says how a vendor's requests prove that their sender knows the secret. At least
// one field is set. If several are, one proof suffices. All comparisons take the same
// time whatever the difference.
type auth struct {
	// hmac names headers that carry the HMAC-SHA-256 of the body in hex, with or
	// without "sha256=" before it.
	hmac []string
	// secret is set when the header of Receiver.Header carries the secret itself: bare,
	// or in Authorization also as a Bearer token or a Basic password.
	secret bool
	// path is set when the last segment of the URL is the secret. It is for vendors
	// that can send nothing else.
	path bool
	// oidc is set when Authorization carries a token signed by the vendor.
	oidc bool
}

// errUnauthorized is the only thing a caller learns when it is refused. A
// receiver that does not exist refuses in the same words.
var errUnauthorized = errors.New("there is no such receiver, or its secret is missing or wrong")

// knows reports whether the path and header of the request alone prove that its sender
// knows the secret. token is what follows the receiver's name in the path.
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

// signatures returns those signatures of the body in the request that could be right.
// claimed says that the request holds a signature as some vendor sends it. The body of
// such a request is always read: the receiver may be of that vendor, of another, or not
// exist. Otherwise a sender that holds back the body would see which.
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

// signed reports whether one of the signatures is right for the body.
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
