package imagestream

import (
	"context"
	"fmt"
	"slices"

	imagev1 "github.com/openshift/api/image/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagetag"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// shortening is what a writer of a stream's status takes out of the histories of its tags, as far
// as that is done.
type shortening struct {
	own  map[string][]imagev1.TagEvent // by the tag, of what the stream itself has
	tags map[reference.Reference][]imagev1.TagEvent
}

// leftOut returns the shown events that wanted lacks, by tag. ok is false if wanted has any other
// difference. The writer did not know an event that is newer than all wanted events of its tag, so
// leftOut does not return it; nor does it return where a tag leads now. It does not compare
// conditions, because a check of a registry may change them between the writer's read and write.
func leftOut(shown, wanted []imagev1.NamedTagEventList) (out map[string][]imagev1.TagEvent, ok bool) {
	out = map[string][]imagev1.TagEvent{}
	left := map[string]*imagev1.NamedTagEventList{}
	for i := range wanted {
		left[wanted[i].Tag] = &wanted[i]
	}
	if len(left) < len(wanted) {
		return nil, false
	}
	for i := range shown {
		tag := &shown[i]
		keep := left[tag.Tag]
		delete(left, tag.Tag)
		if keep == nil {
			keep = &imagev1.NamedTagEventList{}
		}
		seen := len(keep.Items) == 0
		for j, event := range tag.Items {
			if len(keep.Items) > 0 && apiequality.Semantic.DeepEqual(keep.Items[0], event) {
				kept := *keep
				kept.Items = keep.Items[1:]
				keep, seen = &kept, true
			} else if seen && j > 0 {
				out[tag.Tag] = append(out[tag.Tag], event)
			}
		}
		if len(keep.Items) > 0 {
			return nil, false
		}
	}
	return out, len(left) == 0
}

// shorten removes items from the histories of a stream, and returns the removed ones. It keeps
// where a tag leads now, what pods use, and the first item of another tag's history, without which
// the beginning of that history would not be known. It keeps everything while it is unknown what
// pods use. The writer continues with what was kept.
func (r *Reader) shorten(ctx context.Context, stream *imagev1.ImageStream, out map[string][]imagev1.TagEvent) (*shortening, error) {
	s := &shortening{own: map[string][]imagev1.TagEvent{}, tags: map[reference.Reference][]imagev1.TagEvent{}}
	stays, doubts, err := r.Images.InUse(genericapirequest.WithNamespace(ctx, metav1.NamespaceNone))
	if err != nil {
		return nil, err
	}
	covered, err := r.covered(ctx, stream)
	if err != nil {
		return nil, err
	}
	for _, image := range covered {
		if len(doubts) == 0 {
			stays[image] = true
		}
	}
	repository, err := reference.Parse(stream.Spec.DockerImageRepository)
	follows := err == nil
	stay := 0
	for tag, left := range out {
		var events []imagev1.TagEvent
		for _, event := range left {
			if _, known := stays[event.Image]; !known && len(doubts) == 0 {
				if stays[event.Image], err = r.begins(ctx, event.Image); err != nil {
					return nil, err
				}
			}
			if len(doubts) > 0 || stays[event.Image] {
				stay++
			} else {
				events = append(events, event)
			}
		}
		if len(events) == 0 {
			continue
		}
		s.own[tag] = events
		spec := SpecTag(stream, tag)
		ref, known := repository.WithTag(tag), follows && reference.IsTag(tag)
		if spec != nil && spec.From != nil {
			ref, known = followed(spec)
		}
		if !known {
			continue
		}
		if r.mayShorten(ctx, stream, ref) {
			s.tags[ref] = append(s.tags[ref], events...)
		}
	}
	if stay > 0 {
		why := "the first item of a tag and what pods use is kept"
		if len(doubts) > 0 {
			why = "it is unknown what pods use: " + doubts[0]
		}
		warning.AddWarning(ctx, "", fmt.Sprintf("%s in the histories: %s", table.Clause(stay, "item", "stay"), why))
	}
	return s, nil
}

// begins reports whether what a tag of a stream itself has of a history begins with an image: by
// that it is known since when the tag has followed another.
func (r *Reader) begins(ctx context.Context, image string) (bool, error) {
	if image == "" {
		return false, nil
	}
	field := fields.OneTermEqualSelector(selectors.StreamLeads, image)
	obj, err := r.Streams.ListPredicate(genericapirequest.WithNamespace(ctx, metav1.NamespaceAll), r.predicate(labels.Everything(), field), &internalversion.ListOptions{Limit: 1})
	if err != nil {
		return false, err
	}
	return len(obj.(*imagev1.ImageStreamList).Items) > 0, nil
}

// mayShorten reports whether the writer of a stream's status may remove what a tag of a registry
// has led to from its history, which other streams show, too: of the stream's own repository, or
// where the tags of that are kept.
func (r *Reader) mayShorten(ctx context.Context, stream *imagev1.ImageStream, ref reference.Reference) bool {
	if own, follows := r.Own(stream); follows && own.Name() == ref.Name() {
		return true
	}
	_, may := r.May(ctx, authorizer.AttributesRecord{Verb: "update", Namespace: tags.Namespace, Resource: "imagestreams", Subresource: "status", Name: tags.Stream(ref)})
	return may
}

// without is a history without some events. Where it leads now stays.
func without(items, out []imagev1.TagEvent) (left []imagev1.TagEvent) {
	for i, item := range items {
		if i == 0 || !slices.ContainsFunc(out, func(e imagev1.TagEvent) bool { return e.Image == item.Image && e.Created.Equal(&item.Created) }) {
			left = append(left, item)
		}
	}
	return left
}

// shortenOwn takes out of a stream what it itself has.
func (s *shortening) shortenOwn(status *imagev1.ImageStreamStatus) {
	status.Tags = slices.Clone(status.Tags)
	for i := range status.Tags {
		status.Tags[i].Items = without(status.Tags[i].Items, s.own[status.Tags[i].Tag])
	}
}

// shortenTags takes out of the histories of the tags of registries what the stream showed of them.
func (s *shortening) shortenTags(ctx context.Context, to *imagetag.StatusREST, dryRun []string) error {
	ctx = genericapirequest.WithNamespace(ctx, tags.Namespace)
	for ref, out := range s.tags {
		transform := func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
			tag := old.(*imagev1.ImageTag).DeepCopy()
			if tag.UID == "" {
				return nil, apierrors.NewNotFound(imagev1.Resource("imagetags"), tags.Name(ref))
			}
			if tag.Status != nil {
				tag.Status.Items = without(tag.Status.Items, out)
			}
			return tag, nil
		}
		_, _, err := to.Update(ctx, tags.Name(ref), rest.DefaultUpdatedObjectInfo(nil, transform), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{DryRun: dryRun})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}
