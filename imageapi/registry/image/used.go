package image

import (
	"context"
	"fmt"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/warning"

	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
)

// selectsUsed reports whether only images that are used are selected.
func selectsUsed(options *internalversion.ListOptions) bool {
	if options == nil || options.FieldSelector == nil {
		return false
	}
	return slices.ContainsFunc(options.FieldSelector.Requirements(), func(r fields.Requirement) bool {
		return r.Operator != selection.NotEquals && (r.Field == usedField && r.Value == "true" || r.Field == usedByField && r.Value != "")
	})
}

// warnOfUnimported warns a client that asks what runs, or what is unknown, that some of it has no
// Image.
func (r *REST) warnOfUnimported(ctx context.Context, options *internalversion.ListOptions) {
	in, asks := asksWhatRuns(options)
	if !asks || options.Continue != "" { // the first page has said so
		return
	}
	if n := r.Facts.unimported(in); n > 0 {
		are := "images that run are"
		if n == 1 {
			are = "image that runs is"
		}
		warning.AddWarning(ctx, "", fmt.Sprintf("%d %s not imported, and so not listed: kubectl get clusterpods --field-selector reason=NotImported", n, are))
	}
}

// asksWhatRuns reports whether images are selected by what runs, or by a verdict that may be
// unknown. in is the cluster or namespace that is asked about; "" for all.
func asksWhatRuns(options *internalversion.ListOptions) (in string, asks bool) {
	if options == nil || options.FieldSelector == nil {
		return "", false
	}
	for _, r := range options.FieldSelector.Requirements() {
		is := r.Operator != selection.NotEquals
		switch {
		case r.Field == usedField && is && r.Value == "false":
			return "", false
		case r.Field == usedByField && is && r.Value != "":
			in, asks = r.Value, true
		case r.Field == usedField && (r.Value == "true") == is, r.Field == verifiedField && (r.Value == verdicts.VerifiedUnknown) == is:
			asks = true
		}
	}
	return in, asks
}

// LargestPage is how many bytes of manifests and configs end a page before its limit.
const LargestPage = 16 << 20

// nameSource returns names of images, sorted, from one on, at a revision or, if that is 0, now: all
// of them, or those before more, from which the next call continues. at is the revision of the
// answer; 0 if it has none. Not all names need exist.
type nameSource func(ctx context.Context, from string, revision int64) (names []string, at int64, more string, err error)

// usedNames is the nameSource of the images that pods use. They are few, even among a million.
func (r *REST) usedNames(ctx context.Context, from string, _ int64) (names []string, at int64, more string, err error) {
	names, err = r.namesInUse(ctx)
	return slices.DeleteFunc(names, func(name string) bool { return name < from }), 0, "", err
}

// listNames lists the images that a source names, as far as they match. It reads only these. All
// pages show one revision, and a page begins where the one before ended.
func (r *REST) listNames(ctx context.Context, store imageStore, options *internalversion.ListOptions, source nameSource) (runtime.Object, error) {
	label := labels.Everything()
	if options.LabelSelector != nil {
		label = options.LabelSelector
	}
	const prefix = "/" // of keys in continue tokens
	asked := storage.ListOptions{
		ResourceVersion: options.ResourceVersion, ResourceVersionMatch: options.ResourceVersionMatch, Recursive: true,
		Predicate: storage.SelectionPredicate{Label: label, Field: options.FieldSelector, Limit: options.Limit, Continue: options.Continue},
	}
	revision, from, err := storage.ValidateListOptions(prefix, storage.APIObjectVersioner{}, asked)
	if err != nil {
		return nil, err
	}
	from = strings.TrimPrefix(from, prefix)

	one := &internalversion.ListOptions{ResourceVersion: options.ResourceVersion, ResourceVersionMatch: options.ResourceVersionMatch}
	at := func(at int64) {
		revision = at
		one.ResourceVersion, one.ResourceVersionMatch = fmt.Sprint(revision), metav1.ResourceVersionMatchExact
	}
	if revision > 0 {
		at(revision)
	}
	list := &imagev1.ImageList{Items: []imagev1.Image{}}
	read := func(name string) error {
		field := fields.AndSelectors(options.FieldSelector, fields.OneTermEqualSelector(nameField, name))
		obj, err := store.ListPredicate(ctx, store.predicate(label, field), one)
		if err != nil {
			return err
		}
		found := obj.(*imagev1.ImageList)
		list.Items = append(list.Items, found.Items...)
		if revision == 0 {
			version, err := storage.APIObjectVersioner{}.ParseResourceVersion(found.ResourceVersion)
			if err != nil {
				return err
			}
			at(int64(version))
		}
		return nil
	}
	last, more, size := "", false, 0
pages:
	for next, first := from, true; first || next != ""; first = false {
		names, of, after, err := source(ctx, next, revision)
		if err != nil {
			return nil, err
		}
		if revision == 0 && of > 0 {
			at(of)
		}
		if revision == 0 && len(names) == 0 {
			names = []string{"none"} // no image has this name: the read is for the revision
		}
		for i, name := range names {
			had := len(list.Items)
			if err := read(name); err != nil {
				return nil, err
			}
			for i := range list.Items[had:] {
				size += len(list.Items[had+i].DockerImageManifest) + len(list.Items[had+i].DockerImageConfig)
			}
			if options.Limit > 0 && (int64(len(list.Items)) == options.Limit || size >= LargestPage) {
				last, more = name, i+1 < len(names) || after != ""
				break pages
			}
		}
		next = after
	}
	list.ResourceVersion = fmt.Sprint(revision)
	list.Continue, _, err = storage.PrepareContinueToken(prefix+last, prefix, revision, 0, more, asked)
	return list, err
}

// namesInUse returns the names of the images that pods use or workloads need, sorted. Not all need
// exist.
func (r *REST) namesInUse(ctx context.Context) ([]string, error) {
	names, references := r.Facts.inUse()
	for _, reference := range references {
		_, options, err := r.about(ctx, &internalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector(knownField, reference)})
		if err != nil {
			return nil, err
		}
		list, err := r.Store.ListPredicate(ctx, r.Facts.predicate(labels.Everything(), options.FieldSelector), nil)
		if err != nil {
			return nil, err
		}
		for i := range list.(*imagev1.ImageList).Items {
			names = append(names, list.(*imagev1.ImageList).Items[i].Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// InUse returns the names of the images that pods use or workloads need, and of images that pods of
// an unknown digest may use. doubts are the reasons why there may be more.
func (r *REST) InUse(ctx context.Context) (used map[string]bool, doubts []string, err error) {
	used = map[string]bool{}
	if r.Facts.usage == nil {
		return used, nil, nil
	}
	doubts = append(r.Facts.staleReasons(ctx), r.Facts.usage.WorkloadStaleReasons()...)
	if unfollowed := r.Facts.usage.Unfollowed(); unfollowed != "" {
		doubts = append(doubts, unfollowed)
	}
	if len(doubts) > 0 {
		return nil, doubts, nil
	}
	maybe, doubt := r.Facts.maybeUsed(ctx)
	if doubt != "" {
		return nil, []string{doubt}, nil
	}
	names, err := r.namesInUse(ctx)
	for _, name := range append(names, maybe...) {
		used[name] = true
	}
	return used, nil, err
}
