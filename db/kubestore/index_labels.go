package kubestore

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
)

// labelIndex is the index that every kind has. An object is in it under each of its labels, as
// "key" and as "key=value". The two cannot be confused, because a key has no "=".
const labelIndex = "labels"

// labelValues are the values of obj in labelIndex.
func labelValues(obj runtime.Object) ([]string, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	var values []string
	for k, v := range m.GetLabels() {
		values = append(values, k, k+"="+v)
	}
	return values, nil
}

// labelValueFor returns a value in labelIndex that all objects have that selector matches. It
// prefers a requirement for a label's value. ok is false if the selector only requires that labels
// are absent.
func labelValueFor(selector labels.Selector) (value string, ok bool) {
	if selector == nil {
		return "", false
	}
	requirements, _ := selector.Requirements()
	for _, r := range requirements {
		switch r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			if v := r.ValuesUnsorted(); len(v) == 1 {
				return r.Key() + "=" + v[0], true
			}
			value, ok = r.Key(), true
		case selection.Exists, selection.GreaterThan, selection.LessThan:
			value, ok = r.Key(), true
		}
	}
	return value, ok
}
