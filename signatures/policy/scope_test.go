package policy_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

const hex64 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestScopes(t *testing.T) {
	for in, want := range map[string]string{
		"busybox":                           "docker.io/library/busybox docker.io/library docker.io *.io",
		"index.docker.io/library/busybox:1": "docker.io/library/busybox:1 docker.io/library/busybox docker.io/library docker.io *.io",
		"a.b.example.com:5000/x/y@sha256:" + hex64: "a.b.example.com:5000/x/y@sha256:" + hex64 +
			" a.b.example.com:5000/x/y a.b.example.com:5000/x a.b.example.com:5000 *.b.example.com *.example.com *.com",
		"localhost:5000/x": "localhost:5000/x localhost:5000",
	} {
		r, err := reference.Parse(in)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, strings.Join(policy.Scopes(r), " ")); diff != "" {
			t.Errorf("%s: %s", in, diff)
		}
	}
	for _, bad := range []string{"", "X", "x@sha256:1", "http://x/y", hex64} {
		if r, err := reference.Parse(bad); err == nil {
			t.Errorf("%q: %v", bad, r)
		}
	}
}

func TestFor(t *testing.T) {
	trust := signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil)
	var doc string
	for name, scope := range map[string]string{
		"exact-tag":    "registry.example.com/a/b:v1",
		"exact-digest": "registry.example.com/a/b@sha256:" + hex64,
		"repository":   "registry.example.com/a/b",
		"namespace":    "registry.example.com/a",
		"host":         "registry.example.com",
		"host-port":    "registry.example.com:5000",
		"wildcard":     "'*.example.com'",
		"narrow-wild":  "'*.eu.example.com'",
		"hub":          "index.docker.io/library",
		"upper":        "Upper.Example.net:5000/a",
		"upper-wild":   "'*.Upper.Example.net'",
		"no-dot":       "registry:5000/team",
		"ipv6":         "'[0:0::1]:5000'",
		"ipv6-default": "'[::2]:443/team'",
		"default-port": "'ports.example.org:443/team'",
		"plain":        "'ports.example.org:80'",
		"tls-no-dot":   "'registry:443'",
		"one-of-hub":   "'docker.io:443/nginx:1.25'",
	} {
		doc += signaturestest.Document(name, "["+scope+"]", trust, "")
	}
	set := signaturestest.SetFrom(t, doc)
	for ref, want := range map[string]string{
		"registry.example.com/a/b:v1":              "exact-tag",
		"registry.example.com/a/b:v2":              "repository",
		"registry.example.com/a/b@sha256:" + hex64: "exact-digest",
		"registry.example.com/a/bc":                "namespace",
		"registry.example.com/ab":                  "host",
		// A host without a port is not a parent of one with a port, but a wildcard matches any port.
		"registry.example.com:5000/a/b": "host-port",
		"registry.example.com:5001/a/b": "wildcard",
		"x.eu.example.com/a":            "narrow-wild",
		"x.us.example.com/a":            "wildcard",
		"example.com/a":                 "",
		"registry.example.com.evil/a":   "",
		"evilregistry.example.org/a":    "",
		"busybox":                       "hub",
		"docker.io/library/busybox:1":   "hub",
		"index.docker.io/busybox":       "hub",
		"docker.io/acme/busybox":        "",
		// A host in capitals is the same host: capitals do not get an image past a policy.
		"upper.example.net:5000/a/b":  "upper",
		"UPPER.example.net:5000/a/b":  "upper",
		"X.UPPER.example.net/a":       "upper-wild",
		"REGISTRY.example.com/a/b:v1": "exact-tag",
		// A host with the default port is the same host, and so are Docker Hub's other names.
		"registry.example.com:443/a/b:v1":                  "exact-tag",
		"Registry.Example.com:443/a/b@sha256:" + hex64:     "exact-digest",
		"docker.io:443/library/busybox:1":                  "hub",
		"registry-1.docker.io/library/busybox:1":           "hub",
		"Registry-1.Docker.io:443/busybox@sha256:" + hex64: "hub",
		"index.docker.io:443/busybox":                      "hub",
		"nginx:1.25":                                       "one-of-hub",
		"registry-1.docker.io/library/nginx:1.25":          "one-of-hub",
		"docker.io/nginx:1.26":                             "hub",
		"ports.example.org/team/app":                       "default-port",
		"ports.example.org:443/team/app":                   "default-port",
		// Another port is another registry, even port 80.
		"ports.example.org:80/team/app": "plain",
		"ports.example.org:81/team/app": "",
		"registry:5000/team/app":        "no-dot",
		"registry:5000/other":           "",
		"REGISTRY:5000/team":            "no-dot",
		"registry:443/team":             "tls-no-dot",
		"[::1]:5000/x":                  "ipv6",
		"[0::0:1]:5000/x:1":             "ipv6",
		"[::1]/x":                       "",
		"[::2]/team/x":                  "ipv6-default",
		"[0::2]:443/team/x":             "ipv6-default",
	} {
		r, err := reference.Parse(ref)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if all := set.For(r); len(all) > 0 {
			got = all[0].Name
		}
		if got != want {
			t.Errorf("%s: policy %q, want %q", ref, got, want)
		}
	}
	var none *policy.Set
	if none.For(reference.Reference{Host: "a.example.com", Repository: "x"}) != nil || none.Hash() != "" || none.Policies() != nil {
		t.Error("a nil set is not empty")
	}
}

// Two spellings of one scope in a policy count as one. Earlier releases needed both.
func TestScopesOfOneForm(t *testing.T) {
	trust := signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil)
	set := signaturestest.SetFrom(t, signaturestest.Document("p", "['a.example.com:443/x', a.example.com/x, docker.io, registry-1.docker.io]", trust, ""))
	if diff := cmp.Diff([]string{"a.example.com/x", "docker.io"}, set.Policies()[0].Scopes); diff != "" {
		t.Error(diff)
	}
	// Two policies have two spellings of the same scope, so an image must meet both.
	set = signaturestest.SetFrom(t, signaturestest.Document("p", "['a.example.com:443/x']", trust, "")+signaturestest.Document("q", "[a.example.com/x]", trust, ""))
	if by := set.For(reference.Reference{Host: "a.example.com", Repository: "x", Tag: "v1"}); len(by) != 2 {
		t.Errorf("%d policies", len(by))
	}
}

// The rules are those of containers/image's signature/policy_reference_match_test.go.
func TestIdentityMatch(t *testing.T) {
	trust := signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil)
	const digest = "@sha256:" + hex64
	const exact = "{matchPolicy: ExactRepository, exactRepository: {repository: index.docker.io/library/busybox}}"
	const remap = "{matchPolicy: RemapIdentity, remapIdentity: {prefix: mirror.example.com/vendor, signedPrefix: vendor.example.com}}"
	for _, tc := range []struct {
		identity, intended, signed string
		want                       bool
	}{
		{"", "a.example.com/x:v1", "a.example.com/x:v1", true},
		{"", "a.example.com/x:v1", "a.example.com/x:v2", false},
		{"", "a.example.com/x:v1", "a.example.com/x", false},
		{"", "a.example.com/x:v1", "a.example.com/x" + digest, false},
		{"", "a.example.com/x" + digest, "a.example.com/x:v1", true},
		{"", "a.example.com/x" + digest, "a.example.com/x" + strings.ReplaceAll(digest, "0", "1"), true},
		{"", "a.example.com/x" + digest, "a.example.com/x", false}, // cosign's default name
		{"", "a.example.com/x" + digest, "a.example.com/y:v1", false},
		{"", "a.example.com/x" + digest, "a.example.com/x:v1" + digest, true},
		{"", "a.example.com/x:v1", "a.example.com/x:v1" + digest, false},
		{"", "a.example.com/x", "a.example.com/x:v1", false},
		{"", "busybox:1", "index.docker.io/library/busybox:1", true},
		{"{matchPolicy: MatchRepoDigestOrExact}", "a.example.com/x:v1", "a.example.com/x:v1", true},

		{"{matchPolicy: MatchRepository}", "a.example.com/x" + digest, "a.example.com/x", true},
		{"{matchPolicy: MatchRepository}", "a.example.com/x:v1", "a.example.com/x:v2", true},
		{"{matchPolicy: MatchRepository}", "a.example.com/x:v1", "a.example.com/xy", false},
		{"{matchPolicy: MatchRepository}", "a.example.com/x:v1", "a.example.com:443/x", false},
		{"{matchPolicy: MatchRepository}", "a.example.com/x:v1", "UPPER", false},
		{"{matchPolicy: MatchRepository}", "a.example.com/x:v1", "a.example.com/x:v1" + digest, true},
		// another host to containers/image
		{"{matchPolicy: MatchRepository}", "a.example.com/x:v1", "A.Example.com/x:v1", false},
		{"{matchPolicy: MatchRepository}", "docker.io/library/busybox:1", "Docker.io/library/busybox:1", false},
		{"{matchPolicy: MatchRepository}", "a.example.com/x:v1", "", false},
		{"{matchPolicy: MatchRepository}", "docker.io/library/busybox" + digest, "busybox", true},
		{"{matchPolicy: MatchRepository}", "index.docker.io/library/busybox" + digest, "docker.io/busybox", true},

		// A signed name with port 443, or with the host of Docker Hub's API, is compared as
		// containers/image compares it.
		{"{matchPolicy: MatchRepository}", "a.example.com:443/x:v1", "a.example.com/x:v1", true},
		{"{matchPolicy: MatchRepository}", "a.example.com:443/x:v1", "a.example.com:443/x:v1", false},
		{"{matchPolicy: MatchRepository}", "registry-1.docker.io/library/busybox:1", "docker.io/library/busybox:1", true},
		{"{matchPolicy: MatchRepository}", "docker.io/library/busybox:1", "registry-1.docker.io/library/busybox:1", false},
		{"{matchPolicy: ExactRepository, exactRepository: {repository: 'a.example.com:443/x'}}", "a.example.com/x:v1", "a.example.com:443/x:v1", true},
		{"{matchPolicy: ExactRepository, exactRepository: {repository: 'a.example.com:443/x'}}", "a.example.com/x:v1", "a.example.com/x:v1", false},
		{"{matchPolicy: RemapIdentity, remapIdentity: {prefix: 'a.example.com:443', signedPrefix: 'a.example.com:443'}}", "a.example.com:443/x:v1", "a.example.com:443/x:v1", true},
		{"{matchPolicy: RemapIdentity, remapIdentity: {prefix: 'a.example.com:443', signedPrefix: 'a.example.com:443'}}", "a.example.com/x:v1", "a.example.com/x:v1", false},

		{exact, "mirror.example.com/busybox" + digest, "docker.io/library/busybox", true},
		{exact, "mirror.example.com/busybox" + digest, "mirror.example.com/busybox", false},

		{remap, "mirror.example.com/vendor/x" + digest, "vendor.example.com/x:v1", true},
		{remap, "mirror.example.com/vendor/x" + digest, "vendor.example.com/x", false},
		{remap, "mirror.example.com/vendor/x:v1", "vendor.example.com/x:v1", true},
		{remap, "mirror.example.com/vendor/x:v1", "mirror.example.com/vendor/x:v1", false},
		{remap, "mirror.example.com/vendors/x:v1", "vendor.example.coms/x:v1", false},
		{remap, "mirror.example.com/vendors/x:v1", "mirror.example.com/vendors/x:v1", true},

		{"{matchPolicy: DigestOnly}", "a.example.com/x:v1", "not a reference", true},
	} {
		set := signaturestest.SetFrom(t, signaturestest.Document("p", "[a.example.com]", trust, tc.identity))
		intended, err := reference.Parse(tc.intended)
		if err != nil {
			t.Fatal(err)
		}
		if got := set.Policies()[0].Identity.Match(intended, tc.signed); got != tc.want {
			t.Errorf("%s: intended %s, signed %s: %v", tc.identity, tc.intended, tc.signed, got)
		}
	}
}

// Demands includes every policy that may judge an image: by its repository, its digest or any of
// its tags, in any namespace.
func TestDemands(t *testing.T) {
	trust := signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil)
	set := signaturestest.SetFrom(t, signaturestest.Document("repository", "[registry.example.com/a]", trust, "")+
		signaturestest.Document("tag", "[registry.example.com/tagged/b:v1]", trust, "")+
		signaturestest.Document("digest", "['registry.example.com/a/c@sha256:"+hex64+"']", trust, "")+"    attestations: [{name: sbom, predicateType: spdxjson}]\n")
	for ref, want := range map[string][2]bool{
		"registry.example.com/a/b@sha256:" + hex64:        {true, false},
		"registry.example.com/a/c@sha256:" + hex64:        {false, true},
		"registry.example.com/tagged/b@sha256:" + hex64:   {true, false},
		"registry.example.com/tagged/b/c@sha256:" + hex64: {false, false},
		"registry.example.com/tagged@sha256:" + hex64:     {false, false},
	} {
		r, err := reference.Parse(ref)
		if err != nil {
			t.Fatal(err)
		}
		if signatures, attestations := set.Demands(r); signatures != want[0] || attestations != want[1] {
			t.Errorf("%s: signatures %t, attestations %t, want %v", ref, signatures, attestations, want)
		}
	}
	namespaced, err := policy.NewSet([]*policy.Policy{{Namespace: "shop", Name: "ours", Scopes: []string{"registry.example.com/a/b"}}})
	if err != nil {
		t.Fatal(err)
	}
	in, out := reference.Reference{Host: "registry.example.com", Repository: "a/b"}, reference.Reference{Host: "registry.example.com", Repository: "a"}
	if signatures, _ := namespaced.Demands(in); !signatures {
		t.Error("what a namespace's policy covers is not demanded")
	}
	if signatures, attestations := namespaced.Demands(out); signatures || attestations {
		t.Error("what no policy covers is demanded")
	}
	if signatures, attestations := (*policy.Set)(nil).Demands(in); signatures || attestations {
		t.Error("no policies demand something")
	}
}
