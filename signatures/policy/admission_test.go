package policy_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// An annotation of a document sets what happens to pods; other annotations are ignored. If it
// changes, so does the hash of the set, so that a Watcher notices. The hash of the policy, and so
// verdicts, do not change.
func TestAdmissionOfADocument(t *testing.T) {
	t.Parallel()
	document := signaturestest.Document("prod", `["registry.example.com"]`, signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil), "")
	load := func(annotations string) (*policy.Policy, string, error) {
		policies, err := policy.Parse([]byte(strings.Replace(document, "metadata: {", "metadata: {"+annotations, 1)), "prod.yaml")
		if err != nil {
			return nil, "", err
		}
		set, err := policy.NewSet(policies)
		if err != nil {
			t.Fatal(err)
		}
		return policies[0], set.Hash(), nil
	}
	plain, plainSet, err := load("")
	if err != nil || plain.Admission != (policy.Admission{}) {
		t.Fatalf("%+v, %v", plain, err)
	}
	warned, warnedSet, err := load("annotations: {other: [1], tidewaiter.dev/admission: warn, tidewaiter.dev/admission-unknown: allow, tidewaiter.dev/max-tag-age: 10m, tidewaiter.dev/immutable-tags: 'v*, *-release'}, ")
	if err != nil || warned.Admission.Mode != policy.ModeWarn || warned.Admission.Unknown != policy.UnknownAllow || !warned.Admission.IsTooOld(11*time.Minute) || warned.Admission.IsTooOld(9*time.Minute) || plain.Admission.IsTooOld(time.Hour) {
		t.Fatalf("%+v, %v", warned, err)
	}
	for tag, want := range map[string]string{"v1": "v*", "v": "v*", "1-release": "*-release", "latest": "", "": "", "release": ""} {
		if got := warned.Admission.ImmutableTags.Match(tag); got != want || plain.Admission.ImmutableTags.Match(tag) != "" {
			t.Errorf("the tag %q must not move by %q, want %q", tag, got, want)
		}
	}
	if plain.Hash() != warned.Hash() || plainSet == warnedSet {
		t.Error("an annotation has verdicts judged again, or is not seen")
	}
	if again, err := policy.NewAdmission(warned.Admission.Annotations()); err != nil || again != warned.Admission {
		t.Errorf("the annotations come back as %+v, %v", again, err)
	}
	for annotation, want := range map[string]string{"tidewaiter.dev/admission: deny": `is "deny", must be enforce, warn or audit`, "tidewaiter.dev/admission-unknown: enforce": `is "enforce", must be allow, warn or deny`, "tidewaiter.dev/max-tag-age: 5s": `is "5s", must be a duration of at least 10s`, "tidewaiter.dev/immutable-tags: 'v[0-9]'": `"v[0-9]" is not a pattern of tags`} {
		if _, _, err := load("annotations: {" + annotation + "}, "); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "prod.yaml") || !strings.Contains(err.Error(), "metadata.annotations.tidewaiter.dev/") {
			t.Errorf("%s: %v", annotation, err)
		}
	}
}

// A misspelt annotation of this program is refused with the right name, in files as in objects:
// otherwise the bound would have no effect.
func TestMisspeltAnnotations(t *testing.T) {
	t.Parallel()
	document := signaturestest.Document("prod", `["registry.example.com"]`, signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil), "")
	for key, want := range map[string]string{
		"tidewaiter.dev/max-tag-ag": "tidewaiter.dev/max-tag-age", "tidewaiter.dev/maxTagAge": "tidewaiter.dev/max-tag-age", "Tidewaiter.dev/max-tag-age": "tidewaiter.dev/max-tag-age",
		"tidewater.dev/max-tag-age": "tidewaiter.dev/max-tag-age", "tidewaiter.dev.max-tag-age": "tidewaiter.dev/max-tag-age", "tidewaiter.io/max-tag-age": "tidewaiter.dev/max-tag-age",
		"tidewaiter.dev/immutable-tag": "tidewaiter.dev/immutable-tags", "tidewaiter.dev/immutableTags": "tidewaiter.dev/immutable-tags",
		"tidewaiter.dev/admision": "tidewaiter.dev/admission", "tidewaiter.dev/admission-unkown": "tidewaiter.dev/admission-unknown", "tidewaiter.dev/": "tidewaiter.dev/admission",
		"tidewaiter.dev/max-tag-age": "", "tidewaiter.dev/policy-file": "", "example.com/max-tag-age": "",
		"max-tag-age": "tidewaiter.dev/max-tag-age", "maxTagAge": "tidewaiter.dev/max-tag-age", "immutable_tags": "tidewaiter.dev/immutable-tags", "Admission": "tidewaiter.dev/admission",
		"www.tidewaiter.dev/max-tag-age": "tidewaiter.dev/max-tag-age", "policy.tidewaiter.dev/x": "tidewaiter.dev/admission", "tidewaiter/max-tag-age": "tidewaiter.dev/max-tag-age",
		"www.tidewater.dev/immutable-tag": "tidewaiter.dev/immutable-tags", "tidewaiter.example.com/admission-unknown": "tidewaiter.dev/admission-unknown",
		"tidewaiter.dev/" + strings.Repeat("x", 900): "tidewaiter.dev/",
		"tidewaiter.example.com/ticket":              "", "owner": "", "mission": "", "emission": "", "kubectl.kubernetes.io/last-applied-configuration": "",
		"example.com/" + strings.Repeat("x", 900): "",
	} {
		_, inFile := policy.Parse([]byte(strings.Replace(document, "metadata: {", `metadata: {annotations: {"`+key+`": 10m}, `, 1)), "prod.yaml")
		_, inObject := policy.NewAdmission(map[string]string{key: "10m"})
		for where, err := range map[string]error{"file": inFile, "object": inObject} {
			switch {
			case want == "" && err != nil:
				t.Errorf("%.80s in a %s: %v", key, where, err)
			case want != "" && (err == nil || !strings.Contains(err.Error(), "did you mean "+want) || !strings.Contains(err.Error(), fmt.Sprintf("metadata.annotations.%.99s", key))):
				t.Errorf("%.80s in a %s: %v, want %q", key, where, err, want)
			}
		}
	}
	// If an older version accepted a bound that this version cannot read, the strictest bound applies.
	if a, err := policy.NewAdmission(map[string]string{policy.ImmutableTagsAnnotation: "v[0-9]"}); err == nil || a.ImmutableTags.Match("latest") != "*" {
		t.Errorf("%+v, %v", a, err)
	}
	if a, err := policy.NewAdmission(map[string]string{policy.MaxTagAgeAnnotation: "soon", policy.AdmissionAnnotation: policy.ModeAudit}); err == nil || !a.IsTooOld(11*time.Second) || a.IsTooOld(time.Second) || a.Mode != policy.ModeAudit {
		t.Errorf("%+v, %v", a, err)
	}
}

// An annotation without a value, or in a place where it has no effect, is refused: its author
// expects a bound. If an older version stored it without a value, the strictest bound applies.
func TestAnnotationsWithoutEffect(t *testing.T) {
	t.Parallel()
	document := signaturestest.Document("prod", `["registry.example.com"]`, signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil), "")
	for metadata, want := range map[string]string{
		`annotations: {tidewaiter.dev/max-tag-age: ""}`:       "metadata.annotations.tidewaiter.dev/max-tag-age: is empty: write a duration such as 10m, or leave the annotation out",
		`annotations: {tidewaiter.dev/max-tag-age: }`:         "metadata.annotations.tidewaiter.dev/max-tag-age: is empty: ",
		`annotations: {tidewaiter.dev/max-tag-age: ~}`:        "metadata.annotations.tidewaiter.dev/max-tag-age: is empty: ",
		`annotations: {tidewaiter.dev/max-tag-age: 10}`:       "metadata.annotations.tidewaiter.dev/max-tag-age: must be a string",
		`annotations: {tidewaiter.dev/max-tag-age: [10m]}`:    "metadata.annotations.tidewaiter.dev/max-tag-age: must be a string",
		`annotations: {tidewaiter.dev/max-tag-age: " "}`:      "must be a duration of at least 10s",
		`annotations: {tidewaiter.dev/immutable-tags: ""}`:    "metadata.annotations.tidewaiter.dev/immutable-tags: is empty: write patterns of tags, such as v*, *-release, or",
		`annotations: {tidewaiter.dev/immutable-tags: "v*,"}`: `"" is not a pattern of tags`,
		`annotations: {tidewaiter.dev/admission: ""}`:         "metadata.annotations.tidewaiter.dev/admission: is empty: write enforce, warn or audit, or",
		`annotations: {tidewaiter.dev/admission-unknown: ""}`: "metadata.annotations.tidewaiter.dev/admission-unknown: is empty: write allow, warn or deny, or",
		`labels: {tidewaiter.dev/max-tag-age: 10m}`:           "metadata.labels.tidewaiter.dev/max-tag-age: has no meaning as a label: write tidewaiter.dev/max-tag-age under metadata.annotations",
		`labels: {max-tag-age: 10m}`:                          "metadata.labels.max-tag-age: has no meaning as a label: write tidewaiter.dev/max-tag-age under",
		`tidewaiter.dev/max-tag-age: 10m`:                     "metadata.tidewaiter.dev/max-tag-age: has no meaning here: write tidewaiter.dev/max-tag-age under metadata.annotations",
		`annotation: {tidewaiter.dev/max-tag-age: 10m}`:       "metadata.annotation: unknown field; did you mean annotations?",
		`Annotations: {tidewaiter.dev/max-tag-age: 10m}`:      "metadata.Annotations: unknown field; did you mean annotations?",
		`annotations: , labels: {team: a}, uid: x, generateName: x, creationTimestamp: , managedFields: [{}], resourceVersion: "1"`: "",
	} {
		_, err := policy.Parse([]byte(strings.Replace(document, "metadata: {", "metadata: {"+metadata+", ", 1)), "prod.yaml")
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", metadata, err, want)
		}
	}
	for _, key := range []string{policy.MaxTagAgeAnnotation, policy.ImmutableTagsAnnotation, policy.AdmissionAnnotation, policy.UnknownAnnotation} {
		a, err := policy.NewAdmission(map[string]string{key: ""})
		if err == nil || !strings.Contains(err.Error(), "metadata.annotations."+key+": is empty: write ") {
			t.Errorf("an object with %s without a value: %v", key, err)
		}
		if a.IsTooOld(11*time.Second) != (key == policy.MaxTagAgeAnnotation) || (a.ImmutableTags.Match("latest") != "") != (key == policy.ImmutableTagsAnnotation) {
			t.Errorf("%s without a value is read as %+v", key, a)
		}
	}
	if err := policy.CheckLabels(map[string]string{"team": "a", policy.ImmutableTagsAnnotation: ""}); err == nil || !strings.Contains(err.Error(), "metadata.labels."+policy.ImmutableTagsAnnotation+": has no meaning as a label") {
		t.Error(err)
	}
}

// A version is another one after an edit of anything that verdicts depend on, and the same after an
// edit of what only admission looks at.
func TestVersion(t *testing.T) {
	t.Parallel()
	text := strings.Replace(signaturestest.Document("ours", "[r.example.com]", signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil), ""),
		"metadata: {", "metadata: {annotations: {tidewaiter.dev/admission: warn}, ", 1)
	version := func(from, to string) string {
		t.Helper()
		policies, err := policy.Parse([]byte(strings.Replace(text, from, to, 1)), "ours.yaml")
		if err != nil || !strings.Contains(text, from) {
			t.Fatalf("%q for %q: %v", to, from, err)
		}
		return policies[0].Version()
	}
	is := version("", "")
	for to, from := range map[string]string{
		"scopes: [r.example.com, s.example.com]":                                                      "scopes: [r.example.com]",
		"policy:\n    signedIdentity: {matchPolicy: MatchRepository}\n":                               "policy:\n",
		"policy:\n    attestations: [{name: built, predicateType: https://slsa.dev/provenance/v1}]\n": "policy:\n",
		"tidewaiter.dev/max-tag-age: 10m":                                                             "tidewaiter.dev/admission: warn",
		"tidewaiter.dev/immutable-tags: v*":                                                           "tidewaiter.dev/admission: warn",
	} {
		if got := version(from, to); got == is {
			t.Errorf("with %q it is still version %s", to, got)
		}
	}
	if got := version("admission: warn", "admission: audit"); got != is {
		t.Errorf("with another mode it is version %s, and was %s", got, is)
	}
}
