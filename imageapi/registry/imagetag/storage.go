// Package imagetag stores ImageTags: where the tags of registries lead now, and where they led
// before.
package imagetag

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/tidewaiter/tidewaiter/imageapi/internal/virtual"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/internal/strategy"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/named"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// tagFields are the fields that tags are selected by, besides name and namespace. All are indexed.
var tagFields = []string{selectors.TagImage, selectors.TagReference, selectors.TagRepository, selectors.TagShort, selectors.Warnings, selectors.Gone, selectors.TagMoved}

// Outdated counts the pods that name a tag and run something else than it leads to. complete is
// false if there may be more.
type Outdated func(tag reference.Reference) (n int, complete bool)

// NewStorage returns the storages of imagetags and of their status. Each write of a status records
// now as the time at which the registry confirmed the tag. may decides who may accept moves. may
// and outdated may be nil.
func NewStorage(g generic.RESTOptionsGetter, scheme *runtime.Scheme, now func() time.Time, outdated Outdated, may authorizer.UnconditionalAuthorizer) (tagged *genericregistry.Store, status *StatusREST, err error) {
	s := tagStrategy{strategy.NewNamespaced(scheme), now, may}
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &imagev1.ImageTag{} },
		NewListFunc:               func() runtime.Object { return &imagev1.ImageTagList{} },
		PredicateFunc:             Predicate,
		DefaultQualifiedResource:  imagev1.Resource("imagetags"),
		SingularQualifiedResource: imagev1.Resource("imagetag"),
		CreateStrategy:            s,
		UpdateStrategy:            s,
		DeleteStrategy:            s,
		ResetFieldsStrategy:       s,
		TableConvertor:            newTagTable(outdated, now),
	}
	indexers := cache.Indexers{}
	for _, name := range tagFields {
		key := storage.FieldIndex(name)
		switch name {
		case selectors.TagImage, selectors.Gone, selectors.TagMoved:
		case selectors.TagShort:
			key += "#" + reference.FormVersion + ".1" // since it has names without a tag
		default:
			key += "#" + reference.FormVersion
		}
		indexers[key] = func(obj any) ([]string, error) {
			tag, ok := obj.(*imagev1.ImageTag)
			if !ok {
				return nil, fmt.Errorf("%T is not an ImageTag", obj)
			}
			return slices.DeleteFunc(tagValues(name, tag), func(value string) bool { return value == "" }), nil
		}
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: g, AttrFunc: tagAttributes, Indexers: &indexers}); err != nil {
		return nil, nil, fmt.Errorf("imageapi: %w", err)
	}
	ofStatus, ofStatusStrategy := *store, tagStatusStrategy{s}
	ofStatus.CreateStrategy, ofStatus.UpdateStrategy, ofStatus.ResetFieldsStrategy = ofStatusStrategy, ofStatusStrategy, ofStatusStrategy
	return store, &StatusREST{virtual.Status{Store: &ofStatus}}, nil
}

// StatusREST is the subresource status: where a tag leads according to the registry. An update
// creates the tag if it does not exist.
type StatusREST struct{ virtual.Status }

var (
	_ rest.Patcher                         = &StatusREST{}
	_ rest.ResetFieldsStrategy             = tagStrategy{}
	_ rest.GarbageCollectionDeleteStrategy = tagStrategy{}
	_ rest.CreaterUpdater                  = &genericregistry.Store{}
	_ rest.SingularNameProvider            = &genericregistry.Store{}
)

// tagStrategy prepares and validates an ImageTag. Users write what it follows, and not where that
// leads.
type tagStrategy struct {
	strategy.Namespaced
	now func() time.Time
	may authorizer.UnconditionalAuthorizer
}

// DefaultGarbageCollectionPolicy is part of rest.GarbageCollectionDeleteStrategy. Tags have no
// dependents, and there may be millions, which the garbage collector would hold in memory.
func (tagStrategy) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	return rest.Unsupported
}

// GetResetFields returns the fields of a user's object that are ignored.
func (tagStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return strategy.ResetFields("status", "image")
}

// PrepareForCreate is part of rest.RESTCreateStrategy.
func (tagStrategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	tag := obj.(*imagev1.ImageTag)
	tag.Status, tag.Image = nil, nil
	for _, key := range append(serversAnnotations, tags.Accept, tags.AcceptReason) {
		delete(tag.Annotations, key)
	}
	beginTag(tag)
}

// serversAnnotations are those that users do not write.
var serversAnnotations = []string{tags.By, tags.Cause, tags.CheckedAt, tags.First, tags.Accepted}

func beginTag(tag *imagev1.ImageTag) {
	tag.Generation = 1
	if tag.Spec != nil {
		generation := tag.Generation
		tag.Spec.Generation = &generation
	}
}

// PrepareForUpdate is part of rest.RESTUpdateStrategy. A change of the spec raises the generation,
// and so does a generation of 0 in the spec, with which OpenShift's clients request another import.
func (s tagStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	tag, before := obj.(*imagev1.ImageTag), old.(*imagev1.ImageTag)
	tag.Status, tag.Image, tag.Generation = before.Status, nil, before.Generation
	for _, key := range serversAnnotations {
		if value, ok := before.Annotations[key]; ok {
			metav1.SetMetaDataAnnotation(&tag.ObjectMeta, key, value)
		} else {
			delete(tag.Annotations, key)
		}
	}
	s.accept(ctx, tag)
	if tag.Spec == nil {
		return
	}
	if tag.Spec.Generation == nil && before.Spec != nil {
		tag.Spec.Generation = before.Spec.Generation
	}
	if !apiequality.Semantic.DeepEqual(tag.Spec, before.Spec) {
		tag.Generation++
		generation := tag.Generation
		tag.Spec.Generation = &generation
	}
}

// Validate reports what is wrong with a new tag.
func (tagStrategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	tag := obj.(*imagev1.ImageTag)
	errs := validation.ValidateObjectMeta(&tag.ObjectMeta, true, ValidateName, field.NewPath("metadata"))
	return append(errs, validateTagSpec(tag)...)
}

// ValidateUpdate reports what is wrong with a changed tag.
func (s tagStrategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	tag := obj.(*imagev1.ImageTag)
	errs := validation.ValidateObjectMetaUpdate(&tag.ObjectMeta, &old.(*imagev1.ImageTag).ObjectMeta, field.NewPath("metadata"))
	annotations := field.NewPath("metadata", "annotations")
	if digest, asked := tag.Annotations[tags.Accept]; asked {
		now, _ := tags.Now(tag)
		if why := WhyNotAccept(ctx, s.may, tag.Name); digest == now && why != "" {
			return append(errs, field.Forbidden(annotations.Key(tags.Accept), why))
		}
		errs = append(errs, field.Invalid(annotations.Key(tags.Accept), printable.Line(digest, maxWho), "must be the digest to which the tag leads now: "+cmp.Or(now, "none")))
	} else if _, alone := tag.Annotations[tags.AcceptReason]; alone {
		errs = append(errs, field.Required(annotations.Key(tags.Accept), "the digest that is accepted for this reason"))
	}
	return append(errs, validateTagSpec(tag)...)
}

// tagStatusStrategy is for the subresource status: it takes the fields that tagStrategy ignores,
// and ignores the others.
type tagStatusStrategy struct{ tagStrategy }

// AllowCreateOnUpdate is true: the first import of a tag makes it, with one request.
func (tagStatusStrategy) AllowCreateOnUpdate(context.Context) bool { return true }

// GetResetFields returns the fields of a writer's object that are ignored if the tag exists.
func (tagStatusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return strategy.ResetFields("spec", "image")
}

// PrepareForCreate is part of rest.RESTCreateStrategy.
func (s tagStatusStrategy) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	tag := obj.(*imagev1.ImageTag)
	tag.Image = nil
	beginTag(tag)
	if tag.Status != nil {
		for i := range tag.Status.Items {
			tag.Status.Items[i].Generation = tag.Generation
		}
	}
	given := maps.Clone(tag.Annotations)
	delete(tag.Annotations, tags.CheckedAt)
	if !s.mayKeep(ctx, tag, tag.Annotations) {
		delete(tag.Annotations, tags.First)
		delete(tag.Annotations, tags.Accepted)
	}
	s.recordWriter(ctx, tag, nil)
	s.rename(ctx, tag, given)
}

// PrepareForUpdate is part of rest.RESTUpdateStrategy.
func (s tagStatusStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	tag, before := obj.(*imagev1.ImageTag), old.(*imagev1.ImageTag)
	tag.Spec, tag.Image, tag.Generation = before.Spec, nil, before.Generation
	tag.Labels = before.Labels
	given := tag.Annotations
	tag.Annotations = map[string]string{tags.Cause: given[tags.Cause]}
	for key, value := range before.Annotations {
		if key != tags.Cause {
			tag.Annotations[key] = value
		}
	}
	s.recordWriter(ctx, tag, before)
	tags.KeepFirst(tag, before)
	for _, key := range []string{tags.First, tags.Accepted} {
		if value := given[key]; value != "" && value != before.Annotations[key] && s.mayKeep(ctx, tag, given) {
			metav1.SetMetaDataAnnotation(&tag.ObjectMeta, key, value)
		}
	}
	s.rename(ctx, tag, given)
}

// rename keeps the writer's values for a tag that gets another name: who recorded its history, and
// when a registry last confirmed it. For other writes both are set anew.
func (s tagStatusStrategy) rename(ctx context.Context, tag *imagev1.ImageTag, given map[string]string) {
	if !strings.HasPrefix(given[tags.Cause], tags.RenamedFrom) || WhyNotAccept(ctx, s.may, tag.Name) != "" {
		return
	}
	said := tags.Writers(&imagev1.ImageTag{ObjectMeta: metav1.ObjectMeta{Annotations: given}})
	by := tags.Writers(tag)
	for i := range min(len(by), len(said)) {
		by[i] = cmp.Or(printable.Line(said[i], maxWho), by[i])
	}
	tags.SetWriters(tag, by)
	delete(tag.Annotations, tags.CheckedAt)
	if at, err := time.Parse(time.RFC3339, given[tags.CheckedAt]); err == nil && !at.After(s.now()) {
		tag.Annotations[tags.CheckedAt] = at.UTC().Format(time.RFC3339)
	}
}

// recordWriter records who wrote the newest item of a tag's history, if it is new. It makes a new
// item no later than the server's clock or the newest stored item: otherwise a writer with a fast
// clock would set the time of all later items.
func (s tagStatusStrategy) recordWriter(ctx context.Context, tag, before *imagev1.ImageTag) {
	var by, texts []string
	var old []imagev1.TagEvent
	if before != nil {
		by = tags.Writers(before)
		if before.Status != nil {
			old = before.Status.Items
		}
	}
	who := strategy.UserOf(ctx)
	if cause := tag.Annotations[tags.Cause]; cause != "" {
		who += ", " + cause
	}
	delete(tag.Annotations, tags.Cause)
	latest := metav1.NewTime(s.now().UTC().Truncate(time.Second))
	if len(old) > 0 && latest.Before(&old[0].Created) {
		latest = old[0].Created
	}
	if tag.Status != nil {
		for n, item := range tag.Status.Items {
			text := printable.Line(who, maxWho)
			isNew := true
			for i := range min(len(old), len(by)) {
				if isNew = !apiequality.Semantic.DeepEqual(old[i], item); !isNew {
					text, old, by = by[i], old[i+1:], by[i+1:]
					break
				}
			}
			if isNew && latest.Before(&item.Created) {
				tag.Status.Items[n].Created = latest
			}
			texts = append(texts, text)
		}
	}
	tags.SetWriters(tag, texts)
	s.recordCheck(tag)
}

// recordCheck records that the registry has just confirmed where a tag leads, unless the look at it
// failed.
func (s tagStatusStrategy) recordCheck(tag *imagev1.ImageTag) {
	if _, known := tags.Now(tag); known && tags.Failure(tag) == nil {
		tag.Annotations[tags.CheckedAt] = s.now().UTC().Format(time.RFC3339)
	}
}

// maxWho bounds the name of a writer in a tag's history, in bytes.
const maxWho = 256

// Validate is part of rest.RESTCreateStrategy.
func (s tagStatusStrategy) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return append(s.tagStrategy.Validate(ctx, obj), validateTagStatus(obj.(*imagev1.ImageTag))...)
}

// ValidateUpdate is part of rest.RESTUpdateStrategy.
func (s tagStatusStrategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	return append(s.tagStrategy.ValidateUpdate(ctx, obj, old), validateTagStatus(obj.(*imagev1.ImageTag))...)
}

// ValidateName accepts <stream>:<tag>, the names of OpenShift's kind.
func ValidateName(name string, _ bool) []string {
	stream, tag, ok := strings.Cut(name, ":")
	if !ok || stream == "" || !reference.IsTag(tag) {
		return []string{"must be <stream>:<tag>, such as registry.example.com--team--app:v1"}
	}
	return content.IsPathSegmentName(name)
}

func validateTagSpec(tag *imagev1.ImageTag) (errs field.ErrorList) {
	spec := field.NewPath("spec")
	if tag.Spec == nil {
		return field.ErrorList{field.Required(spec, "what the tag follows")}
	}
	if _, want, _ := strings.Cut(tag.Name, ":"); tag.Spec.Name != want {
		errs = append(errs, field.Invalid(spec.Child("name"), tag.Spec.Name, "must be the tag in metadata.name"))
	}
	switch from := tag.Spec.From; {
	case from == nil:
		errs = append(errs, field.Required(spec.Child("from"), "what the tag follows"))
	case from.Kind != "DockerImage":
		errs = append(errs, field.NotSupported(spec.Child("from", "kind"), from.Kind, []string{"DockerImage"}))
	default:
		switch ref, ok := tags.Reference(tag); {
		case !ok:
			errs = append(errs, field.Invalid(spec.Child("from", "name"), from.Name, "must be a reference with a tag, such as registry.example.com/team/app:v1"))
		case tag.Name != tags.Name(ref), tag.Namespace != tags.Namespace:
			// one object for each tag of a registry
			errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), tag.Name, fmt.Sprintf("the tag %s is %s in namespace %s", ref, tags.Name(ref), tags.Namespace)))
		}
	}
	return errs
}

func validateTagStatus(tag *imagev1.ImageTag) (errs field.ErrorList) {
	status := field.NewPath("status")
	if tag.Status == nil {
		return nil
	}
	if _, want, _ := strings.Cut(tag.Name, ":"); tag.Status.Tag != want {
		errs = append(errs, field.Invalid(status.Child("tag"), tag.Status.Tag, "must be the tag in metadata.name"))
	}
	if n := len(tag.Status.Items); n > tags.MaxItems {
		errs = append(errs, field.TooMany(status.Child("items"), n, tags.MaxItems))
	}
	for i, item := range tag.Status.Items {
		at := status.Child("items").Index(i)
		if item.Image != "" && !reference.IsDigest(item.Image) {
			errs = append(errs, field.Invalid(at.Child("image"), item.Image, "must be the digest of an image, or empty where the tag leads nowhere"))
		}
		if _, err := reference.Parse(item.DockerImageReference); err != nil {
			errs = append(errs, field.Invalid(at.Child("dockerImageReference"), item.DockerImageReference, err.Error()))
		}
		if item.Created.IsZero() {
			errs = append(errs, field.Required(at.Child("created"), "when it was seen"))
		}
	}
	return errs
}

// tagValues are the values of a selectable field, at least one: "" if there is none.
func tagValues(name string, tag *imagev1.ImageTag) []string {
	if name == selectors.TagImage {
		image, _ := tags.Now(tag)
		return []string{image}
	}
	if name == selectors.Gone {
		if image, known := tags.Now(tag); known && image == "" {
			return []string{"true"}
		}
		return []string{""}
	}
	if name == selectors.TagMoved {
		if tags.Overwritten(tag) != nil {
			return []string{"true"}
		}
		return []string{""}
	}
	ref, ok := tags.Reference(tag)
	switch {
	case !ok:
		return []string{""}
	case name == selectors.Warnings:
		if tag.Name != tags.Name(ref) {
			return []string{selectors.WarningOldReferences}
		}
		return []string{""}
	case name == selectors.TagRepository:
		return []string{ref.Name()}
	case name == selectors.TagShort:
		last := path.Base(ref.Repository)
		return slices.Compact([]string{ref.Repository + ":" + ref.Tag, last + ":" + ref.Tag, last})
	}
	return []string{ref.String()}
}

func tagAttributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	tag, ok := obj.(*imagev1.ImageTag)
	if !ok {
		return nil, nil, fmt.Errorf("%T is not an ImageTag", obj)
	}
	set := make(fields.Set, len(tagFields)+2)
	for _, name := range tagFields {
		for _, value := range tagValues(name, tag) {
			key, value := selectors.Term(name, value)
			set[key] = value
		}
	}
	return tag.Labels, generic.AddObjectMetaFieldsSet(set, &tag.ObjectMeta, true), nil
}

// Predicate selects tags. Tags without a value of a field are not in the field's index.
func Predicate(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
	indexed := slices.DeleteFunc(slices.Clone(tagFields), func(name string) bool {
		value, ok := field.RequiresExactMatch(name)
		return ok && value == ""
	})
	return storage.SelectionPredicate{Label: label, Field: newSelector(field), GetAttrs: tagAttributes, IndexFields: indexed}
}

// selector is a field selector that may demand parts of names, too.
type selector struct {
	fields.Selector                      // as it was asked
	values          fields.Selector      // what is demanded of other fields
	parts           []fields.Requirement // of names
}

func newSelector(asked fields.Selector) fields.Selector {
	var parts []fields.Requirement
	for _, r := range asked.Requirements() {
		if r.Field == selectors.Named {
			parts = append(parts, r)
		}
	}
	if len(parts) == 0 {
		return selectors.NewSelector(asked)
	}
	values, err := asked.Transform(func(field, value string) (string, string, error) {
		if field == selectors.Named {
			return "", "", nil // leaves it out
		}
		return field, value, nil
	})
	if err != nil {
		return fields.Nothing() // the function above returns none
	}
	return selector{asked, selectors.NewSelector(values), parts}
}

// Matches is part of fields.Selector.
func (s selector) Matches(f fields.Fields) bool {
	return named.Match(s.parts, f.Get(selectors.TagReference)) && s.values.Matches(f)
}

// RequiresExactMatch is part of fields.Selector.
func (s selector) RequiresExactMatch(field string) (value string, found bool) {
	return s.values.RequiresExactMatch(field)
}

// PartOf is part of kubestore.PartSelector.
func (s selector) PartOf(field string) (part string, ok bool) {
	for _, r := range s.parts {
		if field == selectors.TagReference && r.Operator != selection.NotEquals && r.Value != "" {
			return strings.ToLower(r.Value), true
		}
	}
	return "", false
}

// DeepCopySelector is part of fields.Selector.
func (s selector) DeepCopySelector() fields.Selector {
	return newSelector(s.Selector.DeepCopySelector())
}

// ConvertFieldLabel accepts the selectable fields of tags, and references as people write them.
func ConvertFieldLabel(label, value string) (string, string, error) {
	switch label {
	case "metadata.name", "metadata.namespace", selectors.TagImage, selectors.TagShort, selectors.Warnings, selectors.Named:
		return label, value, nil
	case selectors.Gone, selectors.TagMoved:
		if value != "" && value != "true" {
			return "", "", fmt.Errorf("field label %q of image tags cannot be %q: it is true, or empty for tags that are not known to be so", label, value)
		}
		return label, value, nil
	case selectors.TagReference, selectors.TagRepository:
		ref, err := reference.Parse(value)
		if err != nil {
			return "", "", err
		}
		if label == selectors.TagRepository {
			return label, ref.Name(), nil
		}
		return label, ref.Pulled().String(), nil
	}
	return "", "", fmt.Errorf("field label %q is not supported for image tags: select by metadata.name, metadata.namespace, %s, %s", label, strings.Join(tagFields, ", "), selectors.Named)
}
