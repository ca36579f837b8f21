package signatures_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// Changes reports a changed verdict for a tag even if the digest's verdict stays: after a
// signature, a policy of the cluster or of a namespace, or the end of an exception. It does not
// report a new tag, or verdicts of a former version.
func TestTagAloneTurns(t *testing.T) {
	t.Parallel()
	ours, theirs := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	const one, two = repository + ":v1", repository + ":v2"
	ofOne := stored(t, signatures.TypeSimpleSigning, ours.SimpleSigning(t, digest, one))
	ofTwo := stored(t, signatures.TypeSimpleSigning, ours.SimpleSigning(t, digest, two))
	const scopes = `["registry.example.com"]`
	exact := signaturestest.SetFrom(t, signaturestest.Document("demo", scopes, signaturestest.TrustKey(ours, nil), ""))
	lax := signaturestest.SetFrom(t, signaturestest.Document("demo", scopes, signaturestest.TrustKey(ours, nil), matchRepository))
	other := signaturestest.SetFrom(t, signaturestest.Document("demo", scopes, signaturestest.TrustKey(theirs, nil), ""))
	until := now.Add(time.Hour)
	excepted := signaturestest.SetFrom(t, excepting("demo", scopes, theirs, matchRepository, two+" "+until.Format(time.RFC3339)))
	shops := setOf(t, exactIn(t, "shop", scopes, ours))
	laxShops := setOf(t, inNamespace(t, "shop", "own", scopes, ours))
	judged := func(set *policy.Set, at time.Time, references []string, sigs ...imagev1.ImageSignature) *imagev1.Image {
		img := object(sigs...)
		knownAs(t, img, references, map[string]annotation.Repository{repository: brought(sigs...)})
		signatures.VerifyImage(img, set, at, nil)
		return img
	}
	both := []string{one, two}
	old := judged(exact, now, both, ofOne)
	delete(old.Annotations, annotation.TagVerdicts)
	old.Annotations[annotation.Policy] = "demo@v8-0"
	for name, tt := range map[string]struct {
		before, after *imagev1.Image
		want          []string
	}{
		"another signature":   {judged(exact, now, both, ofOne), judged(exact, now, both, ofOne, ofTwo), []string{two + " False True"}},
		"a signature is gone": {judged(exact, now, both, ofOne, ofTwo), judged(exact, now, both, ofTwo), []string{one + " True False"}},
		"a laxer policy":      {judged(exact, now, both, ofOne), judged(lax, now, both, ofOne), []string{two + " False True"}},
		"another signer":      {judged(exact, now, both, ofOne), judged(other, now, both, ofOne), []string{repository + " True False"}},
		"a first policy":      {judged(setOf(t), now, both, ofOne), judged(exact, now, both, ofOne), []string{repository + " NoPolicy True", two + " NoPolicy False"}},
		"an exception ends":   {judged(excepted, now, both, ofOne), judged(excepted, until, both, ofOne), []string{two + " Excepted False"}},
		"of a namespace":      {judged(shops, now, both, ofOne), judged(shops, now, both, ofOne, ofTwo), []string{two + "#shop False True"}},
		"to a namespace":      {judged(exact, now, both, ofOne), judged(laxShops, now, both, ofOne), []string{repository + " True NoPolicy", two + " False NoPolicy", two + "#shop False True"}},
		"nothing":             {judged(exact, now, both, ofOne), judged(exact, now, both, ofOne), nil},
		"a new tag":           {judged(exact, now, both[:1], ofOne), judged(exact, now, both, ofOne), nil},
		"a tag is gone":       {judged(exact, now, both, ofOne), judged(exact, now, both[:1], ofOne), nil},
		"a former version":    {old, judged(exact, now, both, ofOne), nil},
	} {
		var got []string
		for _, c := range signatures.Changes(tt.before, tt.after) {
			got = append(got, fmt.Sprint(c.Place, " ", c.Before, " ", c.Verified))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: turned are %q, want %q", name, got, tt.want)
		}
	}
	// The stored verdict equals Ask's, and the passing of time alone makes it stale.
	for _, set := range []*policy.Set{exact, excepted} {
		img := judged(set, now, both, ofOne)
		held := annotation.JudgedTags(img.Annotations)
		if v := signatures.Ask(img, parsed(t, two), "", set, now, nil); len(held) != 1 || held[two].Verified != v.Verified || held[two].Message != v.Message {
			t.Errorf("held are %+v, Ask says %+v", held, v)
		}
	}
	if img := judged(excepted, now, both, ofOne); !signatures.Stale(img, excepted, until) || signatures.Stale(img, excepted, now) {
		t.Errorf("it is judged again at %s, want %s", img.Annotations[annotation.Recheck], until)
	}
	if img := judged(lax, now, both, ofOne); img.Annotations[annotation.TagVerdicts] != "" {
		t.Errorf("where tags do not matter there are %s", img.Annotations[annotation.TagVerdicts])
	}
}

// An image is judged for a bounded number of its tags.
func TestTagsAreBounded(t *testing.T) {
	t.Parallel()
	ours := signaturestest.NewKey(t, signaturestest.P256)
	set := signaturestest.SetFrom(t, signaturestest.Document("demo", `["registry.example.com"]`, signaturestest.TrustKey(ours, nil), ""))
	sig := stored(t, signatures.TypeSimpleSigning, ours.SimpleSigning(t, digest, repository+":signed"))
	img := object(sig)
	var known []string
	for i := range 200 {
		known = append(known, fmt.Sprintf("%s:v%03d", repository, i))
	}
	knownAs(t, img, known, map[string]annotation.Repository{repository: brought(sig)})
	signatures.VerifyImage(img, set, now, nil)
	if held := annotation.JudgedTags(img.Annotations); len(held) != 64 || len(img.Annotations[annotation.TagVerdicts]) > 32<<10 {
		t.Errorf("%d tags are judged in %d bytes", len(held), len(img.Annotations[annotation.TagVerdicts]))
	}
}
