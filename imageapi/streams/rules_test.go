package streams_test

import (
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/imageapi/streams"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

func mustRules(t testing.TB, pairs ...string) streams.Rules {
	t.Helper()
	var list []streams.Rule
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, streams.Rule{Prefix: pairs[i], Namespace: pairs[i+1]})
	}
	rules, _, err := streams.NewRules(list)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// The longest prefix counts, by elements of the path.
func TestRules(t *testing.T) {
	t.Parallel()
	rules := mustRules(t, "registry.example.com/team", "team-a", "registry.example.com/team/sub", "team-b", "localhost:5000", "local", "docker.io/library", "hub", "index.docker.io/acme", "acme")
	for repository, want := range map[string]string{
		"registry.example.com/team/app":              "team-a/app",
		"registry.example.com/team/a--b/c":           "team-a/a---b--c",
		"registry.example.com/team/sub/x/y":          "team-b/x--y",
		"registry.example.com/team/sub":              "team-a/sub",
		"registry.example.com/team":                  "default/registry.example.com--team",
		"registry.example.com/teams/app":             "default/registry.example.com--teams--app",
		"registry.example.com/team/subs/app":         "team-a/subs--app",
		"registry.example.com:5000/team/app":         "default/registry.example.com_5000--team--app",
		"localhost:5000/app":                         "local/app",
		"nginx":                                      "hub/nginx",
		"docker.io/acme/app":                         "acme/app",
		"docker.io/other/app":                        "default/docker.io--other--app",
		"localhost:5000/" + strings.Repeat("a", 230): "local/" + tags.StreamBelow(strings.Repeat("a", 230)),
	} {
		ref, err := reference.ParseRepository(repository)
		if err != nil {
			t.Fatal(err)
		}
		made := rules.New(ref)
		if got := made.Namespace + "/" + made.Name; got != want || len(made.Name) > 200 || made.Spec.DockerImageRepository != ref.Name() {
			t.Errorf("%s is %s of %s, want %s", repository, got, made.Spec.DockerImageRepository, want)
		}
	}
}

func TestRulesThatAreWrong(t *testing.T) {
	t.Parallel()
	good := streams.Rule{Prefix: "registry.example.com/team", Namespace: "team-a"}
	for _, c := range []struct {
		prefix, namespace, want string
	}{
		{"registry.example.com/team", "team-b", "another rule also has registry.example.com/team"},
		{"registry.example.com/other", "team-a", "has the streams of registry.example.com/team"},
		{"registry.example.com/team/sub", "team-a", "has the streams of registry.example.com/team"},
		{"registry.example.com/x", "default", "that no rule covers"},
		{"registry.example.com/x", "Team", `"Team" is not a namespace`},
		{"registry.example.com/x", "", `"" is not a namespace`},
		{"", "x", "is not a host"},
		{"registry.example.com/", "x", "is not a host"},
		{"registry.example.com/x/", "x", "is not a host"},
		{"registry.example.com/X", "x", "is not a host"},
		{"registry.example.com/x:v1", "x", "is not a host"},
		{"registry.example.com/*", "x", "is not a host"},
	} {
		_, wrong, err := streams.NewRules([]streams.Rule{good, {Prefix: c.prefix, Namespace: c.namespace}})
		if err == nil || wrong != 1 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s for %s: rule %d, %v; want %q of rule 1", c.prefix, c.namespace, wrong, err, c.want)
		}
	}
}

// Whatever a repository is called, no other comes to its stream, and a rule never has a stream made
// elsewhere.
func FuzzRules(f *testing.F) {
	f.Add("registry.example.com/team/app", "registry.example.com/team--app")
	f.Add("registry.example.com/team/a/b", "registry.example.com/team/a--b")
	f.Add("registry.example.com/team/sub/a-/b", "registry.example.com/team/sub/a/-b")
	f.Add("registry.example.com/team/"+strings.Repeat("a/", 120)+"a", "registry.example.com/team/"+strings.Repeat("a/", 120)+"b")
	f.Fuzz(func(t *testing.T, one, other string) {
		rules := mustRules(t, "registry.example.com/team", "team-a", "registry.example.com/team/sub", "team-b", "docker.io", "hub")
		a, err := reference.ParseRepository(one)
		b, err2 := reference.ParseRepository(other)
		if err != nil || err2 != nil {
			return
		}
		namespace, name := rules.Place(a)
		if namespaceB, nameB := rules.Place(b); namespace == namespaceB && name == nameB && a != b {
			t.Errorf("%s and %s are both %s/%s", one, other, namespace, name)
		}
		if strings.HasPrefix(a.Name(), "registry.example.com/team/") == (namespace == "default") && !strings.HasPrefix(a.Name(), "docker.io/") {
			t.Errorf("%s is in %s", one, namespace)
		}
	})
}
