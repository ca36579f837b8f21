package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
	"github.com/tidewaiter/tidewaiter/e2e/rekor"
)

// attest attests a predicate in one of the two formats: "legacy" is the .att tag, "bundle" a sigstore bundle as a referrer.
func (c *cosign) attest(format, key, ref, typ, predicate string) {
	c.t.Helper()
	file := filepath.Join(c.t.TempDir(), "predicate.json")
	if err := os.WriteFile(file, []byte(predicate), 0o600); err != nil {
		c.t.Fatal(err)
	}
	args := append(c.signArgs(format, key, ref), "--type", typ, "--predicate", file)
	args[0] = "attest"
	c.run(args...)
}

// policyOfAttestations is policyOf with demands, which are the items of a list in YAML's flow style.
func (c *cosign) policyOfAttestations(name, scope, key, demands string) string {
	return c.policyOf(name, scope, key, "DigestOnly") + "    attestations: [" + demands + "]\n"
}

const (
	slsaPredicate = `{"buildDefinition":{"buildType":"https://example.com/build/v1","externalParameters":{},"internalParameters":{}},"runDetails":{"builder":{"id":"%s"},"metadata":{"invocationId":"1"}}}`
	slsaDemand    = `{name: provenance, predicateType: slsaprovenance1, policy: {type: cel, data: 'predicate.runDetails.builder.id == "https://builder.example.com"'}}`
	sbomDemand    = `{name: sbom, predicateType: spdxjson, policy: {type: cel, data: 'predicate.packages.exists(p, p.name == "busybox")'}}`
	sbomPredicate = `{"spdxVersion":"SPDX-2.3","packages":[{"name":"busybox"}]}`

	attestationTrusted = "InTotoAttestationV1 Trusted=True/AttestationVerified ForImage=True"
)

// What the real cosign attests is kept, verified and demanded, in both of its formats, without a log and with one; and what
// is demanded and is not there is False with the reason.
func TestCosignAttestations(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]*cosign{"without a log": newCosign(t), "log of version 1": newCosignWithLog(t, rekor.Start(t))} {
		t.Run(name, func(t *testing.T) {
			attestations(t, &cosign{t: t, dir: c.dir, log: c.log})
		})
	}
}

func attestations(t *testing.T, c *cosign) {
	r := registry.Start(t, registry.Distribution)
	c.key("ours", "p256")
	c.key("theirs", "p256")
	trust := writePolicy(t, c.policyOfAttestations("both", r.Host, "ours", slsaDemand+","+sbomDemand)+
		c.policyOf("signed", r.Host+"/plain", "ours", "DigestOnly"))
	s := harness.StartServer(t, "--policy", trust)
	all := images.Numbered(t, 12)
	good, bad := fmt.Sprintf(slsaPredicate, "https://builder.example.com"), fmt.Sprintf(slsaPredicate, "https://elsewhere.example.com")
	type attested struct{ key, typ, predicate string }
	ours, sbom := attested{"ours", "slsaprovenance1", good}, attested{"ours", "spdxjson", sbomPredicate}
	for _, format := range []string{"legacy", "bundle"} {
		for _, tc := range []struct {
			name             string
			there            []attested
			code             int
			verified, reason string
			attested         string
		}{
			{"all", []attested{ours, sbom}, 0, "True", "AttestationVerified", "True"},
			{"one", []attested{ours}, 1, "False", "AttestationMissing", "False"},
			{"stranger", []attested{{"theirs", "slsaprovenance1", good}, sbom}, 1, "False", "NoMatchingKey", "False"},
			{"elsewhere", []attested{{"ours", "slsaprovenance1", bad}, sbom}, 1, "False", "PredicateRefused", "False"},
			{"plain", []attested{ours, sbom}, 1, "Unsigned", "OnlyAttestations", "True"},
		} {
			image := all[0]
			all = all[1:]
			t.Run(format+"/"+tc.name, func(t *testing.T) {
				c := &cosign{t: t, dir: c.dir, log: c.log}
				repository := tc.name + "/" + format
				digest := images.Digest(t, image).String()
				ref := r.Push(t, repository+":v1", image)
				for _, a := range tc.there {
					c.attest(format, a.key, r.Host+"/"+repository+"@"+digest, a.typ, a.predicate)
				}
				s.Import(t, ref)
				got := s.Kubectl(t, "get", "image", digest, "-o", `jsonpath={.metadata.annotations.tidewaiter\.dev/verdicts}`)
				if !strings.Contains(got, fmt.Sprintf(`"verified":%q,"reason":%q`, tc.verified, tc.reason)) {
					t.Errorf("verdicts are %s, want %s %s", got, tc.verified, tc.reason)
				}
				if tc.verified == "True" || tc.verified == "Unsigned" {
					expectVerdicts(t, s, digest, attestationTrusted, attestationTrusted)
				}
				rows := lines(s.Kubectl(t, "get", "images", "-o", "wide", "--field-selector", "metadata.name="+digest+",attestations.verified="+tc.attested))
				if cell := cells(rows[0], rows[1])["ATTESTED"]; cell != tc.attested {
					t.Errorf("ATTESTED is %s, want %s", cell, tc.attested)
				}
				if v, _ := verify(t, tc.code, "--policy", trust, ref); v.Verified != tc.verified || len(v.Signatures) != len(tc.there) {
					t.Errorf("verify says %+v", v)
				}
			})
		}
	}
}
