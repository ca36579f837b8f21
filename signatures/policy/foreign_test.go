package policy_test

import (
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// A policy of another tool is refused, in a file and as an object. The message describes it, says
// what to write instead, and names the page that shows how. The documents are like those that the
// projects publish.
func TestPoliciesOfOthersAreNamed(t *testing.T) {
	t.Parallel()
	object := func(apiVersion, kind string) string {
		return "apiVersion: " + apiVersion + "\nkind: " + kind + "\nmetadata: {name: x}\nspec: {}\n"
	}
	for name, tc := range map[string]struct{ text, is, say string }{
		"policy-controller":       {object("policy.sigstore.dev/v1beta1", "ClusterImagePolicy"), "is a policy of sigstore's policy-controller", "its images are scopes"},
		"its first version":       {object("policy.sigstore.dev/v1alpha1", "ClusterImagePolicy"), "is a policy of sigstore's policy-controller", "its authorities rootOfTrust"},
		"its roots":               {object("policy.sigstore.dev/v1alpha1", "TrustRoot"), "is a TrustRoot of", "trustedRootPath"},
		"Kyverno":                 {object("kyverno.io/v1", "ClusterPolicy"), "is a policy of Kyverno", "attestors"},
		"Kyverno, of a namespace": {object("kyverno.io/v2beta1", "Policy"), "is a policy of Kyverno", "attestors"},
		"Kyverno in CEL":          {object("policies.kyverno.io/v1", "ImageValidatingPolicy"), "is a policy of Kyverno", "attestors"},
		"an exception of Kyverno": {object("kyverno.io/v2", "PolicyException"), "is an exception of Kyverno", "spec.exceptions"},
		"Portieris":               {object("portieris.cloud.ibm.com/v1", "ClusterImagePolicy"), "is a policy of Portieris", "GPGKeys"},
		"Portieris, earlier":      {object("securityenforcement.admission.cloud.ibm.com/v1beta1", "ImagePolicy"), "is a policy of Portieris", "GPGKeys"},
		"Ratify":                  {object("config.ratify.deislabs.io/v1beta1", "Verifier"), "is a document of Ratify", "verifiers"},
		"Ratify, version 2":       {object("config.ratify.dev/v2alpha1", "Executor"), "is a document of Ratify", "verifiers"},
		"Gatekeeper's template":   {object("templates.gatekeeper.sh/v1", "ConstraintTemplate"), "is a document of Gatekeeper", "Rego"},
		"Gatekeeper's constraint": {object("constraints.gatekeeper.sh/v1beta1", "RatifyVerification"), "is a document of Gatekeeper", "Ratify"},
		"Kubewarden":              {object("policies.kubewarden.io/v1", "ClusterAdmissionPolicy"), "is a policy of Kubewarden", "rootOfTrust"},
		"Kubewarden's own":        {"apiVersion: v1\nanyOf:\n  minimumMatches: 1\n  signatures: []\n", "is a policy of Kubewarden", "rootOfTrust"},
		"Binary Authorization":    {"defaultAdmissionRule:\n  evaluationMode: ALWAYS_DENY\n", "is a policy of Google's Binary Authorization", "Google Cloud"},
		"with a name":             {"name: projects/acme/policy\nadmissionWhitelistPatterns:\n- namePattern: gcr.io/acme/*\n", "is a policy of Google's Binary Authorization", "Google Cloud"},
		"of Config Connector":     {object("binaryauthorization.cnrm.cloud.google.com/v1beta1", "BinaryAuthorizationPolicy"), "is a policy of Google's Binary Authorization", "Google Cloud"},
		"notation":                {`{"version":"1.0","trustPolicies":[{"name":"a"}]}`, "is a policy of notation (trustpolicy.json)", "Notary"},
		"notation with tabs":      {"{\n\t\"version\": \"1.0\",\n\t\"trustPolicies\": []\n}\n", "is a policy of notation (trustpolicy.json)", "Notary"},
		"containers/image":        {`{"default":[{"type":"reject"}],"transports":{"docker":{}}}`, "is a policy of containers/image (policy.json)", "sigstoreSigned"},
		"its least":               {"{\n    \"default\": [\n        {\"type\": \"insecureAcceptAnything\"}\n    ]\n}\n", "is a policy of containers/image (policy.json)", "sigstoreSigned"},
		"its default misspelt":    {`{"default":{"type":"reject"}}`, "is a policy of containers/image (policy.json)", "sigstoreSigned"},
		"Connaisseur":             {"kubernetes: {}\napplication:\n  validators: []\n  policy: []\n", "is a configuration of Connaisseur", "validators"},
		"Connaisseur, earlier":    {"validators:\n- {name: deny, type: static, approve: false}\npolicy: []\n", "is a configuration of Connaisseur", "patterns"},
		"a trusted root":          {`{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1","tlogs":[],"certificateAuthorities":[]}`, "is a trusted root of sigstore", "outside the folder"},
		"kubectl get -o yaml":     {"apiVersion: v1\nkind: List\nitems: []\n", "is a list of objects", "a document of its own"},
	} {
		for way, parse := range map[string]func([]byte, string) ([]*policy.Policy, error){"a file": policy.Parse, "objects": policy.ParseObjects} {
			policies, err := parse([]byte(tc.text), "")
			if err == nil || len(policies) > 0 {
				t.Errorf("%s in %s is accepted", name, way)
				continue
			}
			for _, part := range []string{tc.is, tc.say, "not a ClusterImagePolicy of config.openshift.io/v1", "docs/tasks/translate-policies.md"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%s in %s: %v, want %q", name, way, err, part)
				}
			}
		}
	}

	// Other documents are refused with the wrong field, and without the page.
	for name, tc := range map[string]struct{ text, want string }{
		"OpenShift's first version":  {object("config.openshift.io/v1alpha1", "ClusterImagePolicy"), `apiVersion: is "config.openshift.io/v1alpha1", must be config.openshift.io/v1`},
		"another kind":               {object("v1", "Pod"), `apiVersion: is "v1"`},
		"another kind of OpenShift":  {object("config.openshift.io/v1", "Image"), `kind: is "Image"`},
		"a group that only looks so": {object("mykyverno.io/v1", "ClusterPolicy"), `apiVersion: is "mykyverno.io/v1"`},
		"a policy with their key":    {"default: []\n" + object("config.openshift.io/v1", "ClusterImagePolicy"), "default: unknown field"},
		"text":                       {"hello", "must be a mapping"},
	} {
		if _, err := policy.Parse([]byte(tc.text), ""); err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "translate") {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}
