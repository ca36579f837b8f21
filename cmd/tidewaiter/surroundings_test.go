//go:build cgo

package main

import (
	"slices"
	"strings"
	"testing"
)

// The first start says three commands, with what it finds.
func TestNextSteps(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		found surroundings
		says  []string
		not   string
	}{
		"nothing":     {surroundings{}, []string{"tidewaiter import REGISTRY/REPOSITORY:TAG  ", "tidewaiter follow CONTEXT "}, "Found"},
		"a registry":  {surroundings{registry: localRegistry, credentials: []string{"quay.io"}}, []string{"import localhost:5000/REP", "Found here: a registry at localhost:5000; credentials for quay.io."}, "more"},
		"credentials": {surroundings{credentials: []string{"a.io", "b.io", "c.io", "d.io", "e.io"}}, []string{"import a.io/REP", "credentials for a.io, b.io, c.io and 2 more."}, "d.io"},
		"a cluster":   {surroundings{context: "prod"}, []string{"\n  tidewaiter follow prod ", "Found here: the kubeconfig's context prod."}, "registry at"},
	} {
		got := c.found.nextSteps()
		if slices.ContainsFunc(c.says, func(want string) bool { return !strings.Contains(got, want) }) || strings.Contains(got, c.not) || strings.Count(got, "\n  tidewaiter ") != 3 {
			t.Errorf("%s: it says\n%s", name, got)
		}
	}
}
