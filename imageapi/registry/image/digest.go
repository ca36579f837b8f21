package image

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/storage"

	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// maxByDigest is the most images that a list by the beginning of their digest may have. A beginning
// that more images share is too short.
const maxByDigest = 20

// maxNamedBytes bounds the images of a list by whole digests together.
const maxNamedBytes = 8 << 20

// digestBeginning matches a value of the field digest. Fewer than four digits would match too many
// images.
var digestBeginning = regexp.MustCompile(`^sha(256:[0-9a-f]{4,64}|512:[0-9a-f]{4,128})$`)

// DigestsIn returns the images that a field selector names by their whole digests, if it does no
// more than that.
func DigestsIn(selector string) (digests []string, ok bool) {
	value, ok := strings.CutPrefix(selector, digestField+"=")
	if !ok || !strings.Contains(value, selectors.DigestSeparator) {
		return nil, false
	}
	value, err := canonicalDigests(strings.TrimPrefix(value, "=")) // a selector may have == for =
	if err != nil {
		return nil, false
	}
	return strings.Split(value, selectors.DigestSeparator), true
}

// canonicalDigests checks a list of whole digests.
func canonicalDigests(value string) (string, error) {
	all := strings.Split(value, selectors.DigestSeparator)
	for _, digest := range all {
		if !reference.IsDigest(digest) {
			return "", fmt.Errorf("field label %q of images: %q is not a whole digest, as each of several must be", digestField, digest)
		}
	}
	slices.Sort(all)
	if all = slices.Compact(all); len(all) > selectors.MaxDigests {
		return "", fmt.Errorf("field label %q of images: %d digests are given, at most %d are allowed", digestField, len(all), selectors.MaxDigests)
	}
	return strings.Join(all, selectors.DigestSeparator), nil
}

// canonicalDigest completes a digest's beginning: digits without an algorithm are of sha256.
// Several whole digests come in their order.
func canonicalDigest(value string) (string, error) {
	if strings.Contains(value, selectors.DigestSeparator) {
		return canonicalDigests(value)
	}
	if !strings.Contains(value, ":") {
		value = "sha256:" + value
	}
	if !digestBeginning.MatchString(value) {
		return "", fmt.Errorf("field label %q of images is a digest or its beginning, at least four lower-case hex digits: %s=sha256:9f86, or %s=9f86", digestField, digestField, digestField)
	}
	return value, nil
}

// listByDigest lists the images with the given digests, or with the given beginning of a digest.
func listByDigest(ctx context.Context, store imageStore, options *internalversion.ListOptions) (runtime.Object, error) {
	beginning, rest := "", fields.Everything()
	for _, q := range options.FieldSelector.Requirements() {
		switch {
		case q.Field != digestField:
			term := fields.OneTermEqualSelector(q.Field, q.Value)
			if q.Operator == selection.NotEquals {
				term = fields.OneTermNotEqualSelector(q.Field, q.Value)
			}
			rest = fields.AndSelectors(rest, term)
		case q.Operator == selection.NotEquals || beginning != "":
			return nil, apierrors.NewBadRequest(fmt.Sprintf("field label %q may be given once, and with =", digestField))
		default:
			beginning = q.Value
		}
	}
	if options.Continue != "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("a list by field label %q has one page", digestField))
	}
	read := begunBy
	if strings.Contains(beginning, selectors.DigestSeparator) {
		read = named
	}
	list, err := read(ctx, store, beginning)
	if err != nil {
		return nil, err
	}
	label := labels.Everything()
	if options.LabelSelector != nil {
		label = options.LabelSelector
	}
	predicate, failed := store.predicate(label, rest), error(nil)
	list.Items = slices.DeleteFunc(list.Items, func(i imagev1.Image) bool {
		matches, err := predicate.Matches(&i)
		if err != nil {
			failed = err
		}
		return !matches
	})
	list.Continue, list.RemainingItemCount = "", nil
	return list, failed
}

// begunBy reads the images whose digest has the given beginning. Names are in order in the storage:
// it reads from the beginning on, and no more than it may answer.
func begunBy(ctx context.Context, store imageStore, beginning string) (*imagev1.ImageList, error) {
	from, err := Position(beginning)
	if err != nil {
		return nil, err
	}
	page := &internalversion.ListOptions{Limit: maxByDigest + 1, Continue: from}
	obj, err := store.ListPredicate(ctx, store.predicate(labels.Everything(), fields.Everything()), page)
	if err != nil {
		return nil, err
	}
	list := obj.(*imagev1.ImageList)
	end := slices.IndexFunc(list.Items, func(i imagev1.Image) bool { return !strings.HasPrefix(i.Name, beginning) })
	if end < 0 && list.Continue != "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the digests of at least %d images begin with %s: give more digits", len(list.Items), beginning))
	}
	if end >= 0 {
		list.Items = list.Items[:end]
	}
	return list, nil
}

// named reads the images of the given digests, one after another. The list has the version of the
// first read, so a watch that continues from there reports newer images of the list again.
func named(ctx context.Context, store imageStore, digests string) (*imagev1.ImageList, error) {
	all, size := &imagev1.ImageList{}, 0
	for digest := range strings.SplitSeq(digests, selectors.DigestSeparator) {
		obj, err := store.ListPredicate(ctx, store.predicate(labels.Everything(), fields.OneTermEqualSelector(nameField, digest)), &internalversion.ListOptions{})
		if err != nil {
			return nil, err
		}
		list := obj.(*imagev1.ImageList)
		if all.ResourceVersion == "" {
			all.ListMeta = list.ListMeta
		}
		all.Items = append(all.Items, list.Items...)
		for i := range list.Items {
			if size += list.Items[i].Size(); size > maxNamedBytes {
				return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("these images have more than %d MiB together: ask for fewer", maxNamedBytes>>20))
			}
		}
	}
	return all, nil
}

// Position returns a token that continues a list at a key, with objects as they are then.
func Position(key string) (string, error) { return storage.EncodeContinue("/"+key, "/", -1) }
