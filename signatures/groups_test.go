package signatures_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// grouped puts a document into a group of alternatives.
func grouped(group, document string) string {
	return strings.Replace(document, "spec:\n", "spec:\n  alternatives: "+group+"\n", 1)
}

// groupWorld is policies for one scope, and who signed an image and an index that lists it.
type groupWorld struct {
	rules            []groupRule
	signed, attested map[int]bool // the image, by the signer
	indexed          map[int]bool // the index has a signature by the signer
	indexAttested    map[int]bool
	unread           bool // the image's repository could not be read
}

// groupRule is a policy.
type groupRule struct {
	group           string // "" for none
	signer          int
	attests         bool // it demands an attestation
	own             bool // platforms must be signed themselves
	excepted        bool
	name, namespace string
}

const groupSigners = 3

// newGroupWorld makes a world from a seed.
func newGroupWorld(r *rand.Rand) groupWorld {
	some := func() map[int]bool {
		all := map[int]bool{}
		for signer := range groupSigners {
			if r.IntN(3) == 0 {
				all[signer] = true
			}
		}
		return all
	}
	w := groupWorld{signed: some(), attested: some(), indexed: some(), indexAttested: some(), unread: r.IntN(8) == 0}
	namespace := ""
	if r.IntN(4) == 0 {
		namespace = "shop"
	}
	for i := range 1 + r.IntN(4) {
		w.rules = append(w.rules, groupRule{
			group: []string{"", "a", "a", "b"}[r.IntN(4)], signer: r.IntN(groupSigners), attests: r.IntN(3) == 0, own: r.IntN(4) == 0, excepted: r.IntN(6) == 0,
			name: fmt.Sprintf("p%d", i), namespace: namespace,
		})
	}
	return w
}

// right computes the correct answers about the image, by rules that share no code with the server:
// the verdict, whether the image is attested, and the policies that are unmet and spared.
func (w groupWorld) right() (verified string, unmet, spared []string) {
	groups := map[string][]groupRule{}
	for _, r := range w.rules {
		group := "group " + r.group
		if r.group == "" {
			group = "alone " + r.name
		}
		groups[group] = append(groups[group], r)
	}
	met := func(by func(groupRule) bool) bool {
		for _, rules := range groups {
			if !slices.ContainsFunc(rules, by) {
				return false
			}
		}
		return true
	}
	itself := func(r groupRule) bool {
		if r.attests {
			return w.attested[r.signer]
		}
		return w.signed[r.signer]
	}
	index := func(r groupRule) bool {
		if r.attests {
			return w.indexAttested[r.signer]
		}
		return w.indexed[r.signer]
	}
	indexIsVerified := met(index)
	either := func(r groupRule) bool {
		return itself(r) || indexIsVerified && !r.attests && !r.own && index(r)
	}
	by, verified := itself, verdicts.VerifiedTrue
	switch {
	case met(itself):
	case met(either):
		by, verified = either, verdicts.ByIndex
	default:
		verified = ""
	}
	excepted := true
	for _, rules := range groups {
		if !slices.ContainsFunc(rules, by) {
			state := verdicts.Unsigned
			for _, r := range rules {
				if r.attests || len(w.signed) > 0 {
					state = verdicts.VerifiedFalse
				}
			}
			if verified != verdicts.VerifiedFalse {
				verified = state
			}
			if slices.ContainsFunc(rules, func(r groupRule) bool { return r.excepted }) {
				continue
			}
			excepted = false
			for _, r := range rules {
				unmet = append(unmet, r.id())
			}
			continue
		}
		for _, r := range rules {
			if !by(r) {
				spared = append(spared, r.id())
			}
		}
	}
	if !verdicts.IsVerified(verified) {
		if w.unread {
			verified = verdicts.VerifiedUnknown
		}
		if excepted {
			verified = verdicts.Excepted
		}
	}
	slices.Sort(unmet)
	slices.Sort(spared)
	return verified, unmet, spared
}

func (r groupRule) id() string { return strings.TrimPrefix(r.namespace+"/"+r.name, "/") }

// groupSigning has the signatures and attestations of the image and of the index.
type groupSigning struct {
	keys                                            []*signaturestest.Key
	signed, attested, indexSigned, indexAttestation []imagev1.ImageSignature // by the signer
}

func newGroupSigning(t testing.TB) *groupSigning {
	t.Helper()
	g := &groupSigning{}
	of := func(digest, typ string, content any) imagev1.ImageSignature {
		s := stored(t, typ, content)
		s.Name = signatures.Name(digest, s.Content)
		return s
	}
	for range groupSigners {
		key := signaturestest.NewKey(t, signaturestest.P256)
		g.keys = append(g.keys, key)
		g.signed = append(g.signed, of(digest, signatures.TypeSimpleSigning, key.SimpleSigning(t, digest, repository)))
		g.attested = append(g.attested, of(digest, signatures.TypeAttestation, key.Bundle(t, statement(digest, slsa1, `{"builder":"here"}`))))
		g.indexSigned = append(g.indexSigned, of(otherImage, signatures.TypeSimpleSigning, key.SimpleSigning(t, otherImage, repository)))
		g.indexAttestation = append(g.indexAttestation, of(otherImage, signatures.TypeAttestation, key.Bundle(t, statement(otherImage, slsa1, `{"builder":"here"}`))))
	}
	return g
}

func (g *groupSigning) set(t testing.TB, rules []groupRule) *policy.Set {
	t.Helper()
	var all []*policy.Policy
	for _, r := range rules {
		document := signaturestest.Document(r.name, `["registry.example.com"]`, signaturestest.TrustKey(g.keys[r.signer], nil), matchRepository)
		if r.attests {
			document = demandingDocument(r.name, `["registry.example.com"]`, signaturestest.TrustKey(g.keys[r.signer], nil), anySLSA)
		}
		if r.own {
			document += "    platforms: Signed\n"
		}
		if r.excepted {
			document += fmt.Sprintf("  exceptions:\n  - {images: [%q], until: %q, by: ann@example.com, reason: the build is mended tomorrow}\n", digest, now.Add(time.Hour).Format(time.RFC3339))
		}
		if r.group != "" {
			document = grouped(r.group, document)
		}
		all = append(all, parsedPolicy(t, r.namespace, r.name, document))
	}
	return setOf(t, all...)
}

// judge returns the server's verdict on the image of a world: the stored verdict, and those for the
// digest and for a tag, before and after it is stored.
func (g *groupSigning) judge(t testing.TB, w groupWorld) (annotation.Verdict, *imagev1.Image) {
	t.Helper()
	set, namespace := g.set(t, w.rules), w.rules[0].namespace
	of := func(by map[int]bool, all []imagev1.ImageSignature) (these []imagev1.ImageSignature) {
		for _, signer := range slices.Sorted(maps.Keys(by)) {
			these = append(these, *all[signer].DeepCopy())
		}
		return these
	}
	key := annotation.InNamespace(repository, namespace)
	index := object(append(of(w.indexed, g.indexSigned), of(w.indexAttested, g.indexAttestation)...)...)
	index.Name, index.DockerImageReference = otherImage, repository+"@"+otherImage
	signatures.VerifyImage(index, set, now, nil)
	vouching := func(at string) ([]*imagev1.Image, error) {
		if at == key && signatures.Vouches(index, key) {
			return []*imagev1.Image{index}, nil
		}
		return nil, nil
	}
	img := object(append(of(w.signed, g.signed), of(w.attested, g.attested)...)...)
	if w.unread {
		found := annotation.Repository{Unread: "503"}
		for _, s := range img.Signatures {
			found.Signatures = append(found.Signatures, sigID(s.Name))
		}
		img.Annotations = map[string]string{}
		annotation.SetFound(img.Annotations, map[string]annotation.Repository{repository: found})
	}
	var last annotation.Verdict
	for i, by := range []string{"@" + digest, ":v1", "@" + digest, ":v1"} {
		if i == 2 {
			signatures.VerifyImage(img, set, now, vouching)
			if signatures.Stale(img, set, now) && annotation.JudgedAnywhere(img.Annotations)[key].Verified != verdicts.ByIndex {
				t.Errorf("%+v: what was just judged is stale", w)
			}
		}
		v := signatures.Ask(img, parsed(t, repository+by), namespace, set, now, vouching)
		if i > 0 && (v.Verified != last.Verified || v.Reason != last.Reason || v.Attested != last.Attested || !slices.Equal(v.Unmet, last.Unmet) || !slices.Equal(v.Spared, last.Spared)) {
			t.Errorf("%+v: asked for %s it is %+v, and before it was %+v", w, by, v, last)
		}
		last = v
	}
	if held := annotation.JudgedAnywhere(img.Annotations)[key]; held.Verified != last.Verified || !slices.Equal(held.Spared, last.Spared) {
		t.Errorf("%+v: it holds %+v, asked it is %+v", w, held, last)
	}
	for _, c := range signatures.Covering(img, set) {
		not := last.Verified == verdicts.VerifiedFalse || last.Verified == verdicts.Unsigned
		if unmet := not && (len(last.Unmet) == 0 || slices.Contains(last.Unmet, c.ID())); c.Unmet != unmet || c.Spared != slices.Contains(last.Spared, c.ID()) {
			t.Errorf("%+v: counted for %s: %+v", w, c.ID(), c)
		}
	}
	return last, img
}

func admits(verified string) bool {
	return verdicts.IsVerified(verified) || verified == verdicts.Excepted
}

// In random worlds of policies with and without groups, the server's answers equal those of an
// independent model: with an image's own signatures and attestations, with an index, with
// exceptions, and where not everything could be read. Adding an alternative to a group never makes
// the group stricter. A policy that leaves its group never makes the result looser. A group of one
// policy changes nothing.
func TestAlternativesInWorlds(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r, g := rand.New(rand.NewPCG(seed, 0)), newGroupSigning(t)
	seen := map[string]int{}
	for range 1500 {
		w := newGroupWorld(r)
		got, _ := g.judge(t, w)
		verified, unmet, spared := w.right()
		gotUnmet, gotSpared := slices.Sorted(slices.Values(got.Unmet)), slices.Sorted(slices.Values(got.Spared))
		if all := len(unmet) == len(w.rules); all {
			unmet = nil // no policy is named if none is met
		}
		if got.Verified != verified || !slices.Equal(gotSpared, spared) || !admits(verified) && !slices.Equal(gotUnmet, unmet) {
			t.Fatalf("seed %d: %+v is %+v, want %s, not met %v, spared %v", seed, w, got, verified, unmet, spared)
		}
		kind := got.Verified
		if len(spared) > 0 {
			kind += " spared"
		}
		seen[kind]++

		alone := w
		alone.rules = slices.Clone(w.rules)
		at := r.IntN(len(alone.rules))
		others := slices.ContainsFunc(w.rules, func(o groupRule) bool { return o.name != w.rules[at].name && o.group == w.rules[at].group })
		alone.rules[at].group = "" // it leaves its group
		left, _ := g.judge(t, alone)
		if admits(left.Verified) && !admits(got.Verified) || (!others || w.rules[at].group == "") && left.Verified != got.Verified {
			t.Fatalf("seed %d: %+v is %s, and without the group of %s it is %s", seed, w, got.Verified, w.rules[at].name, left.Verified)
		}
		if w.rules[at].group == "" {
			continue
		}
		more := w
		more.rules = append(slices.Clone(w.rules), groupRule{group: w.rules[at].group, name: "another", namespace: w.rules[at].namespace, signer: r.IntN(groupSigners), attests: r.IntN(2) == 0, own: r.IntN(2) == 0})
		if another, _ := g.judge(t, more); admits(got.Verified) && !admits(another.Verified) {
			t.Fatalf("seed %d: %+v is %s, and with another alternative it is %s", seed, w, got.Verified, another.Verified)
		}
	}
	for _, kind := range []string{"True", "True spared", "ByIndex", "ByIndex spared", "Excepted", "False", "False spared", "Unsigned", "Unknown"} {
		if seen[kind] == 0 {
			t.Errorf("no world was %s: %v", kind, seen)
		}
	}
	t.Logf("seed %d: %v", seed, seen)
}

// A group is of one kind and namespace, and for a reference it has the policies that cover it.
func TestAttackAlternativesElsewhere(t *testing.T) {
	t.Parallel()
	ours, theirs := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	of := func(namespace, name, scope string, key *signaturestest.Key) *policy.Policy {
		return parsedPolicy(t, namespace, name, grouped("release", signaturestest.Document(name, "["+scope+"]", signaturestest.TrustKey(key, nil), matchRepository)))
	}
	const wide = "registry.example.com"
	byTheirs := stored(t, signatures.TypeSimpleSigning, theirs.SimpleSigning(t, digest, repository))
	unknown := stored(t, "SomethingNew", []byte("x"))
	for _, tc := range []struct {
		name, asked, namespace string
		policies               []*policy.Policy
		there                  []imagev1.ImageSignature
		verified               string
		spared                 []string
	}{
		{name: "an alternative", policies: []*policy.Policy{of("", "ours", wide, ours), of("", "theirs", wide, theirs)}, verified: "True", spared: []string{"ours"}},
		{name: "a namespace's policy does not join the cluster's group", namespace: "shop", policies: []*policy.Policy{of("", "ours", wide, ours), of("shop", "theirs", wide, theirs)}, verified: "False"},
		{name: "another namespace's policy does not join the group", namespace: "shop", policies: []*policy.Policy{of("shop", "ours", wide, ours), of("bank", "theirs", wide, theirs)}, verified: "False"},
		{name: "a namespace has groups of its own", namespace: "shop", policies: []*policy.Policy{of("shop", "ours", wide, ours), of("shop", "theirs", wide, theirs)}, verified: "True", spared: []string{"shop/ours"}},
		{name: "an alternative for a wider scope does not cover", policies: []*policy.Policy{of("", "ours", repository, ours), of("", "theirs", wide, theirs)}, verified: "False"},
		{name: "an alternative for another repository does not cover", policies: []*policy.Policy{of("", "ours", repository, ours), of("", "theirs", wide+"/other", theirs)}, verified: "False"},
		{name: "an alternative for a tag covers the tag alone", asked: ":v1", policies: []*policy.Policy{of("", "ours", repository, ours), of("", "theirs", repository+":v1", theirs)}, verified: "True"},
		{name: "by the digest it does not cover", policies: []*policy.Policy{of("", "ours", repository, ours), of("", "theirs", repository+":v1", theirs)}, verified: "False"},
		{name: "what cannot be used is no alternative", policies: []*policy.Policy{of("", "theirs", wide, theirs), policy.DenyAll("", "broken", &policy.DocumentSpec{Scopes: []string{wide}, Alternatives: "release"})}, verified: "False"},
		{name: "a signature that nobody can judge", policies: []*policy.Policy{of("", "ours", wide, ours), of("", "others", wide, ours)}, there: []imagev1.ImageSignature{unknown}, verified: "Unknown"},
		{name: "and one that is false", policies: []*policy.Policy{of("", "ours", wide, ours), of("", "others", wide, ours)}, there: []imagev1.ImageSignature{unknown, byTheirs}, verified: "False"},
	} {
		if tc.there == nil {
			tc.there = []imagev1.ImageSignature{byTheirs}
		}
		set, img := setOf(t, tc.policies...), object(tc.there...)
		asked := parsed(t, repository+cmpOr(tc.asked, "@"+digest))
		for _, state := range []string{"not judged", "judged"} {
			v := signatures.Ask(img, asked, tc.namespace, set, now, nil)
			if v.Verified != tc.verified || !slices.Equal(v.Spared, tc.spared) {
				t.Errorf("%s, %s: %+v, want %s, spared %v", tc.name, state, v, tc.verified, tc.spared)
			}
			if v.Verified == verdicts.VerifiedUnknown && !signatures.Forced(v) {
				t.Errorf("%s: whoever may push lets a pod in: %+v", tc.name, v)
			}
			signatures.VerifyImage(img, set, now, nil)
		}
	}
}

func cmpOr(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

// If no alternative is met, the verdict names all of them with reasons. Those whose signer is known
// come first.
func TestAlternativesThatFailAreNamed(t *testing.T) {
	t.Parallel()
	key, other := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	d := signaturestest.NewDeployment(t)
	set := signaturestest.SetFrom(t, grouped("release", signaturestest.Document("key", `["registry.example.com"]`, signaturestest.TrustKey(key, nil), digestOnly))+
		grouped("release", signaturestest.Document("keyless", `["registry.example.com"]`, d.TrustFulcio(t, "signedEmail: somebody@else.example", d.Root, d.Intermediate), digestOnly)))
	leaf, leafKey := d.Identity(t, mail, nil)
	sign := signaturestest.Statement(digest, cosignSign)
	keyless := stored(t, signatures.TypeBundle, d.KeylessBundle(t, leaf, leafKey, sign, time.Now()))
	img := object(stored(t, signatures.TypeBundle, other.Bundle(t, sign)), keyless)
	signatures.VerifyImage(img, set, time.Now(), nil)
	v := annotation.Judged(img.Annotations)[repository]
	wantVerdict(t, v, verdicts.VerifiedFalse, "SubjectMismatch", `no alternative of "release" is met (key: NoMatchingKey, keyless: SubjectMismatch): policy "keyless" for `, mail)
	if len(v.Unmet) != 0 || len(v.Spared) != 0 {
		t.Errorf("%+v", v)
	}
	v, _ = asked(t, set)
	wantVerdict(t, v, verdicts.Unsigned, "")

	// signed by a key of the policy: the identity's policy is spared, and the signature names the
	// signer
	img = object(stored(t, signatures.TypeBundle, key.Bundle(t, sign)), keyless)
	signatures.VerifyImage(img, set, time.Now(), nil)
	v = annotation.Judged(img.Annotations)[repository]
	if v.Verified != verdicts.VerifiedTrue || !slices.Equal(v.Spared, []string{"keyless"}) || !slices.Equal(v.Signers, []string{"key"}) {
		t.Errorf("%+v", v)
	}
	ids, err := policy.ParseSigners(string(key.PEM))
	if err != nil {
		t.Fatal(err)
	}
	revoked, err := set.Revoke(ids)
	if err != nil {
		t.Fatal(err)
	}
	if v, _ := asked(t, revoked, img.Signatures...); v.Verified != verdicts.VerifiedFalse {
		t.Errorf("without the key it is %+v", v)
	}
}

// The limit on the age of a tag's check applies to the alternatives that vouch. It is exceeded only
// if all of these exceed it.
func TestTagAgeOfAlternatives(t *testing.T) {
	t.Parallel()
	keys := map[string]*signaturestest.Key{"a": signaturestest.NewKey(t, signaturestest.P256), "b": signaturestest.NewKey(t, signaturestest.P256)}
	of := func(name, group, age, exceptions string) *policy.Policy {
		document := signaturestest.Document(name, `["registry.example.com"]`, signaturestest.TrustKey(keys[name], nil), matchRepository) + exceptions
		if group != "" {
			document = grouped(group, document)
		}
		p := parsedPolicy(t, "", name, document)
		p.Admission.MaxTagAge = age
		return p
	}
	excepting := fmt.Sprintf("  exceptions:\n  - {images: [%q], until: %q, by: ann@example.com, reason: the build is mended tomorrow}\n", digest, now.Add(time.Hour).Format(time.RFC3339))
	for name, tc := range map[string]struct {
		policies []*policy.Policy
		signed   string // the signer
		stale    string // the policies that are too old
	}{
		"both must be met":                          {[]*policy.Policy{of("a", "", "10s", ""), of("b", "", "", "")}, "ab", "a"},
		"one vouches, and it is too old":            {[]*policy.Policy{of("a", "r", "10s", ""), of("b", "r", "", "")}, "a", "a"},
		"one vouches, and the other is too old":     {[]*policy.Policy{of("a", "r", "10s", ""), of("b", "r", "", "")}, "b", ""},
		"both vouch, and one is too old":            {[]*policy.Policy{of("a", "r", "10s", ""), of("b", "r", "", "")}, "ab", ""},
		"both vouch, and both are too old":          {[]*policy.Policy{of("a", "r", "10s", ""), of("b", "r", "20s", "")}, "ab", "a b"},
		"none vouches":                              {[]*policy.Policy{of("a", "r", "10s", ""), of("b", "r", "", "")}, "", "a"},
		"an exception vouches":                      {[]*policy.Policy{of("a", "r", "10s", ""), of("b", "r", "", excepting)}, "", ""},
		"an exception vouches beside a signature":   {[]*policy.Policy{of("a", "r", "10s", ""), of("b", "r", "", excepting)}, "a", ""},
		"what has the exception is too old":         {[]*policy.Policy{of("a", "r", "", ""), of("b", "r", "10s", excepting)}, "", "b"},
		"a policy outside the group is too old":     {[]*policy.Policy{of("a", "", "10s", ""), of("b", "r", "", "")}, "ab", "a"},
		"neither has a bound, as there is no group": {[]*policy.Policy{of("a", "", "", ""), of("b", "", "", "")}, "ab", ""},
	} {
		set, img, asked := setOf(t, tc.policies...), object(), parsed(t, repository+":v1")
		for _, signer := range strings.Split(tc.signed, "") {
			if signer != "" {
				img.Signatures = append(img.Signatures, stored(t, signatures.TypeSimpleSigning, keys[signer].SimpleSigning(t, digest, repository)))
			}
		}
		v := signatures.Ask(img, asked, "", set, now, nil)
		of, why := signatures.TooOld(set.For(asked), v, asked, digest, now.Add(-time.Minute), now, now)
		var names []string
		for _, p := range of {
			names = append(names, p.Name)
		}
		if strings.Join(names, " ") != tc.stale || (why == "") != (tc.stale == "") {
			t.Errorf("%s: %v %s, want %s of %+v", name, names, why, tc.stale, v)
		}
	}
}
