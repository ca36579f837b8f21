package queue_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/importer/queue"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
)

// catalogOf makes a registry list these repositories, or refuse to if they are nil.
func catalogOf(registry *registrytest.Registry, listed func() []string) {
	registry.Inject("GET /v2/_catalog", 0, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			names := listed()
			if names == nil {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			all := slices.DeleteFunc(names, func(name string) bool { return name <= req.FormValue("last") })
			_ = json.NewEncoder(w).Encode(map[string]any{"repositories": all})
		})
	})
}

// Repositories that nobody named are found by a pattern, and what was in those that vanish is gone.
func TestSweepFindsRepositories(t *testing.T) {
	w, o := prepareWorker(t)
	var log bytes.Buffer
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	before := slog.Default()
	slog.SetDefault(o.Logger) // repeated warnings are bounded, and go there
	defer slog.SetDefault(before)
	o.Sweep.Repositories = []string{w.registry.Host + "/team/**", w.registry.Host + "/team/app"}
	worker, err := queue.New(o)
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	catalogOf(w.registry, func() []string { return slices.Clone(listed) })
	sweep := func(names ...string) string {
		t.Helper()
		listed = names
		log.Reset()
		worker.SweepOnce(t.Context())
		return log.String()
	}
	says := func(text string, want ...string) {
		t.Helper()
		for _, one := range want {
			if !strings.Contains(text, one) {
				t.Errorf("the log lacks %q:\n%s", one, text)
			}
		}
	}
	a, b := w.push("team/app:1.0", "a"), w.push("team/lib:1.0", "b")
	w.push("other/app:1.0", "c") // matches no pattern
	says(sweep("other/app", "team/app", "team/lib"), "msg=Swept", "of=2")
	w.expect("images", w.images.Names(), sorted([]string{a, b}))

	d := w.push("team/deep/new:1.0", "d")
	says(sweep("other/app", "team/app", "team/deep/new", "team/lib"), `msg="A registry has new repositories"`, "count=1", "repositories=team/deep/new")
	w.expect("images with the new one", w.images.Names(), sorted([]string{a, b, d}))

	// A registry that does not list its repositories: those that are known are swept.
	b2 := w.push("team/lib:2.0", "b2")
	says(sweep(), "a sweep finds no new repositories", "name the repositories one by one", "of=3")
	w.expect("images without a list", w.images.Names(), sorted([]string{a, b, b2, d}))

	// One has vanished: first it does not answer, then it is gone.
	w.delete("team/lib", "1.0")
	w.delete("team/lib", b)
	w.registry.Inject("GET /v2/team/lib/tags/list", 0, registrytest.Status(503, "UNAVAILABLE"))
	says(sweep("other/app", "team/app", "team/deep/new"), `msg="Repositories have vanished from a registry"`, "repositories=team/lib")
	w.expect("gone, while it is not known", w.gone(b), nil)
	w.registry.Heal()
	catalogOf(w.registry, func() []string { return slices.Clone(listed) })
	sweep("other/app", "team/app", "team/deep/new")
	w.expect("gone", w.gone(b), []string{"team/lib:1.0", "team/lib@" + b})
	w.registry.Reset()
	sweep("other/app", "team/app", "team/deep/new")
	if n := w.registry.Count("GET /v2/team/lib/"); n != 0 {
		t.Errorf("what vanished is asked for %d times", n)
	}

	// The registry has lost its storage.
	says(sweep("other/app"), "level=ERROR", "it may have lost its storage", "count=1")
}

// What patterns name, and which are refused.
func TestSweepPatterns(t *testing.T) {
	for _, tc := range []struct {
		pattern, path string
		want          bool
	}{
		{"r.example.com/**", "team/app", true},
		{"r.example.com/*", "team/app", false},
		{"r.example.com/team/*", "team/app", true},
		{"r.example.com/team/*", "team/deep/app", false},
		{"r.example.com/team/**", "team/deep/app", true},
		{"r.example.com/team/**", "team", false},
		{"r.example.com/team/*", "teams/app", false},
		{"r.example.com/team-?/app", "team-a/app", true},
		{"r.example.com/team-?/app", "team-a/apps", false},
	} {
		if got := queue.SweepMatches(tc.pattern, tc.path); got != tc.want {
			t.Errorf("%s for %s: %t", tc.pattern, tc.path, got)
		}
	}
	for _, bad := range []string{"*", "*/app", "*.example.com/app", "r.example.com*", "r.example.com/App*", "r.example.com/app:*", "r.example.com/app@*", "r.example.com//*", "r.example.com/**/app", "https://r.example.com/*"} {
		if err := (queue.SweepOptions{Repositories: []string{bad}}).Validate(); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
}

// Through creations and deletions, what sweeps by a pattern alone know is what the storage has.
func TestSweepsFollowTheStorage(t *testing.T) {
	const repositories, rounds = 60, 6
	w, o := prepareWorker(t)
	o.Sweep.Repositories = []string{w.registry.Host + "/**"}
	worker, err := queue.New(o)
	if err != nil {
		t.Fatal(err)
	}
	stored := map[string]string{} // the digest of each repository's one image
	catalogOf(w.registry, func() []string { return append([]string{}, slices.Sorted(maps.Keys(stored))...) })
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	for round := range rounds {
		for i := range repositories {
			name := fmt.Sprintf("team%d/app%d", i%7, i)
			digest, is := stored[name]
			switch roll := random.IntN(3); {
			case !is && roll > 0:
				stored[name] = w.push(name+":v1", fmt.Sprintf("%s %d", name, round))
			case is && roll == 0:
				w.delete(name, "v1")
				w.delete(name, digest)
				delete(stored, name)
			}
		}
		worker.SweepOnce(t.Context())
		known := map[string]string{}
		for _, digest := range w.images.Names() {
			gone := w.gone(digest)
			for _, ref := range w.references(digest) {
				if name, ok := strings.CutSuffix(ref, ":v1"); ok && !slices.Contains(gone, ref) {
					known[name] = digest
				}
			}
		}
		if !maps.Equal(known, stored) {
			t.Fatalf("seed %d, round %d: known are %v, the storage has %v", seed, round, known, stored)
		}
	}
}
