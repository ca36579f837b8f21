package signatures_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// inNamespace makes an ImagePolicy that trusts a key for the scopes.
func inNamespace(t testing.TB, namespace, name, scopes string, key *signaturestest.Key) *policy.Policy {
	t.Helper()
	return parsedPolicy(t, namespace, name, signaturestest.Document(name, scopes, signaturestest.TrustKey(key, nil), matchRepository))
}

// exactIn makes an ImagePolicy that trusts a key for the scopes, if the signature has the tag.
func exactIn(t testing.TB, namespace, scopes string, key *signaturestest.Key) *policy.Policy {
	t.Helper()
	return parsedPolicy(t, namespace, "own", signaturestest.Document("own", scopes, signaturestest.TrustKey(key, nil), ""))
}

func parsedPolicy(t testing.TB, namespace, name, document string) *policy.Policy {
	t.Helper()
	var d policy.Document
	if err := yaml.Unmarshal([]byte(strings.TrimPrefix(document, "---\n")), &d); err != nil {
		t.Fatal(err)
	}
	p, err := policy.New(namespace, name, &d.Spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func setOf(t testing.TB, policies ...*policy.Policy) *policy.Set {
	t.Helper()
	set, err := policy.NewSet(policies)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// For the pods of a namespace, the namespace's own policies judge an image. No other verdict
// changes: not the repository's, the Image's or a signature's.
func TestPoliciesOfNamespaces(t *testing.T) {
	t.Parallel()
	shop, bank := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	set := setOf(t, inNamespace(t, "shop", "own", `["registry.example.com"]`, shop), inNamespace(t, "bank", "own", `["registry.example.com"]`, bank))
	sig := stored(t, signatures.TypeSimpleSigning, shop.SimpleSigning(t, digest, repository))
	img := object(sig)
	changed, covered := signatures.VerifyImage(img, set, now, nil)
	if !changed || covered {
		t.Errorf("changed %v, covered %v", changed, covered)
	}
	in := annotation.JudgedInNamespaces(img.Annotations)
	if v := in[repository+"#shop"]; v.Verified != verdicts.VerifiedTrue || v.Policy != "shop/own" || !slices.Equal(v.Signers, []string{"shop/own"}) {
		t.Errorf("for the pods of shop: %+v", v)
	}
	if v := in[repository+"#bank"]; v.Verified != verdicts.VerifiedFalse || !strings.Contains(v.Message, `policy "bank/own"`) {
		t.Errorf("for the pods of bank: %+v", v)
	}
	if len(in) != 2 || len(annotation.Judged(img.Annotations)) != 0 {
		t.Errorf("verdicts are %v", img.Annotations)
	}
	if c := condition(img.Signatures[0], verdicts.Trusted); c.Reason != "NoMatchingPolicy" || img.Signatures[0].IssuedTo != nil {
		t.Errorf("the signature says %+v, issued to %v", c, img.Signatures[0].IssuedTo)
	}
	if v, _, _ := signatures.Summary(img); v != verdicts.NoPolicy {
		t.Errorf("the image is %s", v)
	}
	if signatures.Stale(img, set, now) {
		t.Error("what was just judged is stale")
	}
	if less := setOf(t, inNamespace(t, "shop", "own", `["registry.example.com"]`, shop)); !signatures.Stale(img, less, now) {
		t.Error("a policy has gone, and nothing is stale")
	}
	signatures.VerifyImage(img, nil, now, nil)
	if _, ok := img.Annotations[annotation.NamespaceVerdicts]; ok || img.Annotations[annotation.NamespacePolicy] != "" {
		t.Errorf("left of policies that are gone: %v", img.Annotations)
	}
	none := object()
	if !signatures.Stale(none, set, now) {
		t.Error("an image without a signature is never judged")
	}
	signatures.VerifyImage(none, set, now, nil)
	if v := annotation.JudgedInNamespaces(none.Annotations)[repository+"#shop"]; v.Verified != verdicts.Unsigned {
		t.Errorf("without a signature: %+v", v)
	}
	if signatures.Stale(none, set, now) {
		t.Error("an image without a signature is judged again and again")
	}
}

// Among a namespace's policies, the one with the most specific scope decides. A scope can be a tag.
func TestScopesOfNamespaces(t *testing.T) {
	t.Parallel()
	one, two, three := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	set := setOf(t, inNamespace(t, "shop", "wide", `["*"]`, one), inNamespace(t, "shop", "narrow", "["+repository+"]", two), inNamespace(t, "shop", "tag", "["+repository+":v1]", three))
	img := object(stored(t, signatures.TypeSimpleSigning, two.SimpleSigning(t, digest, repository)))
	img.Annotations = map[string]string{annotation.References: fmt.Sprintf(`[%q,%q]`, repository+":v1", repository+":v2")}
	signatures.VerifyImage(img, set, now, nil)
	got := map[string]string{}
	for key, v := range annotation.JudgedInNamespaces(img.Annotations) {
		got[key] = v.Verified + " by " + v.Policy
	}
	if want := map[string]string{repository + "#shop": "True by shop/narrow", repository + ":v1#shop": "False by shop/tag"}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A user who may write policies in one namespace only creates one for all images, with the user's
// own key. Images that a policy of the cluster covers stay as they are, and so do the conditions
// that an administrator has set on a signature. The work stays within its bounds.
func TestAttackPolicyOfANamespace(t *testing.T) {
	t.Parallel()
	key, his := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	cluster := signaturestest.Set(t, signaturestest.TrustKey(key, nil), matchRepository).Policies()
	sig := stored(t, signatures.TypeSimpleSigning, his.SimpleSigning(t, digest, repository))
	for _, scope := range []string{"*", "registry.example.com", repository, repository + "@" + digest} {
		img := object(sig)
		signatures.VerifyImage(img, setOf(t, append(cluster, inNamespace(t, "shop", "his", fmt.Sprintf("[%q]", scope), his))...), now, nil)
		if v, _, _ := signatures.Summary(img); v != verdicts.VerifiedFalse || len(annotation.JudgedInNamespaces(img.Annotations)) != 0 {
			t.Errorf("scope %s: %s, %v", scope, v, img.Annotations)
		}
	}

	said := object(sig)
	said.Signatures[0].Conditions = []imagev1.SignatureCondition{{Type: verdicts.Trusted, Status: corev1.ConditionTrue, Reason: "manual verification", LastProbeTime: metav1.NewTime(now)}}
	set := setOf(t, inNamespace(t, "shop", "his", `["*"]`, key))
	for range 2 {
		signatures.VerifyImage(said, set, now, nil)
		if c := condition(said.Signatures[0], verdicts.Trusted); c.Reason != "manual verification" {
			t.Errorf("the admin's word became %+v", c)
		}
	}

	var many []*policy.Policy
	for i := range 100 {
		many = append(many, inNamespace(t, fmt.Sprintf("n%d", i), "his", `["*"]`, his))
	}
	img := object(sig)
	signatures.VerifyImage(img, setOf(t, many...), now, nil)
	if n := len(annotation.JudgedInNamespaces(img.Annotations)); n != 33 {
		// one of the entries counts the rest
		t.Errorf("judged for the pods of %d namespaces", n)
	}
}

// An index is trusted in a namespace. Its platforms are verified through it there, and nowhere
// else.
func TestPlatformsInNamespaces(t *testing.T) {
	t.Parallel()
	key := signaturestest.NewKey(t, signaturestest.P256)
	set := setOf(t, inNamespace(t, "shop", "own", "["+repository+"]", key))
	index := object(stored(t, signatures.TypeSimpleSigning, key.SimpleSigning(t, digest, repository)))
	signatures.VerifyImage(index, set, now, nil)
	platform := object()
	var asked []string
	signatures.VerifyImage(platform, set, now, func(key string) ([]*imagev1.Image, error) {
		asked = append(asked, key)
		return []*imagev1.Image{index}, nil
	})
	if v := annotation.JudgedInNamespaces(platform.Annotations)[repository+"#shop"]; v.Verified != verdicts.ByIndex || !slices.Equal(v.Signers, []string{"shop/own"}) {
		t.Errorf("%+v", v)
	}
	if !slices.Equal(asked, []string{repository + "#shop"}) {
		t.Errorf("indexes of %v were asked for", asked)
	}
}

// An unreadable index does not count as missing: the verdict is Unknown, not Unsigned.
func TestUnreadableIndexDoesNotMakeUnsigned(t *testing.T) {
	t.Parallel()
	set := setOf(t, inNamespace(t, "shop", "own", "["+repository+"]", signaturestest.NewKey(t, signaturestest.P256)))
	platform := object()
	unreadable := func(string) ([]*imagev1.Image, error) { return nil, errors.New("the object is damaged") }
	signatures.VerifyImage(platform, set, now, unreadable)
	v := annotation.JudgedInNamespaces(platform.Annotations)[repository+"#shop"]
	if v.Verified != verdicts.VerifiedUnknown || v.Reason != string(signatures.ReasonIndexUnreadable) || !strings.Contains(v.Message, "the object is damaged") {
		t.Errorf("%+v", v)
	}
	if signatures.Stale(platform, set, now) || !signatures.Stale(platform, set, now.Add(2*time.Hour)) {
		t.Error("it is not judged again after an hour")
	}
}

func TestClusterPoliciesOverride(t *testing.T) {
	t.Parallel()
	set := signaturestest.SetFrom(t, signaturestest.Document("a", `["registry.example.com/team", "*.corp.example", "quay.io/x/y:1"]`, signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil), ""))
	for scope, want := range map[string]bool{
		"registry.example.com/team": true, "registry.example.com/team/app": true, "registry.example.com/team/app:v1": true, "registry.example.com/team/app@" + digest: true,
		"registry.example.com/team:v1": true, "registry.example.com": false, "registry.example.com/teams": false, "registry.example.com:5000/team": false,
		"*.corp.example": true, "a.corp.example": true, "a.corp.example:5000/x": true, "*.a.corp.example": true, "corp.example": false, "*.example": false,
		"quay.io/x/y:1": true, "quay.io/x/y": false, "quay.io/x/y:2": false, "*": false, "localhost": false, "localhost:5000/a": false,
	} {
		if got := set.Overrides(scope); got != want {
			t.Errorf("%s: %v", scope, got)
		}
	}
	all := signaturestest.SetFrom(t, signaturestest.Document("a", `["*"]`, signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil), ""))
	for _, scope := range []string{"*", "*.example", "localhost", "quay.io/x/y:1"} {
		if !all.Overrides(scope) {
			t.Errorf("%s is not held by the scope of everything", scope)
		}
	}
}

// bring adds signatures from a repository.
func bring(img *imagev1.Image, signatures ...imagev1.ImageSignature) {
	r := annotation.Repository{}
	for _, s := range signatures {
		_, part, _ := strings.Cut(s.Name, "@")
		r.Signatures = append(r.Signatures, part)
		img.Signatures = append(img.Signatures, s)
	}
	if img.Annotations == nil {
		img.Annotations = map[string]string{}
	}
	annotation.SetFound(img.Annotations, map[string]annotation.Repository{repository: r})
}

// All signatures are also judged by the policies of namespaces, before surplus ones are left out.
// Neither junk nor signatures for policies of other namespaces displace a signature that a
// namespace trusts, in any order.
func TestAttackSurplusSignaturesOfNamespaces(t *testing.T) {
	t.Parallel()
	shop, his, junk := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	large := shop.SimpleSigning(t, digest, repository)
	large.Annotations["note"] = strings.Repeat("x", 10_000) // smaller ones are kept before it
	all := []imagev1.ImageSignature{stored(t, signatures.TypeSimpleSigning, large)}
	for range 12 {
		all = append(all, stored(t, signatures.TypeSimpleSigning, his.SimpleSigning(t, digest, repository)), stored(t, signatures.TypeSimpleSigning, junk.SimpleSigning(t, digest, repository)))
	}
	set := setOf(t, inNamespace(t, "shop", "own", `["registry.example.com"]`, shop), inNamespace(t, "bank", "his", `["registry.example.com"]`, his))
	for _, order := range []string{"first", "last"} {
		img := object()
		bring(img, all...)
		signatures.VerifyImage(img, set, now, nil)
		in, r := annotation.JudgedInNamespaces(img.Annotations), annotation.Found(img.Annotations)[repository]
		if in[repository+"#shop"].Verified != verdicts.VerifiedTrue || in[repository+"#bank"].Verified != verdicts.VerifiedTrue {
			t.Errorf("%s: verdicts are %+v", order, in)
		}
		if len(img.Signatures) > signatures.MaxStored+1 || len(img.Signatures)+len(r.LeftOut) != len(all) {
			t.Errorf("%s: %d are held, %d left out", order, len(img.Signatures), len(r.LeftOut))
		}
		slices.Reverse(all)
	}
}

// If signatures were left out under other policies, it is unknown whether they meet today's. So the
// verdict is not False without them: neither for a namespace whose policy is newer, nor for the
// cluster.
func TestSurplusSignaturesUnderOtherPolicies(t *testing.T) {
	t.Parallel()
	early, late := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	for name, of := range map[string]func(key *signaturestest.Key) *policy.Set{
		"namespace": func(key *signaturestest.Key) *policy.Set {
			return setOf(t, inNamespace(t, "shop", "own", `["registry.example.com"]`, key))
		},
		"cluster": func(key *signaturestest.Key) *policy.Set {
			return signaturestest.Set(t, signaturestest.TrustKey(key, nil), matchRepository)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			verdict := func(img *imagev1.Image) annotation.Verdict {
				all := annotation.JudgedAnywhere(img.Annotations)
				if v, ok := all[repository+"#shop"]; ok {
					return v
				}
				return all[repository]
			}
			var all []imagev1.ImageSignature
			for range signatures.MaxStored + 3 {
				all = append(all, stored(t, signatures.TypeSimpleSigning, early.SimpleSigning(t, digest, repository)))
			}
			img := object()
			bring(img, append(all, stored(t, signatures.TypeSimpleSigning, late.SimpleSigning(t, digest, repository)))...)
			signatures.VerifyImage(img, of(early), now, nil)
			if v := verdict(img); v.Verified != verdicts.VerifiedTrue || len(annotation.Found(img.Annotations)[repository].LeftOut) != 4 {
				t.Fatalf("%+v, %v", v, img.Annotations)
			}
			for range 2 { // judging again does not make it known
				signatures.VerifyImage(img, of(late), now, nil)
				if v := verdict(img); v.Verified != verdicts.VerifiedUnknown || v.Reason != string(signatures.ReasonSignaturesLeftOut) {
					t.Errorf("by the later policy: %+v", v)
				}
			}
			// An import offers them again.
			again := object()
			bring(again, append(all, stored(t, signatures.TypeSimpleSigning, late.SimpleSigning(t, digest, repository)))...)
			signatures.VerifyImage(again, of(late), now, nil)
			if v := verdict(again); v.Verified != verdicts.VerifiedTrue {
				t.Errorf("searched again: %+v", v)
			}
		})
	}
}

// The largest number of policies that may share a scope can all be met, each by a key of its own.
func TestAsManySignersAsPoliciesShareAScope(t *testing.T) {
	t.Parallel()
	var policies []*policy.Policy
	img, junk := object(), signaturestest.NewKey(t, signaturestest.P256)
	var all []imagev1.ImageSignature
	for i := range 16 {
		key := signaturestest.NewKey(t, signaturestest.P256)
		p := signaturestest.Document(fmt.Sprintf("p%d", i), `["registry.example.com"]`, signaturestest.TrustKey(key, nil), matchRepository)
		policies = append(policies, signaturestest.SetFrom(t, p).Policies()...)
		all = append(all, stored(t, signatures.TypeSimpleSigning, junk.SimpleSigning(t, digest, repository)), stored(t, signatures.TypeSimpleSigning, key.SimpleSigning(t, digest, repository)))
	}
	bring(img, all...)
	signatures.VerifyImage(img, setOf(t, policies...), now, nil)
	if v := annotation.Judged(img.Annotations)[repository]; v.Verified != verdicts.VerifiedTrue {
		t.Errorf("%d signatures are held: %+v", len(img.Signatures), v)
	}
}

// When an image leaves a repository, the signatures that only this repository had are removed.
func TestSignaturesLeaveWithTheirRepository(t *testing.T) {
	t.Parallel()
	key, other := signaturestest.NewKey(t, signaturestest.P256), "registry.example.com/other/app"
	set := signaturestest.Set(t, signaturestest.TrustKey(key, nil), digestOnly)
	both, theirs := stored(t, signatures.TypeSimpleSigning, key.SimpleSigning(t, digest, repository)), stored(t, signatures.TypeSimpleSigning, key.SimpleSigning(t, digest, other))
	img := object(both, theirs)
	part := func(s imagev1.ImageSignature) string { _, p, _ := strings.Cut(s.Name, "@"); return p }
	img.Annotations = map[string]string{annotation.References: fmt.Sprintf(`[%q,%q]`, repository+":v1", other+":v1")}
	annotation.SetFound(img.Annotations, map[string]annotation.Repository{
		repository: {Signatures: []string{part(both)}}, other: {Signatures: []string{part(both), part(theirs)}},
	})
	signatures.VerifyImage(img, set, now, nil)
	if judged := annotation.Judged(img.Annotations); len(img.Signatures) != 2 || judged[other].Verified != verdicts.VerifiedTrue || judged[repository].Verified != verdicts.VerifiedTrue {
		t.Fatalf("%d signatures, %v", len(img.Signatures), img.Annotations)
	}
	img.Annotations[annotation.Gone] = fmt.Sprintf(`{%q:"2026-01-01T00:00:00Z"}`, other+"@"+digest)
	img.Annotations[annotation.References] = fmt.Sprintf(`[%q]`, repository+":v1")
	signatures.VerifyImage(img, set, now, nil)
	if judged := annotation.Judged(img.Annotations); len(img.Signatures) != 1 || len(judged) != 1 || judged[repository].Verified != verdicts.VerifiedTrue {
		t.Errorf("%d signatures, %v", len(img.Signatures), img.Annotations)
	}
}
