package policyapi

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/printable"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// The types of conditions.
const (
	// ConditionApplied reports whether images are judged by the policy.
	ConditionApplied = "Applied"
	// ConditionSatisfiable reports whether any signature can meet the policy.
	ConditionSatisfiable = "Satisfiable"
	// ConditionCoversImages tells how many images the policy covers.
	ConditionCoversImages = "CoversImages"
	// ConditionExceptions tells whether exceptions of the policy let images through. It is absent
	// from a policy that has none.
	ConditionExceptions = "Exceptions"
)

// The reasons of conditions.
const (
	ReasonInForce = "InForce"
	// ClusterImagePolicies have all scopes of a namespace's policy
	ReasonOverridden = "Overridden"
	ReasonNameTaken  = "NameTaken" // a file has a policy of the same name
	ReasonInvalid    = "Invalid"   // an older version accepted it
	ReasonUsable     = "Usable"    // the root of trust can be used
	// all of the root of trust will have expired in 30 days; an exception ends in a week
	ReasonEndsSoon    = "EndsSoon"
	ReasonEnded       = "Ended"       // all exceptions have
	ReasonExpired     = "Expired"     // all of the root of trust has
	ReasonImagesFound = "ImagesFound" // by the last sweep
	ReasonNoImages    = "NoImages"    // by the last sweep
	ReasonCounting    = "Counting"    // the sweep since the last change has not ended
)

// soon is how long before its end a root of trust is said to end.
const soon = 30 * 24 * time.Hour

// recount is how much later a count with the same result has to be for a policy to be written with
// its time.
const recount = 10 * time.Minute

// asOf is what stands between a count and the time that it is about in a condition's message.
const asOf = ", as of "

// maxMessage bounds a condition's message, in bytes.
const maxMessage = 1024

// maxCounted bounds the repositories that a sweep remembers as counted, for all policies together.
const maxCounted = 1_000_000

// tally counts what each policy of a set covers.
type tally struct {
	set      *policy.Set // the set in force when the sweep began; nil between sweeps
	counted  map[uint64]struct{}
	now      map[types.NamespacedName]coverage
	began    time.Time                         // this sweep
	images   int                               // in this sweep so far
	empty    bool                              // the last sweep found no image at all
	hash     string                            // of the set that covered is about
	covered  map[types.NamespacedName]coverage // nil before the first sweep has ended
	asOf     time.Time                         // when the sweep that covered is from began
	hashSeed maphash.Seed
	// came has policies that cover an image that was written while no image was known that they
	// cover, each with how many sweeps may end without having met one. A sweep may be past the
	// image, or the write may fail.
	came map[types.NamespacedName]int
}

// sweepsFor is how many sweeps look for an image that was written.
const sweepsFor = 2

// coverage is what a policy covers. unmet counts the images that do not meet it.
type coverage struct{ images, repositories, unmet int }

func (c coverage) String() string {
	text := fmt.Sprintf("%s in %s", plural(c.images, "image", "images"), plural(c.repositories, "repository", "repositories"))
	if c.unmet > 0 {
		text += "; " + plural(c.unmet, "does", "do") + " not meet it"
	}
	return text
}

func plural(n int, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, several)
}

// Begin starts a count of what policies cover, as a sweep begins.
func (k *Keeper) Begin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := &k.tally
	t.set, t.counted, t.now, t.images, t.hashSeed = k.live.Set(), map[uint64]struct{}{}, map[types.NamespacedName]coverage{}, 0, maphash.MakeSeed()
	t.began = k.clock.Now()
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
	by, unmet := map[types.NamespacedName]bool{}, map[types.NamespacedName]bool{}
	for _, p := range covering {
		c := t.now[p.Key()]
		if !by[p.Key()] {
			by[p.Key()] = true
			c.images++
		}
		if p.Unmet && !unmet[p.Key()] {
			unmet[p.Key()] = true
			c.unmet++
		}
		key := maphash.String(t.hashSeed, p.ID()+" "+p.Repository)
		if _, ok := t.counted[key]; !ok && len(t.counted) < maxCounted {
			t.counted[key] = struct{}{}
			c.repositories++
		}
		t.now[p.Key()] = c
	}
}

// Written gets an Image that is being written. Policies that seemed to cover nothing, and cover it,
// are counted again.
func (k *Keeper) Written(image *imagev1.Image, set *policy.Set) {
	k.mu.Lock()
	all := k.tally.covered
	known := all != nil && k.tally.set == nil && !slices.ContainsFunc(set.Policies(), func(p *policy.Policy) bool { return all[p.Key()].images == 0 })
	k.mu.Unlock()
	if known {
		return
	}
	covering := signatures.Covering(image, set)
	k.mu.Lock()
	defer k.mu.Unlock()
	t, found := &k.tally, false
	for _, p := range covering {
		if t.covered[p.Key()].images == 0 && t.came[p.Key()] == 0 {
			if t.came == nil {
				t.came = map[types.NamespacedName]int{}
			}
			t.came[p.Key()], found = sweepsFor, true
		}
	}
	if found {
		if t.set == nil && t.covered != nil {
			// else a sweep is under way, or about to begin, and its end tells
			k.changed()
		}
		k.awake()
	}
}

// End ends the count, as the sweep ends. The count is dropped if it is incomplete, or about other
// policies than those in force now.
func (k *Keeper) End(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := &k.tally
	if hash := t.set.Hash(); err == nil && hash == k.live.Set().Hash() {
		t.hash, t.covered, t.asOf, t.empty = hash, t.now, t.began, t.images == 0
		for key := range t.came {
			if t.came[key]--; t.covered[key].images > 0 || t.came[key] == 0 {
				delete(t.came, key)
			}
		}
		if len(t.came) > 0 {
			k.changed()
		}
	}
	t.set, t.counted, t.now = nil, nil, nil
	k.awake()
}

// show makes objects show the files, and writes those conditions of all objects that have changed.
// logged remembers the warnings about policies that nothing can meet, or that cover nothing, so
// that each is logged once.
func (k *Keeper) show(ctx context.Context, logged map[types.NamespacedName]string) error {
	set := k.live.Set()
	policies := map[types.NamespacedName]*policy.Policy{}
	for _, p := range set.Policies() {
		policies[p.Key()] = p
	}
	maps.DeleteFunc(logged, func(key types.NamespacedName, _ string) bool { return policies[key] == nil })
	k.mu.Lock()
	faults, covered, at, empty, came := k.faults, k.tally.covered, k.tally.asOf, k.tally.empty, maps.Clone(k.tally.came)
	if k.tally.hash != set.Hash() {
		covered = nil
	}
	k.mu.Unlock()

	stale, m := map[types.NamespacedName][]metav1.Condition{}, k.newMirror()
	if err := k.each(ctx, func(o object) {
		if c, ok := o.(*ClusterImagePolicy); ok {
			m.see(c)
		}
		if want := k.conditions(o, set, policies[keyOf(o)], faults[keyOf(o)], covered, at, came[keyOf(o)] > 0); !apiequality.Semantic.DeepEqual(want, o.status().Conditions) {
			stale[keyOf(o)] = want
		}
	}); err != nil {
		return err
	}
	errs := []error{k.mirror(request.WithNamespace(ctx, metav1.NamespaceNone), m)}
	for key, conditions := range stale {
		errs = append(errs, k.write(ctx, key, conditions))
	}
	for _, p := range policies {
		k.warn(p, covered, empty, logged)
	}
	return errors.Join(errs...)
}

// conditions returns the conditions that an object should have. p is the policy in force under its
// name. covered is nil until policies were counted, and at is when. came says that images came that
// the count has not.
func (k *Keeper) conditions(o object, set *policy.Set, p *policy.Policy, f fault, covered map[types.NamespacedName]coverage, at time.Time, came bool) []metav1.Condition {
	conditions := slices.Clone(o.status().Conditions)
	say := func(kind string, status metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(&conditions, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: message,
			ObservedGeneration: o.GetGeneration(), LastTransitionTime: metav1.NewTime(k.clock.Now()),
		})
	}
	if f.reason != "" || p == nil {
		if p == nil {
			f = fault{ReasonInvalid, "it is not in force"}
		}
		say(ConditionApplied, metav1.ConditionFalse, f.reason, f.message)
		meta.RemoveStatusCondition(&conditions, ConditionSatisfiable)
		meta.RemoveStatusCondition(&conditions, ConditionCoversImages)
		meta.RemoveStatusCondition(&conditions, ConditionExceptions)
		return conditions
	}
	status, reason, message := applied(set, p)
	say(ConditionApplied, status, reason, message)
	if err := p.Usable(k.clock.Now()); err != nil {
		say(ConditionSatisfiable, metav1.ConditionFalse, ReasonExpired, "no signature can meet it: "+err.Error())
	} else if err := p.Usable(k.clock.Now().Add(soon)); err != nil {
		say(ConditionSatisfiable, metav1.ConditionTrue, ReasonEndsSoon, "in 30 days no signature can meet it: "+err.Error())
	} else {
		say(ConditionSatisfiable, metav1.ConditionTrue, ReasonUsable, "the root of trust does not rule out every signature")
	}
	k.excepts(p, &conditions, say)
	switch before := meta.FindStatusCondition(conditions, ConditionCoversImages); {
	case covered[keyOf(o)].images > 0:
		say(ConditionCoversImages, metav1.ConditionTrue, ReasonImagesFound, counted(before, covered[keyOf(o)].String(), at))
	case covered != nil && !came:
		say(ConditionCoversImages, metav1.ConditionFalse, ReasonNoImages, counted(before, "no image", at))
	case before == nil || before.ObservedGeneration != o.GetGeneration() || before.Status == metav1.ConditionFalse:
		say(ConditionCoversImages, metav1.ConditionUnknown, ReasonCounting, "being counted")
	}
	return conditions
}

// counted is the message of a count as of a time. It is the message of before, which may be nil, if
// that has the same count of not much earlier: then the policy need not be written.
func counted(before *metav1.Condition, count string, at time.Time) string {
	if before != nil {
		if was, when := countIn(before.Message); was == count && at.Sub(when) < recount {
			return before.Message
		}
	}
	return count + asOf + at.UTC().Format(time.RFC3339)
}

// countIn returns the count in a condition's message, and the time that it is about; zero if there
// is none.
func countIn(message string) (count string, at time.Time) {
	count, when, _ := strings.Cut(message, asOf)
	at, _ = time.Parse(time.RFC3339, when)
	return count, at
}

// excepts sets the condition of a policy about its exceptions.
func (k *Keeper) excepts(p *policy.Policy, conditions *[]metav1.Condition, say func(kind string, status metav1.ConditionStatus, reason, message string)) {
	all, until := p.Exceptions()
	if len(all) == 0 {
		meta.RemoveStatusCondition(conditions, ConditionExceptions)
		return
	}
	now := k.clock.Now()
	next := slices.IndexFunc(until, now.Before) // they are sorted
	if next < 0 {
		say(ConditionExceptions, metav1.ConditionFalse, ReasonEnded, fmt.Sprintf("the last ended at %s: remove them", until[len(until)-1].Format(time.RFC3339)))
		return
	}
	reason := ReasonInForce
	if exceptionState(until[next], now) == exceptionEndsSoon {
		reason = ReasonEndsSoon
	}
	say(ConditionExceptions, metav1.ConditionTrue, reason, fmt.Sprintf("%d in force; the next ends at %s: %s", len(all)-next, until[next].Format(time.RFC3339), describe(all[next])))
}

// uncovered warns that what no policy covers is admitted.
const uncovered = `images that no policy covers are admitted: no policy has the scope "*"`

// applied tells where a policy is in force.
func applied(set *policy.Set, p *policy.Policy) (status metav1.ConditionStatus, reason, message string) {
	if p.Namespace == "" {
		message = "it judges images in its scopes, unless a more specific scope covers them"
		if set.Uncovered("") {
			message += "; " + uncovered
		}
		return metav1.ConditionTrue, ReasonInForce, message
	}
	var overridden []string
	for _, scope := range p.Scopes {
		if set.Overrides(scope) {
			overridden = append(overridden, scope)
		}
	}
	switch message = fmt.Sprintf("for pods of namespace %s it judges images in its scopes that no ClusterImagePolicy covers", p.Namespace); len(overridden) {
	case 0:
		if set.Uncovered(p.Namespace) {
			message += "; " + uncovered
		}
		return metav1.ConditionTrue, ReasonInForce, message
	case len(p.Scopes):
		return metav1.ConditionFalse, ReasonOverridden, "a ClusterImagePolicy covers each of its scopes and takes precedence"
	}
	return metav1.ConditionTrue, ReasonInForce, printable.Line(message+"; a ClusterImagePolicy covers these: "+strings.Join(overridden, ", "), maxMessage)
}

// write writes the status of an object, unless it has gone.
func (k *Keeper) write(ctx context.Context, key types.NamespacedName, conditions []metav1.Condition) error {
	info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, stored runtime.Object) (runtime.Object, error) {
		o := stored.DeepCopyObject().(object)
		o.status().Conditions = conditions
		return o, nil
	})
	kind := k.cluster
	if key.Namespace != "" {
		kind = k.namespaced
	}
	written, _, err := kind.status.Update(request.WithNamespace(ctx, key.Namespace), key.Name, info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil && k.changes != nil {
		k.writes(written.(object))
	}
	return err
}

// warn logs, once, that a policy does nothing. Only where there are images is it a fault that a
// policy covers none.
func (k *Keeper) warn(p *policy.Policy, covered map[types.NamespacedName]coverage, empty bool, logged map[types.NamespacedName]string) {
	why := ""
	if err := p.Usable(k.clock.Now()); err != nil {
		why = "no signature can meet it: " + err.Error()
	} else if covered == nil {
		return // it is not known yet
	} else if covered[p.Key()].images == 0 && !empty {
		why = "it does not cover any image"
	}
	if why != "" && logged[p.Key()] != why {
		slog.Warn("A policy has no effect", "policy", p.ID(), "why", why)
	}
	logged[p.Key()] = why
}
