package pull

import (
	"testing"
)

func TestLongestPrefixWins(t *testing.T) {
	rs, err := newRegistries([]Registry{
		{Prefix: "registry.example.com:5000", Insecure: true, TokenHosts: []string{"host"}},
		{Prefix: "registry.example.com:5000/team", TokenHosts: []string{"team"}},
		{Prefix: "registry.example.com:5000/team/app/", TokenHosts: []string{"app"}},
		{Prefix: "docker.io/acme", TokenHosts: []string{"hub"}},
	}, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	for where, want := range map[string]string{
		"registry.example.com:5000":                  "host",
		"registry.example.com:5000/other":            "host",
		"registry.example.com:5000/team":             "team",
		"registry.example.com:5000/team/x":           "team",
		"registry.example.com:5000/teams":            "host", // not a whole path element
		"registry.example.com:5000/team/app":         "app",
		"registry.example.com:5000/team/app/db":      "app",
		"registry.example.com:5000/team/application": "team",
		"registry.example.com:50001/team":            "",
		"registry.example.com/team":                  "",
		"docker.io/acme/web":                         "hub",
		"docker.io/library/acme":                     "",
	} {
		got := ""
		if r := rs.lookup(where); len(r.TokenHosts) > 0 {
			got = r.TokenHosts[0]
		}
		if got != want {
			t.Errorf("%s: got the entry for %q, want %q", where, got, want)
		}
	}
	if rs.lookup("registry.example.com:5000/team/x").Insecure {
		t.Error("an entry inherits from a shorter one")
	}
}

func TestIsLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "localhost:5000": true, "LOCALHOST.": true, "a.localhost:1": true,
		"127.0.0.1": true, "127.1.2.3:80": true, "::1": true, "[::1]": true, "[::1]:5000": true, "::ffff:127.0.0.1": true,
		"10.0.0.1": false, "192.168.1.1:5000": false, "example.com": false, "localhost.example.com": false, "notlocalhost": false, "0.0.0.0": false, "": false,
	} {
		if got := isLoopback(host); got != want {
			t.Errorf("IsLoopback(%q) = %t", host, got)
		}
	}
}

func TestTrustsRealm(t *testing.T) {
	for _, tc := range []struct {
		scheme, host, realm string
		want                bool
	}{
		{"https", "index.docker.io", "https://auth.docker.io/token", true},
		{"https", "registry.gitlab.com", "https://gitlab.com/jwt/auth", true},
		{"https", "ghcr.io", "https://ghcr.io/token", true},
		{"https", "ghcr.io", "https://GHCR.io:443/token", true},
		{"https", "ghcr.io:443", "https://ghcr.io/token", true},
		{"http", "127.0.0.1:5000", "http://127.0.0.1:5000/token", true},
		{"https", "ghcr.io", "http://ghcr.io/token", false},
		{"https", "ghcr.io", "https://ghcr.io:8443/token", false},
		{"https", "registry.example.co.uk", "https://auth.example.co.uk/token", false},
		{"https", "registry.example.com:5000", "https://registry.example.com:5001/auth", false},
		{"https", "registry.example.com", "https://evil.com/token", false},
		{"https", "registry.example.com", "https://example.com.evil.com/token", false},
		{"https", "registry.example.com", "https://registry.example.com@evil.com/token", false},
		{"https", "evil.example.com", "https://auth.docker.io/token", false},
		{"http", "127.0.0.1:5000", "http://127.0.0.1:5001/token", false},
		{"http", "127.0.0.1:5000", "http://localhost:5000/token", false},
		{"https", "registry.example.com", "://", false},
		{"https", "registry.example.com", "", false},
		{"https", "registry.example.com", "/token", false},
	} {
		if got := (Registry{}).trustsRealm(tc.scheme, tc.host, tc.realm); got != tc.want {
			t.Errorf("%s, %s: %t", tc.host, tc.realm, got)
		}
	}
	if !(Registry{TokenHosts: []string{"sso.example.org"}}).trustsRealm("https", "registry.example.com", "https://sso.example.org/token") {
		t.Error("a named token server is not trusted")
	}
}
