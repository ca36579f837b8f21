package server

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/web/admission"
)

// acts says how images are judged after acts.
type acts struct {
	policies func(context.Context) (*policy.Set, error) // the policies in force
	clock    clock.PassiveClock
}

// Scenarios is part of [answers.Acts].
func (a acts) Scenarios(ctx context.Context, spec *answers.ImpactReviewSpec) (now, then answers.Scenario, err error) {
	set, err := a.policies(ctx)
	if err != nil {
		return nil, nil, err
	}
	at := a.clock.Now()
	present := scenario{judge: judgeBy(set, at), ages: judgeBy(set, at), set: set, before: set, now: at}
	future := present
	future.later = spec.At != nil
	invalid := func(name string, err error) error {
		return apierrors.NewInvalid(answers.GroupVersion.WithKind(answers.ImpactKind).GroupKind(), "", field.ErrorList{field.Invalid(field.NewPath("spec", name), field.OmitValueType{}, err.Error())})
	}
	switch {
	case len(spec.ApplyPolicies) > 0:
		var all []*policy.Policy
		for i, raw := range spec.ApplyPolicies {
			parsed, err := policy.ParseObjects(raw.Raw, "")
			if err == nil && len(parsed) != 1 {
				err = fmt.Errorf("holds %d policies", len(parsed))
			}
			if err != nil {
				return nil, nil, invalid(fmt.Sprintf("applyPolicies[%d]", i), err)
			}
			all = append(all, parsed[0])
		}
		if future.set, err = set.With(all...); err != nil {
			return nil, nil, invalid("applyPolicies", err)
		}
	case spec.RemovePolicy != "":
		key := types.NamespacedName{Name: spec.RemovePolicy}
		if namespace, name, ok := strings.Cut(spec.RemovePolicy, "/"); ok {
			key = types.NamespacedName{Namespace: namespace, Name: name}
		}
		var found bool
		if future.set, found, err = set.Without(key); err == nil && !found {
			err = fmt.Errorf("no policy has the name %q", spec.RemovePolicy)
		}
		if err != nil {
			return nil, nil, invalid("removePolicy", err)
		}
	case spec.RevokeSigner != "":
		signers, err := policy.ParseSigners(spec.RevokeSigner)
		if err == nil {
			future.set, err = set.Revoke(signers)
		}
		if err != nil {
			return nil, nil, invalid("revokeSigner", err)
		}
	case spec.At != nil:
		if spec.At.Time.Before(at) {
			return nil, nil, invalid("at", fmt.Errorf("%s has passed", spec.At.UTC().Format(time.RFC3339)))
		}
		future.now = spec.At.Time
	}
	future.judge, future.ages = judgeBy(future.set, future.now), judgeBy(future.set, at)
	return present, future, nil
}

// moment is a clock that stands still.
type moment time.Time

// Now is part of clock.PassiveClock.
func (m moment) Now() time.Time { return time.Time(m) }

// Since is part of clock.PassiveClock.
func (m moment) Since(t time.Time) time.Duration { return m.Now().Sub(t) }

// judgeBy judges by policies at a time.
func judgeBy(set *policy.Set, at time.Time) judge {
	return judge{func(context.Context) (*policy.Set, error) { return set, nil }, moment(at)}
}

// scenario is policies and a time by which images are judged.
type scenario struct {
	judge
	ages        judge // says what knowledge about tags is too old
	set, before *policy.Set
	now         time.Time
	later       bool // now is not the present
}

// Stale is part of [answers.Policies].
func (s scenario) Stale(ctx context.Context, asked reference.Reference, namespace string, checked time.Time) ([]string, string, error) {
	return s.ages.Stale(ctx, asked, namespace, checked)
}

// Same is part of [answers.Scenario].
func (s scenario) Same(asked reference.Reference, namespace string) bool {
	if s.set == s.before && !s.later {
		return true
	}
	now, then := signatures.PoliciesFor(asked, namespace, s.before), signatures.PoliciesFor(asked, namespace, s.set)
	return !(s.later && len(then) > 0) && slices.EqualFunc(now, then, func(a, b *policy.Policy) bool {
		return a.Key() == b.Key() && a.Hash() == b.Hash() && a.Admission == b.Admission
	})
}

// Namespaces is part of [answers.Scenario].
func (s scenario) Namespaces(asked reference.Reference) []string {
	return slices.Collect(maps.Keys(s.set.InNamespaces(asked)))
}

// Admission is part of [answers.Scenario].
func (s scenario) Admission(asked reference.Reference, namespace string, v *answers.Verdict) string {
	by := signatures.PoliciesFor(asked, namespace, s.set)
	worst := admission.Allow
	for _, found := range foundBy(by, v, asked, s.now) {
		worst = max(worst, found.Action)
	}
	return worst.String()
}

// foundBy returns a finding for each policy that is not met by an answer's verdict.
func foundBy(by []*policy.Policy, v *answers.Verdict, asked reference.Reference, now time.Time) []admission.Finding {
	if v.Reason == answers.ReasonTagTooOld {
		return unknownTo(slices.DeleteFunc(slices.Clone(by), func(p *policy.Policy) bool { return !slices.Contains(v.Missing, p.ID()) }), v.Message)
	}
	return findings(by, annotation.Verdict{Verified: v.Verified, Reason: v.Reason, Message: v.Message, Unmet: v.Missing, Until: v.Until}, asked, now)
}

// Verify is part of [answers.Scenario].
func (s scenario) Verify(image *imagev1.Image, above func(key string) ([]*imagev1.Image, error)) {
	signatures.VerifyImage(image, s.set, s.now, above)
}

// Vouches is part of [answers.Scenario].
func (scenario) Vouches(index *imagev1.Image, key string) bool { return signatures.Vouches(index, key) }
