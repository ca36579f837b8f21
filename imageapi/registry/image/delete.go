package image

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

const (
	// MaxNamed bounds how many tags, and how many pods, a refusal names.
	MaxNamed = 3
	// MaxLooked bounds how many indexes that list an image, and how many streams that may lead to it,
	// are read before it is deleted. If there are more, it is unknown whether a tag leads to the
	// image.
	MaxLooked = 100
	// maxKept bounds how many images the refusal of a collection names.
	maxKept = 5
	// MaxWhy bounds each reason, in bytes.
	MaxWhy = 600
)

// Delete is part of rest.GracefulDeleter. It refuses (409) to delete an image to which a tag leads
// or that pods use, or for which this is unknown, unless the image's annotation allows it. If the
// image changes before it is deleted, the generic storage calls the check again.
func (r *REST) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	guarded := func(ctx context.Context, obj runtime.Object) error {
		if err := validate(ctx, obj); err != nil {
			return err
		}
		kept, err := r.keeps(ctx, obj.(*imagev1.Image))
		if err != nil || len(kept) == 0 {
			return err
		}
		refusal := apierrors.NewConflict(imagev1.Resource("images"), name, fmt.Errorf("it is kept: %s. To delete it anyway: kubectl annotate image %s --overwrite %s=%s",
			kept, name, annotation.AllowDelete, strings.Join(kept.words(), ",")))
		refusal.ErrStatus.Details.Causes = kept.causes()
		return refusal
	}
	obj, now, err := r.Store.Delete(ctx, name, guarded, options)
	if apierrors.IsNotFound(err) {
		return r.artifacts.Delete(ctx, name, guarded, options)
	}
	return obj, now, err
}

// deleteCollection deletes the selected images that need not be kept, and then is refused if any
// was kept.
func (r *REST) deleteCollection(ctx context.Context, store imageStore, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, list *internalversion.ListOptions) (runtime.Object, error) {
	var mu sync.Mutex
	// by name, as one may be asked about twice. The generic storage holds all objects meanwhile
	refused := map[string]bool{}
	var named []string
	obj, err := store.DeleteCollection(ctx, func(ctx context.Context, obj runtime.Object) error {
		if err := validate(ctx, obj); err != nil {
			return err
		}
		image := obj.(*imagev1.Image)
		kept, err := r.keeps(ctx, image)
		if err != nil || len(kept) == 0 {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if !refused[image.Name] && len(named) < maxKept {
			named = append(named, fmt.Sprintf("%s: %s", image.Name, kept))
		}
		refused[image.Name] = true
		// The generic storage ends the deletion of a collection at the first error, except NotFound.
		return apierrors.NewNotFound(imagev1.Resource("images"), image.Name)
	}, options, list)
	n := len(refused)
	if err != nil || n == 0 {
		return obj, err
	}
	slices.Sort(named)
	others := "the others that were selected are deleted"
	if options != nil && len(options.DryRun) > 0 {
		others = "the others that are selected would be deleted"
	}
	more := ""
	if n > len(named) {
		more = fmt.Sprintf("; and %d more", n-len(named))
	}
	return nil, &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusConflict, Reason: metav1.StatusReasonConflict,
		Details: &metav1.StatusDetails{Group: imagev1.GroupName, Kind: "images"},
		Message: fmt.Sprintf("%s kept, and %s: %s%s. Delete one by its name to see what to do", table.Clause(n, "image", "are"), others, strings.Join(named, "; "), more),
	}}
}

// reason is why an image is kept: the word that the annotation allows it with, and a text for
// people.
type reason struct{ word, text string }

// reasons are why an image is kept.
type reasons []reason

// String is the reasons in one sentence for people.
func (all reasons) String() string {
	var texts []string
	for _, one := range all {
		texts = append(texts, one.text)
	}
	return strings.Join(texts, "; ")
}

func (all reasons) words() (words []string) {
	for _, one := range all {
		words = append(words, one.word)
	}
	slices.Sort(words)
	return slices.Compact(words)
}

func (all reasons) causes() (causes []metav1.StatusCause) {
	for _, one := range all {
		causes = append(causes, metav1.StatusCause{Type: metav1.CauseType(one.word), Message: one.text})
	}
	return causes
}

// keeps returns why an image may not be deleted; nothing if it may. It looks into an index for
// tags, streams and the indexes above the image, and once more for tags and streams of each of
// these indexes.
func (r *REST) keeps(ctx context.Context, image *imagev1.Image) (all reasons, err error) {
	allowed := map[string]bool{}
	for _, word := range strings.Split(image.Annotations[annotation.AllowDelete], ",") {
		allowed[strings.TrimSpace(word)] = true
	}
	if !allowed[annotation.TaggedReason] {
		if all, err = r.tagged(ctx, image.Name); err != nil {
			return nil, err
		}
	}
	all = append(all, r.Facts.keeps(ctx, image)...)
	return slices.DeleteFunc(all, func(one reason) bool { return allowed[one.word] }), nil
}

// tagged returns the tags that lead to an image, or to an index that lists it, directly or through
// others.
func (r *REST) tagged(ctx context.Context, name string) (reasons, error) {
	looked, unsure := []string{name}, ""
	for i := 0; i < len(looked); i++ {
		leading, whole, err := r.streams.Leading(ctx, looked[i])
		if err != nil {
			return nil, err
		}
		if len(leading) > 0 {
			what := "it"
			if i > 0 {
				what = "index " + looked[i] + ", which lists it"
			}
			return reasons{{annotation.TaggedReason, printable.Line(nameSome("tag", leading, len(leading))+verb(len(leading), " leads", " lead")+" to "+what, MaxWhy)}}, nil
		}
		if !whole {
			unsure = fmt.Sprintf("more than %d streams may lead to %s", MaxLooked, looked[i])
		}
		above, err := r.Above(ctx, looked[i])
		if err != nil {
			return nil, err
		}
		for _, index := range above {
			switch {
			case slices.Contains(looked, index):
			case len(looked) > MaxLooked:
				unsure = fmt.Sprintf("more than %d indexes list it", MaxLooked)
			default:
				looked = append(looked, index)
			}
		}
	}
	if unsure != "" {
		return reasons{{annotation.UnknownReason, "it is unknown whether a tag leads to it: " + unsure}}, nil
	}
	return nil, nil
}

// Above returns the indexes that list an image, at most MaxLooked+1.
func (r *REST) Above(ctx context.Context, name string) (above []string, err error) {
	obj, err := r.Store.ListPredicate(ctx, r.Facts.predicate(labels.Everything(), fields.OneTermEqualSelector(listsField, name)), &internalversion.ListOptions{Limit: MaxLooked + 1})
	if err != nil {
		return nil, err
	}
	for i := range obj.(*imagev1.ImageList).Items {
		above = append(above, obj.(*imagev1.ImageList).Items[i].Name)
	}
	return above, nil
}

// keeps returns why an image may not be deleted as far as pods and workloads are concerned; nothing
// if it may.
func (f *facts) keeps(ctx context.Context, image *imagev1.Image) (all reasons) {
	if f.usage == nil {
		return nil
	}
	doubts, needDoubts := f.staleReasons(ctx), f.usage.WorkloadStaleReasons()
	if n := f.pods(image.Name, image); n > 0 {
		users := f.users(image.Name, image, MaxNamed)
		all = append(all, reason{annotation.UsedReason, printable.Line(nameSome("pod", users, n)+verb(n, " uses", " use")+" it", MaxWhy)})
	}
	if needers := f.neededBy(image.Name, image, MaxNamed+1); len(needers) > 0 {
		all = append(all, reason{annotation.NeededReason, printable.Line(nameSome("workload", needers, len(needers))+verb(len(needers), " needs", " need")+" it", MaxWhy)})
	}
	if unfollowed := f.usage.Unfollowed(); unfollowed != "" {
		all = append(all, reason{annotation.ClustersReason, printable.Line("it is unknown whether pods use it: "+unfollowed, MaxWhy)})
	}
	if len(doubts) > 0 {
		all = append(all, reason{annotation.UnknownReason, printable.Line("it is unknown whether pods use it: "+strings.Join(doubts, "; "), MaxWhy)})
	}
	if why := f.uncertain(image.Name, image); why != "" {
		all = append(all, reason{annotation.UnknownReason, printable.Line("it is unknown whether pods use it: "+why, MaxWhy)})
	}
	if len(needDoubts) > 0 {
		all = append(all, reason{annotation.WorkloadsReason, printable.Line("it is unknown whether workloads need it: "+strings.Join(needDoubts, "; "), MaxWhy)})
	}
	return all
}

// staleReasons returns why it is not known which images the pods of followed clusters use, or
// nothing if it is known.
func (f *facts) staleReasons(ctx context.Context) []string {
	f.readAgain(ctx)
	complete := f.usage.Complete() && f.indexes.complete()
	doubts := slices.Concat(f.usage.StaleReasons(), f.indexes.staleReasons())
	if len(doubts) == 0 && !complete {
		doubts = []string{"pods are still being read, try again in a moment"}
	}
	return doubts
}

// nameSome names the first maxNamed of n things. names may have fewer than n.
func nameSome(what string, names []string, n int) string {
	if n > 1 {
		what += "s"
	}
	named := names[:min(len(names), MaxNamed)]
	out := what + " " + strings.Join(named, ", ")
	if n > len(named) {
		out += " and more"
	}
	return out
}

// verb returns the form of a verb for n things.
func verb(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
