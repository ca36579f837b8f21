package clusters

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/internal/named"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// The fields by which pods are selected.
const (
	nameField      = "metadata.name"
	clusterField   = "spec.cluster"
	namespaceField = "spec.namespace"
	outdatedField  = "outdated" // computed when asked, and not stored
	// one value for each digest, reference and repository of the pod's containers
	imageField = "image"
	// podField is the pod's name in its cluster, or that without its last part or two: as a rule,
	// its workload's name.
	podField = "pod"
	// namedField is a part of the pod's name or of its workload's, in whichever case; it is looked for
	// when asked.
	namedField = "named"
)

// indexedFields are those that the storage answers from an index, the most selective first.
var indexedFields = []string{imageField, podField, namespaceField, clusterField}

// digestLike is a digest or its beginning, with or without its algorithm.
var digestLike = regexp.MustCompile(`^(sha256:|sha512:)?[0-9a-f]{4,128}$`)

// podFieldLabel accepts the fields by which pods are selected, and an image in any form.
func podFieldLabel(label, value string) (string, string, error) {
	switch label {
	case nameField, clusterField, namespaceField, podField:
		return label, value, nil
	case outdatedField:
		if value != driftTrue && value != driftFalse && value != driftUnknown {
			return "", "", fmt.Errorf("field label %q of clusterpods must be %s, %s or %s, not %q", outdatedField, driftTrue, driftFalse, driftUnknown, value)
		}
		return label, value, nil
	case verifiedField, namedField:
		return label, value, nil
	case reasonField:
		if !reasonLike.MatchString(value) {
			return "", "", fmt.Errorf("field label %q of clusterpods is one word such as SubjectMismatch or NotImported, as the column REASON has it, not %q", reasonField, value)
		}
		return label, value, nil
	case imageField:
		// the list finds out its meaning
		if name, _, ok := strings.Cut(value, "@"); ok || !digestLike.MatchString(value) {
			if _, err := reference.Parse(name); err != nil {
				return "", "", fmt.Errorf("field label %q: %w", imageField, err)
			}
		}
		return label, value, nil
	}
	return "", "", fmt.Errorf("field label %q is not supported for clusterpods: select by %s, %s, %s, %s, %s, %s, %s, %s or %s", label, nameField, clusterField, namespaceField, podField, namedField, imageField, verifiedField, reasonField, outdatedField)
}

// podValues returns the values of a field of a pod.
func podValues(field string, p *ClusterPod) []string {
	switch field {
	case nameField:
		return []string{p.Name}
	case clusterField:
		return []string{p.Spec.Cluster}
	case namespaceField:
		return []string{p.Spec.Namespace}
	case podField:
		all := []string{p.Spec.Name}
		for name := p.Spec.Name; len(all) < 3; all = append(all, name) {
			end := strings.LastIndexByte(name, '-')
			if end <= 0 {
				break
			}
			name = name[:end]
		}
		return all
	case imageField:
		var all []string
		for _, c := range p.Spec.Containers {
			all = append(all, podimages.Values(c.Image, c.ImageID)...)
		}
		slices.Sort(all)
		return slices.Compact(all)
	}
	return nil
}

// isNamedSo reports whether a pod has, or with != lacks, what is demanded of names.
func isNamedSo(p *ClusterPod, demanded []fields.Requirement) bool {
	return named.Match(demanded, p.Spec.Name, p.Spec.Workload)
}

// podTerms returns the fields of a pod in the form that a predicate matches: one for each value of
// the image and of the pod's name, and the others.
func podTerms(p *ClusterPod) fields.Set {
	set := fields.Set{platformTerm: p.Spec.Platform}
	for _, name := range []string{nameField, clusterField, namespaceField, podField, imageField} {
		for _, value := range podValues(name, p) {
			key, value := podTerm(name, value)
			set[key] = value
		}
	}
	return set
}

// ValueSeparator separates several values of the field "image". Each value selects pods or records,
// and contains no separator.
const ValueSeparator = "|"

func podTerm(field, value string) (string, string) {
	if field == imageField || field == podField {
		return field + "=" + value, "true"
	}
	return field, value
}

func podAttributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	p, ok := obj.(*ClusterPod)
	if !ok {
		return nil, nil, fmt.Errorf("%T is not a ClusterPod", obj)
	}
	return p.Labels, podTerms(p), nil
}

func podPredicate(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
	return storage.SelectionPredicate{Label: label, Field: podSelector{field}, GetAttrs: podAttributes, IndexFields: indexedFields}
}

// platformTerm has the platform of a pod's node for a podSelector.
const platformTerm = "platform"

// podSelector is a field selector for which a pod may have several images, and names.
type podSelector struct{ fields.Selector }

// Matches is part of fields.Selector.
func (s podSelector) Matches(f fields.Fields) bool {
	for _, r := range s.Requirements() {
		has := false
		for one := range strings.SplitSeq(r.Value, ValueSeparator) {
			one, on := podimages.Wanted(one, f.Get(platformTerm))
			key, value := podTerm(r.Field, one)
			has = has || on && f.Get(key) == value
		}
		if has == strings.HasPrefix(string(r.Operator), "!") {
			return false
		}
	}
	return true
}

// RequiresExactMatch is part of fields.Selector. An index has single values.
func (s podSelector) RequiresExactMatch(field string) (value string, found bool) {
	value, found = s.Selector.RequiresExactMatch(field)
	return value, found && !strings.ContainsAny(value, ValueSeparator+"@")
}

// DeepCopySelector is part of fields.Selector.
func (s podSelector) DeepCopySelector() fields.Selector {
	return podSelector{s.Selector.DeepCopySelector()}
}

func podIndexers() *cache.Indexers {
	out := cache.Indexers{}
	for _, name := range indexedFields {
		key := storage.FieldIndex(name)
		if name == imageField {
			key += "#" + reference.FormVersion + ".1" // since it has values of pods that do not tell what they run
		}
		out[key] = func(obj any) ([]string, error) {
			p, ok := obj.(*ClusterPod)
			if !ok {
				return nil, fmt.Errorf("%T is not a ClusterPod", obj)
			}
			return podValues(name, p), nil
		}
	}
	return &out
}
