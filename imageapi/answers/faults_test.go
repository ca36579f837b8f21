package answers

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// No read that fails is passed over: whichever it is, the question or the act fails, or the answer
// says that something is unknown, or it is the one that it would have been.
func TestReadsThatFailAreTold(t *testing.T) {
	t.Parallel()
	const tag, elsewhere = repository + ":v1", "registry.example.com/team/zeta"
	w := newWorld(t)
	one, two := w.image("one", repository, elsewhere), w.image("two", repository, elsewhere)
	w.moved = one
	w.tag(tag, two, one)
	w.tag(elsewhere+":v1", one)
	w.tag(repository+":gone", "", one)
	for i, age := range []time.Duration{30 * time.Minute, 2 * time.Hour} {
		w.tags[tags.Name(w.ref(tag))].Status.Items[i].Created = metav1.NewTime(time.Now().Add(-age).Truncate(time.Second))
	}
	w.runs("shop", "starting", tag, "")
	w.pods[0].Since = metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	w.runs("shop", "running", elsewhere+":v1", one)
	w.runs("shop", "lost", repository+":gone", digestOf("ghost"))
	key := signaturestest.NewKey(t, signaturestest.P256)
	document := func(images ...string) []byte {
		text := signaturestest.Document("own", `["`+tag+`"]`, signaturestest.TrustKey(key, nil), "") +
			fmt.Sprintf("  exceptions:\n  - {images: [%s], until: \"2999-01-01T00:00:00Z\", by: ann@example.com, reason: why}\n", strings.Join(images, ", "))
		return []byte(strings.NewReplacer("ClusterImagePolicy", "ImagePolicy", "{name: own}", "{name: own, namespace: shop}").Replace(text))
	}
	all, err := policy.ParseObjects(document(two), "")
	if err != nil {
		t.Fatal(err)
	}
	w.policies = all
	excepted, err := yaml.YAMLToJSON(document(two, one))
	if err != nil {
		t.Fatal(err)
	}
	type ask func() (answer any, unknowns []UnknownPart, err error)
	impact := func(spec ImpactReviewSpec) ask {
		return func() (any, []UnknownPart, error) {
			status, err := w.answerer().Impact(w.as("ann"), &spec)
			if err != nil {
				return nil, nil, err
			}
			return status, status.Unknowns, nil
		}
	}
	question := func(q Question) ask {
		return func() (any, []UnknownPart, error) {
			status, err := w.answerer().Answer(w.as("ann"), &ReferenceReviewSpec{References: []Question{q}, DriftSince: &metav1.Time{Time: time.Now().Add(-24 * time.Hour)}})
			if err != nil {
				return nil, nil, err
			}
			return status, status.References[0].Unknowns, nil
		}
	}
	admission := func(text string) ask {
		return func() (any, []UnknownPart, error) {
			a := w.answerer()
			a.Jobs = queued{}
			j, err := a.Admit(t.Context(), "prod", "shop", w.ref(text))
			return j, nil, err
		}
	}
	for name, ask := range map[string]ask{
		"apply":               impact(ImpactReviewSpec{ApplyPolicies: []runtime.RawExtension{{Raw: excepted}}}),
		"remove":              impact(ImpactReviewSpec{RemovePolicy: "shop/own"}),
		"delete a tag":        impact(ImpactReviewSpec{Delete: tag}),
		"delete an image":     impact(ImpactReviewSpec{Delete: one}),
		"delete what is gone": impact(ImpactReviewSpec{Delete: repository + ":gone"}),
		"lose a registry":     impact(ImpactReviewSpec{LoseRegistry: "registry.example.com"}),
		"tag":                 question(Question{Reference: tag, Namespace: "shop"}),
		"digest":              question(Question{Reference: one}),
		"container":           question(Question{Reference: tag, Runs: one, Namespace: "shop"}),
		"container, unread":   question(Question{Reference: tag, Runs: digestOf("ghost"), Namespace: "shop"}),
		"gone":                question(Question{Reference: repository + ":gone", Namespace: "shop"}),
		"admission":           admission(tag),
		"admission, digest":   admission(repository + "@" + one),
	} {
		text := func(answer any) string {
			raw, err := json.Marshal(answer)
			if err != nil {
				t.Fatal(err)
			}
			return string(raw)
		}
		w.failing = 0
		answer, known, err := ask()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		healthy := text(answer)
		for n := int64(1); ; n++ {
			w.failing = n
			w.reads.Store(0)
			answer, unknowns, err := ask()
			if w.reads.Load() < n {
				if n == 1 {
					t.Errorf("%s reads nothing", name)
				}
				break
			}
			says := slices.ContainsFunc(unknowns, func(u UnknownPart) bool { return !slices.Contains(known, u) })
			if err == nil && !says && text(answer) != healthy {
				t.Errorf("%s: its read %d fails, and it does not say so:\n%s\n%s", name, n, text(answer), healthy)
			}
		}
	}
}
