package kubestore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// TestListByLabel: with any selector, the list has exactly the matching objects. A list for a label
// reads no object without it.
func TestListByLabel(t *testing.T) {
	ctx := context.Background()
	f := setup(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	keys := []string{"app", "example.com/app", "a.b-c_d", "x"}
	values := []string{"", "web", "web-1", "1", "20", "We.B_1"}
	pick := func(from []string) string { return from[rnd.IntN(len(from))] }
	sets := map[string]labels.Set{}
	for i := range 100 {
		name, set := fmt.Sprintf("pod-%02d", i), labels.Set{}
		for range rnd.IntN(4) {
			set[pick(keys)] = pick(values)
		}
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: set}}
		if err := f.Create(ctx, "/pods/ns/"+name, pod, nil, 0); err != nil {
			t.Fatal(err)
		}
		sets[name] = set
	}
	for range 300 {
		var terms []string
		for range 1 + rnd.IntN(3) {
			k, v := pick(keys), pick(values)
			terms = append(terms, pick([]string{
				k + "=" + v, k + "==" + v, k + "!=" + v, k, "!" + k, k + ">5", k + "<5",
				fmt.Sprintf("%s in (%s)", k, v), fmt.Sprintf("%s in (%s,%s)", k, v, pick(values)), fmt.Sprintf("%s notin (%s)", k, v),
			}))
		}
		selector, err := labels.Parse(strings.Join(terms, ","))
		if err != nil {
			t.Fatalf("%v: %v", terms, err)
		}
		var want, got []string
		for name, set := range sets {
			if selector.Matches(set) {
				want = append(want, name)
			}
		}
		slices.Sort(want)
		list := &example.PodList{}
		f.transformer.GetReadsAndReset()
		if err := f.GetList(ctx, "/pods/", storage.ListOptions{Recursive: true, Predicate: storage.SelectionPredicate{Label: selector, Field: fields.Everything(), GetAttrs: podAttrs}}, list); err != nil {
			t.Fatal(err)
		}
		for _, pod := range list.Items {
			got = append(got, pod.Name)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%s: got %v, want %v", selector, got, want)
		}
		most := len(sets)
		if value, ok := labelValueFor(selector); ok {
			key, v, single := strings.Cut(value, "=")
			most = 0
			for _, set := range sets {
				if set.Has(key) && (!single || set[key] == v) {
					most++
				}
			}
		}
		if reads := f.transformer.GetReadsAndReset(); reads > uint64(most) {
			t.Errorf("%s: %d objects were read, at most %d have the label", selector, reads, most)
		}
	}
	for _, selector := range []labels.Selector{labels.Nothing(), labels.Everything(), nil} {
		if value, ok := labelValueFor(selector); ok {
			t.Errorf("%v is looked up under %q", selector, value)
		}
	}
}
