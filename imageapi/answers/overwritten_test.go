package answers

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// An ImagePolicy forbids a tag to move for the pods of its own namespace, until the move is
// accepted. It changes nothing for another namespace, whose policy demands the same signature, or
// for one that has no policy.
func TestImmutableTagOfANamespace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key := signaturestest.NewKey(t, signaturestest.P256)
	document := signaturestest.Document("own", `["`+repository+`"]`, signaturestest.TrustKey(key, nil), "{matchPolicy: MatchRepository}")
	for namespace, annotations := range map[string]string{"shop": "annotations: {tidewaiter.dev/immutable-tags: 'v*'}, ", "team": ""} {
		all, err := policy.ParseObjects([]byte(strings.NewReplacer("ClusterImagePolicy", "ImagePolicy", "{name: own}", "{"+annotations+"name: own, namespace: "+namespace+"}").Replace(document)), "")
		if err != nil {
			t.Fatal(err)
		}
		w.policies = append(w.policies, all...)
	}
	signed := func(name string) string {
		digest := w.image(name, repository)
		content := signaturestest.Marshal(t, key.SimpleSigning(t, digest, repository))
		w.images[digest].Signatures = []imagev1.ImageSignature{{ObjectMeta: metav1.ObjectMeta{Name: signatures.Name(digest, content)}, Type: signatures.TypeSimpleSigning, Content: content}}
		return digest
	}
	first, second := signed("first"), signed("second")
	const moving, free = repository + ":v1", repository + ":latest"
	a := w.answerer()
	// doors compares the answers about a reference: to a review, which verify sends, to admission, and
	// for a pod that runs what it leads to.
	doors := func(when, name string, forbidden bool) {
		t.Helper()
		ref := w.ref(name)
		tag := w.tags[tags.Name(ref)]
		for namespace, verified := range map[string]string{"shop": verdicts.VerifiedTrue, "team": verdicts.VerifiedTrue, "": verdicts.NoPolicy, "bare": verdicts.NoPolicy} {
			moved := forbidden && namespace == "shop"
			if moved {
				verified = verdicts.VerifiedFalse
			}
			asked := fmt.Sprintf("%s: %s for namespace %q", when, name, namespace)
			says := func(door string, v *Verdict) {
				t.Helper()
				if v == nil || v.Verified != verified || (v.Reason == ReasonTagMoved) != moved || strings.Contains(v.Message, name+` must not move (policy "shop/own": v*)`) != moved {
					t.Errorf("%s, %s: %+v, want %s", asked, door, v, verified)
				}
			}
			answer := w.ask(w.as("ann"), Question{Reference: name, Namespace: namespace})
			says("the review", answer.Verdict)
			if (answer.Checked.Overwritten != nil) != moved {
				t.Errorf("%s: the review has the move %+v", asked, answer.Checked.Overwritten)
			}
			now, _ := tags.Now(tag)
			running, err := a.Container(t.Context(), namespace, name, repository+"@"+now)
			if err != nil {
				t.Fatal(err)
			}
			says("a container", running.Verdict)
			admitted, err := a.Admit(t.Context(), "prod", namespace, ref)
			if err != nil {
				t.Fatal(err)
			}
			if refused := len(admitted.Findings) > 0; refused != moved || refused && !strings.Contains(admitted.Findings[0].Reason, "must not move") {
				t.Errorf("%s: admission finds %+v", asked, admitted.Findings)
			}
		}
		if found, err := a.Overwritten(t.Context(), tag); err != nil || (found != nil) != forbidden || found != nil && !slices.Equal(found.Rules, []string{`policy "shop/own": v*`}) {
			t.Errorf("%s: of all policies, the tag has the move %+v, %v", when, found, err)
		}
	}
	for _, name := range []string{moving, free} {
		w.tag(name, first)
		doors("new", name, false)
		w.tag(name, second, first)
		doors("moved", name, name == moving)
	}
	_, changes, err := a.UnderTag(t.Context(), w.tags[tags.Name(w.ref(moving))], second)
	if err != nil {
		t.Fatal(err)
	}
	turned := map[string]string{}
	for _, c := range changes {
		if c.Before != c.Verified {
			turned[c.Place] = c.Before + " " + c.Verified
		}
	}
	if len(turned) != 1 || turned[moving+"#shop"] != "True False" {
		t.Errorf("the move turned the verdicts of %v, want the one for the pods of shop", turned)
	}
	tags.AcceptMove(w.tags[tags.Name(w.ref(moving))], "ann", "rebuilt", time.Now())
	doors("accepted", moving, false)
	w.tag(moving, first, second, first)
	doors("moved back", moving, false)
}
