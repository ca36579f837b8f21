// Package image stores Images: their rules, the fields that they are selected by, their table, and
// what their lists, writes and deletions do beyond the generic store.
package image

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"

	"github.com/tidewaiter/tidewaiter/imageapi/registry/internal/short"
	"github.com/tidewaiter/tidewaiter/internal/image/imagejson"
	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/signatures"
)

var _ rest.ShortNamesProvider = &REST{}

// ShortNames is part of rest.ShortNamesProvider.
func (*REST) ShortNames() []string { return []string{"img"} }

// List is part of rest.Lister.
func (r *REST) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	if options != nil && options.FieldSelector != nil && options.FieldSelector.String() == artifactField+"="+withArtifacts {
		return r.listWithArtifacts(ctx, *options)
	}
	store, options, err := r.asked(options)
	if err != nil {
		return nil, err
	}
	if err := r.canSelect(ctx, options); err != nil {
		return nil, err
	}
	short.Warn(ctx, knownField, recordedField, baseField)
	if selectsByUse(options) {
		r.Facts.warnOfStale(ctx)
	}
	r.warnOfUnimported(ctx, options)
	asked, options, err := r.about(ctx, options)
	if err != nil {
		return nil, err
	}
	var on *bases
	if selectsBy(options, baseField) {
		if on, options, err = r.basesIn(ctx, options); err != nil {
			return nil, err
		}
		store.predicate = on.predicate(store.predicate)
	}
	var list runtime.Object
	switch {
	case selectsBy(options, digestField):
		list, err = listByDigest(ctx, store, options)
	case selectsBy(options, packageField):
		list, err = r.listWithPackage(ctx, store, options)
	case selectsUsed(options):
		list, err = r.listNames(ctx, store, options, r.usedNames)
	case on != nil:
		list, err = on.listOn(ctx, store, options)
	default:
		list, err = store.List(ctx, options)
	}
	if err != nil {
		return nil, err
	}
	return list, asked.leave(ctx, r, list.(*imagev1.ImageList))
}

// DeleteCollection is part of rest.CollectionDeleter.
func (r *REST) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, listOptions *internalversion.ListOptions) (runtime.Object, error) {
	if err := listOnly(listOptions); err != nil {
		return nil, err
	}
	store, listOptions, err := r.asked(listOptions)
	if err != nil {
		return nil, err
	}
	if err := r.canSelect(ctx, listOptions); err != nil {
		return nil, err
	}
	if selectsByUse(listOptions) {
		r.Facts.warnOfStale(ctx)
	}
	asked, listOptions, err := r.about(ctx, listOptions)
	if err != nil {
		return nil, err
	}
	if len(asked.verdicts) > 0 {
		return nil, errJudgedWhenAsked(asked.ref)
	}
	return r.deleteCollection(ctx, store, validate, options, listOptions)
}

// Watch is part of rest.Watcher. A watch reports changes of images, so it cannot report that a pod
// came or went: a selector by use is refused.
func (r *REST) Watch(ctx context.Context, options *internalversion.ListOptions) (watch.Interface, error) {
	if err := listOnly(options); err != nil {
		return nil, err
	}
	switch {
	case selectsByUse(options) && leavesUsed(options) && selectsBy(options, judgedFields...):
		return nil, errJudgedByName()
	case selectsByUse(options):
		return nil, apierrors.NewBadRequest(`field labels "` + usedField + `" and "` + usedByField + `" cannot be watched, because they change without a change of the image: list images by them, or watch pods`)
	}
	store, options, err := r.asked(options)
	if err != nil {
		return nil, err
	}
	named, options, err := inRepository(options)
	if err != nil {
		return nil, err
	}
	if len(named.verdicts) > 0 {
		return nil, errJudgedWhenAsked(named.ref)
	}
	return store.Watch(ctx, options)
}

// Create is part of rest.Creater. It reports what belongs to another object in the registry of
// streams, even if the object exists already: an earlier push may have ended halfway, or have been
// to another repository.
func (r *REST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	return r.create(ctx, obj, validate, options, r.CreateOnly)
}

// CreateRecorded is Create for a caller within the server. It returns an Image.
func (r *REST) CreateRecorded(ctx context.Context, image *imagev1.Image, options *metav1.CreateOptions) (*imagev1.Image, error) {
	obj, err := r.create(ctx, image, rest.ValidateAllObjectFunc, options, func(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
		ctx, _ = r.answering.AnswerCreation(ctx) // the stored bytes are not decoded
		return r.createUnanswered(ctx, obj, validate, options)
	})
	if err != nil {
		return nil, err
	}
	return obj.(*imagev1.Image), nil
}

// storedBytes is a storage that also gives the bytes of an object as they are stored. ok is false
// if it has no such bytes.
type storedBytes interface {
	ReadStored(ctx context.Context, name string) (data []byte, revision int64, ok bool, err error)
}

// ReadKnown reads what an import compares of an Image that it has imported before, without its
// content, see [imagejson.ReadKnown]. It returns nil if the Image is not stored with its content.
func (r *REST) ReadKnown(ctx context.Context, name string) (*imagev1.Image, error) {
	if stored, is := r.Store.Storage.Storage.(storedBytes); is {
		data, revision, ok, err := stored.ReadStored(ctx, name)
		switch {
		case storage.IsNotFound(err):
			return nil, nil
		case err != nil:
			return nil, err
		}
		if ok {
			image, whole := imagejson.ReadKnown(data)
			if !whole {
				return nil, nil
			}
			image.ResourceVersion = strconv.FormatInt(revision, 10)
			return image, nil
		}
	}
	image, err := r.get(ctx, name)
	if err != nil || image == nil || image.DockerImageManifest == "" || image.DockerImageConfig == "" && len(image.DockerImageManifests) == 0 {
		return nil, err
	}
	return image, nil
}

type createFunc func(context.Context, runtime.Object, rest.ValidateObjectFunc, *metav1.CreateOptions) (runtime.Object, error)

func (r *REST) create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions, create createFunc) (runtime.Object, error) {
	image, _ := obj.(*imagev1.Image)
	referrers, belongs := r.streams.Referrers(image)
	var sent imagev1.Image
	if image != nil {
		sent = *image // its content may be dropped
	}
	out, err := create(ctx, obj, validate, options)
	if apierrors.IsAlreadyExists(err) && (options == nil || len(options.DryRun) == 0) {
		if failed := r.streams.PushedAgain(ctx, &sent); failed != nil {
			return nil, failed
		}
	}
	if !belongs || err != nil && !apierrors.IsAlreadyExists(err) || options != nil && len(options.DryRun) > 0 {
		return out, err
	}
	if told := r.streams.Pushed(ctx, referrers); told != nil {
		return nil, told
	}
	return out, err
}

// CreateOnly is Create without the report of a push.
func (r *REST) CreateOnly(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	ctx, answer := r.answering.AnswerCreation(ctx)
	out, err := r.createUnanswered(ctx, obj, validate, options)
	if err != nil {
		return nil, err
	}
	return answer(out), nil
}

func (r *REST) createUnanswered(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	if image, ok := obj.(*imagev1.Image); ok && artifactType(image) != "" {
		return r.createArtifact(ctx, image, validate, options)
	} else if ok && image.DockerImageManifest == "" {
		if err := r.isFree(ctx, r.artifacts, image.Name); err != nil {
			return nil, err
		}
	}
	out, err := r.Store.Create(ctx, obj, validate, options)
	if err != nil {
		return nil, err
	}
	if r.Facts.usage != nil {
		r.Facts.indexes.created(ctx, out.(*imagev1.Image))
	}
	r.reportVerdict(out, verdict{}, options.DryRun)
	return out, nil
}

// Update is part of rest.Updater.
func (r *REST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, validateCreate rest.ValidateObjectFunc, validateUpdate rest.ValidateObjectUpdateFunc, createOnUpdate bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	var before verdict
	info = rest.WrapUpdatedObjectInfo(info, func(_ context.Context, obj, old runtime.Object) (runtime.Object, error) {
		before = r.Facts.verdict(old)
		if image, ok := obj.(*imagev1.Image); ok {
			before.swept = signatures.IsAskedAgain(image)
		}
		return obj, nil
	})
	if createOnUpdate {
		if obj, created, done, err := r.updateArtifact(ctx, name, info, validateCreate, validateUpdate, true, options); done {
			return obj, created, err
		}
	}
	obj, created, err := r.Store.Update(ctx, name, info, validateCreate, validateUpdate, createOnUpdate, options)
	if apierrors.IsNotFound(err) {
		if artifact, created, done, err := r.updateArtifact(ctx, name, info, validateCreate, validateUpdate, createOnUpdate, options); done {
			return artifact, created, err
		}
	}
	if err == nil {
		r.reportVerdict(obj, before, options.DryRun)
	}
	if err != nil && strings.Contains(err.Error(), noMergeKey) {
		err = apierrors.NewInvalid(imagev1.GroupVersion.WithKind("Image").GroupKind(), name, field.ErrorList{field.Forbidden(field.NewPath("signatures"),
			"a strategic merge patch cannot merge signatures, which have no key to merge by: use a merge patch (kubectl patch --type=merge) or server-side apply")})
	}
	return obj, created, err
}

// noMergeKey is in the error of a strategic merge patch whose items lack the merge key of the Go
// type's struct tag. Signatures lack it: the key is name, and they have metadata.name. The error
// has no type (mergepatch.ErrNoMergeKey), so it would be a 500, and it quotes the signature with
// its content.
const noMergeKey = "does not contain declared merge key"

// canSelect refuses a selector by use when use is not known: an empty answer could lead a user to
// delete images that are used. As in reviews, all users may see whether an image is used, but only
// users who may list the pods may see where.
func (r *REST) canSelect(ctx context.Context, options *internalversion.ListOptions) error {
	switch {
	case !selectsByUse(options):
		return nil
	case leavesUsed(options) && selectsBy(options, judgedFields...):
		return errJudgedByName()
	case r.Facts.usage == nil:
		return apierrors.NewBadRequest(`field labels "` + usedField + `" and "` + usedByField + `" are not supported for images: this server does not know any pods`)
	case !r.Facts.usage.Synced():
		return apierrors.NewServiceUnavailable(`images cannot be selected by "` + usedField + `" yet, pods are still being read: try again in a moment`)
	case r.answers != nil && selectsBy(options, usedByField):
		if lacks := r.answers.LacksPods(ctx); lacks != "" {
			return apierrors.NewForbidden(packages.GroupVersion.WithResource("clusterpods").GroupResource(), "", fmt.Errorf("field label %q of images says where pods are, and %s", usedByField, lacks))
		}
	}
	return nil
}

// selectsBy reports whether images are selected by one of these fields.
func selectsBy(options *internalversion.ListOptions, names ...string) bool {
	return options != nil && options.FieldSelector != nil && slices.ContainsFunc(options.FieldSelector.Requirements(), func(r fields.Requirement) bool {
		return slices.Contains(names, r.Field)
	})
}

func selectsByUse(options *internalversion.ListOptions) bool {
	return selectsBy(options, usedField, usedByField)
}

// listOnly refuses to watch or delete images by what only a list can select by.
func listOnly(options *internalversion.ListOptions) error {
	switch {
	case selectsBy(options, digestField):
		return apierrors.NewBadRequest(fmt.Sprintf("images can be listed by field label %q, but not watched or deleted: use %s with the whole digest", digestField, nameField))
	case selectsBy(options, packageField):
		return apierrors.NewBadRequest(fmt.Sprintf("images can be listed by field label %q, but not watched or deleted: their packages are in imagepackages, which can be watched by it", packageField))
	case selectsBy(options, baseField):
		// a tag of theirs moves
		return apierrors.NewBadRequest(fmt.Sprintf("images can be listed by field label %q, but not watched or deleted", baseField))
	}
	return nil
}
