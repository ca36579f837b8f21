package main

import (
	"encoding/json"
	"runtime"
)

// source is where the sources are.
const source = "git+https://github.com/tidewaiter/tidewaiter"

// provenance is a predicate of https://slsa.dev/spec/v1.1/provenance, for `cosign attest --type
// slsaprovenance1`.
type provenance struct {
	BuildDefinition struct {
		BuildType            string            `json:"buildType"`
		ExternalParameters   map[string]string `json:"externalParameters"`
		ResolvedDependencies []dependency      `json:"resolvedDependencies"`
	} `json:"buildDefinition"`
	RunDetails struct {
		Builder struct {
			ID string `json:"id"`
		} `json:"builder"`
	} `json:"runDetails"`
}

type dependency struct {
	URI    string            `json:"uri"`
	Digest map[string]string `json:"digest,omitempty"`
}

// provenance says what was built of what: the sources by their commit, and Go. Modules are in the
// bill of materials. It has no times, so that it is reproducible as well. builder says who built:
// the URI of a service, or of a person's policy.
func (r *release) provenance(builder string) ([]byte, error) {
	var p provenance
	p.BuildDefinition.BuildType = "https://github.com/tidewaiter/tidewaiter/blob/main/deploy/release"
	p.BuildDefinition.ExternalParameters = map[string]string{"source": source + "@refs/tags/v" + r.version, "version": r.version}
	commit := dependency{URI: source}
	if r.revision != "" {
		commit.Digest = map[string]string{"gitCommit": r.revision}
	}
	p.BuildDefinition.ResolvedDependencies = []dependency{commit, {URI: "pkg:golang/std@" + runtime.Version()[len("go"):]}}
	p.RunDetails.Builder.ID = builder
	return json.MarshalIndent(p, "", " ")
}
