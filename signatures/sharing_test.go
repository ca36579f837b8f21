package signatures_test

import (
	"fmt"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// Two policies, the developers' and the testers', share one scope: one of the two signatures is not
// enough. OpenShift writes both as requirements of the scope, and containers/image wants a
// signature for each.
func TestPoliciesThatShareAScopeAreAllDemanded(t *testing.T) {
	dev, qa, stranger := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	set := signaturestest.SetFrom(t, signaturestest.Document("dev", "["+repository+"]", signaturestest.TrustKey(dev, nil), matchRepository)+
		signaturestest.Document("qa", "["+repository+"]", signaturestest.TrustKey(qa, nil), matchRepository))
	by := func(key *signaturestest.Key) imagev1.ImageSignature {
		return stored(t, signatures.TypeSimpleSigning, key.SimpleSigning(t, digest, repository))
	}
	byDev, byQA, byStranger := by(dev), by(qa), by(stranger)
	for _, tc := range []struct {
		name     string
		by       []imagev1.ImageSignature
		verified string
		unmet    string
		signers  string
	}{
		{"nobody", nil, verdicts.Unsigned, "", ""},
		{"one of two", []imagev1.ImageSignature{byDev}, verdicts.VerifiedFalse, `policy "qa"`, ""},
		{"the other", []imagev1.ImageSignature{byQA}, verdicts.VerifiedFalse, `policy "dev"`, ""},
		{"one of two and a stranger", []imagev1.ImageSignature{byStranger, byDev}, verdicts.VerifiedFalse, `policy "qa"`, ""},
		{"both", []imagev1.ImageSignature{byQA, byDev}, verdicts.VerifiedTrue, "", "dev qa"},
		{"both and a stranger", []imagev1.ImageSignature{byStranger, byQA, byDev}, verdicts.VerifiedTrue, "", "dev qa"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			img := object(tc.by...)
			signatures.VerifyImage(img, set, now, nil)
			verified, signers, _ := signatures.Summary(img)
			if got := strings.Join(signers, " "); verified != tc.verified || got != tc.signers {
				t.Errorf("verified %s by %q, want %s by %q", verified, got, tc.verified, tc.signers)
			}
			for _, v := range annotation.Judged(img.Annotations) {
				if v.Policy != "dev,qa" || !strings.Contains(v.Message, tc.unmet) {
					t.Errorf("%+v does not name both policies and the one that is not met, %s", v, tc.unmet)
				}
			}
			for _, s := range img.Signatures {
				// a signature is trusted if one of the policies trusts it
				if trusted := condition(s, "Trusted"); (trusted.Status == "True") == (s.Name == byStranger.Name) {
					t.Errorf("trusted %s: %s", trusted.Status, trusted.Message)
				}
			}
			if signatures.Stale(img, set, now) {
				t.Error("what was just judged is stale")
			}
		})
	}
	t.Run("more than are held", func(t *testing.T) {
		var all []imagev1.ImageSignature
		for i := range 2 * signatures.MaxStored {
			all = append(all, stored(t, signatures.TypeSimpleSigning, dev.SimpleSigning(t, digest, fmt.Sprintf("%s:%d", repository, i))))
		}
		// larger than the others, so it would be left out first
		long := repository + ":" + strings.Repeat("t", 100)
		all = append(all, stored(t, signatures.TypeSimpleSigning, qa.SimpleSigning(t, digest, long)))
		img := object(all...)
		img.Annotations = map[string]string{}
		found := annotation.Repository{}
		for _, s := range all {
			_, half, _ := strings.Cut(s.Name, "@")
			found.Signatures = append(found.Signatures, half)
		}
		annotation.SetFound(img.Annotations, map[string]annotation.Repository{repository: found})
		signatures.VerifyImage(img, set, now, nil)
		if verified, _, _ := signatures.Summary(img); verified != verdicts.VerifiedTrue || len(img.Signatures) != signatures.MaxStored {
			t.Errorf("%s with %d signatures", verified, len(img.Signatures))
		}
	})
}

// A scope can be one tag of a repository. As in containers/image, it applies to references with
// that tag. The tag has its own verdict beside the repository's.
func TestTagsThatAreScopes(t *testing.T) {
	team, release := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	set := signaturestest.SetFrom(t, signaturestest.Document("team", "["+repository+"]", signaturestest.TrustKey(team, nil), matchRepository)+
		signaturestest.Document("release", "['"+repository+":stable']", signaturestest.TrustKey(release, nil), ""))
	judged := func(set *policy.Set, tags []string, by ...imagev1.ImageSignature) (string, map[string]annotation.Verdict) {
		img := object(by...)
		img.Annotations = map[string]string{}
		var known []reference.Reference
		for _, tag := range tags {
			known = append(known, reference.Reference{Host: "registry.example.com", Repository: "demo/app", Tag: tag})
		}
		annotation.SetKnown(img.Annotations, known)
		signatures.VerifyImage(img, set, now, nil)
		verified, _, _ := signatures.Summary(img)
		return verified, annotation.Judged(img.Annotations)
	}
	byTeam := stored(t, signatures.TypeSimpleSigning, team.SimpleSigning(t, digest, repository))
	byRelease := func(name string) imagev1.ImageSignature {
		return stored(t, signatures.TypeSimpleSigning, release.SimpleSigning(t, digest, name))
	}
	for _, tc := range []struct {
		name           string
		tags           []string
		by             []imagev1.ImageSignature
		all, repo, tag string
	}{
		{"another tag", []string{"edge"}, []imagev1.ImageSignature{byTeam}, "True", "True", ""},
		{"the tag, signed by the team only", []string{"edge", "stable"}, []imagev1.ImageSignature{byTeam}, "False", "True", "False"},
		{"the tag, signed as another tag", []string{"stable"}, []imagev1.ImageSignature{byTeam, byRelease(repository + ":edge")}, "False", "True", "False"},
		{"the tag, signed as itself", []string{"stable"}, []imagev1.ImageSignature{byTeam, byRelease(repository + ":stable")}, "True", "True", "True"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			all, by := judged(set, tc.tags, tc.by...)
			if all != tc.all || by[repository].Verified != tc.repo || by[repository+":stable"].Verified != tc.tag {
				t.Errorf("the image %s, %+v; want %s, the repository %s, the tag %s", all, by, tc.all, tc.repo, tc.tag)
			}
		})
	}
}
