package policy_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// Adding, replacing or removing one policy gives the same Set, or the same error, as making a Set
// of all policies.
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
			p.Admission.ImmutableTags = []policy.TagPatterns{"", "v*"}[random.IntN(2)]
			with := append(slices.DeleteFunc(slices.Clone(all), func(other *policy.Policy) bool { return other.Key() == p.Key() }), p)
			want, wantErr := policy.NewSet(with)
			before := set
			got, err := set.With(p)
			if fmt.Sprint(err) != fmt.Sprint(wantErr) || !reflect.DeepEqual(got, want) {
				t.Fatalf("with %+v: %v, want %v; %+v, want %+v", p, err, wantErr, got, want)
			}
			if accepts := set.Accepts(p); before != nil && fmt.Sprint(accepts) != fmt.Sprint(wantErr) {
				t.Fatalf("accepts %+v: %v, want %v", p, accepts, wantErr)
			}
			if err == nil && set.UncoveredWith(p) != want.Uncovered(p.Namespace) {
				t.Fatalf("uncovered with %+v: %v", p, set.UncoveredWith(p))
			}
			if again, err := policy.NewSet(all); before != nil && (err != nil || !reflect.DeepEqual(before, again)) {
				t.Fatalf("adding to a Set changed it: %v", err)
			}
			if err != nil {
				refused++
				continue
			}
			set, all = got, with
			gone := all[random.IntN(len(all))]
			if found := set.Named(gone.Key()); found != gone {
				t.Fatalf("%s is %+v, want %+v", gone.ID(), found, gone)
			}
			if random.IntN(4) > 0 {
				continue
			}
			kept := slices.DeleteFunc(slices.Clone(all), func(p *policy.Policy) bool { return p == gone })
			want, err = policy.NewSet(kept)
			less, found := set.Without(gone.Key())
			if err != nil || !found || !reflect.DeepEqual(less, want) || less.Named(gone.Key()) != nil {
				t.Fatalf("without %s: %v, %v; %+v, want %+v", gone.ID(), found, err, less, want)
			}
			set, all = less, kept
		}
	}
	if refused == 0 {
		t.Error("no scope had too many policies")
	}
}
