package answers

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

	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// scenarios returns how images are judged now, and how they would be after an act: the same if the
// act changes neither policies nor the time. An error that is the caller's fault is an API error.
func (a *Answerer) scenarios(ctx context.Context, spec *ImpactReviewSpec) (now, then scenario, err error) {
	set, err := a.Policies.Set(ctx)
	if err != nil {
		return now, then, err
	}
	at := a.now()
	present := scenario{set: set, before: set, now: at, ages: at}
	future := present
	future.later = spec.At != nil
	invalid := func(name string, err error) error {
		return apierrors.NewInvalid(GroupVersion.WithKind(ImpactKind).GroupKind(), "", field.ErrorList{field.Invalid(field.NewPath("spec", name), field.OmitValueType{}, err.Error())})
	}
	switch {
	case len(spec.ApplyPolicies) > 0:
		var all []*policy.Policy
		for i, raw := range spec.ApplyPolicies {
			parsed, err := policy.ParseObjects(raw.Raw, "")
			if err == nil && len(parsed) != 1 {
				err = fmt.Errorf("holds %d policies, and must have one", len(parsed))
			}
			if err != nil {
				return now, then, invalid(fmt.Sprintf("applyPolicies[%d]", i), err)
			}
			all = append(all, parsed[0])
		}
		future.unseen = all
		if future.set, err = set.With(all...); err != nil {
			return now, then, invalid("applyPolicies", err)
		}
		for _, p := range all {
			if scopes := future.set.Alone(p); len(scopes) > 0 {
				future.alone = append(future.alone, printable.Line(fmt.Sprintf("no other policy of the alternatives %q has the scope %s: is the group of the policy %s misspelt?", p.Alternatives, strings.Join(scopes, " or "), p.ID()), maxText))
			}
		}
	case spec.RemovePolicy != "":
		key := types.NamespacedName{Name: spec.RemovePolicy}
		if namespace, name, ok := strings.Cut(spec.RemovePolicy, "/"); ok {
			key = types.NamespacedName{Namespace: namespace, Name: name}
		}
		var found bool
		if future.set, found = set.Without(key); !found {
			return now, then, invalid("removePolicy", fmt.Errorf("no policy has the name %q", spec.RemovePolicy))
		}
	case spec.RevokeSigner != "":
		signers, err := policy.ParseSigners(spec.RevokeSigner)
		if err == nil {
			future.revoked = signers
			future.set, err = set.Revoke(signers)
		}
		if err != nil {
			return now, then, invalid("revokeSigner", err)
		}
	case spec.At != nil:
		if spec.At.Time.Before(at) {
			return now, then, invalid("at", fmt.Errorf("%s has passed", spec.At.UTC().Format(time.RFC3339)))
		}
		future.now = spec.At.Time
	}
	return present, future, nil
}

// scenario implements [Policies] with other policies and at another time.
type scenario struct {
	set, before *policy.Set
	now         time.Time
	ages        time.Time      // decides which knowledge about tags is too old
	later       bool           // now is not the present
	revoked     policy.Signers // they are no longer trusted
	// policies that are applied and cover no reference that was seen so far
	unseen []*policy.Policy
	alone  []string // what to say of policies that are applied, and have no alternative in their group
}

// sees notes a reference that is known.
func (s *scenario) sees(ref reference.Reference) {
	if len(s.unseen) == 0 {
		return
	}
	scopes := append(policy.Scopes(ref), policy.CatchAll)
	s.unseen = slices.DeleteFunc(s.unseen, func(p *policy.Policy) bool {
		return slices.ContainsFunc(p.Scopes, func(scope string) bool { return slices.Contains(scopes, scope) })
	})
}

// Set is part of [Policies].
func (s scenario) Set(context.Context) (*policy.Set, error) { return s.set, nil }

// Judge is part of [Policies].
func (s scenario) Judge(_ context.Context, q Asked) (Judgement, error) {
	return judge(s.set, s.now, s.ages, q), nil
}

// same reports whether a reference is judged as it is now, for the pods of a namespace.
func (s scenario) same(asked reference.Reference, namespace string) bool {
	if s.set == s.before && !s.later {
		return true
	}
	now, then := signatures.PoliciesFor(asked, namespace, s.before), signatures.PoliciesFor(asked, namespace, s.set)
	return !(s.later && len(then) > 0) && slices.EqualFunc(now, then, func(a, b *policy.Policy) bool {
		return a.Key() == b.Key() && a.Hash() == b.Hash() && a.Admission == b.Admission
	})
}

// namespaces are those whose policies judge a reference.
func (s scenario) namespaces(asked reference.Reference) []string {
	return slices.Collect(maps.Keys(s.set.InNamespaces(asked)))
}

// uncovering warns, after images were judged, that the scope of an applied policy may be misspelt
// if it covers no known image. It also warns of a group of alternatives with one policy.
func (s scenario) uncovering() (all []string) {
	for _, p := range s.unseen {
		all = append(all, printable.Line(fmt.Sprintf("no image, tag or pod is known in the scopes of the policy %s (%s): are they spelt as references have them?", p.ID(), strings.Join(p.Scopes, ", ")), maxText))
	}
	return append(all, s.alone...)
}

// unmet warns, after images were judged, about revoked signers that may be misspelt.
func (s scenario) unmet() (all []string) {
	for _, name := range s.set.Unmet(s.revoked) {
		all = append(all, printable.Line(fmt.Sprintf("no policy names the signer %s, and none trusts a signature by it: is it spelt as tidewaiter describe shows it?", name), maxText))
	}
	return all
}

// verify writes its verdicts into an image. above finds indexes that vouch for it under a verdict's
// key.
func (s scenario) verify(image *imagev1.Image, above func(key string) ([]*imagev1.Image, error)) {
	signatures.VerifyImage(image, s.set, s.now, above)
}
