package imageruns

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// The fields by which stretches are selected.
const (
	nameField      = "metadata.name"
	namespaceField = "metadata.namespace" // also namespace
	clusterField   = "cluster"            // also spec.cluster
	workloadField  = "workload"           // KIND/NAME, or NAME of any kind
	imageField     = "image"
	verifiedField  = "verified" // the verdict, at the selected time or at any
	runningField   = "running"
	atField        = "at"    // a moment
	fromField      = "from"  // with until, a time in which the stretch ran at least for a moment
	untilField     = "until" // the end of that
	timeField      = "time"  // the index for these
	dayField       = "day"   // on which it ended, in days since 1970; for the server alone
)

// indexedFields are those that the storage answers from an index, the most selective first.
var indexedFields = []string{imageField, workloadField, timeField, runningField, verifiedField, clusterField}

// fieldLabel accepts the fields by which stretches are selected, and an image in any form.
func fieldLabel(label, value string) (string, string, error) {
	switch label {
	case "namespace":
		return namespaceField, value, nil
	case "spec.cluster":
		return clusterField, value, nil
	case nameField, namespaceField, clusterField, workloadField, imageField, verifiedField:
		return label, value, nil
	case runningField:
		if value != "true" && value != "false" {
			return "", "", fmt.Errorf("field label %q must be true or false, not %q", label, value)
		}
		return label, value, nil
	case atField, fromField, untilField:
		if _, err := time.Parse(time.RFC3339, value); err != nil {
			return "", "", fmt.Errorf("field label %q must be a time such as 2026-11-24T16:45:00Z, not %q", label, value)
		}
		return label, value, nil
	}
	return "", "", fmt.Errorf("field label %q is not supported for imageruns: select by %s, namespace, %s, %s, %s, %s, %s, %s, %s or %s", label, nameField, clusterField, workloadField, imageField, verifiedField, runningField, atField, fromField, untilField)
}

// Window is a time, its first and its last moment; the zero Window is all time.
type Window struct{ From, Until time.Time }

// Ran reports whether the stretch ran in the window, as far as it was seen.
func (w Window) Ran(r *ImageRun) bool {
	from := r.Spec.From.Time
	if !w.Until.IsZero() && from.After(w.Until) {
		return false
	}
	if r.Status.Until == nil || w.From.IsZero() {
		return true
	}
	// what began and ended in one second ran in it
	return r.Status.Until.After(w.From) || r.Status.Until.Time.Equal(from) && from.Equal(w.From)
}

// Verdicts returns the verdicts for a stretch that were known in a window. unknown is true if
// there may have been further ones, which the server has dropped.
func (w Window) Verdicts(r *ImageRun) (all []RunVerdict, unknown bool) {
	kept := r.Status.Verdicts
	for i, v := range kept {
		var next time.Time // when the next one was found
		if i+1 < len(kept) {
			next = kept[i+1].Since.Time
		}
		if !w.Until.IsZero() && v.Since.After(w.Until) || !next.IsZero() && !w.From.IsZero() && !next.After(w.From) {
			continue
		}
		if i == 0 && r.Status.VerdictsDropped > 0 {
			// at the very moment in which it was found, it is the verdict
			unknown = w.Until.IsZero() || w.Until.After(v.Since.Time)
			if !w.From.IsZero() && w.From.After(v.Since.Time) {
				continue
			}
		}
		all = append(all, v)
	}
	return all, unknown || len(all) == 0
}

// At returns the verdict for a stretch that was known at a moment; Unknown if none is kept.
func At(r *ImageRun, at time.Time) RunVerdict {
	known, _ := Window{at, at}.Verdicts(r)
	return last(known)
}

// First returns the verdict for a stretch at its beginning, or at the window's if that is later.
func (w Window) First(r *ImageRun) RunVerdict {
	if w.From.After(r.Spec.From.Time) {
		return At(r, w.From)
	}
	if all := r.Status.Verdicts; len(all) > 0 && (w.Until.IsZero() || !all[0].Since.After(w.Until)) {
		return all[0]
	}
	return last(nil)
}

// Last returns the verdict for a stretch at its end, or at the window's if that is earlier.
func (w Window) Last(r *ImageRun) RunVerdict {
	if w.Until.IsZero() || r.Status.Until != nil && !r.Status.Until.After(w.Until) {
		return last(r.Status.Verdicts) // also one that was found after the end by the cluster's clock
	}
	return At(r, w.Until)
}

// last returns the last of verdicts, and Unknown if there is none.
func last(all []RunVerdict) RunVerdict {
	if n := len(all); n > 0 {
		return all[n-1]
	}
	return RunVerdict{Verified: unknownVerdict}
}

// selector is a field selector for stretches. [attributes] gives it the stretch itself.
type selector struct {
	fields.Selector
	window  Window
	ended   string // the bucket of a day; empty for any
	matches []func(*ImageRun) bool
}

// newSelector reads the requirements of a selector.
func newSelector(s fields.Selector) *selector {
	if s == nil {
		s = fields.Everything()
	}
	out := &selector{Selector: s}
	for _, q := range s.Requirements() {
		at, _ := time.Parse(time.RFC3339, q.Value) // fieldLabel has read it
		switch q.Field {
		case atField:
			out.window = Window{at, at}
		case fromField:
			out.window.From = at
		case untilField:
			out.window.Until = at
		case dayField:
			out.ended = q.Value
		}
	}
	for _, q := range s.Requirements() {
		var has func(*ImageRun) bool
		switch q.Field {
		case atField, fromField, untilField:
			has = out.window.Ran
		case verifiedField:
			has = func(r *ImageRun) bool {
				known, unknown := out.window.Verdicts(r)
				return unknown && q.Value == unknownVerdict || slices.ContainsFunc(known, func(v RunVerdict) bool { return v.Verified == q.Value })
			}
		case imageField:
			wanted := strings.Split(q.Value, clusters.ValueSeparator)
			has = func(r *ImageRun) bool {
				return podimages.Selected(wanted, values(imageField, r), r.Spec.Platform)
			}
		default:
			has = func(r *ImageRun) bool { return slices.Contains(values(q.Field, r), q.Value) }
		}
		if q.Operator == selection.NotEquals {
			is := has
			has = func(r *ImageRun) bool { return !is(r) }
		}
		out.matches = append(out.matches, has)
	}
	return out
}

// selected is the attribute that tells whether a stretch is selected.
const selected = "selected"

// Matches is part of fields.Selector.
func (*selector) Matches(f fields.Fields) bool { return f.Get(selected) == "true" }

// AnyOf returns the values in the index of a field under which all that is selected stands.
func (s *selector) AnyOf(field string) (all []string, ok bool) {
	if field == timeField && s.ended != "" {
		return []string{s.ended}, true
	}
	if field == timeField {
		return s.window.buckets()
	}
	value, ok := s.RequiresExactMatch(field)
	if !ok || field == verifiedField && value == unknownVerdict && s.window != (Window{}) { // no verdict then
		return nil, false
	}
	for one := range strings.SplitSeq(value, clusters.ValueSeparator) {
		one, _, _ = strings.Cut(one, "@") // the platform
		all = append(all, one)
	}
	slices.Sort(all)
	return slices.Compact(all), true
}

// DeepCopySelector is part of fields.Selector.
func (s *selector) DeepCopySelector() fields.Selector {
	return newSelector(s.Selector.DeepCopySelector())
}

// predicate selects stretches.
func predicate(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
	s := newSelector(field)
	return storage.SelectionPredicate{Label: label, Field: s, IndexFields: indexedFields, GetAttrs: func(obj runtime.Object) (labels.Set, fields.Set, error) {
		r, ok := obj.(*ImageRun)
		if !ok {
			return nil, nil, fmt.Errorf("%T is not an ImageRun", obj)
		}
		all := !slices.ContainsFunc(s.matches, func(has func(*ImageRun) bool) bool { return !has(r) })
		return r.Labels, fields.Set{selected: fmt.Sprint(all)}, nil
	}}
}

// values are the values of a field of a stretch.
func values(field string, r *ImageRun) (all []string) {
	switch field {
	case nameField:
		return []string{r.Name}
	case namespaceField:
		return []string{r.Namespace}
	case clusterField:
		return []string{r.Spec.Cluster}
	case workloadField:
		_, name, _ := strings.Cut(r.Spec.Workload, "/")
		return []string{r.Spec.Workload, name}
	case runningField:
		return []string{fmt.Sprint(r.Status.Until == nil)}
	case verifiedField:
		for _, v := range r.Status.Verdicts {
			all = append(all, v.Verified)
		}
		if r.Status.VerdictsDropped > 0 || len(all) == 0 {
			all = append(all, unknownVerdict)
		}
	case imageField:
		all = podimages.Values(r.Spec.Image, r.Spec.ImageID)
		if r.Spec.Digest != "" {
			all = append(all, r.Spec.Digest)
		}
	case timeField, dayField:
		return bucketsOf(r)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// indexers are the indexes of the storage.
func indexers() *cache.Indexers {
	out := cache.Indexers{}
	for _, name := range indexedFields {
		key := storage.FieldIndex(name)
		switch name {
		case imageField:
			key += "#" + reference.FormVersion
		case timeField:
			key += "#" + bucketVersion
		case verifiedField:
			key += "#2" // without a verdict it stands under Unknown
		}
		out[key] = func(obj any) ([]string, error) {
			r, ok := obj.(*ImageRun)
			if !ok {
				return nil, fmt.Errorf("%T is not an ImageRun", obj)
			}
			return values(name, r), nil
		}
	}
	return &out
}
