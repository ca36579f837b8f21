package importer_test

import (
	"testing"

	"github.com/tidewaiter/tidewaiter/importer"
)

func TestLongestPrefixWins(t *testing.T) {
	rs, err := importer.NewRegistriesTest([]importer.Registry{
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
		if r := rs.Lookup(where); len(r.TokenHosts) > 0 {
			got = r.TokenHosts[0]
		}
		if got != want {
			t.Errorf("%s: got the entry for %q, want %q", where, got, want)
		}
	}
	if rs.Lookup("registry.example.com:5000/team/x").Insecure {
		t.Error("an entry inherits from a shorter one")
	}
}

func TestNewRefusesOptions(t *testing.T) {
	for name, o := range map[string]importer.Options{
		"empty prefix":      {Registries: []importer.Registry{{}}},
		"scheme":            {Registries: []importer.Registry{{Prefix: "https://registry.example.com"}}},
		"tag":               {Registries: []importer.Registry{{Prefix: "registry.example.com/app:v1"}}},
		"upper case":        {Registries: []importer.Registry{{Prefix: "registry.example.com/App"}}},
		"twice":             {Registries: []importer.Registry{{Prefix: "docker.io"}, {Prefix: "index.docker.io/"}}},
		"limits of a part":  {Registries: []importer.Registry{{Prefix: "docker.io/acme", RequestsPerSecond: 1}}},
		"negative requests": {Registries: []importer.Registry{{Prefix: "docker.io", RequestsAtATime: -1}}},
		"platform":          {Platforms: []string{"amd64"}},
		"layers":            {Layers: "all"},
		"negative limit":    {Limits: importer.Limits{HostRate: -1}},
	} {
		if _, err := importer.New(o); err == nil {
			t.Errorf("%s: %+v is accepted", name, o)
		}
	}
}

func TestIsLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "localhost:5000": true, "LOCALHOST.": true, "a.localhost:1": true,
		"127.0.0.1": true, "127.1.2.3:80": true, "::1": true, "[::1]": true, "[::1]:5000": true, "::ffff:127.0.0.1": true,
		"10.0.0.1": false, "192.168.1.1:5000": false, "example.com": false, "localhost.example.com": false, "notlocalhost": false, "0.0.0.0": false, "": false,
	} {
		if got := importer.IsLoopback(host); got != want {
			t.Errorf("IsLoopback(%q) = %t", host, got)
		}
	}
}
