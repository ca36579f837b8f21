package signatures_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

func parsed(t testing.TB, s string) reference.Reference {
	t.Helper()
	ref, err := reference.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// knownAs records references on an image, and the signatures that were found in their repositories.
func knownAs(t testing.TB, img *imagev1.Image, references []string, found map[string]annotation.Repository) {
	t.Helper()
	b, err := json.Marshal(references)
	if err != nil {
		t.Fatal(err)
	}
	img.Annotations = map[string]string{annotation.References: string(b)}
	annotation.SetFound(img.Annotations, found)
}

// brought is the record of a repository that has brought signatures.
func brought(sigs ...imagev1.ImageSignature) (r annotation.Repository) {
	for _, s := range sigs {
		r.Signatures = append(r.Signatures, s.Name[len(digest)+1:])
	}
	return r
}

// A tenant may write policies in one namespace, and push tags of a shared image to a repository of
// its own. That takes no verdict from others: another namespace is judged by its own policy, and
// the Image shows how many scopes have no stored verdict.
func TestAttackTenantTakesThePlaces(t *testing.T) {
	t.Parallel()
	his, shop := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	const mine, theirs = "registry.example.com/shop/base", "registry.example.com/a/base"
	sig := stored(t, signatures.TypeSimpleSigning, shop.SimpleSigning(t, digest, mine))
	img := object(sig)
	img.DockerImageReference = mine + "@" + digest
	known := []string{mine + "@" + digest}
	var scopes []string
	for i := range 33 {
		known = append(known, fmt.Sprintf("%s:v%02d", theirs, i))
		scopes = append(scopes, fmt.Sprintf("%q", fmt.Sprintf("%s:v%02d", theirs, i)))
	}
	knownAs(t, img, known, map[string]annotation.Repository{mine: brought(sig)})
	policies := []*policy.Policy{inNamespace(t, "shop", "own", "["+mine+"]", shop)}
	for i := range 3 {
		policies = append(policies, inNamespace(t, "attacker", fmt.Sprintf("his%d", i), "["+join(scopes)+"]", his))
	}
	set := setOf(t, policies...)
	signatures.VerifyImage(img, set, now, nil)
	in := annotation.JudgedInNamespaces(img.Annotations)
	if v := in[mine+"#shop"]; v.Verified != verdicts.VerifiedTrue {
		t.Errorf("for the pods of shop: %+v", v)
	}
	if v := in["*#*"]; v.Verified != verdicts.VerifiedUnknown || v.Reason != "NotJudged" || len(in) != 33 {
		t.Errorf("of %d verdicts, that on what has no place is %+v", len(in), v)
	}
	if signatures.Stale(img, set, now) {
		t.Error("what was just judged is stale")
	}
	for ref, want := range map[string]string{mine + "@" + digest: verdicts.VerifiedTrue, mine + ":v1": verdicts.VerifiedTrue} {
		if v := signatures.Ask(img, parsed(t, ref), "shop", set, now, nil); v.Verified != want || v.Policy != "shop/own" {
			t.Errorf("a pod of shop with %s: %+v", ref, v)
		}
	}
	for _, ref := range known[1:] { // with a place and without one
		if v := signatures.Ask(img, parsed(t, ref), "attacker", set, now, nil); v.Verified != verdicts.Unsigned {
			t.Errorf("a pod of the attacker with %s: %+v", ref, v)
		}
	}

	// There are more namespaces than places for stored verdicts. A namespace without a place is judged
	// on request.
	policies = nil
	for i := range 40 {
		policies = append(policies, inNamespace(t, fmt.Sprintf("n%02d", i), "own", "["+mine+"]", shop))
	}
	set = setOf(t, policies...)
	signatures.VerifyImage(img, set, now, nil)
	for i := range 40 {
		if v := signatures.Ask(img, parsed(t, mine+":v1"), fmt.Sprintf("n%02d", i), set, now, nil); v.Verified != verdicts.VerifiedTrue {
			t.Errorf("a pod of namespace %d: %+v", i, v)
		}
	}
}

func join(all []string) (s string) {
	for i, one := range all {
		if i > 0 {
			s += ","
		}
		s += one
	}
	return s
}

// A base image is signed in more repositories than there are places for verdicts. It is trusted in
// each, and the Image counts the repositories without a place as not judged.
func TestImageInManyRepositories(t *testing.T) {
	t.Parallel()
	key := signaturestest.NewKey(t, signaturestest.P256)
	set := signaturestest.Set(t, signaturestest.TrustKey(key, nil), "{matchPolicy: ExactRepository, exactRepository: {repository: "+repository+"}}")
	sig := stored(t, signatures.TypeSimpleSigning, key.SimpleSigning(t, digest, repository))
	img := object(sig)
	img.DockerImageReference = "registry.example.com/team/app00@" + digest
	found := map[string]annotation.Repository{}
	var known, unsigned []string
	for i := range 60 {
		name := fmt.Sprintf("registry.example.com/team/app%02d", i)
		known = append(known, name+":v1")
		if i%20 == 19 {
			unsigned = append(unsigned, name)
			continue
		}
		found[name] = brought(sig)
	}
	known = append(known, "registry.example.com/zoo/app:v1")
	knownAs(t, img, known, found)
	signatures.VerifyImage(img, set, now, nil)
	for _, ref := range known {
		asked, want := parsed(t, ref), verdicts.VerifiedTrue
		if slices.Contains(unsigned, asked.Name()) || asked.Repository == "zoo/app" {
			want = verdicts.Unsigned
		}
		if v := signatures.Ask(img, asked, "", set, now, nil); v.Verified != want {
			t.Errorf("%s: %+v, want %s", ref, v, want)
		}
	}
	judged := annotation.Judged(img.Annotations)
	if v := judged["*"]; v.Verified != verdicts.VerifiedUnknown || len(judged) != annotation.MaxRepositories+1 {
		t.Errorf("of %d verdicts, that on what has no place is %+v", len(judged), v)
	}
	if _, ok := judged["registry.example.com/zoo/app"]; !ok {
		t.Errorf("another project has no place among %v", slices.Sorted(maps.Keys(judged)))
	}
	if signatures.Stale(img, set, now) {
		t.Error("what was just judged is stale")
	}
	before := maps.Clone(img.Annotations)
	if changed, _ := signatures.VerifyImage(img, set, now, nil); changed || !maps.Equal(before, img.Annotations) {
		t.Error("it is judged otherwise the second time")
	}
}

// Many repositories that each bring many signatures do not fill the Image: those with the most
// signatures are stored as not read.
func TestAttackManyRepositoriesWithManySignatures(t *testing.T) {
	if testing.Short() {
		t.Skip("slow, and nothing runs side by side")
	}
	t.Parallel()
	key := signaturestest.NewKey(t, signaturestest.P256)
	set := signaturestest.Set(t, signaturestest.TrustKey(key, nil), matchRepository)
	good := stored(t, signatures.TypeSimpleSigning, key.SimpleSigning(t, digest, repository))
	all := []imagev1.ImageSignature{good}
	for i := range 9 {
		all = append(all, stored(t, signatures.TypeSimpleSigning, signaturestest.NewKey(t, signaturestest.P256).SimpleSigning(t, digest, fmt.Sprint(repository, i))))
	}
	img := object(all...)
	found, known := map[string]annotation.Repository{repository: brought(good)}, []string{repository + ":v1"}
	for i := range 250 {
		name := fmt.Sprintf("registry.example.com/his/app%03d", i)
		found[name], known = brought(all[1:]...), append(known, name+":v1")
	}
	knownAs(t, img, known, found)
	signatures.VerifyImage(img, set, now, nil)
	size := 0
	for key, value := range img.Annotations {
		size += len(key) + len(value)
	}
	if size > 200<<10 {
		t.Errorf("the annotations have %d bytes", size)
	}
	if v := signatures.Ask(img, parsed(t, repository+":v1"), "", set, now, nil); v.Verified != verdicts.VerifiedTrue {
		t.Errorf("the signed one: %+v", v)
	}
	said := map[string]int{}
	for _, ref := range known[1:] {
		v := signatures.Ask(img, parsed(t, ref), "", set, now, nil)
		said[v.Verified+v.Reason]++
	}
	if said["UnknownSignaturesUnusable"] == 0 || said["FalseNoMatchingKey"] == 0 || len(said) != 2 {
		t.Errorf("the others: %v", said)
	}
}

// The verdict depends on the reference: a signature for one tag does not vouch for another tag of
// the same image, and a digest and a tag of it may have different policies.
func TestAskByTag(t *testing.T) {
	t.Parallel()
	key, lax := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	sig := stored(t, signatures.TypeSimpleSigning, key.SimpleSigning(t, digest, repository+":v1.0"))
	his := stored(t, signatures.TypeSimpleSigning, lax.SimpleSigning(t, digest, repository+":v1.0"))
	const remap = "{matchPolicy: RemapIdentity, remapIdentity: {prefix: mirror.example.com/demo, signedPrefix: registry.example.com/demo}}"
	mirror := "mirror.example.com/demo/app"
	for _, tc := range []struct {
		name, identity, asked, verified string
		sig                             imagev1.ImageSignature
	}{
		{"the signed tag", "", repository + ":v1.0", verdicts.VerifiedTrue, sig},
		{"a tag that was moved", "", repository + ":v2.0", verdicts.VerifiedFalse, sig},
		{"the digest", "", repository + "@" + digest, verdicts.VerifiedTrue, sig},
		{"any tag of the repository", matchRepository, repository + ":v2.0", verdicts.VerifiedTrue, sig},
		{"the signed tag at a mirror", remap, mirror + ":v1.0", verdicts.VerifiedTrue, sig},
		{"a tag that was moved at a mirror", remap, mirror + ":v2.0", verdicts.VerifiedFalse, sig},
		{"the policy of the digest", matchRepository, repository + "@" + digest, verdicts.VerifiedTrue, his},
		{"the policy of the digest is not that of a tag", matchRepository, repository + ":v1.0", verdicts.VerifiedFalse, his},
	} {
		t.Run(tc.name, func(t *testing.T) {
			documents := signaturestest.Document("demo", `["registry.example.com", "mirror.example.com"]`, signaturestest.TrustKey(key, nil), tc.identity)
			if tc.sig.Name == his.Name {
				documents += signaturestest.Document("lax", `["`+repository+"@"+digest+`"]`, signaturestest.TrustKey(lax, nil), tc.identity)
			}
			set := signaturestest.SetFrom(t, documents)
			asked := parsed(t, tc.asked)
			img := object(tc.sig)
			img.DockerImageReference = asked.Name() + "@" + digest
			img.Annotations = map[string]string{annotation.References: fmt.Sprintf("[%q]", tc.asked)}
			for _, state := range []string{"not judged", "judged"} {
				if v := signatures.Ask(img, asked, "", set, now, nil); v.Verified != tc.verified {
					t.Errorf("%s: %+v, want %s", state, v, tc.verified)
				}
				signatures.VerifyImage(img, set, now, nil)
			}
		})
	}
}

// An index that meets a lax policy for its digest does not vouch under the repository's strict
// policy. A signed index does not replace demanded attestations. A platform is not trusted under a
// tag for which its index was not signed.
func TestAttackIndexByAnotherPolicy(t *testing.T) {
	t.Parallel()
	strict, lax := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	indexBy := func(key *signaturestest.Key, set *policy.Set) signatures.Indexes {
		content := signaturestest.Marshal(t, key.SimpleSigning(t, otherImage, repository+":v1.0"))
		index := &imagev1.Image{DockerImageReference: repository + "@" + otherImage, Signatures: []imagev1.ImageSignature{{Type: signatures.TypeSimpleSigning, Content: content}}}
		index.Name, index.Signatures[0].Name = otherImage, signatures.Name(otherImage, content)
		signatures.VerifyImage(index, set, now, nil)
		if v := annotation.Judged(index.Annotations)[repository]; v.Verified != verdicts.VerifiedTrue {
			t.Fatalf("the index: %+v", v)
		}
		return func(string) ([]*imagev1.Image, error) { return []*imagev1.Image{index}, nil }
	}
	of := func(name, scope string, key *signaturestest.Key, identity string) string {
		return signaturestest.Document(name, `["`+scope+`"]`, signaturestest.TrustKey(key, nil), identity)
	}
	everywhere := of("strict", "registry.example.com", strict, "")
	laxIndex := everywhere + of("lax", repository+"@"+otherImage, lax, "")
	laxPlatform := of("strict", "registry.example.com", strict, "") + of("own", repository+"@"+digest, lax, "")
	for _, tc := range []struct {
		name, policies, asked, verified string
		by                              *signaturestest.Key
	}{
		{"the same policy", everywhere, "@" + digest, verdicts.ByIndex, strict},
		{"a tag that was moved to a platform", everywhere, ":v2.0", verdicts.Unsigned, strict},
		{"platforms that have to be signed", everywhere + "    platforms: Signed\n", "@" + digest, verdicts.Unsigned, strict},
		{"platforms that an index may vouch for", everywhere + "    platforms: ByIndex\n", "@" + digest, verdicts.ByIndex, strict},
		{"a lax policy for the index", laxIndex, "@" + digest, verdicts.Unsigned, lax},
		{"a policy for the platform", laxPlatform, "@" + digest, verdicts.Unsigned, strict},
	} {
		set := signaturestest.SetFrom(t, tc.policies)
		img := object()
		if v := signatures.Ask(img, parsed(t, repository+tc.asked), "", set, now, indexBy(tc.by, set)); v.Verified != tc.verified {
			t.Errorf("%s: %+v, want %s", tc.name, v, tc.verified)
		}
		if tc.asked[0] == '@' {
			signatures.VerifyImage(img, set, now, indexBy(tc.by, set))
			if v := signatures.Ask(img, parsed(t, repository+tc.asked), "", set, now, nil); v.Verified != tc.verified {
				t.Errorf("%s, as it is stored: %+v, want %s", tc.name, v, tc.verified)
			}
		}
	}
}
