// Package imagepackages stores which packages images have. The lists are small objects of their own
// and not part of Images, which are read a hundred times as often; see docs/design/storage.md.
package imagepackages

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/tidewaiter/tidewaiter/imageapi/registry/internal/strategy"
	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/pages"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Lists are the stored ImagePackages. Stored, listed and watched objects have their packages
// packed; an object that is read by its name has them as they are.
type Lists struct{ *genericregistry.Store }

// REST is the storage of ImagePackages. It derives their content from signed documents.
type REST struct {
	*Lists
	images rest.Getter // whose signatures hold signed documents
}

// NewREST returns the storage of ImagePackages over the stored ones.
func NewREST(stored *Lists, images rest.Getter) *REST { return &REST{stored, images} }

var resource = packages.GroupVersion.WithResource(packages.Resource).GroupResource()

// NewLists returns the stored ImagePackages. scheme is a scheme that packages.Install was called
// with.
func NewLists(g generic.RESTOptionsGetter, scheme *runtime.Scheme) (*Lists, error) {
	s := &listStrategy{strategy.NewClusterWide(scheme)}
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &packages.ImagePackages{} },
		NewListFunc:               func() runtime.Object { return &packages.ImagePackagesList{} },
		PredicateFunc:             predicate,
		DefaultQualifiedResource:  resource,
		SingularQualifiedResource: packages.GroupVersion.WithResource("imagepackages").GroupResource(),
		CreateStrategy:            s,
		UpdateStrategy:            s,
		DeleteStrategy:            s,
		TableConvertor:            listTable,
	}
	indexers := cache.Indexers{storage.FieldIndex(packages.Field) + "#2": func(obj any) ([]string, error) {
		list, ok := obj.(*packages.ImagePackages)
		if !ok {
			return nil, fmt.Errorf("%T is not an ImagePackages", obj)
		}
		names, err := packages.Names(list)
		if !list.Known() {
			names = append(names, partly)
		}
		for i := range names {
			names[i] = packages.IndexValue(names[i])
		}
		slices.Sort(names)
		return slices.Compact(names), err
	}}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: g, AttrFunc: attributes, Indexers: &indexers}); err != nil {
		return nil, fmt.Errorf("imagepackages: %w", err)
	}
	return &Lists{store}, nil
}

// partly is a name that no package has. The index has it of lists that lack packages of their
// images.
const partly = ""

// Get is part of rest.Getter: packages are as they are.
func (r *Lists) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	obj, err := r.Store.Get(ctx, name, options)
	if err != nil {
		return nil, err
	}
	list := obj.(*packages.ImagePackages).DeepCopy()
	for i := range list.Sources {
		source := &list.Sources[i]
		if source.Packages, err = source.All(); err != nil {
			return nil, apierrors.NewInternalError(fmt.Errorf("the packages of %s: %w", name, err))
		}
		source.Packed = nil
	}
	return list, nil
}

// Known reports whether the packages of an image are known: see [packages.ImagePackages.Known].
func (r *Lists) Known(ctx context.Context, image string) (bool, error) {
	obj, err := r.Store.Get(ctx, image, &metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return obj.(*packages.ImagePackages).Known(), nil
}

// With returns the first most images that have a package, sorted by name, beginning at the name
// from. It reads at a revision or, if that is 0, now; at is the revision that it read. value has
// the form that [packages.ParseQuery] reads. more is the name at which further images may begin, or
// "".
func (r *Lists) With(ctx context.Context, value, from string, revision int64, most int) (names []string, at int64, more string, err error) {
	if _, err := packages.ParseQuery(value); err != nil {
		return nil, 0, "", apierrors.NewBadRequest(err.Error())
	}
	options, err := after(from, revision, most)
	if err != nil {
		return nil, 0, "", err
	}
	if from == "" && revision != 0 {
		options.ResourceVersion, options.ResourceVersionMatch = fmt.Sprint(revision), metav1.ResourceVersionMatchExact
	}
	obj, err := r.Store.ListPredicate(ctx, predicate(labels.Everything(), fields.OneTermEqualSelector(packages.Field, value)), options)
	if err != nil {
		return nil, 0, "", err
	}
	list := obj.(*packages.ImagePackagesList)
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	version, err := storage.APIObjectVersioner{}.ParseResourceVersion(list.ResourceVersion)
	if list.Continue != "" && len(names) > 0 {
		more = names[len(names)-1] + "\x00"
	}
	return names, int64(version), more, err
}

// Lists returns the first most package lists of images whose digests follow digest, sorted by
// digest; none if there are no more. The lists are packed.
func (r *Lists) Lists(ctx context.Context, digest string, most int) ([]packages.ImagePackages, error) {
	from := ""
	if digest != "" {
		from = digest + "\x00"
	}
	options, err := after(from, 0, most)
	if err != nil {
		return nil, err
	}
	obj, err := r.Store.ListPredicate(ctx, predicate(labels.Everything(), fields.Everything()), options)
	if err != nil {
		return nil, err
	}
	return obj.(*packages.ImagePackagesList).Items, nil
}

// after returns the options for listing the first most objects, beginning at the name from, at a
// revision or, if that is 0, now.
func after(from string, revision int64, most int) (options *internalversion.ListOptions, err error) {
	const prefix = "/" // of keys in continue tokens
	options = &internalversion.ListOptions{Limit: int64(most)}
	if from != "" {
		options.Continue, err = storage.EncodeContinue(prefix+from, prefix, cmp.Or(revision, -1))
	}
	return options, err
}

// Count is how many images have a list.
func (r *Lists) Count(ctx context.Context) (int64, error) {
	obj, err := r.Store.ListPredicate(ctx, predicate(labels.Everything(), fields.Everything()), &internalversion.ListOptions{Limit: 1})
	if err != nil {
		return 0, err
	}
	return pages.Total(obj.(*packages.ImagePackagesList)), nil
}

// Partly reports whether there is a list that lacks packages of its image: a document could not be
// read, or not whole.
func (r *Lists) Partly(ctx context.Context) (bool, error) {
	obj, err := r.Store.ListPredicate(ctx, predicate(labels.Everything(), fields.OneTermEqualSelector(packages.Field, partly)), &internalversion.ListOptions{Limit: 1})
	if err != nil {
		return false, err
	}
	return len(obj.(*packages.ImagePackagesList).Items) > 0, nil
}

// Forget deletes the list of an image that was deleted, if there is one.
func (r *Lists) Forget(ctx context.Context, image string) error {
	_, _, err := r.Store.Delete(ctx, image, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// listStrategy packs and validates.
type listStrategy struct{ strategy.ClusterWide }

// DefaultGarbageCollectionPolicy is part of rest.GarbageCollectionDeleteStrategy. Lists have no
// dependents.
func (listStrategy) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	return rest.Unsupported
}

// PrepareForCreate is part of rest.RESTCreateStrategy.
func (listStrategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	pack(obj.(*packages.ImagePackages))
}

// PrepareForUpdate is part of rest.RESTUpdateStrategy.
func (listStrategy) PrepareForUpdate(_ context.Context, obj, _ runtime.Object) {
	pack(obj.(*packages.ImagePackages))
}

// pack packs the packages of a list. A list that cannot be packed stays as it is, and validation
// finds it.
func pack(list *packages.ImagePackages) {
	for i := range list.Sources {
		source := &list.Sources[i]
		if source.Packages == nil || len(source.Packages) > packages.MaxPackages {
			continue
		}
		for j := range source.Packages {
			source.Packages[j] = source.Packages[j].Bounded()
		}
		if packed, err := packages.Pack(source.Packages); err == nil {
			source.Packages, source.Packed = nil, packed
		}
	}
}

// Validate is part of rest.RESTCreateStrategy.
func (listStrategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	list := obj.(*packages.ImagePackages)
	return append(validation.ValidateObjectMeta(&list.ObjectMeta, false, validateName, field.NewPath("metadata")), validate(list)...)
}

// ValidateUpdate is part of rest.RESTUpdateStrategy.
func (listStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	list := obj.(*packages.ImagePackages)
	return append(validation.ValidateObjectMetaUpdate(&list.ObjectMeta, &old.(*packages.ImagePackages).ObjectMeta, field.NewPath("metadata")), validate(list)...)
}

func validateName(name string, _ bool) []string {
	if !reference.IsDigest(name) {
		return []string{"must be the digest of an image, such as sha256: and 64 hex digits"}
	}
	return nil
}

// maxText bounds the other texts of a source, in bytes.
const maxText = 512

func validate(list *packages.ImagePackages) (errs field.ErrorList) {
	path := field.NewPath("sources")
	if n := len(list.Sources); n > packages.MaxSources {
		return field.ErrorList{field.TooMany(path, n, packages.MaxSources)}
	}
	size := 0
	for i := range list.Sources {
		source, path := &list.Sources[i], path.Index(i)
		for name, text := range map[string]string{"manifest": source.Manifest, "blob": source.Blob, "index": source.Index} {
			if text != "" && !reference.IsDigest(text) || text == "" && name != "index" {
				errs = append(errs, field.Invalid(path.Child(name), text, "must be a digest"))
			}
		}
		if _, err := reference.ParseRepository(source.Repository); err != nil {
			errs = append(errs, field.Invalid(path.Child("repository"), source.Repository, err.Error()))
		}
		for name, text := range map[string]string{"type": source.Type, "format": source.Format, "signature": source.Signature, "problem": source.Problem, "author": source.Author} {
			if len(text) > maxText || printable.Line(text, 0) != text {
				errs = append(errs, field.Invalid(path.Child(name), field.OmitValueType{}, fmt.Sprintf("must be one printable line of at most %d bytes", maxText)))
			}
		}
		if n := len(source.Packages); n > 0 { // they could not be packed
			errs = append(errs, field.Invalid(path.Child("packages"), field.OmitValueType{}, fmt.Sprintf("%d packages cannot be packed: at most %d are kept, of printable text", n, packages.MaxPackages)))
		}
		if n := len(source.Statements); n > packages.MaxStatements {
			errs = append(errs, field.TooMany(path.Child("statements"), n, packages.MaxStatements))
		}
		for _, s := range source.Statements[:min(len(source.Statements), packages.MaxStatements)] {
			if s != s.Bounded() {
				errs = append(errs, field.Invalid(path.Child("statements"), field.OmitValueType{}, fmt.Sprintf("must be printable lines of at most %d bytes", packages.MaxName)))
				break
			}
		}
		if size += len(source.Packed); size > packages.MaxPacked {
			return append(errs, field.TooLong(path.Child("packed"), "", packages.MaxPacked))
		}
		all, err := packages.Unpack(source.Packed)
		if err != nil {
			errs = append(errs, field.Invalid(path.Child("packed"), field.OmitValueType{}, err.Error()))
		}
		if slices.ContainsFunc(all, func(p packages.Package) bool { return p != p.Bounded() || p.Name == "" }) {
			errs = append(errs, field.Invalid(path.Child("packages"), field.OmitValueType{}, "must have names, and printable lines"))
		}
		if int(source.Count) != len(all) {
			source.Count = int32(len(all))
		}
	}
	return errs
}

type selector struct{ fields.Selector }

// DeepCopySelector is part of fields.Selector.
func (s selector) DeepCopySelector() fields.Selector {
	return selector{s.Selector.DeepCopySelector()}
}

// RequiresExactMatch is part of fields.Selector. The index of packages has hashes of their names.
func (s selector) RequiresExactMatch(name string) (value string, found bool) {
	value, found = s.Selector.RequiresExactMatch(name)
	if !found || name != packages.Field {
		return value, found
	}
	if value == partly {
		return packages.IndexValue(partly), true
	}
	q, err := packages.ParseQuery(value)
	if err != nil {
		return "", false
	}
	return packages.IndexValue(q.Key()), true
}

// term returns the name of the field that is "true" for lists with a package.
func term(value string) string {
	field, _ := selectors.Term(packages.Field, value)
	return field
}

// predicate selects lists. It names the index of packages.
func predicate(label labels.Selector, asked fields.Selector) storage.SelectionPredicate {
	queries := map[string]*packages.Query{}
	for _, r := range asked.Requirements() {
		if r.Field != packages.Field {
			continue
		}
		if q, err := packages.ParseQuery(r.Value); err == nil {
			queries[r.Value] = q
		}
	}
	return storage.SelectionPredicate{Label: label, Field: selector{selectors.NewSelector(asked)}, IndexFields: []string{packages.Field}, GetAttrs: func(obj runtime.Object) (labels.Set, fields.Set, error) {
		label, set, err := attributes(obj)
		if list, ok := obj.(*packages.ImagePackages); ok && !list.Known() {
			set[term(partly)] = "true"
		}
		for value, q := range queries {
			if err != nil {
				return nil, nil, err
			}
			var found []packages.Found
			if found, err = q.In(obj.(*packages.ImagePackages)); len(found) > 0 {
				set[term(value)] = "true"
			}
		}
		return label, set, err
	}}
}

// attributes are the fields that all objects have.
func attributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	list, ok := obj.(*packages.ImagePackages)
	if !ok {
		return nil, nil, fmt.Errorf("%T is not an ImagePackages", obj)
	}
	return list.Labels, generic.AddObjectMetaFieldsSet(fields.Set{}, &list.ObjectMeta, false), nil
}
