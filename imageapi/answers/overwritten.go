package answers

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// Overwritten returns how a tag has moved although the configuration or a policy, of the cluster or
// of any namespace, forbids that; nil if it has not.
func (a *Answerer) Overwritten(ctx context.Context, tag *imagev1.ImageTag) (*Overwritten, error) {
	return a.overwritten(ctx, tag, func(set *policy.Set, ref reference.Reference) []*policy.Policy {
		all := slices.Clone(set.For(ref))
		for _, of := range set.InNamespaces(ref) {
			all = append(all, of...)
		}
		return all
	})
}

// overwritten answers about the rules of the configuration and of some policies.
func (a *Answerer) overwritten(ctx context.Context, tag *imagev1.ImageTag, by func(*policy.Set, reference.Reference) []*policy.Policy) (*Overwritten, error) {
	move := tags.Overwritten(tag)
	ref, ok := tags.Reference(tag)
	if move == nil || !ok {
		return nil, nil
	}
	var rules []string
	if a.Registries != nil {
		if rule := a.Registries.Immutable(ref); rule != "" {
			rules = append(rules, rule)
		}
	}
	set, err := a.Policies.Set(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range by(set, ref) {
		if pattern := p.Admission.ImmutableTags.Match(ref.Tag); pattern != "" {
			rules = append(rules, fmt.Sprintf("policy %q: %s", p.ID(), pattern))
		}
	}
	if len(rules) == 0 {
		return nil, nil
	}
	return &Overwritten{
		From: move.From, To: move.To, Since: metav1.NewTime(move.At), By: move.By, Rules: rules,
		Message: fmt.Sprintf("%s must not move (%s): it led to %s, and leads to %s since %s, by %s", ref, strings.Join(rules, "; "),
			reference.ShortDigest(move.From), reference.ShortDigest(move.To), move.At.UTC().Format(time.RFC3339), cmp.Or(move.By, "somebody unknown")),
	}, nil
}

// UnderTag returns the Image of a digest and its verdicts for a tag that leads or led to it: for
// all pods, and for those of each namespace that has policies of its own for the tag. The former
// verdicts are as if the tag had not moved. The Image is nil if it is not stored.
func (a *Answerer) UnderTag(ctx context.Context, tag *imagev1.ImageTag, digest string) (image *imagev1.Image, all []signatures.Change, err error) {
	ref, ok := tags.Reference(tag)
	if !ok {
		return nil, nil, nil
	}
	s := a.own("")
	if image, err = s.image(ctx, digest); image == nil || err != nil {
		return nil, nil, err
	}
	led, err := s.ledThrough(ctx, image, tag)
	if err != nil {
		return nil, nil, err
	}
	set, err := a.Policies.Set(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, namespace := range append([]string{""}, slices.Sorted(maps.Keys(set.InNamespaces(ref)))...) {
		v, _, err := s.verdict(ctx, image, ref, led, namespace)
		if err != nil {
			return nil, nil, err
		}
		unmoved, _, err := s.verdict(ctx, image, ref, Led{Checked: led.Checked}, namespace)
		if err != nil {
			return nil, nil, err
		}
		place := annotation.HeldVerdict{Place: annotation.InNamespace(ref.String(), namespace), Covered: true, Verdict: v.held()}
		all = append(all, signatures.Change{HeldVerdict: place, Before: unmoved.Verified, Former: unmoved.held()})
	}
	return image, all, nil
}
