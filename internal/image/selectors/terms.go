package selectors

import (
	"strings"

	"k8s.io/apimachinery/pkg/fields"
)

// ofRepository separates the name of a field from a repository. Clients cannot select by such a
// field: the storage of images makes it if a selector also names a repository.
const ofRepository = " in "

// InRepository returns a field about verdicts in one repository.
func InRepository(field, repository string) string { return field + ofRepository + repository }

// CutRepository is the inverse of [InRepository].
func CutRepository(field string) (of, repository string, ok bool) {
	return strings.Cut(field, ofRepository)
}

// selector is a field selector for fields that may have several values, such as references. It
// keeps the client's selector, from which indexes are chosen, and matches by a term for each value.
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
		return fields.Nothing() // the function above returns no errors
	}
	return selector{asked, terms}
}

// Term returns the name and value for matching a value of a field. If the field can have several
// values, the name contains the value.
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

// IndexValue returns what an index has for a value of a field. It is the value itself, or the first
// digits of the digest of a layer. So two values may share one, and the caller matches again what
// the index finds.
func IndexValue(field, value string) string {
	if field != Layer {
		return value
	}
	_, encoded, _ := strings.Cut(value, ":")
	return encoded[:min(len(encoded), indexedDigits)]
}

// RequiresExactMatch is part of fields.Selector. The storage gets the value to look up in an index
// from it.
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
