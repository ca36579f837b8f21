package image

import (
	"fmt"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Values of warningsField: in what the image is less complete than others.
const (
	warningManifestLeftOut = "ManifestLeftOut"
	warningConfigLeftOut   = "ConfigLeftOut"
	warningOldReferences   = selectors.WarningOldReferences
	// signatures were found, but are too many or too large
	warningSignatures = "SignaturesLeftOut"
	warningIncomplete = "SearchIncomplete" // not all signatures could be read
)

// indexedFields are those that the storage answers from an index. A selector that names several
// uses the first of them, so the most selective come first.
var indexedFields = []string{indexVerdictsField, listsField, layerField, configField, baseField, referenceField, verdictsField, knownField, signerField, warningsField, goneField, attestedField, verifiedField, architectureField, mediaTypeField, unprintableField}

// fieldValues are the selectable fields and the values they can have; nil for any.
var fieldValues = map[string][]string{
	nameField:          nil,
	artifactField:      {"true", "false", withArtifacts},
	digestField:        nil,
	referenceField:     nil,
	mediaTypeField:     nil,
	architectureField:  nil,
	signerField:        nil,
	knownField:         nil,
	recordedField:      nil,
	verifiedField:      verdicts.All,
	attestedField:      {"", verdicts.VerifiedTrue, verdicts.VerifiedFalse, verdicts.VerifiedUnknown, verdicts.ByIndex},
	verdictsField:      nil,
	indexVerdictsField: nil,
	listsField:         nil,
	layerField:         nil,
	configField:        nil,
	packageField:       nil,
	baseField:          nil,
	warningsField:      {"", warningManifestLeftOut, warningConfigLeftOut, warningOldReferences, warningSignatures, warningIncomplete},
	goneField:          {"", "true"},
	unprintableField:   {"", "true"},
	usedField:          {"true", "false", "unknown"},
	usedByField:        nil,
}

// ConvertFieldLabel accepts the selectable fields as they are. The API server answers 400 to any
// other field, and to a value that a field cannot have, which would select nothing.
func ConvertFieldLabel(label, value string) (string, string, error) {
	values, ok := fieldValues[label]
	if !ok {
		return "", "", fmt.Errorf("field label %q is not supported for images: select by %s, %s, %s or %s",
			label, nameField, strings.Join(append([]string{digestField, artifactField, packageField}, indexedFields...), ", "), usedField, usedByField)
	}
	if values != nil && !slices.Contains(values, value) {
		return "", "", fmt.Errorf("field label %q of images cannot be %q: it is %s", label, value, alternatives(values))
	}
	if label == digestField {
		var err error
		if value, err = canonicalDigest(value); err != nil {
			return "", "", err
		}
	}
	if label == packageField {
		if _, err := packages.ParseQuery(value); err != nil {
			return "", "", fmt.Errorf("field label %q of images: %w", label, err)
		}
	}
	if (label == layerField || label == configField) && !reference.IsDigest(value) {
		return "", "", fmt.Errorf("field label %q of images is a whole digest, such as sha256: and 64 hex digits, not %q", label, value)
	}
	if label == baseField {
		var err error
		if value, err = canonicalBase(value); err != nil {
			return "", "", err
		}
	}
	if label == knownField || label == recordedField {
		if ref, err := reference.Parse(value); err == nil {
			if ref.Digest != "" {
				ref = ref.Pulled()
			}
			value = ref.String()
		}
	}
	return label, value, nil
}

// alternatives are the values that a field can have, in words.
func alternatives(values []string) string {
	if values[0] == "" {
		return "empty, " + alternatives(values[1:])
	}
	if n := len(values) - 1; n > 0 {
		return strings.Join(values[:n], ", ") + " or " + values[n]
	}
	return values[0]
}

// values returns the values of a field of an image, at least one: "" if the image has none.
func (f *facts) values(field string, image *imagev1.Image) []string {
	if field, repository, ok := selectors.CutRepository(field); ok {
		return f.valuesIn(repository, field, image)
	}
	switch field {
	case referenceField:
		return []string{image.DockerImageReference}
	case mediaTypeField:
		return []string{image.DockerImageManifestMediaType}
	case architectureField:
		return []string{architecture(image)}
	case verifiedField:
		verified, _ := f.stored.Summarize(image)
		return []string{verified}
	case signerField:
		if _, signers := f.stored.Summarize(image); len(signers) > 0 {
			return signers
		}
	case attestedField:
		return []string{f.stored.Attested(image)}
	case knownField, recordedField:
		if all := knownBy(image); len(all) > 0 {
			return all
		}
	case verdictsField:
		if all := f.verdicts(image); len(all) > 0 {
			return all
		}
	case indexVerdictsField:
		if all := indexVerdicts(image); len(all) > 0 {
			return all
		}
	case listsField:
		if all := listed(image); len(all) > 0 {
			return all
		}
	case layerField:
		if all := layers(image); len(all) > 0 {
			return all
		}
	case configField:
		return []string{configOf(image)}
	case baseField:
		if all := annotatedBases(image); len(all) > 0 {
			return all
		}
	case warningsField:
		if all := warnings(image); len(all) > 0 {
			return all
		}
	case goneField:
		if len(annotation.GoneFrom(image.Annotations, image.Name)) > 0 {
			return []string{"true"}
		}
	case unprintableField:
		if hasUnprintable(image) {
			return []string{"true"}
		}
	case usedField:
		return []string{f.used(image)}
	case usedByField:
		if all := f.usedBy(image.Name, image); len(all) > 0 {
			return all
		}
	}
	return []string{""}
}

// valuesIn returns the values that a field about verdicts has in one repository.
func (f *facts) valuesIn(repository, field string, image *imagev1.Image) []string {
	for _, v := range f.stored.Held(image) {
		if v.Place == repository {
			return valuesOf(v.Verdict, field)
		}
	}
	return []string{""}
}

// valuesOf returns the values that a field about verdicts has by one verdict.
func valuesOf(v annotation.Verdict, field string) []string {
	switch {
	case field == verifiedField:
		return []string{v.Verified}
	case field == attestedField:
		return []string{v.Attested}
	case len(v.Signers) > 0:
		return v.Signers
	}
	return []string{""}
}

// configOf returns the digest of an image's config; "" if it has none or that is not known.
func configOf(image *imagev1.Image) string {
	if len(image.DockerImageManifests) > 0 || isArtifact(image) {
		return ""
	}
	// The manifest was read a moment ago when the image is written. The metadata's ID is from it.
	if m, err := manifest.Of(image); err == nil && m.Kind == manifest.KindImage && m.Config != nil && reference.IsDigest(m.Config.Digest) {
		return m.Config.Digest
	}
	metadata, err := manifest.Metadata(image)
	if err != nil || metadata.ID == image.Name || !reference.IsDigest(metadata.ID) {
		return ""
	}
	return metadata.ID
}

// maxLayers bounds the layers of an image that are selected by.
const maxLayers = 1000

// layers are the digests of the layers of an image, each once.
func layers(image *imagev1.Image) (all []string) {
	for _, l := range image.DockerImageLayers[:min(len(image.DockerImageLayers), maxLayers)] {
		all = append(all, l.Name)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// warnings are the kinds of warnings about an image.
func warnings(image *imagev1.Image) []string {
	var all []string
	left, _ := manifest.LeftOutOf(image) // an annotation that cannot be read leaves nothing out
	if left.Manifest != nil {
		all = append(all, warningManifestLeftOut)
	}
	if left.Config != nil {
		all = append(all, warningConfigLeftOut)
	}
	if annotation.IsOld(image.Annotations, image.DockerImageReference) {
		all = append(all, warningOldReferences)
	}
	kinds := map[string]bool{}
	for _, r := range annotation.Found(image.Annotations) {
		kinds[warningSignatures] = kinds[warningSignatures] || len(r.LeftOut) > 0
		kinds[warningIncomplete] = kinds[warningIncomplete] || r.Unread != "" || r.Unusable != ""
	}
	for _, kind := range []string{warningSignatures, warningIncomplete} {
		if kinds[kind] {
			all = append(all, kind)
		}
	}
	return all
}

// verdicts are the verdicts in the repositories that the image is in, each as
// <verdict>@<repository>. A tag that is a policy's scope has a verdict of its own, and so has a
// repository for the pods of a namespace with policies.
func (f *facts) verdicts(image *imagev1.Image) (all []string) {
	for _, v := range f.stored.Held(image) {
		all = append(all, v.Verified+"@"+v.Place)
	}
	for key, v := range annotation.JudgedInNamespaces(image.Annotations) {
		all = append(all, v.Verified+"@"+key)
	}
	return all
}

// knownBy returns the references an image is known by, as they are pulled, and their repositories,
// each once.
func knownBy(image *imagev1.Image) []string {
	var out []string
	for _, ref := range References(image) {
		out = append(out, ref.Name(), ref.Pulled().String())
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// architecture is "" for indexes and for images without readable metadata. The metadata of an image
// with a config follows from the config, which has been read a moment ago when the image is
// written.
func architecture(image *imagev1.Image) string {
	if image.DockerImageManifest != "" && image.DockerImageConfig != "" {
		if config, err := manifest.ConfigOf(image); err == nil {
			return printable.Text(config.Architecture) // as in the metadata
		}
	}
	metadata, err := manifest.Metadata(image)
	if err != nil {
		return ""
	}
	return metadata.Architecture
}

// attributes returns what label and field selectors match against: the labels, and these fields. A
// field with several values is there once for each, see term.
func (f *facts) attributes(names []string) storage.AttrFunc {
	return func(obj runtime.Object) (labels.Set, fields.Set, error) {
		image, ok := obj.(*imagev1.Image)
		if !ok {
			return nil, nil, fmt.Errorf("%T is not an Image", obj)
		}
		set := make(fields.Set, len(names)+1)
		for _, name := range names {
			for _, value := range f.values(name, image) {
				key, value := selectors.Term(name, value)
				set[key] = value
			}
		}
		return image.Labels, generic.AddObjectMetaFieldsSet(set, &image.ObjectMeta, false), nil
	}
}

// predicate selects images. It names the indexed fields, so that the storage can answer from an
// index.
func (f *facts) predicate(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
	var names []string // only for these a list looks into every image
	indexed := indexedFields
	for _, r := range field.Requirements() {
		names = append(names, r.Field)
		if r.Value == "" {
			indexed = slices.DeleteFunc(slices.Clone(indexed), func(name string) bool { return name == r.Field })
		}
	}
	return storage.SelectionPredicate{Label: label, Field: selectors.NewSelector(field), GetAttrs: f.attributes(names), IndexFields: indexed}
}

// verdictsVersion is the version of the words in which verdicts are selected. Raising it has their
// indexes built again.
const verdictsVersion = "4"

// layersVersion is the version of what the index of layers has for a digest, see
// [selectors.IndexValue].
const layersVersion = "2"

// indexers compute the index entries of an image for these fields. A field that most images lack,
// such as a warning, has no entry for an image without it: each entry costs a write, and an index
// of most images would save nothing.
func (f *facts) indexers(names []string) *cache.Indexers {
	out := cache.Indexers{}
	for _, field := range names {
		key := storage.FieldIndex(field)
		switch field {
		case knownField, warningsField, baseField:
			key += "#" + reference.FormVersion
		case verifiedField, verdictsField:
			key += "#" + verdictsVersion
		case layerField:
			key += "#" + layersVersion
		}
		out[key] = func(obj any) ([]string, error) {
			image, ok := obj.(*imagev1.Image)
			if !ok {
				return nil, fmt.Errorf("%T is not an Image", obj)
			}
			var entries []string
			for _, value := range f.values(field, image) {
				if value != "" {
					entries = append(entries, selectors.IndexValue(field, value))
				}
			}
			return entries, nil
		}
	}
	return &out
}
