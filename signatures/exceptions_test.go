package signatures_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// excepting is a document with exceptions, each of which is "images until".
func excepting(name, scopes string, key *signaturestest.Key, identity string, exceptions ...string) string {
	document := signaturestest.Document(name, scopes, signaturestest.TrustKey(key, nil), identity) + "  exceptions:\n"
	for _, e := range exceptions {
		images, until, _ := strings.Cut(e, " ")
		document += fmt.Sprintf("  - {images: [%q], until: %q, by: ann@example.com, reason: the build is mended tomorrow}\n", images, until)
	}
	return document
}

// Until it ends, an exception lets through the images that it names, signed or not, under exactly
// those names. It does not make them verified.
func TestExceptions(t *testing.T) {
	t.Parallel()
	ours, theirs := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	end := now.Add(time.Hour)
	until, ended := end.Format(time.RFC3339), now.Format(time.RFC3339)
	const scopes, tagged, other = `["registry.example.com"]`, repository + ":v1", "sha256:" + "00000000000000000000000000000000000000000000000000000000000000ff"
	wrong := stored(t, signatures.TypeSimpleSigning, theirs.SimpleSigning(t, digest, repository))
	right := stored(t, signatures.TypeSimpleSigning, ours.SimpleSigning(t, digest, repository))
	policyOf := func(exceptions ...string) string {
		return excepting("demo", scopes, ours, matchRepository, exceptions...)
	}
	strict := signaturestest.Document("strict", scopes, signaturestest.TrustKey(theirs, nil), matchRepository)
	for name, tt := range map[string]struct {
		documents string
		signed    string // "", wrong or right
		asked     string
		want      string
		unmet     string
	}{
		"by digest":                            {policyOf(digest + " " + until), "", repository + "@" + digest, verdicts.Excepted, ""},
		"by digest, asked for by a tag":        {policyOf(digest + " " + until), "", tagged, verdicts.Excepted, ""},
		"with a wrong signature":               {policyOf(digest + " " + until), "wrong", tagged, verdicts.Excepted, ""},
		"with a right signature":               {policyOf(digest + " " + until), "right", tagged, verdicts.VerifiedTrue, ""},
		"by repository and digest":             {policyOf(repository + "@" + digest + " " + until), "", tagged, verdicts.Excepted, ""},
		"of another repository":                {policyOf("registry.example.com/other@" + digest + " " + until), "", tagged, verdicts.Unsigned, ""},
		"of another digest":                    {policyOf(other + " " + until), "wrong", tagged, verdicts.VerifiedFalse, ""},
		"by tag":                               {policyOf(tagged + " " + until), "", tagged, verdicts.Excepted, ""},
		"by tag, asked for by another":         {policyOf(tagged + " " + until), "", repository + ":v2", verdicts.Unsigned, ""},
		"by tag, asked for by digest":          {policyOf(tagged + " " + until), "", repository + "@" + digest, verdicts.Unsigned, ""},
		"ended":                                {policyOf(digest + " " + ended), "", tagged, verdicts.Unsigned, ""},
		"one of two has ended":                 {policyOf(digest+" "+ended, digest+" "+until), "", tagged, verdicts.Excepted, ""},
		"a second policy excepts nothing":      {policyOf(digest+" "+until) + strict, "", tagged, verdicts.Unsigned, "strict"},
		"a second policy is met":               {policyOf(digest+" "+until) + strict, "wrong", tagged, verdicts.Excepted, "demo"},
		"a second policy is met, none excepts": {policyOf(other+" "+until) + strict, "wrong", tagged, verdicts.VerifiedFalse, "demo"},
		"two policies except":                  {policyOf(digest+" "+until) + excepting("more", scopes, theirs, "", digest+" "+until), "", tagged, verdicts.Excepted, ""},
	} {
		t.Run(name, func(t *testing.T) {
			set := signaturestest.SetFrom(t, tt.documents)
			img := object()
			switch tt.signed {
			case "wrong":
				img = object(wrong)
			case "right":
				img = object(right)
			}
			for range 2 { // before and after it holds verdicts
				v := signatures.Ask(img, parsed(t, tt.asked), "", set, now, nil)
				if v.Verified != tt.want || strings.Join(v.Unmet, ",") != tt.unmet {
					t.Errorf("%+v, want %s, not met %q", v, tt.want, tt.unmet)
				}
				if isExcepted := tt.want == verdicts.Excepted; isExcepted != (v.Until == until) || isExcepted != (v.Reason == "Excepted") ||
					isExcepted && (!strings.Contains(v.Message, "until "+until+", by ann@example.com: the build is mended tomorrow") || len(v.Signers) > 0) {
					t.Errorf("%+v", v)
				}
				if late := signatures.Ask(img, parsed(t, tt.asked), "", set, end, nil); late.Verified == verdicts.Excepted {
					t.Errorf("when it has ended: %+v", late)
				}
				signatures.VerifyImage(img, set, now, nil)
			}
		})
	}
}

// A stored verdict ends with its exception: from that second it is out of date, and the image is
// judged again.
func TestHeldExceptionsEnd(t *testing.T) {
	t.Parallel()
	key := signaturestest.NewKey(t, signaturestest.P256)
	end := now.Add(time.Hour)
	set := signaturestest.SetFrom(t, excepting("demo", `["registry.example.com"]`, key, "", digest+" "+end.Format(time.RFC3339)))
	own := func() *policy.Policy {
		p, err := policy.ParseObjects([]byte(strings.Replace(excepting("own", `["other.example.com/app"]`, key, "", digest+" "+end.Add(-time.Minute).Format(time.RFC3339)), "kind: ClusterImagePolicy\nmetadata: {name: own", "kind: ImagePolicy\nmetadata: {namespace: shop, name: own", 1)), "own.yaml")
		if err != nil {
			t.Fatal(err)
		}
		return p[0]
	}
	both, err := set.With(own())
	if err != nil {
		t.Fatal(err)
	}
	img := object()
	knownAs(t, img, []string{"other.example.com/app:v1"}, nil)
	img.DockerImageReference = repository + "@" + digest
	signatures.VerifyImage(img, both, now, nil)
	verified, _, next := signatures.Summary(img)
	if verified != verdicts.Excepted || !next.Equal(end.Add(-time.Minute)) {
		t.Errorf("it is %s until %s, want %s", verified, next, end.Add(-time.Minute))
	}
	if v := annotation.JudgedInNamespaces(img.Annotations)["other.example.com/app#shop"]; v.Verified != verdicts.Excepted {
		t.Errorf("for the pods of shop: %+v", v)
	}
	signatures.VerifyImage(img, both, next, nil)
	if v := annotation.JudgedInNamespaces(img.Annotations)["other.example.com/app#shop"]; v.Verified != verdicts.Unsigned {
		t.Errorf("for the pods of shop when that has ended: %+v", v)
	}
	if _, _, next = signatures.Summary(img); !next.Equal(end) || signatures.Stale(img, both, end.Add(-time.Second)) || !signatures.Stale(img, both, end) {
		t.Errorf("the other ends at %s, want %s; stale a second before: %v, then: %v", next, end, signatures.Stale(img, both, end.Add(-time.Second)), signatures.Stale(img, both, end))
	}
	signatures.VerifyImage(img, both, end, nil)
	if verified, _, next := signatures.Summary(img); verified != verdicts.Unsigned || !next.IsZero() {
		t.Errorf("after the end it is %s, to be looked at again at %s", verified, next)
	}
}

// An exception that names an image by its config's digest, as `docker images` shows it, has no
// effect, and the verdict says what to write instead.
func TestExceptionsForConfigs(t *testing.T) {
	t.Parallel()
	key, config := signaturestest.NewKey(t, signaturestest.P256), "sha256:00000000000000000000000000000000000000000000000000000000000000cf"
	until := now.Add(time.Hour)
	image, index := object(), object()
	image.DockerImageManifestMediaType = "application/vnd.oci.image.manifest.v1+json"
	image.DockerImageManifest = `{"schemaVersion":2,"mediaType":"` + image.DockerImageManifestMediaType + `","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"` + config + `","size":2},"layers":[]}`
	index.DockerImageManifestMediaType = "application/vnd.oci.image.index.v1+json"
	index.DockerImageManifest = `{"schemaVersion":2,"mediaType":"` + index.DockerImageManifestMediaType + `","manifests":[]}`
	for named, says := range map[string]bool{config: true, repository + "@" + config: true, "registry.example.com/other@" + config: false, repository + ":v2": false} {
		set := signaturestest.SetFrom(t, excepting("demo", `["registry.example.com"]`, key, "", named+" "+until.Format(time.RFC3339)))
		v := signatures.Ask(image, parsed(t, repository+":v1"), "", set, now, nil)
		hint := fmt.Sprintf(`it has no signature in %s; an exception of policy "demo" names %s, the digest of its config: name %s instead`, repository, config, digest)
		if v.Verified != verdicts.Unsigned || (v.Message == hint) != says {
			t.Errorf("%s: %+v", named, v)
		}
		if late := signatures.Ask(image, parsed(t, repository+":v1"), "", set, until, nil); strings.Contains(late.Message, "exception") {
			t.Errorf("%s, when it has ended: %+v", named, late)
		}
		if v := signatures.Ask(index, parsed(t, repository+":v1"), "", set, now, nil); strings.Contains(v.Message, "exception") {
			t.Errorf("%s, of an index: %+v", named, v)
		}
	}
}
