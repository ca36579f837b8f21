package clusters

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
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
)

// indexedFields are those that the storage answers from an index, the most selective first.
var indexedFields = []string{imageField, podField, namespaceField, clusterField}

// podFieldLabel accepts the fields by which pods are selected, and an image in any form.
func podFieldLabel(label, value string) (string, string, error) {
	switch label {
	case nameField, clusterField, namespaceField, podField:
		return label, value, nil
	case outdatedField:
		if value != "true" && value != "false" {
			return "", "", fmt.Errorf("field label %q of clusterpods must be true or false, not %q", outdatedField, value)
		}
		return label, value, nil
	case imageField:
		if !reference.IsDigest(value) {
			ref, err := reference.Parse(value)
			if err != nil {
				return "", "", fmt.Errorf("field label %q: %w", imageField, err)
			}
			value = ref.String()
			if ref.Digest != "" {
				value = ref.Digest
			}
		}
		return label, value, nil
	}
	return "", "", fmt.Errorf("field label %q is not supported for clusterpods: select by %s, %s, %s, %s, %s or %s", label, nameField, clusterField, namespaceField, podField, imageField, outdatedField)
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
			for _, ref := range podimages.Uses(c.Image, c.ImageID) {
				all = append(all, ref.Digest)
				if ref.Repository != "" {
					all = append(all, ref.Name())
				}
			}
			if ref, err := reference.Parse(c.Image); err == nil {
				pulled := ref.Pulled()
				pulled.Digest = ""
				if pulled.Tag != "" {
					all = append(all, pulled.String())
				}
				all = append(all, ref.Name())
			}
		}
		slices.Sort(all)
		return slices.DeleteFunc(slices.Compact(all), func(value string) bool { return value == "" })
	}
	return nil
}

// podTerms returns the fields of a pod in the form that a predicate matches: one for each value of
// the image and of the pod's name, and the others.
func podTerms(p *ClusterPod) fields.Set {
	set := fields.Set{}
	for _, name := range []string{nameField, clusterField, namespaceField, podField, imageField} {
		for _, value := range podValues(name, p) {
			key, value := podTerm(name, value)
			set[key] = value
		}
	}
	return set
}

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

// podSelector is a field selector for which a pod may have several images, and names.
type podSelector struct{ fields.Selector }

// Matches is part of fields.Selector.
func (s podSelector) Matches(f fields.Fields) bool {
	for _, r := range s.Requirements() {
		key, value := podTerm(r.Field, r.Value)
		if (f.Get(key) == value) == strings.HasPrefix(string(r.Operator), "!") {
			return false
		}
	}
	return true
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
			key += "#" + reference.FormVersion
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
