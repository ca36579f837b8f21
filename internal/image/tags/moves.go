package tags

import (
	"encoding/json"
	"slices"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// First is the annotation of an ImageTag with the digest to which the tag first led, once the
// history no longer has it. The server writes it.
const First = "tidewaiter.dev/first"

// To accept the move of a tag that must not move, a user sets the annotation Accept of its ImageTag
// to the digest to which the tag leads now, and perhaps AcceptReason. The server removes both and
// adds an [Acceptance] to Accepted, a JSON array, the newest first.
const (
	Accept       = "tidewaiter.dev/accept"
	AcceptReason = "tidewaiter.dev/accept-reason"
	Accepted     = "tidewaiter.dev/accepted"
)

// MaxAcceptances bounds the acceptances that an ImageTag keeps.
const MaxAcceptances = 20

// Acceptance is a user's acceptance of a digest to which a tag leads, with time and reason.
type Acceptance struct {
	Digest string      `json:"digest"`
	By     string      `json:"by"`
	At     metav1.Time `json:"at"`
	Reason string      `json:"reason,omitempty"`
}

// Acceptances returns the accepted moves of a tag, the newest first.
func Acceptances(tag *imagev1.ImageTag) (all []Acceptance) {
	if tag == nil {
		return nil
	}
	// only the server writes it; if it cannot be read, nothing was accepted
	_ = json.Unmarshal([]byte(tag.Annotations[Accepted]), &all)
	return all
}

// AcceptMove records that a user accepts the digest to which a tag leads now.
func AcceptMove(tag *imagev1.ImageTag, by, reason string, at time.Time) {
	now, _ := Now(tag)
	keepAcceptances(tag, append([]Acceptance{{Digest: now, By: by, At: metav1.NewTime(at.UTC().Truncate(time.Second)), Reason: reason}}, Acceptances(tag)...))
}

// FirstOf returns the digest to which a tag first led; "" if it has led nowhere.
func FirstOf(tag *imagev1.ImageTag) string {
	if tag == nil {
		return ""
	}
	if first := tag.Annotations[First]; first != "" {
		return first
	}
	if tag.Status == nil {
		return ""
	}
	for i := len(tag.Status.Items) - 1; i >= 0; i-- {
		if image := tag.Status.Items[i].Image; image != "" {
			return image
		}
	}
	return ""
}

// KeepFirst stores in a tag the digest to which it first led, if the tag's history no longer has
// it. before is the tag before the change.
func KeepFirst(tag, before *imagev1.ImageTag) {
	if first := FirstOf(before); first != "" && FirstOf(tag) != first {
		metav1.SetMetaDataAnnotation(&tag.ObjectMeta, First, first)
	}
}

// Inherit merges the same tag under another name into a tag. It sets the merged history, whose
// events have the tag's own references, with its writers, the time of the last check, and the
// digest to which the tag must lead: the first digest of both, and the accepted moves of both.
func Inherit(tag, other *imagev1.ImageTag, history []imagev1.TagEvent) {
	inheritKept(tag, other)
	type event struct {
		at    int64
		image string
	}
	by, of := map[event]string{}, func(e imagev1.TagEvent) event { return event{e.Created.Unix(), e.Image} }
	confirmed := map[string]string{} // by the digest to which it led
	for _, from := range []*imagev1.ImageTag{tag, other} {
		now, known := Now(from)
		if !known {
			continue
		}
		confirmed[now] = max(confirmed[now], from.Annotations[CheckedAt]) // as texts, later times are greater
		writers := Writers(from)
		for i, item := range from.Status.Items[:min(len(writers), len(from.Status.Items))] {
			by[of(item)] = writers[i]
		}
	}
	tag.Status.Items = Merge(tag.Status.Items, history)
	writers := make([]string, len(tag.Status.Items))
	for i, item := range tag.Status.Items {
		writers[i] = by[of(item)]
	}
	SetWriters(tag, writers)
	now, _ := Now(tag)
	if at := confirmed[now]; at != "" {
		metav1.SetMetaDataAnnotation(&tag.ObjectMeta, CheckedAt, at)
	} else {
		delete(tag.Annotations, CheckedAt)
	}
}

// inheritKept is the part of Inherit about the digest to which the tag must lead. It reads the
// histories before they are merged.
func inheritKept(tag, other *imagev1.ImageTag) {
	begun := func(tag *imagev1.ImageTag) (first string, at time.Time) {
		if first = FirstOf(tag); first != "" && tag.Status != nil && len(tag.Status.Items) > 0 {
			at = tag.Status.Items[len(tag.Status.Items)-1].Created.Time
		}
		return first, at
	}
	first, at := begun(tag)
	if earlier, before := begun(other); earlier != "" && (first == "" || before.Before(at)) {
		first = earlier
	}
	if first != "" {
		metav1.SetMetaDataAnnotation(&tag.ObjectMeta, First, first)
	}
	all := append(Acceptances(tag), Acceptances(other)...)
	slices.SortStableFunc(all, func(a, b Acceptance) int { return b.At.Compare(a.At.Time) })
	keepAcceptances(tag, all)
}

// keepAcceptances writes the newest of some acceptances.
func keepAcceptances(tag *imagev1.ImageTag, all []Acceptance) {
	if len(all) == 0 {
		return
	}
	b, _ := json.Marshal(all[:min(len(all), MaxAcceptances)]) // texts and times always marshal
	metav1.SetMetaDataAnnotation(&tag.ObjectMeta, Accepted, string(b))
}

// Kept returns the digest to which a tag must lead if it must not move: the one that was accepted
// last, otherwise the first; "" if it has led nowhere.
func Kept(tag *imagev1.ImageTag) string {
	if all := Acceptances(tag); len(all) > 0 {
		return all[0].Digest
	}
	return FirstOf(tag)
}

// Move describes how a tag that must not move came to lead to another digest.
type Move struct {
	From, To string
	At       time.Time // zero if the history was cut and may have had the move
	By       string    // the writer that recorded it, "" if unknown
}

// Away returns the move of a tag to a digest, now or before, although it had to lead to another
// one; nil if there was none. It does not check whether the tag must not move. A digest to which
// the tag led before is no move if it is the first or was accepted. If the history has been cut,
// the tag may have led to any other digest.
func Away(tag *imagev1.ImageTag, digest string) *Move {
	kept := Kept(tag)
	if kept == "" || digest == "" || digest == kept || tag == nil || tag.Status == nil {
		return nil
	}
	if now, _ := Now(tag); digest != now {
		inOrder := func(a Acceptance) bool { return a.Digest == digest }
		if digest == FirstOf(tag) || slices.ContainsFunc(Acceptances(tag), inOrder) {
			return nil
		}
	}
	i := slices.IndexFunc(tag.Status.Items, func(e imagev1.TagEvent) bool { return e.Image == digest })
	if i < 0 {
		if len(tag.Status.Items) < MaxItems && Has(tag, FirstOf(tag)) {
			return nil // the history is complete
		}
		return &Move{From: kept, To: digest}
	}
	m := &Move{From: kept, To: digest, At: tag.Status.Items[i].Created.Time}
	if by := Writers(tag); i < len(by) {
		m.By = by[i]
	}
	return m
}

// Has reports whether the history of a tag has a digest, or is empty.
func Has(tag *imagev1.ImageTag, digest string) bool {
	return tag == nil || tag.Status == nil || slices.ContainsFunc(tag.Status.Items, func(e imagev1.TagEvent) bool { return e.Image == digest })
}

// Overwritten returns the move of a tag away from the digest to which it must lead if it must not
// move; nil if it leads there, or nowhere.
func Overwritten(tag *imagev1.ImageTag) *Move {
	now, _ := Now(tag)
	return Away(tag, now)
}

// Writers returns the writers of the items of a tag's history, in the order of the items.
func Writers(tag *imagev1.ImageTag) (by []string) {
	// only the server writes it; if it cannot be read, the move names no user
	_ = json.Unmarshal([]byte(tag.Annotations[By]), &by)
	return by
}

// SetWriters records the writers of the items of a tag's history.
func SetWriters(tag *imagev1.ImageTag, by []string) {
	b, _ := json.Marshal(by) // strings always marshal
	metav1.SetMetaDataAnnotation(&tag.ObjectMeta, By, string(b))
}
