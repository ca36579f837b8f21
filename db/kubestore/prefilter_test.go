package kubestore

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
)

// TestPrefilter: whatever the selector, an object it matches passes; and most
// that it does not match do not.
func TestPrefilter(t *testing.T) {
	f := setup(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	keys := []string{"app", "example.com/app", "a.b-c_d", "x"}
	values := []string{"", "web", "web-1", "1", "20", "We.B_1"}
	pick := func(from []string) string { return from[rnd.IntN(len(from))] }
	var objects [][]byte
	var sets []labels.Set
	for range 300 {
		set := labels.Set{}
		for range rnd.IntN(4) {
			set[pick(keys)] = pick(values)
		}
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: set, Annotations: map[string]string{"text": `a "quoted" <text> \`}}}
		data, err := runtime.Encode(f.codec, pod)
		if err != nil {
			t.Fatal(err)
		}
		objects, sets = append(objects, data), append(sets, set)
	}
	skipped, unmatched := 0, 0
	for range 300 {
		var terms []string
		for range 1 + rnd.IntN(3) {
			k, v := pick(keys), pick(values)
			terms = append(terms, pick([]string{
				k + "=" + v, k + "==" + v, k + "!=" + v, k, "!" + k, k + ">5", k + "<5",
				fmt.Sprintf("%s in (%s,%s)", k, v, pick(values)), fmt.Sprintf("%s notin (%s)", k, v),
			}))
		}
		selector, err := labels.Parse(strings.Join(terms, ","))
		if err != nil {
			t.Fatalf("%v: %v", terms, err)
		}
		p := newPrefilter(selector)
		for i, data := range objects {
			may, does := p.mayMatch(data), selector.Matches(sets[i])
			if does && !may {
				t.Fatalf("selector %s matches %v, yet %s is filtered out", selector, sets[i], data)
			}
			if !does {
				unmatched++
				if !may {
					skipped++
				}
			}
		}
	}
	if skipped < unmatched/4 {
		t.Errorf("of %d objects that do not match, %d were told early", unmatched, skipped)
	}
	if !newPrefilter(labels.SelectorFromSet(labels.Set{"a": "b"})).mayMatch([]byte("{\n  \"kind\": \"Pod\"\n}")) {
		t.Error("JSON with white space was judged")
	}
	if !newPrefilter(labels.Nothing()).mayMatch(objects[0]) || !newPrefilter(labels.Everything()).mayMatch(objects[0]) || !newPrefilter(nil).mayMatch(objects[0]) {
		t.Error("a selector without requirements filters")
	}
}
