package clusters

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"
)

// Pods are selected by a part of their name or of their workload's, in whichever case.
func TestSelectedByPartOfName(t *testing.T) {
	t.Parallel()
	p := &ClusterPod{Spec: ClusterPodSpec{Name: "shop-7d9c-x2x9k", Workload: "Deployment/Shop"}}
	for selector, want := range map[string]bool{"named=SHOP": true, "named=x2x": true, "named=deployment/sh": true, "named=cart": false, "named!=cart": true, "named!=shop": false, "named=shop,named=cart": false} {
		parsed, err := fields.ParseSelector(selector)
		if err != nil {
			t.Fatal(err)
		}
		if _, demanded := without(&internalversion.ListOptions{FieldSelector: parsed}, namedField); isNamedSo(p, demanded) != want {
			t.Errorf("%s selects it: %v", selector, !want)
		}
	}
}

// Pods are selected by the verdict for what their containers name; the rest of a selector stays.
func TestSelectedByVerdict(t *testing.T) {
	t.Parallel()
	pod := func(verified ...string) *ClusterPod {
		p := &ClusterPod{}
		for _, v := range verified {
			p.Spec.Containers = append(p.Spec.Containers, ClusterPodContainer{Verified: v})
		}
		return p
	}
	both := pod("True", "False")
	for selector, want := range map[string]bool{
		"verified=False": true, "verified=True": true, "verified=Unsigned": false, "verified!=Unsigned": true, "verified!=True": false, "verified=True,verified=False": true, "pod=a": true,
	} {
		parsed, err := fields.ParseSelector(selector + ",spec.cluster=prod")
		if err != nil {
			t.Fatal(err)
		}
		o, demanded := without(&internalversion.ListOptions{FieldSelector: parsed}, verifiedField)
		if got := isVerifiedSo(both, demanded, nil); got != want {
			t.Errorf("%s selects it: %v", selector, got)
		}
		if value, ok := o.FieldSelector.RequiresExactMatch("spec.cluster"); !ok || value != "prod" {
			t.Errorf("of %s the rest is %s", selector, o.FieldSelector)
		}
		if _, ok := o.FieldSelector.RequiresExactMatch(verifiedField); ok {
			t.Errorf("%s stays in %s", verifiedField, o.FieldSelector)
		}
	}
	for value, want := range map[string]bool{"True": true, "Maybe": false} {
		if err := areVerdicts([]fields.Requirement{{Field: verifiedField, Value: value}}, []string{"True", "False"}); (err == nil) != want {
			t.Errorf("pods are selected by %q: %v", value, err)
		}
	}
}

// Pods are selected by why a verdict is so: with a verdict beside it, one container has both.
func TestSelectedByReason(t *testing.T) {
	t.Parallel()
	p := &ClusterPod{}
	p.Spec.Containers = []ClusterPodContainer{{Verified: "False", Reason: "SubjectMismatch"}, {Verified: "Unknown", Reason: "NotImported"}}
	for selector, want := range map[string]bool{
		"reason=NotImported": true, "reason=KeyExpired": false, "reason!=KeyExpired": true, "reason!=NotImported": false,
		"reason=NotImported,verified=Unknown": true, "reason=NotImported,verified=False": false, "reason=NotImported,reason=SubjectMismatch": true,
		"reason!=NotImported,verified=False": false, "reason=SubjectMismatch,verified!=True": true,
	} {
		parsed, err := fields.ParseSelector(selector)
		if err != nil {
			t.Fatal(err)
		}
		o, verified := without(&internalversion.ListOptions{FieldSelector: parsed}, verifiedField)
		if _, reasons := without(o, reasonField); isVerifiedSo(p, verified, reasons) != want {
			t.Errorf("%s selects it: %v", selector, !want)
		}
	}
	for value, want := range map[string]bool{"NotImported": true, "not imported": false, "": false} {
		if _, _, err := podFieldLabel(reasonField, value); (err == nil) != want {
			t.Errorf("pods are selected by the reason %q: %v", value, err)
		}
	}
}
