package answers

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// neighbours is a world of two namespaces, whose pods name some of the same images, and of what
// nothing runs.
type neighbours struct {
	*world
	own, secrets []string // references that pods of the namespace shop name, and what is not told them
}

func newNeighbours(t *testing.T, r *rand.Rand) *neighbours {
	w := &neighbours{world: newWorld(t), secrets: []string{"bank-pod", "vault", "hidden", `"bank"`}}
	w.may = func(a authorizer.Attributes) bool { return a.GetResource() == "pods" && a.GetNamespace() == "shop" }
	if r.IntN(2) == 0 {
		w.demands("", "r.io/team0")
	}
	if r.IntN(2) == 0 {
		w.demands("shop", "r.io/team1")
	}
	if r.IntN(2) == 0 {
		w.demands("bank", "r.io/team1")
	}
	named := map[string]string{} // who names a tag
	for i := range 6 {
		digest, repository := digestOf(fmt.Sprint("image", i)), fmt.Sprintf("r.io/team%d/app%d", r.IntN(3), i)
		tag := fmt.Sprintf("%s:tag%d", repository, i)
		if r.IntN(4) > 0 {
			in := []string{repository}
			if r.IntN(2) == 0 { // others have it, too
				in = append(in, "r.io/hidden/copy")
				w.tag(fmt.Sprintf("r.io/hidden/copy:v%d", i), digest)
			}
			w.image(fmt.Sprint("image", i), in...)
		}
		if now := digest; r.IntN(4) > 0 {
			if r.IntN(3) == 0 {
				now = w.image(fmt.Sprint("next", i), repository)
			}
			w.tag(tag, now, digest)
		}
		w.needing[digest] = []string{"prod/bank/deployments/vault", "prod/shop/deployments/web"}
		for n := range r.IntN(4) {
			namespace, name, runs := []string{"shop", "bank"}[r.IntN(2)], tag, digest
			switch r.IntN(4) {
			case 0:
				name = repository + "@" + digest
			case 1:
				runs = ""
			}
			w.runs(namespace, fmt.Sprintf("%s-pod-%d-%d", namespace, i, n), name, runs)
			if namespace == "shop" {
				named[tag] = namespace
				w.own = append(w.own, name)
			}
		}
		if named[tag] == "" {
			w.secrets = append(w.secrets, repository, digest, tag)
		}
	}
	return w
}

// keeps fails the test if an answer tells what is secret.
func (w *neighbours) keeps(seed uint64, status *LocalReferenceReviewStatus) {
	w.t.Helper()
	told, err := json.Marshal(status)
	for _, secret := range w.secrets {
		if err != nil || strings.Contains(string(told), secret) {
			w.t.Fatalf("%d: it tells %s of %s, %v", seed, told, secret, err)
		}
	}
}

// What a review of a namespace tells of what its pods name is what a ReferenceReview tells all
// callers who may see everything, and it tells nothing of others, whatever is asked.
func TestLocalReviewTellsWhatItsPodsRun(t *testing.T) {
	t.Parallel()
	answered, worlds := 0, uint64(300)
	if testing.Short() { // under the race detector
		worlds = 30
	}
	for seed := *firstSeed; seed < *firstSeed+worlds; seed++ {
		r := rand.New(rand.NewPCG(seed, 49))
		w := newNeighbours(t, r)
		a := w.answerer()
		ask := func(references ...string) *LocalReferenceReviewStatus {
			spec := &LocalReferenceReviewSpec{}
			for _, reference := range references {
				spec.References = append(spec.References, Question{Reference: reference})
			}
			status, err := a.Local(w.as("ann"), "shop", spec)
			if err != nil {
				t.Fatal(err)
			}
			return status
		}
		want := map[string]*Answer{} // by the reference
		for _, reference := range w.own {
			all, err := a.Answer(t.Context(), &ReferenceReviewSpec{References: []Question{{Reference: reference, Namespace: "shop"}}})
			if err != nil {
				t.Fatal(err)
			}
			want[reference] = &all.References[0]
		}
		whole, named := ask(), map[string]bool{}
		for i := range whole.References {
			named[whole.References[i].Question.Reference] = true
		}
		if !whole.Complete || !slices.Equal(slices.Sorted(maps.Keys(named)), slices.Sorted(maps.Keys(want))) {
			t.Fatalf("%d: the pods name %v, and it tells of %v", seed, w.own, named)
		}
		containers := 0
		for _, c := range w.pods {
			if c.Namespace != "shop" {
				continue
			}
			is := func(row LocalContainer) bool { return row.Pod == c.Pod }
			answer, err := a.Container(t.Context(), "shop", c.Image, c.ImageID)
			at := slices.IndexFunc(whole.Containers, is)
			if v := answer.VerdictOr(err); at < 0 || whole.Containers[at].Verified != v.Verified || whole.Containers[at].Reason != v.Reason || whole.Containers[at].Digest != answer.Runs {
				t.Fatalf("%d: of %+v it tells %+v", seed, c, whole.Containers)
			}
			containers++
		}
		if len(whole.Containers) != containers {
			t.Fatalf("%d: it names %d of %d containers", seed, len(whole.Containers), containers)
		}
		for reference, full := range want {
			texts := []string{reference, strings.TrimPrefix(reference, "r.io/")}
			if slices.ContainsFunc(full.Running.Clusters, func(in RunningIn) bool { return in.Namespace == "shop" }) && full.Meaning.Digest != "" {
				texts = append(texts, full.Meaning.Digest)
			}
			for _, text := range texts {
				status := ask(text)
				w.keeps(seed, status)
				got := status.References[0]
				answered++
				if got.State != full.State || got.Meaning.Digest != full.Meaning.Digest || text == reference && fmt.Sprint(got.Verdict) != fmt.Sprint(full.Verdict) {
					t.Fatalf("%d: %s is %s %s %v, want %s %s %v: %s", seed, text, got.State, got.Meaning.Digest, got.Verdict, full.State, full.Meaning.Digest, full.Verdict, got.Message)
				}
				pods := int32(0)
				for _, in := range full.Running.Clusters {
					if in.Namespace == "shop" {
						pods += in.Pods
					}
				}
				if got.Running == nil || got.Running.Pods != pods {
					t.Fatalf("%d: %s runs in %d pods, and it tells %+v", seed, text, pods, got.Running)
				}
			}
		}
		for _, text := range append(w.secrets[4:], "r.io/none:v1", "r.io", "team1", "tag1", "sha256:6", "6d61", "sha256:"+strings.Repeat("0", 64), "a b") {
			told, err := json.Marshal(ask(text))
			if err != nil {
				t.Fatal(err)
			}
			for _, secret := range w.secrets {
				if secret != text && strings.Contains(strings.ReplaceAll(string(told), text, ""), secret) {
					t.Fatalf("%d: asked for %q it tells %s of %s", seed, text, told, secret)
				}
			}
			if status := ask(text); slices.Contains(w.secrets[4:], text) && (status.References[0].State != Unknown || len(status.References[0].Unknowns) == 0 || status.References[0].Running != nil) {
				t.Fatalf("%d: asked for %q it tells %s", seed, text, told)
			}
		}
		w.keeps(seed, whole)
	}
	if answered < 10*int(worlds)/3 {
		t.Errorf("%d questions were asked", answered)
	}
}

// A digest that no pod of the namespace runs has no verdict there, though one names the tag.
func TestLocalReviewOfWhatDoesNotRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.demands("", "r.io/app")
	first, second := w.image("first", "r.io/app"), w.image("second", "r.io/app")
	w.tag("r.io/app:v1", first)
	w.runs("shop", "web", "r.io/app:v1", first)
	ask := func(q Question) Answer {
		status, err := w.answerer().Local(w.as("ann"), "shop", &LocalReferenceReviewSpec{References: []Question{q}})
		if err != nil {
			t.Fatal(err)
		}
		return status.References[0]
	}
	if got := ask(Question{Reference: "r.io/app:v1", Runs: first}); got.State != Found || got.Verdict == nil || got.Verdict.Verified != "Unsigned" {
		t.Errorf("what runs is %+v", got)
	}
	if got := ask(Question{Reference: "r.io/app:v1", Runs: second}); got.State != Unknown || got.Verdict != nil {
		t.Errorf("what does not run is %+v", got)
	}
	w.may = func(a authorizer.Attributes) bool { return a.GetResource() == "clusterpods" }
	if got := ask(Question{Reference: "app:v1"}); got.State != Found || got.Running.Pods != 1 {
		t.Errorf("who may see the pods of clusters is told %+v", got)
	}
	w.may = func(authorizer.Attributes) bool { return false }
	if _, err := w.answerer().Local(w.as("ann"), "shop", &LocalReferenceReviewSpec{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `User "ann" cannot list resource "pods"`) {
		t.Errorf("who may not list pods is answered %v", err)
	}
}
