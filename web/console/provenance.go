package console

import (
	"cmp"
	"strings"
	"time"
)

// provenance is a sentence about where an image comes from.
type provenance struct {
	Sentence string
	By       string // who says so
	Trusted  bool   // a policy trusts who says so
}

// ciSystems are the names of the issuers of certificates for workflows (Fulcio's OIDC issuers).
var ciSystems = map[string]string{
	"https://token.actions.githubusercontent.com": "GitHub Actions",
	"https://gitlab.com":                          "GitLab CI",
	"https://agent.buildkite.com":                 "Buildkite",
	"https://oidc.codefresh.io":                   "Codefresh",
}

// slsaProvenance is before the version in the types of SLSA's predicates about builds.
const slsaProvenance = "https://slsa.dev/provenance/"

// Labels and annotations by which builders say where an image comes from (OCI image specification,
// annotations).
const (
	labelSource   = "org.opencontainers.image.source"
	labelRevision = "org.opencontainers.image.revision"
	labelCreated  = "org.opencontainers.image.created"
)

// provenance says where an image comes from: by the certificates of the workflows that signed it or
// attested how it was built, and by its labels. Each sentence appears once.
func (i *image) provenance() (all []provenance) {
	seen := map[string]bool{}
	add := func(p provenance) {
		if !seen[p.Sentence] {
			seen[p.Sentence], all = true, append(all, p)
		}
	}
	for n := range i.Signatures {
		s := &i.Signatures[n]
		claim := func(name text) string { return string(s.Claims[name]) }
		source := cmp.Or(claim("fulcio.sourceRepositoryURI"), claim("fulcio.githubWorkflowRepository"))
		if source == "" || s.IssuedTo == nil {
			continue
		}
		does := "Signed"
		if strings.HasPrefix(claim("predicateType"), slsaProvenance) {
			does = "Built"
		}
		issuer := claim("fulcio.issuer")
		p := provenance{Sentence: does + " by " + cmp.Or(ciSystems[issuer], withoutScheme(issuer), "a workflow") + from(source, cmp.Or(claim("fulcio.sourceRepositoryDigest"), claim("fulcio.githubWorkflowSHA")), claim("rekor.integratedTime"))}
		p.By, p.Trusted = "by the certificate of "+string(s.IssuedTo.CommonName)+", which no policy trusts", find(s.Conditions, "Trusted").Status == "True"
		if p.Trusted {
			p.By = "by the certificate of " + string(s.IssuedTo.CommonName) + ", which a policy trusts"
		}
		add(p)
	}
	if c := i.config(); c != nil && c.Labels[labelSource] != "" {
		add(provenance{Sentence: "Built" + from(string(c.Labels[labelSource]), string(c.Labels[labelRevision]), string(c.Labels[labelCreated])), By: "by its own labels"})
	}
	return all
}

// from says from which source, at which revision and when something was made.
func from(source, revision, at string) string {
	s := " from " + withoutScheme(source)
	if revision != "" {
		s += " at " + revision[:min(len(revision), 7)]
	}
	if t, err := time.Parse(time.RFC3339, at); err == nil {
		s += " on " + t.UTC().Format("2 January 2006")
	}
	return s
}

// withoutScheme is an address as people say it.
func withoutScheme(address string) string {
	return strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(address, "https://"), "git+https://"), ".git")
}
