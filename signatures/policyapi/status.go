package policyapi

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"slices"

	imagev1 "github.com/openshift/api/image/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// The types of conditions.
const (
	// ConditionApplied tells whether images are judged by the policy.
	ConditionApplied = "Applied"
	// ConditionSatisfiable tells whether any signature can meet it.
	ConditionSatisfiable = "Satisfiable"
	// ConditionCoversImages tells how many images it covers.
	ConditionCoversImages = "CoversImages"
)

// The reasons of conditions.
const (
	ReasonInForce     = "InForce"
	ReasonNameTaken   = "NameTaken"   // a file has a policy of the same name
	ReasonInvalid     = "Invalid"     // an older version took it
	ReasonUsable      = "Usable"      // the root of trust
	ReasonExpired     = "Expired"     // all of the root of trust
	ReasonImagesFound = "ImagesFound" // by the last sweep
	ReasonNoImages    = "NoImages"    // by the last sweep
	ReasonCounting    = "Counting"    // the sweep since the last change has not ended
)

// maxCounted bounds the repositories of which a sweep remembers that it has counted them, for all policies together.
const maxCounted = 1_000_000

// tally is how much each policy of a set covers, by name.
type tally struct {
	set      *policy.Set // that was in force when the sweep began; nil between sweeps
	counted  map[uint64]struct{}
	now      map[string]coverage
	images   int                 // in this sweep so far
	empty    bool                // the last sweep found no image at all
	hash     string              // of the set that covered is about
	covered  map[string]coverage // nil before the first sweep has ended
	hashSeed maphash.Seed
}

type coverage struct{ images, repositories int }

func (c coverage) String() string {
	return fmt.Sprintf("%s in %s", plural(c.images, "image", "images"), plural(c.repositories, "repository", "repositories"))
}

func plural(n int, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, several)
}

// Begin begins to count what policies cover, as a sweep begins.
func (k *Keeper) Begin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := &k.tally
	t.set, t.counted, t.now, t.images, t.hashSeed = k.live.Set(), map[uint64]struct{}{}, map[string]coverage{}, 0, maphash.MakeSeed()
}

// Count counts an image for the policies that cover it.
func (k *Keeper) Count(image *imagev1.Image) {
	k.mu.Lock()
	set := k.tally.set
	k.mu.Unlock()
	covering := signatures.Covering(image, set)
	k.mu.Lock()
	defer k.mu.Unlock()
	t := &k.tally
	t.images++
	by := map[string]bool{}
	for repository, policies := range covering {
		for _, p := range policies {
			c := t.now[p.Name]
			if !by[p.Name] {
				by[p.Name] = true
				c.images++
			}
			key := maphash.String(t.hashSeed, p.Name+" "+repository)
			if _, ok := t.counted[key]; !ok && len(t.counted) < maxCounted {
				t.counted[key] = struct{}{}
				c.repositories++
			}
			t.now[p.Name] = c
		}
	}
}

// End ends counting, as the sweep ends. What was counted is not used if it was not all, or of other policies than those in
// force now.
func (k *Keeper) End(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := &k.tally
	if hash := t.set.Hash(); err == nil && hash == k.live.Set().Hash() {
		t.hash, t.covered, t.empty = hash, t.now, t.images == 0
	}
	t.set, t.counted, t.now = nil, nil, nil
	k.awake()
}

// report writes what has changed of the status of objects. said is what was logged of policies that nothing can meet, or
// that cover nothing, so that it is logged once.
func (k *Keeper) report(ctx context.Context, said map[string]string) error {
	set := k.live.Set()
	policies := map[string]*policy.Policy{}
	for _, p := range set.Policies() {
		policies[p.Name] = p
	}
	for name := range said {
		if policies[name] == nil {
			delete(said, name)
		}
	}
	k.mu.Lock()
	faults, covered, empty := k.faults, k.tally.covered, k.tally.empty
	if k.tally.hash != set.Hash() {
		covered = nil
	}
	k.mu.Unlock()

	stale := map[string][]metav1.Condition{}
	if err := k.each(ctx, func(o *ClusterImagePolicy) {
		if want := k.conditions(o, policies[o.Name], faults[o.Name], covered); !apiequality.Semantic.DeepEqual(want, o.Status.Conditions) {
			stale[o.Name] = want
		}
	}); err != nil {
		return err
	}
	var errs []error
	for name, conditions := range stale {
		errs = append(errs, k.write(ctx, name, conditions))
	}
	for _, p := range policies {
		k.warn(p, covered, empty, said)
	}
	return errors.Join(errs...)
}

// conditions are what an object's should be. p is in force under its name; covered is nil until it was counted.
func (k *Keeper) conditions(o *ClusterImagePolicy, p *policy.Policy, f fault, covered map[string]coverage) []metav1.Condition {
	conditions := slices.Clone(o.Status.Conditions)
	set := func(kind string, status metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(&conditions, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: message,
			ObservedGeneration: o.Generation, LastTransitionTime: metav1.NewTime(k.clock.Now()),
		})
	}
	if f.reason != "" || p == nil {
		if p == nil {
			f = fault{ReasonInvalid, "it is not in force"}
		}
		set(ConditionApplied, metav1.ConditionFalse, f.reason, f.message)
		meta.RemoveStatusCondition(&conditions, ConditionSatisfiable)
		meta.RemoveStatusCondition(&conditions, ConditionCoversImages)
		return conditions
	}
	set(ConditionApplied, metav1.ConditionTrue, ReasonInForce, "images in its scopes, and in no more specific ones, are judged by it")
	if err := p.Usable(k.clock.Now()); err != nil {
		set(ConditionSatisfiable, metav1.ConditionFalse, ReasonExpired, "no signature can meet it: "+err.Error())
	} else {
		set(ConditionSatisfiable, metav1.ConditionTrue, ReasonUsable, "nothing in the root of trust rules every signature out")
	}
	switch before := meta.FindStatusCondition(conditions, ConditionCoversImages); {
	case covered[o.Name].images > 0:
		set(ConditionCoversImages, metav1.ConditionTrue, ReasonImagesFound, covered[o.Name].String())
	case covered != nil:
		set(ConditionCoversImages, metav1.ConditionFalse, ReasonNoImages, "no image")
	case before == nil || before.ObservedGeneration != o.Generation:
		set(ConditionCoversImages, metav1.ConditionUnknown, ReasonCounting, "being counted")
	}
	return conditions
}

// write writes the status of an object, unless it has gone.
func (k *Keeper) write(ctx context.Context, name string, conditions []metav1.Condition) error {
	info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, stored runtime.Object) (runtime.Object, error) {
		o := stored.DeepCopyObject().(*ClusterImagePolicy)
		o.Status.Conditions = conditions
		return o, nil
	})
	_, _, err := k.status.Update(ctx, name, info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// warn logs, once, that a policy does nothing. It covers no image by fault only where there are some.
func (k *Keeper) warn(p *policy.Policy, covered map[string]coverage, empty bool, said map[string]string) {
	why := ""
	if err := p.Usable(k.clock.Now()); err != nil {
		why = "no signature can meet it: " + err.Error()
	} else if covered == nil {
		return // it is not known yet
	} else if covered[p.Name].images == 0 && !empty {
		why = "it covers no image"
	}
	if why != "" && said[p.Name] != why {
		slog.Warn("A policy has no effect", "policy", p.Name, "why", why)
	}
	said[p.Name] = why
}
