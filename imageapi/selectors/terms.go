package selectors

import (
	"k8s.io/apimachinery/pkg/fields"
)

// selector is a field selector for fields that may have several values, such as references. It holds the selector as it
// was asked, from which indexes are chosen, and matches by a term for each value.
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

// Term returns the name and value by which a field with a value is matched. For a field with several values, the value
// is part of the name.
func Term(field, value string) (string, string) {
	switch field {
	case Signer, References, RecordedReferences, Warnings, Verdicts, Vouches, Lists, UsedBy, StreamRepository, StreamLeads, TagShort:
		return field + "=" + value, "true"
	}
	return field, value
}

// Matches is part of fields.Selector.
func (s selector) Matches(f fields.Fields) bool { return s.terms.Matches(f) }

// DeepCopySelector is part of fields.Selector.
func (s selector) DeepCopySelector() fields.Selector {
	return selector{s.Selector.DeepCopySelector(), s.terms.DeepCopySelector()}
}
