package importer_test

import (
	"testing"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
)

func TestNewRefusesOptions(t *testing.T) {
	for name, o := range map[string]importer.Options{
		"empty prefix":      {Registries: []pull.Registry{{}}},
		"scheme":            {Registries: []pull.Registry{{Prefix: "https://registry.example.com"}}},
		"tag":               {Registries: []pull.Registry{{Prefix: "registry.example.com/app:v1"}}},
		"upper case":        {Registries: []pull.Registry{{Prefix: "registry.example.com/App"}}},
		"twice":             {Registries: []pull.Registry{{Prefix: "docker.io"}, {Prefix: "index.docker.io/"}}},
		"limits of a part":  {Registries: []pull.Registry{{Prefix: "docker.io/acme", RequestsPerSecond: 1}}},
		"no repository":     {Registries: []pull.Registry{{Prefix: "docker.io", Signatures: "registry.example.com/signatures:v1"}}},
		"negative requests": {Registries: []pull.Registry{{Prefix: "docker.io", RequestsAtATime: -1}}},
		"platform":          {Platforms: []string{"amd64"}},
		"layers":            {Layers: "all"},
		"negative limit":    {Limits: pull.Limits{HostRate: -1}},
	} {
		if _, err := importer.New(o); err == nil {
			t.Errorf("%s: %+v is accepted", name, o)
		}
	}
}
