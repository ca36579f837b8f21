package policyapi

import (
	"cmp"
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

	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/table"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// The types of conditions.
const (
	// ConditionApplied reports whether the policy judges images.
	ConditionApplied = "Applied"
	// ConditionSatisfiable reports whether any signature can meet the policy.
	ConditionSatisfiable = "Satisfiable"
	// ConditionCoversImages reports how many images the policy covers.
	ConditionCoversImages = "CoversImages"
	// ConditionExceptions reports whether exceptions of the policy let images through. A policy
	// without exceptions does not have it.
	ConditionExceptions = "Exceptions"
)

// The reasons of conditions.
const (
	ReasonInForce = "InForce"
	// ClusterImagePolicies cover all scopes of a namespace's policy
	ReasonOverridden = "Overridden"
	ReasonNameTaken  = "NameTaken" // a file has a policy of the same name
	ReasonInvalid    = "Invalid"   // an older version accepted it
	ReasonUsable     = "Usable"    // the root of trust can be used
	// the whole root of trust expires within 30 days, or a revocation list has ended or is in the last
	// fifth of its time; an exception ends within a week
	ReasonEndsSoon    = "EndsSoon"
	ReasonEnded       = "Ended"       // all exceptions have ended
	ReasonExpired     = "Expired"     // the whole root of trust has expired
	ReasonImagesFound = "ImagesFound" // by the last count
	ReasonNoImages    = "NoImages"    // by the last count
	ReasonCounting    = "Counting"    // the sweep since the last change has not ended
)

// soon is how long before its end a root of trust has the reason EndsSoon.
const soon = 30 * 24 * time.Hour

// recount is how much later a count with the same result must be before the policy is written with
// the new time.
const recount = 10 * time.Minute

// maxMessage bounds a condition's message, in bytes.
const maxMessage = 1024

// maxCounted bounds the counted repositories and the parts of images in memory, for all policies
// together: some 30 MB. If there are more, only sweeps update the counts.
const maxCounted = 1_000_000

// tally counts what each policy of a set covers.
type tally struct {
	current *count // nil between counts
	last    *count // the count from which covered is; nil if it is unknown
	// about has the policies of the last count, with their hashes; nil before the first count has
	// ended. covered has no entry for a policy that covers nothing.
	about   map[types.NamespacedName]string
	covered map[types.NamespacedName]coverage
	asOf    time.Time // when the last count began
	empty   bool      // it found no image at all
}

// count remembers what each image added, so that an image can be counted again, or removed.
type count struct {
	set      *policy.Set // in force when it was begun
	policies map[types.NamespacedName]int32
	began    time.Time
	seed     maphash.Seed
	images   map[uint64][]part // by the hash of a name; nil if it does not remember all of them
	parts    int               // in images
	all      int               // how many images there are
	repos    map[uint64]int    // images in a repository that a policy covers, by the hash of both
	now      []coverage        // by the policy
}

// part is what an image has added for a policy and a repository. The parts of a policy are
// adjacent.
type part struct {
	repo   uint64 // 0 if it is not remembered
	policy int32  // its place in the set
	unmet  bool
	spared bool
}

func newCount(set *policy.Set, at time.Time) *count {
	c := &count{set: set, policies: map[types.NamespacedName]int32{}, began: at, seed: maphash.MakeSeed(), images: map[uint64][]part{}, repos: map[uint64]int{}}
	for _, p := range set.Policies() {
		c.policies[p.Key()] = int32(len(c.policies))
	}
	c.now = make([]coverage, len(c.policies))
	return c
}

// add counts an image for the policies that cover it.
func (c *count) add(name string, covering []signatures.Covered) {
	parts := make([]part, 0, len(covering))
	for _, by := range covering {
		p := part{policy: c.policies[by.Key()], unmet: by.Unmet, spared: by.Spared}
		repo := maphash.String(c.seed, by.ID()+" "+by.Repository)
		if _, known := c.repos[repo]; known || len(c.repos) < maxCounted {
			p.repo = repo
		}
		parts = append(parts, p)
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Or(cmp.Compare(a.policy, b.policy), cmp.Compare(a.repo, b.repo)) })
	c.all++
	c.change(parts, 1)
	if c.images == nil {
		return
	}
	c.images[maphash.String(c.seed, name)] = parts
	if c.parts += 1 + len(parts); c.parts > maxCounted {
		c.images = nil
	}
}

// remove subtracts what was counted for a name, if anything.
func (c *count) remove(name string) {
	key := maphash.String(c.seed, name)
	if parts, counted := c.images[key]; counted {
		delete(c.images, key)
		c.parts -= 1 + len(parts)
		c.all--
		c.change(parts, -1)
	}
}

// change adds the parts of an image, or subtracts them. Parts that differ only in how the policy is
// met count once.
func (c *count) change(parts []part, by int) {
	for len(parts) > 0 {
		now, unmet, spared, n := &c.now[parts[0].policy], false, false, 0
		for ; n < len(parts) && parts[n].policy == parts[0].policy; n++ {
			unmet, spared = unmet || parts[n].unmet, spared || parts[n].spared
			if repo := parts[n].repo; repo != 0 && (n == 0 || repo != parts[n-1].repo) {
				now.repositories += c.changeRepo(repo, by)
			}
		}
		if now.images += by; unmet {
			now.unmet += by
		}
		if spared {
			now.spared += by
		}
		parts = parts[n:]
	}
}

// changeRepo changes the number of images in a repository, and returns the change in the number of
// repositories.
func (c *count) changeRepo(repo uint64, by int) int {
	before := c.repos[repo]
	switch c.repos[repo] = before + by; {
	case before == 0:
		return 1
	case before+by == 0:
		delete(c.repos, repo)
		return -1
	}
	return 0
}

// covered returns the coverage of each policy that covers anything.
func (c *count) covered() map[types.NamespacedName]coverage {
	all := map[types.NamespacedName]coverage{}
	for key, at := range c.policies {
		if c.now[at].images > 0 {
			all[key] = c.now[at]
		}
	}
	return all
}

// coverage counts what a policy covers. unmet counts the images that meet neither it nor an
// alternative; spared counts those that meet only an alternative in at least one place.
type coverage struct{ images, repositories, unmet, spared int }

// words describes what a policy covers.
func (c *Coverage) words() string {
	if c.Images == 0 {
		return "no image"
	}
	text := fmt.Sprintf("%s in %s", table.Quantity(c.Images, "image"), table.Quantity(c.Repositories, "repository"))
	if c.Unmet > 0 {
		do := "do"
		if c.Unmet == 1 {
			do = "does"
		}
		text += fmt.Sprintf("; %d %s not meet it", c.Unmet, do)
	}
	if c.Spared > 0 {
		meet := "meet"
		if c.Spared == 1 {
			meet = "meets"
		}
		text += fmt.Sprintf("; %d %s only an alternative", c.Spared, meet)
	}
	return text
}

// Begin starts a count of what policies cover, as a sweep begins.
func (k *Keeper) Begin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tally.last, k.tally.current = nil, newCount(k.live.Set(), k.clock.Now())
}

// Resume continues the last count, unless it belongs to other policies than those in force now.
func (k *Keeper) Resume() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := &k.tally
	if t.last == nil || t.last.images == nil || t.last.set.Hash() != k.live.Set().Hash() {
		return false
	}
	t.current, t.last.began = t.last, k.clock.Now()
	return true
}

// Count counts an image for the policies that cover it.
func (k *Keeper) Count(image *imagev1.Image) {
	k.mu.Lock()
	set := k.tally.current.set
	k.mu.Unlock()
	covering := signatures.Covering(image, set)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tally.current.remove(image.Name)
	k.tally.current.add(image.Name, covering)
}

// Gone subtracts what was counted for an image.
func (k *Keeper) Gone(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tally.current.remove(name)
}

// End ends the count. It drops a count that is incomplete, or that belongs to other policies than
// those in force now.
func (k *Keeper) End(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := &k.tally
	t.last = nil
	if err == nil && t.current.set.Hash() == k.live.Set().Hash() {
		t.last = t.current
		t.about, t.covered, t.asOf, t.empty = map[types.NamespacedName]string{}, t.last.covered(), t.last.began, t.last.all == 0
		for _, p := range t.last.set.Policies() {
			t.about[p.Key()] = p.Hash()
		}
	}
	t.current = nil
	k.awake()
}

// show updates the objects that show files, and writes each status that has changed. It logs once
// for each policy that no signature can meet, or that covers nothing.
func (k *Keeper) show(ctx context.Context) error {
	errs := []error{k.ShowFiles(ctx)}
	s := facts{set: k.live.Set(), policies: map[types.NamespacedName]*policy.Policy{}, uncovered: map[string]bool{}}
	for _, p := range s.set.Policies() {
		s.policies[p.Key()] = p
	}
	maps.DeleteFunc(k.logged, func(key types.NamespacedName, _ string) bool { return s.policies[key] == nil })
	k.mu.Lock()
	objects := maps.Clone(k.objects)
	s.faults, s.about, s.covered, s.at, s.empty = k.faults, k.tally.about, k.tally.covered, k.tally.asOf, k.tally.empty
	k.mu.Unlock()

	for key, e := range objects {
		if want := k.status(key, e, &s); !same(want, e.status) && !apiequality.Semantic.DeepEqual(want, e.status) {
			errs = append(errs, k.write(ctx, key, want))
		}
	}
	for _, p := range s.policies {
		k.warn(p, &s)
	}
	return errors.Join(errs...)
}

// same reports whether a status is an unchanged copy of another, as almost all are.
func same(a, b PolicyStatus) bool {
	return a.Covers == b.Covers && slices.Equal(a.Conditions, b.Conditions)
}

// facts are the data for the conditions of objects.
type facts struct {
	set       *policy.Set
	policies  map[types.NamespacedName]*policy.Policy // in force
	faults    map[types.NamespacedName]fault          // why objects are not
	about     map[types.NamespacedName]string         // as in tally
	covered   map[types.NamespacedName]coverage
	at        time.Time       // when they were counted
	empty     bool            // there was no image at all
	uncovered map[string]bool // see leavesUncovered
}

// counted returns what a policy covers; ok is false if the policy has changed since the last count.
// A change of another policy does not affect it until the next count.
func (s *facts) counted(p *policy.Policy) (c coverage, ok bool) {
	return s.covered[p.Key()], s.about[p.Key()] == p.Hash()
}

// leavesUncovered is set.Uncovered, cached for each namespace because it reads all policies.
func (s *facts) leavesUncovered(namespace string) bool {
	is, known := s.uncovered[namespace]
	if !known {
		is = s.set.Uncovered(namespace)
		s.uncovered[namespace] = is
	}
	return is
}

// status returns the status that an object should have.
func (k *Keeper) status(key types.NamespacedName, e *entry, s *facts) PolicyStatus {
	conditions := slices.Clone(e.status.Conditions)
	say := func(kind string, status metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(&conditions, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: message,
			ObservedGeneration: e.generation, LastTransitionTime: metav1.NewTime(k.clock.Now()),
		})
	}
	p, f := s.policies[key], s.faults[key]
	if f.reason != "" || p == nil {
		if p == nil {
			f = fault{ReasonInvalid, "it is not in force"}
		}
		say(ConditionApplied, metav1.ConditionFalse, f.reason, f.message)
		meta.RemoveStatusCondition(&conditions, ConditionSatisfiable)
		meta.RemoveStatusCondition(&conditions, ConditionCoversImages)
		meta.RemoveStatusCondition(&conditions, ConditionExceptions)
		return PolicyStatus{Conditions: conditions}
	}
	status, reason, message := s.applied(p)
	say(ConditionApplied, status, reason, message)
	if err := p.Usable(k.clock.Now()); err != nil {
		say(ConditionSatisfiable, metav1.ConditionFalse, ReasonExpired, "no signature can meet it: "+err.Error())
	} else if err := p.EndsSoon(k.clock.Now(), soon); err != nil {
		say(ConditionSatisfiable, metav1.ConditionTrue, ReasonEndsSoon, "soon fewer signatures meet it, or none: "+err.Error())
	} else {
		say(ConditionSatisfiable, metav1.ConditionTrue, ReasonUsable, "at least one key or identity of the root of trust can still produce a valid signature")
	}
	k.excepts(p, &conditions, say)
	count, isCounted := s.counted(p)
	covers := e.status.Covers
	if isCounted {
		covers = counted(covers, count, s.at)
	}
	switch before := meta.FindStatusCondition(conditions, ConditionCoversImages); {
	case isCounted && count.images > 0:
		say(ConditionCoversImages, metav1.ConditionTrue, ReasonImagesFound, covers.words()+", as of "+covers.AsOf.UTC().Format(time.RFC3339))
	case isCounted:
		say(ConditionCoversImages, metav1.ConditionFalse, ReasonNoImages, covers.words()+", as of "+covers.AsOf.UTC().Format(time.RFC3339))
	case before == nil || before.ObservedGeneration != e.generation || before.Status == metav1.ConditionFalse:
		covers = nil
		say(ConditionCoversImages, metav1.ConditionUnknown, ReasonCounting, "being counted")
	}
	return PolicyStatus{Conditions: conditions, Covers: covers}
}

// counted returns a count as of a time. It returns before, which may be nil, if that has the same
// count and is not much older, so that the policy need not be written.
func counted(before *Coverage, c coverage, at time.Time) *Coverage {
	now := &Coverage{Images: int64(c.images), Repositories: int64(c.repositories), Unmet: int64(c.unmet), Spared: int64(c.spared), AsOf: metav1.NewTime(at.Truncate(time.Second))}
	if before != nil && at.Sub(before.AsOf.Time) < recount {
		same := *now
		if same.AsOf = before.AsOf; same == *before {
			return before
		}
	}
	return now
}

// excepts sets the condition of a policy about its exceptions.
func (k *Keeper) excepts(p *policy.Policy, conditions *[]metav1.Condition, say func(kind string, status metav1.ConditionStatus, reason, message string)) {
	all, until := p.Exceptions()
	if len(all) == 0 {
		meta.RemoveStatusCondition(conditions, ConditionExceptions)
		return
	}
	now := k.clock.Now()
	next := nextEnd(until, now)
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

// uncovered warns that images without a policy are admitted.
const uncovered = `images that no policy covers are admitted: no policy has the scope "*"`

// alternatives returns a text about the other policies of the policy's group; "" if it has no
// group.
func (s *facts) alternatives(p *policy.Policy) string {
	switch alone := s.set.Alone(p); {
	case p.Alternatives == "":
		return ""
	case len(alone) > 0:
		return "; " + isAlone(p, alone)
	}
	return fmt.Sprintf("; an image need meet only one of the alternatives %q", p.Alternatives)
}

// isAlone returns a text with the scopes at which a policy of a group has no alternative.
func isAlone(p *policy.Policy, scopes []string) string {
	return printable.Line(fmt.Sprintf("images must meet this policy: no other one of the alternatives %q has the scope %s", p.Alternatives, strings.Join(scopes, " or ")), maxMessage/2)
}

// applied returns the condition about where a policy is in force.
func (s *facts) applied(p *policy.Policy) (status metav1.ConditionStatus, reason, message string) {
	if p.Namespace == "" {
		message = "it judges images in its scopes, unless a more specific scope covers them" + s.alternatives(p)
		if s.leavesUncovered("") {
			message += "; " + uncovered
		}
		return metav1.ConditionTrue, ReasonInForce, message
	}
	var overridden []string
	for _, scope := range p.Scopes {
		if s.set.Overrides(scope) {
			overridden = append(overridden, scope)
		}
	}
	switch message = fmt.Sprintf("for pods of namespace %s it judges images in its scopes that no ClusterImagePolicy covers", p.Namespace) + s.alternatives(p); len(overridden) {
	case 0:
		if s.leavesUncovered(p.Namespace) {
			message += "; " + uncovered
		}
		return metav1.ConditionTrue, ReasonInForce, message
	case len(p.Scopes):
		return metav1.ConditionFalse, ReasonOverridden, "a ClusterImagePolicy covers each of its scopes and takes precedence"
	}
	return metav1.ConditionTrue, ReasonInForce, printable.Line(message+"; a ClusterImagePolicy covers these: "+strings.Join(overridden, ", "), maxMessage)
}

// write writes the status of an object, unless the object is gone.
func (k *Keeper) write(ctx context.Context, key types.NamespacedName, status PolicyStatus) error {
	info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, stored runtime.Object) (runtime.Object, error) {
		o := stored.DeepCopyObject().(object)
		*o.status() = status
		return o, nil
	})
	written, _, err := k.stores(key).status.Update(request.WithNamespace(ctx, key.Namespace), key.Name, info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	e := k.entryOf(written.(object))
	k.mu.Lock()
	before := k.objects[key]
	statusOnly := before != nil && before.policy == e.policy
	if statusOnly {
		k.note(key, e)
	}
	k.mu.Unlock()
	if !statusOnly {
		// A client has written the object, too, and its policy is not in force yet. If the keeper noted
		// this revision, it would not read the object again for the client.
		return k.refresh(ctx, key)
	}
	return nil
}

// warn logs, once, that a policy has no effect. A policy that covers no image is reported only if
// there are images.
func (k *Keeper) warn(p *policy.Policy, s *facts) {
	why := ""
	if err := p.Usable(k.clock.Now()); err != nil {
		why = "no signature can meet it: " + err.Error()
	} else if c, known := s.counted(p); !known {
		return
	} else if c.images == 0 && !s.empty {
		why = "it does not cover any image"
	}
	if why != "" && k.logged[p.Key()] != why {
		slog.Warn("A policy has no effect", "policy", p.ID(), "why", why)
	}
	k.logged[p.Key()] = why
}
