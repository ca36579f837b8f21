package imagestream

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// PromotionAnnotation guards a tag in a stream's spec. Its one value is PromotionVerified: the tag
// moves only to images that a policy verifies in the repository from which the stream has them.
// Where the tag leads is then in the stream itself.
const (
	PromotionAnnotation = "tidewaiter.dev/promotion"
	PromotionVerified   = "verified"
)

// IsGuarded reports whether a tag moves to verified images alone. A nil tag does not.
func IsGuarded(tag *imagev1.TagReference) bool {
	return tag != nil && tag.Annotations[PromotionAnnotation] == PromotionVerified
}

// HasGuarded reports whether a stream has a tag that moves to verified images alone.
func HasGuarded(stream *imagev1.ImageStream) bool {
	return slices.ContainsFunc(stream.Spec.Tags, func(tag imagev1.TagReference) bool { return IsGuarded(&tag) })
}

// NotVerified returns why a guarded tag of a namespace may not move to an image, with
// [verdicts.ReasonNotVerified]; nil if it may. It fails if that cannot be found out. imported is
// false if the image is not stored, or not known to be in that repository.
func (r *Reader) NotVerified(ctx context.Context, namespace string, event *imagev1.TagEvent) (why *metav1.Status, imported bool, err error) {
	refuse := func(format string, args ...any) *metav1.Status {
		return &metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: verdicts.ReasonNotVerified,
			Message: fmt.Sprintf("the tag moves only to what a policy verifies (%s): %s", PromotionAnnotation, fmt.Sprintf(format, args...)),
		}
	}
	ref, bad := reference.Parse(event.DockerImageReference)
	if bad != nil || event.Image == "" {
		return refuse("%s leads to no image", event.DockerImageReference), true, nil
	}
	ref = ref.Bare().WithDigest(event.Image)
	image, err := r.stored(ctx, event.Image, event.DockerImageReference)
	if err != nil {
		return nil, false, err
	}
	if image == nil {
		return refuse("%s is not imported", ref), false, nil
	}
	v, err := r.Answers.Judge(ctx, image, ref, namespace)
	switch {
	case err != nil:
		return nil, true, fmt.Errorf("the verdict for %s is unknown: %w", ref, err)
	case v.Policy == "":
		return refuse("no policy covers %s", ref), true, nil
	case verdicts.IsVerified(v.Verified):
		return nil, true, nil
	case v.Message != "":
		return refuse("%s is %s: %s", ref, v.Verified, v.Message), true, nil
	}
	return refuse("%s is %s", ref, v.Verified), true, nil
}

// waits reports whether a guarded tag with a new image waits until the image is verified. It waits
// if it follows a tag that moves, or if the image is not imported yet. Otherwise no later change
// would move it, so waits returns an error with the reason why the tag may not lead there.
func (r *Reader) waits(ctx context.Context, stream *imagev1.ImageStream, tag *imagev1.TagReference, event *imagev1.TagEvent, imported bool) (bool, error) {
	_, registry := followed(tag)
	if _, other := SourcesOf(stream)[tag.Name]; registry || other {
		return true, nil
	}
	why, known, err := r.NotVerified(ctx, stream.Namespace, event)
	switch {
	case why == nil || err != nil:
		return false, err
	case !known && !imported && r.ToImport(tag):
		return true, nil
	}
	return false, apierrors.FromObject(why)
}

// held is where a guarded tag of a stream leads: to the last image that it was let move to, which
// the stream itself stores. would is where the tag would lead without the guard. While the two
// differ, a condition says what the tag waits for.
func held(name string, own *imagev1.NamedTagEventList, would imagev1.NamedTagEventList) imagev1.NamedTagEventList {
	history := imagev1.NamedTagEventList{Tag: name}
	if own != nil {
		history.Items, history.Conditions = own.Items, own.Conditions
	}
	switch {
	case len(would.Items) == 0 || leadsTo(&history) == would.Items[0].Image:
		history.Conditions = would.Conditions
	case tags.Failed(&history) == nil:
		history.Conditions = []imagev1.TagEventCondition{{
			Type: imagev1.ImportSuccess, Status: corev1.ConditionFalse, Reason: verdicts.ReasonNotVerified, LastTransitionTime: would.Items[0].Created,
			Message: would.Items[0].DockerImageReference + " waits to be verified",
		}}
	}
	return history
}

// leadsTo is the image that a tag with this history leads to; "" for none.
func leadsTo(history *imagev1.NamedTagEventList) string {
	if !Leads(history) {
		return ""
	}
	return history.Items[0].Image
}

func isNotVerified(c imagev1.TagEventCondition) bool { return c.Reason == verdicts.ReasonNotVerified }

// awaited returns why a guarded tag waits.
func awaited(own *imagev1.NamedTagEventList) (message string, waits bool) {
	if own == nil {
		return "", false
	}
	at := slices.IndexFunc(own.Conditions, isNotVerified)
	if at < 0 {
		return "", false
	}
	return own.Conditions[at].Message, true
}

// promote moves the guarded tags of a stream that is about to be written to where they would lead,
// as far as a policy verifies that. Of the others it records why they wait. A tag that its registry
// no longer has leads nowhere here, too. led are tags that the write itself has lead somewhere.
func (r *Reader) promote(ctx context.Context, stream *imagev1.ImageStream, led map[string]bool) error {
	var names []string
	for i := range stream.Spec.Tags {
		if IsGuarded(&stream.Spec.Tags[i]) && !led[stream.Spec.Tags[i].Name] {
			names = append(names, stream.Spec.Tags[i].Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	would, err := r.named(ctx, stream, false, names...)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := r.promoteTag(ctx, stream, SpecTag(stream, name), HistoryOf(would, name)); err != nil {
			return err
		}
	}
	return nil
}

// promoteTag is promote for one tag.
func (r *Reader) promoteTag(ctx context.Context, stream *imagev1.ImageStream, tag *imagev1.TagReference, would *imagev1.NamedTagEventList) error {
	own := HistoryOf(stream, tag.Name)
	next := next(tag, own, would)
	if next == nil {
		if own != nil {
			own.Conditions = slices.DeleteFunc(own.Conditions, isNotVerified)
		}
		return nil
	}
	generation := int64(0) // a requested import is not done yet
	if _, imported := importedNow(ctx, tag.Name); imported || !r.ToImport(tag) || IsSettled(stream, tag) {
		generation = next.Generation
		if tag.Generation != nil {
			generation = max(generation, *tag.Generation)
		}
	}
	if _, other := SourcesOf(stream)[tag.Name]; next.Image != "" || other {
		why, _, err := r.NotVerified(ctx, stream.Namespace, next)
		if err != nil {
			return err
		}
		if why != nil {
			SetFailed(OwnHistory(stream, tag.Name), why, generation)
			return nil
		}
	}
	next.Generation = generation
	tags.Add(OwnHistory(stream, tag.Name), *next)
	return nil
}

// next is where a guarded tag would lead that leads elsewhere now; nil if it leads there. own is
// the history in the stream.
func next(tag *imagev1.TagReference, own, would *imagev1.NamedTagEventList) *imagev1.TagEvent {
	if own == nil {
		own = &imagev1.NamedTagEventList{}
	}
	if tag.From != nil && tag.From.Kind == "DockerImage" && !tag.Reference && tag.Generation != nil {
		ref, err := reference.Parse(tag.From.Name)
		if err == nil && ref.Digest != "" && ref.Digest != leadsTo(own) && (len(own.Items) == 0 || own.Items[0].Generation < *tag.Generation) {
			return &imagev1.TagEvent{Created: metav1.NewTime(time.Now().UTC().Truncate(time.Second)), DockerImageReference: ref.String(), Image: ref.Digest}
		}
	}
	if would == nil || len(would.Items) == 0 || would.Items[0].Image == leadsTo(own) {
		return nil
	}
	event := would.Items[0]
	return &event
}

// reportGuarded reports the guarded tags of a stream that wait since a write, and of those that
// have moved by it.
func (r *Reader) reportGuarded(stream, before *imagev1.ImageStream) {
	if r.Guarded == nil || !HasGuarded(stream) {
		return
	}
	was := func(tag string) *imagev1.NamedTagEventList {
		if before == nil {
			return nil
		}
		return HistoryOf(before, tag)
	}
	for i := range stream.Spec.Tags {
		tag := &stream.Spec.Tags[i]
		if !IsGuarded(tag) {
			continue
		}
		is, old := HistoryOf(stream, tag.Name), was(tag.Name)
		why, waits := awaited(is)
		had, waited := awaited(old)
		switch {
		case waits && why != had:
			r.Guarded.Guarded(stream, true, fmt.Sprintf("%s:%s waits: %s", stream.Name, tag.Name, why))
		case waited && !waits && Leads(is) && leadsTo(is) != leadsTo(old):
			r.Guarded.Guarded(stream, false, fmt.Sprintf("%s:%s leads to %s, which a policy verifies", stream.Name, tag.Name, is.Items[0].DockerImageReference))
		}
	}
}
