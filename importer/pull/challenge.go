package pull

import (
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
)

// bearerFirst is the transport of a greeting. Of several challenges it puts Bearer first, as
// containerd does: package transport takes the first that it knows, and Basic is of no use to
// callers with an identity token or without credentials.
type bearerFirst struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t bearerFirst) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusUnauthorized {
		resp.Header["Www-Authenticate"] = challenges(resp.Header)
	}
	return resp, err
}

// nextChallenge is where a challenge begins behind another one in the same line (RFC 9110 §11.6.1).
var nextChallenge = regexp.MustCompile(`(?i),\s*(?:bearer|basic)\s+[a-z_]+=`)

// challenges returns the challenges of an answer, each in a line of its own, Bearer first.
func challenges(header http.Header) []string {
	var all []string
	for _, line := range header.Values("WWW-Authenticate") {
		begin := 0
		for _, at := range nextChallenge.FindAllStringIndex(line, maxChallenges) {
			all = append(all, line[begin:at[0]])
			begin = at[0] + 1
		}
		all = append(all, strings.TrimSpace(line[begin:]))
	}
	slices.SortStableFunc(all, func(a, b string) int { return rank(a) - rank(b) })
	return all
}

// maxChallenges bounds the challenges that are read of a line.
const maxChallenges = 8

// rank is where a challenge is to stand.
func rank(challenge string) int {
	if isScheme(challenge, "bearer") {
		return 0
	}
	return 1
}

func isScheme(challenge, scheme string) bool {
	name, _, _ := strings.Cut(strings.TrimSpace(challenge), " ")
	return strings.EqualFold(name, scheme)
}

// basicAfter is the transport below the tokens of a session. Harbor asks for user name and password
// where a token is not enough, always for its catalog
// (https://github.com/goharbor/harbor/blob/main/src/server/middleware/v2auth/auth.go): the request
// is repeated with them if there are any. They go to the registry alone, which they are for. It is
// below, because package remote greets the registry again through a transport that is not its own.
type basicAfter struct {
	http.RoundTripper
	credentials *authn.AuthConfig
	host        string
}

// RoundTrip implements http.RoundTripper.
func (t *basicAfter) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(req)
	isByToken := strings.HasPrefix(req.Header.Get("Authorization"), "Bearer ") && req.URL.Host == t.host && req.Body == nil
	if err != nil || resp.StatusCode != http.StatusUnauthorized || !isByToken || t.credentials.Username == "" || t.credentials.Password == "" {
		return resp, err
	}
	if asked := challenges(resp.Header); len(asked) == 0 || !isScheme(asked[0], "basic") {
		return resp, nil
	}
	again := req.Clone(req.Context())
	again.SetBasicAuth(t.credentials.Username, t.credentials.Password)
	second, err := t.RoundTripper.RoundTrip(again)
	if err != nil {
		return resp, nil
	}
	resp.Body.Close()
	return second, nil
}
