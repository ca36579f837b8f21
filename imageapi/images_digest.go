package imageapi

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
)

// maxByDigest is the most images that a list by the beginning of their digest may have. A beginning that more images
// share is too short.
const maxByDigest = 20

// digestBeginning is a value of the field digest. With fewer than four digits nobody means one image.
var digestBeginning = regexp.MustCompile(`^sha(256:[0-9a-f]{4,64}|512:[0-9a-f]{4,128})$`)

// canonicalDigest completes a digest's beginning: digits without an algorithm are of sha256.
func canonicalDigest(value string) (string, error) {
	if !strings.Contains(value, ":") {
		value = "sha256:" + value
	}
	if !digestBeginning.MatchString(value) {
		return "", fmt.Errorf("field label %q of images is a digest or its beginning, at least four lower-case hex digits: %s=sha256:9f86, or %s=9f86", digestField, digestField, digestField)
	}
	return value, nil
}

// selectsByDigest reports whether images are selected by the beginning of their digest.
func selectsByDigest(options *internalversion.ListOptions) bool {
	return options != nil && options.FieldSelector != nil && slices.ContainsFunc(options.FieldSelector.Requirements(), func(r fields.Requirement) bool {
		return r.Field == digestField
	})
}

// errListOnly refuses a request other than a list that selects by the beginning of a digest.
func errListOnly() error {
	return apierrors.NewBadRequest(fmt.Sprintf("images are listed by field label %q, and neither watched nor deleted: use %s with the whole digest", digestField, nameField))
}

// listByDigest lists the images whose digest has the given beginning. Names are in order in the storage: it reads from
// the beginning on, and no more than it may answer.
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
			return nil, apierrors.NewBadRequest(fmt.Sprintf("field label %q is selected by once, and with =", digestField))
		default:
			beginning = q.Value
		}
	}
	if options.Continue != "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("a list by field label %q has one page", digestField))
	}
	from, err := position(beginning)
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
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the digests of %d images and more begin with %s: give more digits", len(list.Items), beginning))
	}
	if end >= 0 {
		list.Items = list.Items[:end]
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
