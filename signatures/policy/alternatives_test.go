package policy_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// The name of a group is a DNS label. Any other name is refused with its field, and so is the field
// under another name. The hash of a policy depends on its group. The object of a policy without a
// group lacks the field.
func TestAlternativesAreChecked(t *testing.T) {
	t.Parallel()
	key := signaturestest.NewKey(t, signaturestest.P256)
	document := signaturestest.Document("demo", `["registry.example.com"]`, signaturestest.TrustKey(key, nil), "")
	parse := func(line string) (*policy.Policy, error) {
		all, err := policy.Parse([]byte(strings.Replace(document, "spec:\n", "spec:\n"+line, 1)), "")
		if err != nil {
			return nil, err
		}
		return all[0], nil
	}
	for line, want := range map[string]string{
		`  alternatives: ""` + "\n":                         "spec.alternatives: is empty",
		"  alternatives:\n":                                 "spec.alternatives: is empty",
		"  alternatives: Release\n":                         `spec.alternatives: is "Release", which is not the name of a group`,
		"  alternatives: a b\n":                             "spec.alternatives: ",
		"  alternatives: a/b\n":                             "spec.alternatives: ",
		"  alternatives: [release]\n":                       "spec.alternatives: must be a string",
		"  alternatives: 1\n":                               "spec.alternatives: must be a string",
		"  alternatives: " + strings.Repeat("a", 64) + "\n": "spec.alternatives: ",
		"  alternative: release\n":                          "spec.alternative: unknown field; known here: alternatives, exceptions, policy, scopes",
		"  Alternatives: release\n":                         "spec.Alternatives: unknown field",
		"  alternatives: a\n  alternatives: b\n":            "spec.alternatives: appears twice",
	} {
		if _, err := parse(line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", line, err, want)
		}
	}
	all, err := policy.Parse([]byte(strings.Replace(document, "metadata: {", "metadata: {annotations: {tidewaiter.dev/alternatives: release}, ", 1)), "")
	if err == nil || !strings.Contains(err.Error(), "has no meaning in a policy") {
		t.Errorf("as an annotation it is %v, %v", all, err)
	}
	hashes := map[string]string{}
	for _, line := range []string{"", "  alternatives: release\n", "  alternatives: release-2\n"} {
		p, err := parse(line)
		if err != nil {
			t.Fatal(err)
		}
		if other, known := hashes[p.Hash()]; known {
			t.Errorf("%q and %q have one hash", line, other)
		}
		hashes[p.Hash()] = line
		object, err := p.Object()
		if err != nil || strings.Contains(string(object), "alternatives") != (line != "") {
			t.Errorf("%q is the object %s, %v", line, object, err)
		}
	}
}

// The policies that cover a reference are grouped by kind, namespace and group. Alone returns the
// scopes at which a policy has no alternative.
func TestRequirements(t *testing.T) {
	t.Parallel()
	of := func(namespace, name, group string, scopes ...string) *policy.Policy {
		return &policy.Policy{Namespace: namespace, Name: name, Alternatives: group, Scopes: scopes}
	}
	all := []*policy.Policy{
		of("", "a", "g", "r.io", "r.io/x"), of("", "b", "", "r.io"), of("", "c", "g", "r.io"), of("", "d", "h", "r.io"), of("", "e", "", "r.io"),
		of("shop", "f", "g", "other.io"), of("shop", "h", "g", "other.io"), of("bank", "i", "g", "other.io"),
	}
	set, err := policy.NewSet(all)
	if err != nil {
		t.Fatal(err)
	}
	names := func(by []*policy.Policy) (text string) {
		for _, r := range policy.Requirements(by) {
			for _, p := range r {
				text += p.Name
			}
			text += " "
		}
		return text
	}
	ref := reference.Reference{Host: "r.io", Repository: "app", Tag: "v1"}
	if got := names(set.For(ref)); got != "ac b d e " {
		t.Errorf("the cluster's: %s", got)
	}
	ref.Host = "other.io"
	in := set.InNamespaces(ref)
	if shop, bank := names(in["shop"]), names(in["bank"]); shop != "fh " || bank != "i " {
		t.Errorf("the namespaces': %s and %s", shop, bank)
	}
	for _, tc := range []struct {
		p    *policy.Policy
		want []string
	}{
		{all[0], []string{"r.io/x"}}, {all[1], nil}, {all[2], nil}, {all[3], []string{"r.io"}}, {all[5], nil}, {all[7], []string{"other.io"}},
		{of("", "new", "h", "r.io", "other.io"), []string{"other.io"}}, {of("", "d", "h", "r.io"), []string{"r.io"}},
	} {
		if got := set.Alone(tc.p); !slices.Equal(got, tc.want) {
			t.Errorf("%s is alone at %v, want %v", tc.p.Name, got, tc.want)
		}
	}
	if got := (*policy.Set)(nil).Alone(all[0]); len(got) != 2 {
		t.Errorf("the first policy is alone at %v", got)
	}
}
