package imageruns

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
)

// A stretch that ran in a time is in one of the buckets of that time, of which there are few; and a
// stretch is in few.
func TestBuckets(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	begun := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	some := func() time.Duration { return time.Duration(rnd.Int64N(int64(1)<<rnd.IntN(26))) * time.Second }
	missed, found, moments, right := 0, 0, 0, 0
	for range 40_000 {
		r := &ImageRun{Spec: ImageRunSpec{From: metav1.NewTime(begun.Add(some()))}}
		if rnd.IntN(10) > 0 {
			r.Status.Until = &metav1.Time{Time: r.Spec.From.Add(some())}
		}
		w := Window{From: begun.Add(some())}
		if w.Until = w.From; rnd.IntN(2) == 0 {
			w.Until = w.From.Add(some())
		}
		of := bucketsOf(r)
		if len(of) > 5 {
			t.Fatalf("%v is in %d buckets", r, len(of))
		}
		in, ok := w.buckets()
		if !ok {
			missed++
			continue
		}
		has := slices.ContainsFunc(of, func(b string) bool { return slices.Contains(in, b) })
		if r.Status.Until != nil && r.Status.Until.Sub(r.Spec.From.Time) > time.Hour {
			length := r.Status.Until.Sub(r.Spec.From.Time)
			at := r.Spec.From.Add(time.Duration(rnd.Int64N(3*int64(length))) - length)
			in, _ := Window{at, at}.buckets()
			if slices.ContainsFunc(of, func(b string) bool { return slices.Contains(in, b) }) {
				if moments++; (Window{at, at}).Ran(r) {
					right++
				}
			}
		}
		if w.Ran(r) {
			if found++; !has {
				t.Fatalf("%s to %v ran from %s to %s, and is in %v, not in %v", r.Spec.From, r.Status.Until, w.From, w.Until, of, in)
			}
		}
	}
	if right*4 < moments*3 {
		t.Errorf("of %d stretches in the buckets of a moment, %d ran then", moments, right)
	}
	if found < 1000 || missed > 10_000 {
		t.Errorf("%d ran, and %d times were too long: the test shows little", found, missed)
	}
}

// The verdict at a time is the one that was known then; where it is no longer kept, it is unknown.
func TestVerdictsThen(t *testing.T) {
	t.Parallel()
	at := func(minute int) time.Time { return time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC) }
	r := &ImageRun{Spec: ImageRunSpec{From: metav1.NewTime(at(0))}}
	for _, v := range []struct {
		minute int
		is     string
	}{{1, "Unsigned"}, {10, "True"}, {20, "False"}} {
		r.Status.Verdicts = append(r.Status.Verdicts, RunVerdict{Since: metav1.NewTime(at(v.minute)), Verified: v.is})
	}
	for _, test := range []struct {
		from, until, dropped int
		want                 string
	}{
		{0, 0, 0, "[] true"}, {1, 1, 0, "[Unsigned] false"}, {9, 9, 0, "[Unsigned] false"}, {10, 10, 0, "[True] false"}, {30, 30, 0, "[False] false"},
		{5, 15, 0, "[Unsigned True] false"}, {0, 60, 0, "[Unsigned True False] false"}, {5, 5, 3, "[] true"}, {1, 1, 3, "[Unsigned] false"}, {1, 2, 3, "[Unsigned] true"}, {0, 1, 3, "[Unsigned] false"}, {15, 15, 3, "[True] false"},
	} {
		r.Status.VerdictsDropped = int32(test.dropped)
		known, unknown := Window{at(test.from), at(test.until)}.Verdicts(r)
		words := []string{}
		for _, v := range known {
			words = append(words, v.Verified)
		}
		if got := fmt.Sprintf("%v %t", words, unknown); got != test.want {
			t.Errorf("from %d to %d, %d dropped: %s, want %s", test.from, test.until, test.dropped, got, test.want)
		}
	}
}

// What had no verdict yet is found as Unknown, at that time and ever.
func TestUnknownVerdict(t *testing.T) {
	t.Parallel()
	s, _ := openStore(t, t.TempDir())
	ctx := genericapirequest.WithNamespace(t.Context(), "ns")
	from := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, verdicts := range map[string][]RunVerdict{"none": nil, "late": {{Since: metav1.NewTime(from.Add(time.Minute)), Verified: "True"}}} {
		r := &ImageRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: ImageRunSpec{Cluster: "c", Workload: "Pod/" + name, From: metav1.NewTime(from)}, Status: ImageRunStatus{Verdicts: verdicts}}
		if _, _, err := s.Update(ctx, name, rest.DefaultUpdatedObjectInfo(r), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, true, &metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		set  fields.Set
		want string
	}{
		{fields.Set{"verified": "Unknown"}, "[none]"},
		{fields.Set{"verified": "Unknown", "at": "2026-01-01T00:00:30Z"}, "[late none]"},
		{fields.Set{"verified": "True", "at": "2026-01-01T00:02:00Z"}, "[late]"},
		{fields.Set{"verified": "True", "workload": "none"}, "[]"},
	} {
		obj, err := s.List(ctx, &internalversion.ListOptions{FieldSelector: test.set.AsSelector()})
		if err != nil {
			t.Fatal(err)
		}
		names := []string{}
		for _, r := range obj.(*ImageRunList).Items {
			names = append(names, r.Name)
		}
		if got := fmt.Sprint(names); got != test.want {
			t.Errorf("%v: %s, want %s", test.set, got, test.want)
		}
	}
}

// Each requirement of a selector counts, whichever other one is beside it.
func TestEachRequirementCounts(t *testing.T) {
	t.Parallel()
	from := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := &ImageRun{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "one"}, Spec: ImageRunSpec{
		Cluster: "prod", Workload: "Deployment/app", Image: "registry.example.com/app:1", From: metav1.NewTime(from),
	}, Status: ImageRunStatus{Verdicts: []RunVerdict{{Since: metav1.NewTime(from), Verified: "True"}}}}
	values := map[string]struct{ has, lacks string }{
		nameField: {"one", "other"}, namespaceField: {"team", "other"}, clusterField: {"prod", "other"}, workloadField: {"app", "other"}, imageField: {"registry.example.com/app:1", "registry.example.com/app:2"},
		verifiedField: {"True", "False"}, runningField: {"true", "false"}, atField: {"2026-01-01T01:00:00Z", "2025-01-01T01:00:00Z"},
	}
	for one, its := range values {
		for other, value := range values {
			if one == other {
				continue
			}
			for selector, want := range map[string]bool{
				one + "=" + its.has + "," + other + "=" + value.has: true, one + "=" + its.lacks + "," + other + "=" + value.has: false, one + "!=" + its.has + "," + other + "=" + value.has: false,
			} {
				parsed, err := fields.ParseSelector(selector)
				if err != nil {
					t.Fatal(err)
				}
				p := predicate(labels.Everything(), parsed)
				if got, err := p.Matches(r); err != nil || got != want {
					t.Errorf("%s selects it: %v, %v", selector, got, err)
				}
			}
		}
	}
}

// While nothing is recorded although no gap is stored yet, such as while the store takes no writes,
// an answer about that time says so.
func TestNothingIsRecorded(t *testing.T) {
	t.Parallel()
	at := func(minute int) time.Time { return time.Date(2026, 1, 1, 1, minute, 0, 0, time.UTC) }
	end := metav1.NewTime(at(20))
	for name, gaps := range map[string][]clusters.Gap{"": nil, "after a gap": {{From: metav1.NewTime(at(10)), Until: &end}}} {
		records := map[string]clusters.ClusterRecords{"c": {Since: metav1.NewTime(at(0)), Until: metav1.NewTime(at(30)), Unseen: gaps}}
		for _, test := range []struct {
			w    Window
			now  time.Time
			want string
		}{
			{Window{at(31), at(31)}, at(32), "[]"}, // the next minute is about to be stored
			{Window{at(31), at(31)}, at(40), "[nothing of cluster c has been recorded since 2026-01-01T01:30:00Z, so it is not known what ran there then]"},
			{Window{From: at(29)}, at(40), "[nothing of cluster c has been recorded since 2026-01-01T01:30:00Z, so it is not known what ran there then]"},
			{Window{at(30), at(30)}, at(40), "[]"},
			{Window{}, at(40), "[what ran in cluster c is recorded since 2026-01-01T01:00:00Z, and not whole before]"},
		} {
			if got := fmt.Sprint(test.w.Unknown(records, nil, "", test.now)); got != test.want {
				t.Errorf("%s: %v at %s: %s, want %s", name, test.w, test.now, got, test.want)
			}
		}
	}
	records := map[string]clusters.ClusterRecords{"c": {Since: metav1.NewTime(at(0)), Until: metav1.NewTime(at(30)), Unseen: []clusters.Gap{{From: metav1.NewTime(at(30))}}}}
	if got := (Window{at(35), at(35)}).Unknown(records, nil, "", at(40)); len(got) != 1 {
		t.Errorf("a gap that goes on is said as %q", got)
	}
}
