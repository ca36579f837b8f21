package policy_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// A Set that one policy is added to, or replaced in, is the Set of all of them, and is refused
// where that is.
func TestWithOnePolicyIsTheSetOfAll(t *testing.T) {
	scopes := []string{"a.example.com", "a.example.com/team", "a.example.com/team/app:v1", policy.CatchAll}
	random := rand.New(rand.NewPCG(1, 2))
	refused := 0
	for range 20 {
		var set *policy.Set
		var all []*policy.Policy
		for range 100 {
			p := &policy.Policy{Namespace: []string{"", "one", "two"}[random.IntN(3)], Name: fmt.Sprint(random.IntN(30))}
			for _, scope := range scopes {
				if random.IntN(4) > 0 {
					p.Scopes = append(p.Scopes, scope)
				}
			}
			p.Admission.Mode = []string{"", policy.ModeEnforce}[random.IntN(2)]
			p.Admission.ImmutableTags = []string{"", "v*"}[random.IntN(2)]
			with := append(slices.DeleteFunc(slices.Clone(all), func(other *policy.Policy) bool { return other.Key() == p.Key() }), p)
			want, wantErr := policy.NewSet(with)
			before := set
			got, err := set.With(p)
			if fmt.Sprint(err) != fmt.Sprint(wantErr) || !reflect.DeepEqual(got, want) {
				t.Fatalf("with %+v: %v, want %v; %+v, want %+v", p, err, wantErr, got, want)
			}
			if again, err := policy.NewSet(all); before != nil && (err != nil || !reflect.DeepEqual(before, again)) {
				t.Fatalf("adding to a Set changed it: %v", err)
			}
			if err != nil {
				refused++
				continue
			}
			set, all = got, with
		}
	}
	if refused == 0 {
		t.Error("no scope had too many policies")
	}
}
