package signatures_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// object is an Image with the given signatures, not judged yet.
func object(sigs ...imagev1.ImageSignature) *imagev1.Image {
	return &imagev1.Image{
		ObjectMeta:           metav1.ObjectMeta{Name: digest},
		DockerImageReference: image.Reference,
		DockerImageManifest:  manifest,
		Signatures:           sigs,
	}
}

func stored(t testing.TB, typ string, signature any) imagev1.ImageSignature {
	content, ok := signature.([]byte)
	if !ok {
		content = signaturestest.Marshal(t, signature)
	}
	return imagev1.ImageSignature{ObjectMeta: metav1.ObjectMeta{Name: signatures.Name(digest, content)}, Type: typ, Content: content}
}

func condition(s imagev1.ImageSignature, t imagev1.SignatureConditionType) imagev1.SignatureCondition {
	for _, c := range s.Conditions {
		if c.Type == t {
			return c
		}
	}
	return imagev1.SignatureCondition{}
}

// If several signatures meet no demand, the reason is from the signature whose signer the policy
// names, in whichever order they are stored.
func TestReasonOfSeveralSignatures(t *testing.T) {
	t.Parallel()
	key, other := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	set := signaturestest.Set(t, signaturestest.TrustKey(key, nil), matchRepository)
	elsewhere := stored(t, signatures.TypeSimpleSigning, key.SimpleSigning(t, digest, "registry.example.com/demo/web"))
	stranger := stored(t, signatures.TypeSimpleSigning, other.SimpleSigning(t, digest, repository))
	for _, all := range [][]imagev1.ImageSignature{{elsewhere, stranger}, {stranger, elsewhere}} {
		img := object(all...)
		signatures.VerifyImage(img, set, now, nil)
		for place, v := range annotation.JudgedAnywhere(img.Annotations) {
			if v.Verified != verdicts.VerifiedFalse || v.Reason != "SignedIdentityMismatch" {
				t.Errorf("in %s it is %s by the reason %s: %s", place, v.Verified, v.Reason, v.Message)
			}
		}
	}
}

func TestVerifyImageTimes(t *testing.T) {
	key, other := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	set := signaturestest.Set(t, signaturestest.TrustKey(key, nil), matchRepository)
	img := object(stored(t, signatures.TypeSimpleSigning, key.SimpleSigning(t, digest, repository)))
	changed, covered := signatures.VerifyImage(img, set, now, nil)
	if !changed || !covered {
		t.Fatalf("changed %v, covered %v", changed, covered)
	}
	c := condition(img.Signatures[0], "Trusted")
	if c.Status != corev1.ConditionTrue || !c.LastProbeTime.Time.Equal(now) || !c.LastTransitionTime.Time.Equal(now) {
		t.Fatalf("condition %+v", c)
	}
	if !strings.HasPrefix(img.Annotations[signatures.AnnotationPolicy], "demo@") {
		t.Errorf("annotations %v", img.Annotations)
	}
	if signatures.Stale(img, set, now) {
		t.Error("stale at once")
	}

	// An hour later nothing is written at all.
	before := img.DeepCopy()
	if changed, _ := signatures.VerifyImage(img, set, now.Add(time.Hour), nil); changed {
		t.Errorf("changed after an hour: %s", cmp.Diff(before, img))
	}
	if diff := cmp.Diff(before, img); diff != "" {
		t.Errorf("not reported: %s", diff)
	}
	// Nothing is written either while the clocks of servers differ a little. If a clock is set back by
	// more, it may have been wrong when the image was judged.
	if signatures.Stale(img, set, now.Add(-30*time.Second)) || !signatures.Stale(img, set, now.Add(-2*time.Minute)) {
		t.Error("stale if the clock is set back a little, or not if it is set back by more")
	}
	// After a day the probe time is written.
	day := now.Add(25 * time.Hour)
	if !signatures.Stale(img, set, day) {
		t.Error("not stale after a day")
	}
	if changed, _ := signatures.VerifyImage(img, set, day, nil); !changed {
		t.Error("not changed after a day")
	}
	c = condition(img.Signatures[0], "Trusted")
	if !c.LastProbeTime.Time.Equal(day) || !c.LastTransitionTime.Time.Equal(now) {
		t.Errorf("after a day: %+v", c)
	}
	// Another policy changes the status, and both times.
	set = signaturestest.Set(t, signaturestest.TrustKey(other, nil), matchRepository)
	if !signatures.Stale(img, set, day) {
		t.Error("not stale with another policy")
	}
	signatures.VerifyImage(img, set, day.Add(time.Hour), nil)
	c = condition(img.Signatures[0], "Trusted")
	if c.Status != corev1.ConditionFalse || !c.LastTransitionTime.Time.Equal(day.Add(time.Hour)) || img.Signatures[0].SignedClaims != nil {
		t.Errorf("with another policy: %+v", img.Signatures[0])
	}
	// The same status for another reason keeps the transition time.
	set = signaturestest.Set(t, signaturestest.TrustGPG(signaturestest.NewGPG(t, "x", now, 0).Public(t)), matchRepository)
	signatures.VerifyImage(img, set, day.Add(2*time.Hour), nil)
	c = condition(img.Signatures[0], "Trusted")
	if !c.LastTransitionTime.Time.Equal(day.Add(time.Hour)) || !c.LastProbeTime.Time.Equal(day.Add(2*time.Hour)) {
		t.Errorf("for another reason: %+v", c)
	}
	// Without a policy the verdict goes away.
	changed, covered = signatures.VerifyImage(img, nil, day.Add(3*time.Hour), nil)
	c = condition(img.Signatures[0], "Trusted")
	if !changed || covered || c.Status != corev1.ConditionUnknown || c.Reason != "NoMatchingPolicy" || len(img.Annotations) != 0 {
		t.Errorf("without a policy: changed %v, covered %v, %+v, %v", changed, covered, c, img.Annotations)
	}
	if changed, _ := signatures.VerifyImage(img, nil, day.Add(4*time.Hour), nil); changed || signatures.Stale(img, nil, day.Add(100*time.Hour)) {
		t.Error("an image without policy is written again and again")
	}
}

func TestVerifyImageExpiry(t *testing.T) {
	key := signaturestest.NewGPG(t, "Short", now.Add(-time.Hour), 24*time.Hour)
	set := signaturestest.Set(t, signaturestest.TrustGPG(key.Public(t)), matchRepository)
	img := object(stored(t, signatures.TypeAtomic, key.SimpleSigning(t, digest, repository, now.Add(-time.Minute))))
	signatures.VerifyImage(img, set, now, nil)
	verified, signers, next := signatures.Summary(img)
	if verified != "True" || len(signers) != 1 || signers[0] != "Short <release@example.com>" {
		t.Errorf("summary %s %v", verified, signers)
	}
	end := now.Add(23 * time.Hour)
	if next.Before(end) || next.After(end.Add(2*time.Second)) {
		t.Errorf("next expiry %v, the key ends %v", next, end)
	}
	if signatures.Stale(img, set, next.Add(-time.Second)) {
		t.Error("stale before it expires")
	}
	if !signatures.Stale(img, set, next) {
		t.Error("not stale when it expires")
	}
	signatures.VerifyImage(img, set, next, nil)
	var types []string
	for _, c := range img.Signatures[0].Conditions {
		types = append(types, string(c.Type)+"="+string(c.Status))
	}
	if diff := cmp.Diff([]string{"Trusted=False", "ForImage=True", "Expired=True"}, types); diff != "" {
		t.Error(diff)
	}
	if verified, signers, _ := signatures.Summary(img); verified != "False" || signers != nil {
		t.Errorf("summary %s %v", verified, signers)
	}
	// The key's owner prolongs it: Expired stays, as False.
	longer := signaturestest.Set(t, signaturestest.TrustGPG(key.Prolong(t, now.Add(time.Hour), 100*24*time.Hour)), matchRepository)
	signatures.VerifyImage(img, longer, next.Add(time.Hour), nil)
	if c := condition(img.Signatures[0], "Expired"); c.Status != corev1.ConditionFalse || !strings.Contains(c.Message, "no longer") {
		t.Errorf("Expired after prolonging: %+v", c)
	}
	if c := condition(img.Signatures[0], "Trusted"); c.Status != corev1.ConditionTrue {
		t.Errorf("Trusted after prolonging: %+v", c)
	}
}

func TestVerifyImageOfOthers(t *testing.T) {
	key, stranger := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	covering := signaturestest.Set(t, signaturestest.TrustKey(key, nil), matchRepository)
	elsewhere := signaturestest.SetFrom(t, signaturestest.Document("x", "[quay.io]", signaturestest.TrustKey(key, nil), matchRepository))
	old := now.AddDate(0, -1, 0)
	forged := stored(t, signatures.TypeSimpleSigning, stranger.SimpleSigning(t, digest, repository))
	for _, typ := range []imagev1.SignatureConditionType{"Trusted", "ForImage"} {
		forged.Conditions = append(forged.Conditions, imagev1.SignatureCondition{Type: typ, Status: corev1.ConditionTrue,
			Reason: "manually verified", LastProbeTime: metav1.NewTime(old), LastTransitionTime: metav1.NewTime(old)})
	}
	forged.IssuedBy = &imagev1.SignatureIssuer{SignatureGenericEntity: imagev1.SignatureGenericEntity{CommonName: "199E2F91FD431D51"}}
	forged.ImageIdentity = "anything"

	t.Run("a client cannot set a verdict on a covered image", func(t *testing.T) {
		img := object(*forged.DeepCopy())
		if _, covered := signatures.VerifyImage(img, covering, now, nil); !covered {
			t.Error("not covered")
		}
		s := img.Signatures[0]
		c := condition(s, "Trusted")
		if c.Status != corev1.ConditionFalse || s.IssuedBy != nil || s.ImageIdentity != "" || !c.LastTransitionTime.Time.Equal(now) {
			t.Errorf("%+v", s)
		}
	})
	t.Run("an admin can on one that no policy covers", func(t *testing.T) {
		img := object(*forged.DeepCopy())
		before := img.DeepCopy()
		if changed, covered := signatures.VerifyImage(img, elsewhere, now, nil); changed || covered {
			t.Error("changed or covered")
		}
		if diff := cmp.Diff(before, img); diff != "" {
			t.Error(diff)
		}
		verified, signers, _ := signatures.Summary(img)
		if verified != "True" || len(signers) != 1 || signers[0] != "199E2F91FD431D51" {
			t.Errorf("summary %s %v", verified, signers)
		}
		if signatures.Stale(img, elsewhere, now.AddDate(1, 0, 0)) {
			t.Error("the sweep would look at it for nothing")
		}
	})
	t.Run("an ambiguous reference is no way round a policy", func(t *testing.T) {
		img := object(*forged.DeepCopy())
		img.DockerImageReference = repository + ":v1@" + digest
		if _, covered := signatures.VerifyImage(img, covering, now, nil); !covered {
			t.Error("not covered")
		}
		if c := condition(img.Signatures[0], "Trusted"); c.Status != corev1.ConditionUnknown {
			t.Errorf("%+v", c)
		}
	})
	t.Run("what a gone policy said goes with it", func(t *testing.T) {
		img := object(stored(t, signatures.TypeSimpleSigning, key.SimpleSigning(t, digest, repository)))
		signatures.VerifyImage(img, covering, old, nil)
		signatures.VerifyImage(img, elsewhere, now, nil)
		if c := condition(img.Signatures[0], "Trusted"); c.Status != corev1.ConditionUnknown || img.Signatures[0].IssuedBy != nil {
			t.Errorf("%+v", img.Signatures[0])
		}
	})
}

func TestSummary(t *testing.T) {
	key, stranger := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	set := signaturestest.Set(t, signaturestest.TrustKey(key, nil), matchRepository)
	good := stored(t, signatures.TypeSimpleSigning, key.SimpleSigning(t, digest, repository))
	again := stored(t, signatures.TypeSimpleSigning, key.SimpleSigning(t, digest, repository+":v1"))
	bad := stored(t, signatures.TypeSimpleSigning, stranger.SimpleSigning(t, digest, repository))
	unknown := stored(t, "Elsewhere", []byte("{}"))
	// A signature for the index is not a signature for the platform's image.
	index := stored(t, signatures.TypeSimpleSigning, key.SimpleSigning(t, otherImage, repository))
	for _, tc := range []struct {
		name    string
		sigs    []imagev1.ImageSignature
		want    string
		signers []string
	}{
		{"none", nil, "Unsigned", nil},
		{"good", []imagev1.ImageSignature{good}, "True", []string{"demo"}},
		{"one bad among good", []imagev1.ImageSignature{bad, good, again, unknown}, "True", []string{"demo"}},
		{"bad", []imagev1.ImageSignature{unknown, bad}, "False", nil},
		{"unknown", []imagev1.ImageSignature{unknown}, "Unknown", nil},
		{"of the index", []imagev1.ImageSignature{index}, "False", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			img := object(tc.sigs...)
			signatures.VerifyImage(img, set, now, nil)
			verified, signers, next := signatures.Summary(img)
			if verified != tc.want || !cmp.Equal(signers, tc.signers) || !next.IsZero() {
				t.Errorf("%s %v %v, want %s %v", verified, signers, next, tc.want, tc.signers)
			}
		})
	}
	// Without a policy, the signer does not matter.
	if verified, _, _ := signatures.Summary(object(good)); verified != "NoPolicy" {
		t.Errorf("signed, and not covered: %s", verified)
	}
}

func TestLive(t *testing.T) {
	key := signaturestest.NewKey(t, signaturestest.P256)
	live := signatures.NewLive(nil, clocktesting.NewFakePassiveClock(now))
	img := object(stored(t, signatures.TypeSimpleSigning, key.SimpleSigning(t, digest, repository)))
	if live.Verify(img, nil) || condition(img.Signatures[0], "Trusted").Reason != "NoMatchingPolicy" {
		t.Errorf("judged without policies: %+v", img.Signatures[0].Conditions)
	}
	live.Replace(signaturestest.Set(t, signaturestest.TrustKey(key, nil), matchRepository))
	if !live.Stale(img) {
		t.Error("not stale under the new policies")
	}
	if !live.Verify(img, nil) || live.Stale(img) {
		t.Error("not judged")
	}
	if c := condition(img.Signatures[0], "Trusted"); c.Status != corev1.ConditionTrue || !c.LastProbeTime.Time.Equal(now) {
		t.Errorf("%+v", c)
	}
	before := img.DeepCopy()
	if !live.Verify(img, nil) || !cmp.Equal(before, img) {
		t.Errorf("changed: %s", cmp.Diff(before, img))
	}
}

func TestVerifyImageBound(t *testing.T) {
	key := signaturestest.NewKey(t, signaturestest.P256)
	set := signaturestest.Set(t, signaturestest.TrustKey(key, nil), matchRepository)
	img := object()
	for i := range 65 {
		img.Signatures = append(img.Signatures, stored(t, "Elsewhere", []byte{byte(i)}))
	}
	img.Signatures[63] = stored(t, signatures.TypeSimpleSigning, key.SimpleSigning(t, digest, repository))
	img.Signatures[64] = stored(t, signatures.TypeSimpleSigning, key.SimpleSigning(t, digest, repository))
	signatures.VerifyImage(img, set, now, nil)
	if a, b := condition(img.Signatures[63], "Trusted"), condition(img.Signatures[64], "Trusted"); a.Status != corev1.ConditionTrue || b.Status != corev1.ConditionUnknown {
		t.Errorf("%+v\n%+v", a, b)
	}
}
