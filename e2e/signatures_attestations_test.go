package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
	"github.com/tidewaiter/tidewaiter/e2e/rekor"
)

// attest attests a predicate in one of the two formats: "legacy" is the .att tag, "bundle" a
// sigstore bundle as a referrer.
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

// policyOfAttestations is policyOf with demands, which are the items of a list in YAML's flow
// style.
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

// What the real cosign attests is kept, verified and demanded, in both of its formats, without a
// log and with one; and what is demanded and is not there is False with the reason.
func TestCosignAttestations(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]*cosign{"without a log": newCosign(t), "log of version 1": newCosignWithLog(t, rekor.Start(t))} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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

// SBOMs and VEX documents that the real cosign attests are found by package: in both of its
// formats, SPDX and CycloneDX, with who vouches for them. Images without one are counted as
// unknown.
func TestCosignSBOMs(t *testing.T) {
	t.Parallel()
	c := newCosign(t)
	c.key("ours", "p256")
	c.key("theirs", "p256")
	r := registry.Start(t, registry.Distribution)
	s := harness.StartServer(t, "--policy", writePolicy(t, c.policyOf("ours", r.Host, "ours", "DigestOnly")))
	const (
		spdx    = `{"spdxVersion":"SPDX-2.3","dataLicense":"CC0-1.0","SPDXID":"SPDXRef-DOCUMENT","name":"app","documentNamespace":"https://example.com/app","packages":[{"SPDXID":"SPDXRef-1","name":"openssl","versionInfo":"%[1]s","downloadLocation":"NOASSERTION","externalRefs":[{"referenceCategory":"PACKAGE-MANAGER","referenceType":"purl","referenceLocator":"pkg:deb/debian/openssl@%[1]s"}]}]}`
		cyclone = `{"bomFormat":"CycloneDX","specVersion":"1.6","version":1,"components":[{"type":"library","name":"openssl","version":"%[1]s","purl":"pkg:deb/debian/openssl@%[1]s"}]}`
		vex     = `{"@context":"https://openvex.dev/ns/v0.2.0","@id":"https://example.com/vex","author":"Ann","timestamp":"2026-01-01T00:00:00Z","version":1,"statements":[{"vulnerability":{"name":"CVE-2014-0160"},"status":"not_affected","justification":"component_not_present"}]}`
	)
	run := func(args ...string) harness.Result {
		return harness.Run(t, harness.Command{Path: harness.Binary(t), Args: append(args, "--kubeconfig", s.Kubeconfig)})
	}
	all := images.Numbered(t, 5)
	var old, recent []string
	for i, tc := range []struct{ format, typ, document, key, version string }{
		{"legacy", "spdxjson", spdx, "ours", "3.0.1-1"},
		{"legacy", "cyclonedx", cyclone, "theirs", "3.0.11-1"},
		{"bundle", "spdxjson", spdx, "theirs", "3.0.11-1"},
		{"bundle", "cyclonedx", cyclone, "ours", "3.0.1-1"},
	} {
		digest := images.Digest(t, all[i]).String()
		ref := r.Push(t, fmt.Sprintf("%s/%s:v1", tc.format, tc.typ), all[i])
		at := strings.TrimSuffix(ref, ":v1") + "@" + digest
		c.attest(tc.format, tc.key, at, tc.typ, fmt.Sprintf(tc.document, tc.version))
		c.attest(tc.format, tc.key, at, "openvex", vex)
		s.Import(t, ref)
		if tc.version == "3.0.1-1" {
			old = append(old, digest)
		} else {
			recent = append(recent, digest)
		}
		vouched := map[string]string{"ours": "vouched for by", "theirs": "False"}[tc.key]
		page := strings.Join(strings.Fields(run("describe", digest).Stdout), " ")
		for _, want := range []string{"Packages: 1 package in 1 SBOM", vouched, "CVE-2014-0160 not_affected, says Ann"} {
			if !strings.Contains(page, want) {
				t.Errorf("%s %s: the page lacks %q: %s", tc.format, tc.typ, want, page)
			}
		}
	}
	s.Import(t, r.Push(t, "plain:v1", all[4]))

	selected := func(selector string) []string {
		names := strings.Fields(s.Kubectl(t, "get", "images", "-o", "name", "--field-selector", selector))
		for i := range names {
			_, names[i], _ = strings.Cut(names[i], "/")
		}
		slices.Sort(names)
		return names
	}
	want := slices.Sorted(slices.Values(slices.Concat(old, recent)))
	for _, selector := range []string{"package=openssl", "package=pkg:deb/debian/openssl"} {
		if got := selected(selector); !slices.Equal(got, want) {
			t.Errorf("%s selects %v, want %v", selector, got, want)
		}
	}
	slices.Sort(recent)
	if got := selected("package=pkg:deb/debian/openssl@3.0.11-1"); !slices.Equal(got, recent) {
		t.Errorf("by version %v are selected, want %v", got, recent)
	}
	review := run("impact", "--package", "openssl@<3.0.7", "-o", "wide")
	for _, digest := range old {
		if !strings.Contains(review.Stdout, digest) {
			t.Errorf("the review lacks %s: %s", digest, review.Stdout)
		}
	}
	if strings.Contains(review.Stdout, recent[0]) || !strings.Contains(review.Stderr, "for 1 of 5 images") {
		t.Errorf("the review says %s%s", review.Stdout, review.Stderr)
	}
}
