package policyapi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// fixture is a Keeper with the storage of ClusterImagePolicies over a database of the test's own.
type fixture struct {
	*Keeper
	t     testing.TB
	ctx   context.Context
	store rest.StandardStorage
}

func newFixture(t testing.TB, files *policy.Set) *fixture {
	t.Helper()
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.Unversioned)
	utilruntime.Must(Install(scheme))
	getter := kubestore.NewGetter(dbtest.Open(t), serializer.NewCodecFactory(scheme), kubestore.Options{})
	changes := func() (Changes, error) { return getter.Changes(Resources...) }
	all, err := New(getter, scheme, Options{Live: signatures.NewLive(files, clock.RealClock{}), Clock: clock.RealClock{}, Changes: changes, Changed: func() {}})
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{all.Keeper, t, request.WithNamespace(t.Context(), metav1.NamespaceNone), all.ClusterPolicies}
	t.Cleanup(f.store.Destroy)
	if err := f.Load(f.ctx); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) create(name, scope string, key *signaturestest.Key) {
	f.t.Helper()
	o := &ClusterImagePolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	o.Spec.Scopes = []string{scope}
	o.Spec.Policy.RootOfTrust = policy.RootOfTrust{PolicyType: policy.TypePublicKey, PublicKey: &policy.PublicKey{KeyData: key.PEM}}
	if _, err := f.store.Create(f.ctx, o, rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) update(name string, change func(*ClusterImagePolicy)) {
	f.t.Helper()
	info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, stored runtime.Object) (runtime.Object, error) {
		o := stored.DeepCopyObject().(*ClusterImagePolicy)
		change(o)
		return o, nil
	})
	if _, _, err := f.store.Update(f.ctx, name, info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

// settle writes the status of all policies, as of a count that begins now.
func (f *fixture) settle() {
	f.t.Helper()
	f.Begin()
	f.End(nil)
	f.showAll()
}

func (f *fixture) showAll() {
	f.t.Helper()
	if err := f.show(f.ctx); err != nil {
		f.t.Fatal(err)
	}
}

// now returns the policies in force, and at which revision each object was written.
func (f *fixture) now() (inForce map[string]*policy.Policy, revisions map[string]string) {
	f.t.Helper()
	inForce, revisions = map[string]*policy.Policy{}, map[string]string{}
	for _, p := range f.live.Set().Policies() {
		inForce[p.Name] = p
	}
	if err := f.each(f.ctx, func(o object) { revisions[o.GetName()] = o.GetResourceVersion() }); err != nil {
		f.t.Fatal(err)
	}
	return inForce, revisions
}

// However one policy is changed, the others are neither parsed nor written again, before a count or
// after it.
func TestOneWriteLeavesTheOtherPolicies(t *testing.T) {
	t.Parallel()
	f, key := newFixture(t, nil), signaturestest.NewKey(t, signaturestest.P256)
	for i := range 20 {
		f.create(fmt.Sprintf("team-%02d", i), fmt.Sprintf("registry.example.com/team-%02d", i), key)
	}
	f.settle()
	for _, step := range []struct {
		what   string
		write  func()
		differ string // the policy that was written
	}{
		{"created", func() { f.create("new", "registry.example.com/team-00/new", key) }, "new"},
		{"changed", func() {
			f.update("new", func(o *ClusterImagePolicy) { o.Spec.Scopes = []string{"registry.example.com/other"} })
		}, "new"},
		{"labelled", func() { f.update("team-03", func(o *ClusterImagePolicy) { o.Labels = map[string]string{"a": "b"} }) }, "team-03"},
		{"deleted", func() {
			if _, _, err := f.store.Delete(f.ctx, "new", rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}, "new"},
	} {
		policies, revisions := f.now()
		step.write()
		f.showAll()
		f.settle()
		after, now := f.now()
		for name, p := range policies {
			if name != step.differ && after[name] != p {
				t.Errorf("%s when another policy is %s: it is parsed again", name, step.what)
			}
		}
		for name, rev := range revisions {
			if name != step.differ && now[name] != rev {
				t.Errorf("%s when another policy is %s: it is written again", name, step.what)
			}
		}
	}
}

// The cost of a write does not depend on the number of policies: it allocates about as many objects
// beside 600 policies as beside 50.
func TestAWriteCostsWhatItChanges(t *testing.T) { // alone: others allocate, too
	key := signaturestest.NewKey(t, signaturestest.P256)
	cost := map[int]float64{}
	for _, n := range []int{50, 300, 600} {
		f, version := newFixture(t, nil), 0
		for i := range n {
			f.create(fmt.Sprintf("team-%03d", i), fmt.Sprintf("registry.example.com/team-%03d", i), key)
		}
		f.settle()
		cost[n] = testing.AllocsPerRun(20, func() {
			version++
			f.update(fmt.Sprintf("team-%03d", version), func(o *ClusterImagePolicy) {
				o.Spec.Scopes = []string{fmt.Sprintf("registry.example.com/v%d", version)}
			})
		})
	}
	t.Logf("objects in memory made by a write, by the number of policies: %v", cost)
	for _, n := range []int{300, 600} {
		if cost[n] > 2*cost[50] {
			t.Errorf("a write beside %d policies makes %.0f objects, beside 50 %.0f", n, cost[n], cost[50])
		}
	}
}

// The keeper's entry of an object follows each of its changes, by any writer.
func TestKeptPoliciesFollow(t *testing.T) {
	t.Parallel()
	f, key := newFixture(t, nil), signaturestest.NewKey(t, signaturestest.P256)
	const name = "demo"
	inForce := func() *policy.Policy {
		t.Helper()
		if err := f.Current(f.ctx); err != nil {
			t.Fatal(err)
		}
		all, _ := f.now()
		return all[name]
	}
	f.create(name, "registry.example.com/a", key)
	first := inForce()
	f.update(name, func(o *ClusterImagePolicy) {
		o.Annotations = map[string]string{"tidewaiter.dev/admission": policy.ModeAudit}
	})
	if p := inForce(); p.Admission.Mode != policy.ModeAudit || p.Hash() != first.Hash() || first.Admission.Mode != "" {
		t.Errorf("with another annotation: %+v, and before %+v", p.Admission, first.Admission)
	}
	f.update(name, func(o *ClusterImagePolicy) { o.Spec.Scopes = []string{"registry.example.com/b"} })
	if p := inForce(); p.Scopes[0] != "registry.example.com/b" || p.Admission.Mode != policy.ModeAudit {
		t.Errorf("with another scope: %v %+v", p.Scopes, p.Admission)
	}
	f.settle()
	// Another object of the same name and generation.
	if _, _, err := f.store.Delete(f.ctx, name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if p := inForce(); p != nil {
		t.Errorf("a deleted policy is in force: %v", p.Scopes)
	}
	f.create(name, "registry.example.com/c", key)
	if p := inForce(); p.Scopes[0] != "registry.example.com/c" || p.Admission.Mode != "" {
		t.Errorf("one that was made anew: %v %+v", p.Scopes, p.Admission)
	}
	// The stores that call no hook write as another server does.
	_, err := f.cluster.objects.Create(f.ctx, &ClusterImagePolicy{ObjectMeta: metav1.ObjectMeta{Name: "elsewhere"}, Spec: policy.DocumentSpec{
		Scopes: []string{"registry.example.com/d"},
		Policy: policy.DocumentPolicy{RootOfTrust: policy.RootOfTrust{PolicyType: policy.TypePublicKey, PublicKey: &policy.PublicKey{KeyData: key.PEM}}},
	}}, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if all, _ := f.now(); all["elsewhere"] != nil {
		t.Error("what another server wrote is in force before it was asked for")
	}
	if inForce(); f.live.Set().Policies()[1].Name != "elsewhere" {
		t.Error("what another server wrote is not in force")
	}
}

// After any writes, to one object or several before they are read, the policies in force and the
// faults equal those of a server that starts.
func TestWhatAWriteLeavesIsWhatIsReadAnew(t *testing.T) {
	t.Parallel()
	key := signaturestest.NewKey(t, signaturestest.P256)
	spec := func(scope string) policy.DocumentSpec {
		return policy.DocumentSpec{Scopes: []string{"registry.example.com/" + scope}, Policy: policy.DocumentPolicy{
			RootOfTrust: policy.RootOfTrust{PolicyType: policy.TypePublicKey, PublicKey: &policy.PublicKey{KeyData: key.PEM}},
		}}
	}
	read := spec("file")
	inFile, err := policy.New("", "name-0", &read)
	if err != nil {
		t.Fatal(err)
	}
	files, err := policy.NewSet([]*policy.Policy{inFile})
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, files)
	store := f.cluster.objects // it calls no hook, as another server's writes do not
	random, taken := rand.New(rand.NewPCG(1, 2)), 0
	for step := range 100 {
		for range 1 + random.IntN(3) {
			name := fmt.Sprintf("name-%d", random.IntN(5))
			_, err := store.Get(f.ctx, name, &metav1.GetOptions{})
			switch exists := err == nil; {
			case !exists:
				_, err = store.Create(f.ctx, &ClusterImagePolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec(name)}, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
			case random.IntN(2) == 0:
				_, _, err = store.Delete(f.ctx, name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{})
			default:
				changed := spec(fmt.Sprint(step))
				info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, stored runtime.Object) (runtime.Object, error) {
					o := stored.DeepCopyObject().(*ClusterImagePolicy)
					o.Spec = changed
					return o, nil
				})
				_, _, err = store.Update(f.ctx, name, info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Current(f.ctx); err != nil {
			t.Fatal(err)
		}
		set, faults := f.live.Set(), f.faults
		taken += len(faults)
		if err := f.Load(f.ctx); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(set, f.live.Set()) || !maps.Equal(faults, f.faults) {
			t.Fatalf("step %d: %v %v in force, and read anew %v %v", step, set.Policies(), faults, f.live.Set().Policies(), f.faults)
		}
	}
	if taken == 0 {
		t.Error("no object had the name of a file's policy")
	}
}

// lagging is a Changes whose methods fail.
type lagging struct{ catchUp, since error }

func (l *lagging) CatchUp(context.Context) error { return l.catchUp }
func (l *lagging) Since(context.Context, func(namespace, name string, rev int64)) (bool, error) {
	return false, l.since
}
func (l *lagging) Ready() <-chan struct{} { return nil }

// If the policies in force are unknown, callers that need verdicts get the reason.
func TestPoliciesThatAreNotKnownAreSaidToBe(t *testing.T) {
	t.Parallel()
	k, changes := newKeeper(Options{Live: signatures.NewLive(nil, clock.RealClock{}), Clock: clock.RealClock{}}), &lagging{}
	k.changes = changes
	for _, err := range []error{nil, errors.New("the copy lags behind")} {
		if changes.catchUp = err; !errors.Is(k.Current(t.Context()), err) {
			t.Errorf("%v instead of %v", k.Current(t.Context()), err)
		}
	}
	changes.catchUp, changes.since = nil, errors.New("what changed was forgotten")
	if err := k.Current(t.Context()); !errors.Is(err, changes.since) {
		t.Error(err)
	}
}

// A policy is in force when its writer gets the answer, even if the keeper writes the policy's
// status between the commit and its own notification of it.
func TestStatusBetweenAWriteAndItsAnswer(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.create("team", "registry.example.com/team", signaturestest.NewKey(t, signaturestest.P256))
	f.settle()
	key := types.NamespacedName{Name: "team"}
	silent := *f // its store does not call the keeper
	silent.store = f.Keeper.cluster.objects
	for _, tt := range []struct {
		what   string
		change func(*ClusterImagePolicy)
		done   func(*policy.Policy) bool
	}{
		{"mode", func(o *ClusterImagePolicy) {
			metav1.SetMetaDataAnnotation(&o.ObjectMeta, "tidewaiter.dev/admission", "audit")
		},
			func(p *policy.Policy) bool { return p.Admission == admissionOf(f.get("team")) }},
		{"scope", func(o *ClusterImagePolicy) { o.Spec.Scopes = []string{"registry.example.com/other"} },
			func(p *policy.Policy) bool { return slices.Equal(p.Scopes, []string{"registry.example.com/other"}) }},
	} {
		before, _ := f.now()
		silent.update("team", tt.change)
		if err := f.write(f.ctx, key, PolicyStatus{}); err != nil {
			t.Fatal(err)
		}
		f.written(f.get("team"))
		if after, _ := f.now(); after["team"] == before["team"] || !tt.done(after["team"]) {
			t.Errorf("the new %s is not in force", tt.what)
		}
	}
}

func (f *fixture) get(name string) *ClusterImagePolicy {
	f.t.Helper()
	o, err := f.store.Get(f.ctx, name, &metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return o.(*ClusterImagePolicy)
}
