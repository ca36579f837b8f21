package kubestore

import (
	"bytes"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// prefilter tells from an object's stored bytes that a label selector cannot
// match it, so that a list by a label that few objects have need not decode the
// others. It relies on what the JSON encoder does: no white space, and labels,
// whose alphabet needs no escapes, as "key":"value".
//
// An object that cannot be decoded and is filtered out here is not reported by
// the list; a list of everything, and every read of the object, do.
type prefilter [][][]byte // each of these, in one of its forms, must be there

// compactJSON is how the encoder begins an object.
var compactJSON = []byte(`{"kind":"`)

func newPrefilter(selector labels.Selector) (p prefilter) {
	if selector == nil {
		return nil
	}
	requirements, selectable := selector.Requirements()
	if !selectable {
		return nil // matches nothing; let the selector say so
	}
	for _, r := range requirements {
		var forms [][]byte
		switch r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			for value := range r.Values() {
				forms = append(forms, []byte(`"`+r.Key()+`":"`+value+`"`))
			}
		case selection.Exists, selection.GreaterThan, selection.LessThan:
			forms = append(forms, []byte(`"`+r.Key()+`":"`))
		default:
			continue // the absence of a label is not to be seen like this
		}
		p = append(p, forms)
	}
	return p
}

// mayMatch is false only of an object that the selector does not match.
func (p prefilter) mayMatch(data []byte) bool {
	if len(p) == 0 || !bytes.HasPrefix(data, compactJSON) {
		return true
	}
	for _, forms := range p {
		found := false
		for _, form := range forms {
			if found = bytes.Contains(data, form); found {
				break
			}
		}
		if !found {
			return false
		}
	}
	return true
}
