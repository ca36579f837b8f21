package selectors

import (
	"strings"

	"k8s.io/apimachinery/pkg/fields"
)

// ofRepository separates the name of a field from a repository. Clients cannot select by such a
// field: the storage of images makes it from a selector that also names a repository.
const ofRepository = " in "

// InRepository is a field about verdicts, meant for one repository alone.
func InRepository(field, repository string) string { return field + ofRepository + repository }

// CutRepository takes apart what [InRepository] has put together.
func CutRepository(field string) (of, repository string, ok bool) {
	return strings.Cut(field, ofRepository)
}

// selector is a field selector for fields that may have several values, such as references. It
// holds the selector as it was asked, from which indexes are chosen, and matches by a term for each
// value.
type selector struct {
	fields.Selector
	terms fields.Selector
}

func NewSelector(asked fields.Selector) fields.Selector {
	terms, err := asked.Transform(func(field, value string) (string, string, error) {
		field, value = Term(field, value)
		return field, value, nil
	})
	if err != nil {
		return fields.Nothing() // the function above returns none
	}
	return selector{asked, terms}
}

// Term returns the name and value by which a field with a value is matched. For a field with
// several values, the value is part of the name.
func Term(field, value string) (string, string) {
	of, _, _ := CutRepository(field)
	switch of {
	case Signer, References, RecordedReferences, Warnings, Verdicts, IndexVerdicts, Lists, Layer, Base, UsedBy, StreamRepository, StreamLeads, TagShort, Package:
		return field + "=" + value, "true"
	}
	return field, value
}

// indexedDigits is how many hexadecimal digits of a layer's digest an index has: 64 bits. Whole
// digests fill four times as many pages, and a creation changes a page for almost each of its
// layers.
const indexedDigits = 16

// IndexValue returns what an index has for a value of a field. Two values may share one, so what an
// index finds is matched again. It is the value itself but for the digests of layers, whose first
// digits stand for them.
func IndexValue(field, value string) string {
	if field != Layer {
		return value
	}
	_, encoded, _ := strings.Cut(value, ":")
	return encoded[:min(len(encoded), indexedDigits)]
}

// RequiresExactMatch is part of fields.Selector. The storage asks it for the value to look up in an
// index.
func (s selector) RequiresExactMatch(field string) (string, bool) {
	value, found := s.Selector.RequiresExactMatch(field)
	return IndexValue(field, value), found
}

// Matches is part of fields.Selector.
func (s selector) Matches(f fields.Fields) bool { return s.terms.Matches(f) }

// DeepCopySelector is part of fields.Selector.
func (s selector) DeepCopySelector() fields.Selector {
	return selector{s.Selector.DeepCopySelector(), s.terms.DeepCopySelector()}
}
