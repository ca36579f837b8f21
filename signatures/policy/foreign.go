package policy

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// translation is the page that shows how to write policies of other tools here.
const translation = "docs/tasks/translate-policies.md"

// format is a format of documents that people may mistake for a policy. A document has the format
// if its API group is one of groups or a subdomain, and its kind is one of kinds, if there are any;
// or if it has no kind, and one of keys at the top level.
type format struct {
	groups, kinds, keys []string
	is                  string // completes "is …"
	say                 string // what to do instead
}

// formats are looked at in this order.
var formats = []format{
	{groups: []string{"policy.sigstore.dev"}, kinds: []string{"TrustRoot"},
		is: "a TrustRoot of sigstore's policy-controller", say: "write its content to a trusted_root.json, and name that file in trustedRootPath"},
	{groups: []string{"policy.sigstore.dev"},
		is: "a policy of sigstore's policy-controller", say: "its images are scopes here, its authorities rootOfTrust"},
	{groups: []string{"kyverno.io"}, kinds: []string{"PolicyException"},
		is: "an exception of Kyverno", say: "write its images into spec.exceptions of the policy that they do not meet"},
	{groups: []string{"kyverno.io"},
		is: "a policy of Kyverno", say: "its imageReferences are scopes here, its attestors rootOfTrust"},
	{groups: []string{"portieris.cloud.ibm.com", "securityenforcement.admission.cloud.ibm.com"},
		is: "a policy of Portieris", say: "its repositories are scopes here, and signedBy is the policyType GPGKeys"},
	{groups: []string{"config.ratify.deislabs.io", "config.ratify.dev"},
		is: "a document of Ratify", say: "the scopes of its verifiers are scopes here, their trust policies rootOfTrust"},
	{groups: []string{"templates.gatekeeper.sh", "constraints.gatekeeper.sh"},
		is: "a document of Gatekeeper", say: "Rego is not evaluated here; if it asks Ratify, write what the verifiers of Ratify trust"},
	{groups: []string{"policies.kubewarden.io"}, keys: []string{"allOf", "anyOf"},
		is: "a policy of Kubewarden", say: "the images of its signatures are scopes here, their keys and issuers rootOfTrust"},
	{groups: []string{"binaryauthorization.cnrm.cloud.google.com"}, keys: []string{"defaultAdmissionRule", "admissionWhitelistPatterns", "clusterAdmissionRules", "gkePolicy"},
		is: "a policy of Google's Binary Authorization", say: "attestations that are kept in Google Cloud are not read here; sign the images in their registry, and name the signers in rootOfTrust"},
	{keys: []string{"trustPolicies"},
		is: "a policy of notation (trustpolicy.json)", say: "its registryScopes are scopes here, its trustStores and trustedIdentities the policyType Notary"},
	{keys: []string{"default", "transports"},
		is: "a policy of containers/image (policy.json)", say: "its scopes are scopes here, and sigstoreSigned and signedBy are the policyTypes PublicKey, FulcioCAWithRekor, PKI and GPGKeys"},
	{keys: []string{"validators", "application"},
		is: "a configuration of Connaisseur", say: "its patterns are scopes here, its validators rootOfTrust"},
	{keys: []string{"tlogs", "certificateAuthorities"},
		is: "a trusted root of sigstore", say: "name it in trustedRootPath of a policy, and keep it outside the folder of policies, in which every .json file is read as a policy"},
	{groups: []string{""}, kinds: []string{"List"},
		is: "a list of objects", say: "write each of its items as a document of its own, with --- between them"},
}

// foreign returns an error if a document is in one of formats.
func foreign(node *yaml.Node) error {
	f, ok := formatOf(node)
	if !ok {
		return nil
	}
	return &Error{Line: node.Line, Err: fmt.Errorf("is %s, not a %s of %s: %s; %s shows how", f.is, kind, apiVersion, f.say, translation)}
}

// Recognize describes the first document of a file if it is a policy, ours or in another tool's
// format, such as "a policy of Kyverno". It returns "" for any other document.
func Recognize(data []byte) string {
	var root yaml.Node
	if err := decodeNode(yaml.NewDecoder(bytes.NewReader(data)), &root); err != nil || len(root.Content) == 0 {
		return ""
	}
	f, _ := formatOf(root.Content[0])
	if top := topOf(root.Content[0]); top["kind"] == kind || top["kind"] == namespacedKind {
		return cmp.Or(f.is, "a policy")
	}
	return f.is
}

// formatOf returns the format of a document, if it is one of formats.
func formatOf(node *yaml.Node) (f format, ok bool) {
	top := topOf(node)
	group, _, grouped := strings.Cut(top["apiVersion"], "/")
	if !grouped {
		group = "" // v1
	}
	i := slices.IndexFunc(formats, func(f format) bool { return f.has(group, top) })
	if i < 0 {
		return format{}, false
	}
	return formats[i], true
}

// topOf returns the keys at the top of a document, with the text of scalars, and "" for others.
func topOf(node *yaml.Node) map[string]string {
	top := map[string]string{}
	if node.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(node.Content); i += 2 {
			top[node.Content[i].Value] = node.Content[i+1].Value
		}
	}
	return top
}

// has reports whether a document is in the format, given its API group and the keys at its top.
func (f format) has(group string, top map[string]string) bool {
	hasGroup := slices.ContainsFunc(f.groups, func(g string) bool { return group == g || g != "" && strings.HasSuffix(group, "."+g) })
	hasKey := top["kind"] == "" && slices.ContainsFunc(f.keys, func(key string) bool { _, ok := top[key]; return ok })
	return hasKey || hasGroup && (f.kinds == nil || slices.Contains(f.kinds, top["kind"]))
}
