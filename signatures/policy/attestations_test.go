package policy_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// A demand that could never be met, or that clearly means something else, is refused with its
// field.
func TestDemandsOfAttestationsAreChecked(t *testing.T) {
	t.Parallel()
	trust := signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil)
	gpg := signaturestest.TrustGPG(signaturestest.NewGPG(t, "x", time.Now(), 0).Public(t))
	one := "{name: a, predicateType: slsaprovenance1}"
	var many []string
	for i := range 17 {
		many = append(many, fmt.Sprintf("{name: a%d, predicateType: vuln}", i))
	}
	for _, tc := range []struct{ trust, identity, attestations, want string }{
		{trust, "", one, ""},
		{trust, "{matchPolicy: DigestOnly}", one, ""},
		{trust, "", "{name: a, predicateType: 'https://example.com/own/v1', policy: {type: cel, data: 'has(predicate.x)'}}", ""},
		{trust, "", "", "attestations: has 0 items"},
		{trust, "", strings.Join(many, ","), "attestations: has 17 items"},
		{trust, "{matchPolicy: MatchRepository}", one, "attestations: cannot be met"},
		{gpg, "", one, "attestations: cannot be met"},
		{trust, "", "{predicateType: vuln}", "attestations[0].name: is required"},
		{trust, "", one + "," + one, `attestations[1].name: "a" appears twice`},
		{trust, "", "{name: a}", "attestations[0].predicateType: is required"},
		{trust, "", "{name: a, predicateType: slsa}", "attestations[0].predicateType: \"slsa\" is neither"},
		{trust, "", "{name: a, predicateType: vuln, policy: {type: cue, data: 'x: 1'}}", `attestations[0].policy.type: is "cue", must be cel`},
		{trust, "", "{name: a, predicateType: vuln, policy: {type: cel, data: ' '}}", "attestations[0].policy.data: is required"},
		{trust, "", "{name: a, predicateType: vuln, policy: {type: cel, data: 'predicate.x'}}", "attestations[0].policy.data: is of type dyn, must be of type bool"},
		{trust, "", "{name: a, predicateType: vuln, policy: {type: cel, configMapRef: {name: x}}}", "attestations[0].policy.configMapRef: unknown field"},
	} {
		_, err := policy.Parse([]byte(signaturestest.Document("p", "[a.example]", tc.trust, tc.identity)+"    attestations: ["+tc.attestations+"]\n"), "")
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", tc.attestations, err, tc.want)
		}
	}
}

// The demands in docs/reference/signatures.md are valid.
func TestDocumentedDemands(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/reference/signatures.md")
	if err != nil {
		t.Fatal(err)
	}
	key := signaturestest.NewKey(t, signaturestest.P256)
	const head = "apiVersion: config.openshift.io/v1\nkind: ClusterImagePolicy\nmetadata: {name: demo}\nspec:\n  scopes: [registry.example.com/demo]\n  policy:\n"
	seen := 0
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		if !strings.Contains(block[1], "attestations:") {
			continue
		}
		policies, err := policy.Parse([]byte(head+strings.Replace(block[1], "keyPath: cosign.pub", "keyData: "+signaturestest.B64(key.PEM), 1)), "")
		if err != nil {
			t.Fatal(err)
		}
		seen += len(policies[0].Attestations)
	}
	if seen < 3 {
		t.Errorf("%d demands were found: the test reads something else", seen)
	}
}

// A policy with other demands is another policy, so images judged by it are judged again.
func TestDemandsAreInTheHash(t *testing.T) {
	t.Parallel()
	trust := signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil)
	hashes := map[string]bool{}
	for _, attestations := range []string{"", "    attestations: [{name: a, predicateType: vuln}]\n", "    attestations: [{name: a, predicateType: vuln, policy: {type: cel, data: 'predicate.x == 1'}}]\n"} {
		policies, err := policy.Parse([]byte(signaturestest.Document("p", "[a.example]", trust, "")+attestations), "")
		if err != nil {
			t.Fatal(err)
		}
		hashes[policies[0].Hash()] = true
	}
	if len(hashes) != 3 {
		t.Errorf("three policies have %d hashes", len(hashes))
	}
}
