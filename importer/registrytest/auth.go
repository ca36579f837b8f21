package registrytest

import (
	"cmp"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// Auth is how a registry demands credentials.
type Auth struct {
	// Scheme is "basic" or "bearer"; if empty, the registry demands no credentials.
	Scheme string
	// Username and Password are the right ones.
	Username, Password string
	// Realm is the URL of the token server; empty is /token on the registry. A Registry
	// serves tokens whatever its Scheme is.
	Realm string
	// Anonymous lets the token server give tokens to clients that have no
	// credentials.
	Anonymous bool
	// Claims makes tokens contain the rights of their bearer, as the tokens of distribution's token
	// servers do.
	Claims bool
	// Hides answers callers without a right to a repository that there is none, as some registries
	// do. Scheme must be "basic".
	Hides bool
}

// authenticate answers a request that lacks credentials. It reports whether the request
// may go on.
func (r *Registry) authenticate(w http.ResponseWriter, req *http.Request) bool {
	if req.URL.Path == "/token" {
		r.serveToken(w, req)
		return false
	}
	switch r.auth.Scheme {
	case "basic":
		if user, password, ok := req.BasicAuth(); ok && user == r.auth.Username && password == r.auth.Password {
			return true
		}
		if r.auth.Hides && scopeOf(req.URL.Path) != "" {
			writeError(w, http.StatusNotFound, "NAME_UNKNOWN", "repository name not known to registry")
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
	case "bearer":
		scope := scopeOf(req.URL.Path)
		token := strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer ")
		r.mu.Lock()
		granted, ok := r.tokens[token]
		r.mu.Unlock()
		if ok && (scope == "" || granted == scope) {
			return true
		}
		realm := cmp.Or(r.auth.Realm, r.URL+"/token")
		challenge := fmt.Sprintf(`Bearer realm=%q,service="test"`, realm)
		if scope != "" {
			challenge += fmt.Sprintf(",scope=%q", scope)
		}
		w.Header().Set("WWW-Authenticate", challenge)
	default:
		return true
	}
	writeError(w, http.StatusUnauthorized, "UNAUTHORIZED", "authentication required")
	return false
}

// serveToken is the token server of the distribution project's token
// authentication.
func (r *Registry) serveToken(w http.ResponseWriter, req *http.Request) {
	user, password, ok := req.BasicAuth()
	if ok && (user != r.auth.Username || password != r.auth.Password) || !ok && !r.auth.Anonymous {
		writeError(w, http.StatusUnauthorized, "UNAUTHORIZED", "incorrect username or password")
		return
	}
	token, scope := rand.Text(), req.URL.Query().Get("scope")
	if parts := strings.Split(scope, ":"); r.auth.Claims && len(parts) == 3 {
		claims := fmt.Sprintf(`{"access":[{"type":%q,"name":%q,"actions":["pull"]}]}`, parts[0], parts[1])
		token = "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + "." + token
	}
	r.mu.Lock()
	r.tokens[token] = scope
	r.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"token": token}) // the client may be gone
}

// RevokeTokens makes all tokens so far invalid, as if they had expired.
func (r *Registry) RevokeTokens() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.tokens)
}

// scopeOf is the scope a path needs: "" for /v2/ itself.
func scopeOf(path string) string {
	rest := strings.TrimPrefix(path, "/v2/")
	for _, part := range []string{"/manifests/", "/blobs/", "/tags/", "/referrers/"} {
		if i := strings.Index(rest, part); i >= 0 {
			return "repository:" + rest[:i] + ":pull"
		}
	}
	return ""
}

// writeError answers with an error in the form of the distribution-spec.
func writeError(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"errors": []any{map[string]string{"code": code, "message": message}}})
}
