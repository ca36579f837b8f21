package selectors

import (
	"strings"

	"k8s.io/apimachinery/pkg/fields"
)

// ofRepository is between the name of a field and the repository for which it is meant. Nobody can ask for such a field: the
// storage of images makes it of a selector that names a repository, too.
const ofRepository = " in "

// InRepository is a field about verdicts, meant for one repository alone.
func InRepository(field, repository string) string { return field + ofRepository + repository }

// CutRepository takes apart what [InRepository] has put together.
func CutRepository(field string) (of, repository string, ok bool) {
	return strings.Cut(field, ofRepository)
}

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
	of, _, _ := CutRepository(field)
	switch of {
	case Signer, References, RecordedReferences, Warnings, Verdicts, IndexVerdicts, Lists, Layer, UsedBy, StreamRepository, StreamLeads, TagShort:
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
