// Package tags keeps the histories of tags. Each tag of each repository has one ImageTag
// (image.openshift.io/v1), whose status lists what the tag has led to, the newest first.
//
// A tag is an object of its own, and not part of an object of its repository. So the cost of a
// push, and its conflicts with other writers, do not depend on the number of other tags in the
// repository. (An ImageStream of 10,000 tags would be larger than a request may be.)
package tags

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Namespace has the tags of all registries. If the repository's name chose the namespace, users who
// can push could create objects in any namespace, such as kube-system.
const Namespace = metav1.NamespaceDefault

// MaxItems bounds the history of a tag. The oldest items beyond it are left out.
const MaxItems = 100

// By is the annotation of an ImageTag with the writer of each item of its history: a JSON array of
// texts in the order of the items. The server writes it. In Cause, a writer sets why it writes; the
// server adds the writer's name.
const (
	By    = "tidewaiter.dev/by"
	Cause = "tidewaiter.dev/cause"
)

// RenamedFrom begins the cause of a writer that gives a tag another name. If this writer may accept
// moves, it may also set the writers of the history and the time of the last check, because it
// sends no request to a registry.
const RenamedFrom = "renamed from "

// Stream returns the name of a repository without slashes. No two repositories have the same name:
//
//   - a slash is written -- and the colon before a port _, so that
//     registry.example.com:5000/team/app is registry.example.com_5000--team--app;
//   - a row of two or more dashes gets one more dash;
//   - an IPv6 address is ipv6_ and its 32 hex digits;
//   - a name of more than 200 bytes is cut, and ends in ___ and the SHA-256 of the repository.
func Stream(repository reference.Reference) string {
	host, port := repository.Host, ""
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		host, port = host[:i], "_"+host[i+1:]
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		if address, err := netip.ParseAddr(strings.TrimSuffix(inner, "]")); err == nil {
			digits := address.As16()
			host = "ipv6_" + hex.EncodeToString(digits[:])
		}
	}
	return escape(host+port+"/"+repository.Repository, repository.Name())
}

// StreamBelow returns the name for the rest of a repository's path, below a prefix, as [Stream]
// does.
func StreamBelow(path string) string { return escape(path, path) }

// escape returns s without slashes and with a bounded length: a text that is cut ends in the hash
// of full.
func escape(s, full string) string {
	name := strings.ReplaceAll(dashes.ReplaceAllString(s, "$0-"), "/", "--")
	if len(name) <= maxStream {
		return name
	}
	sum := sha256.Sum256([]byte(full))
	return name[:maxStream-len(cutMark)-2*len(sum)] + cutMark + hex.EncodeToString(sum[:])
}

const (
	maxStream = 200
	cutMark   = "___" // is in no host and in no repository
)

var dashes = regexp.MustCompile(`--+`)

// Name returns the name of the ImageTag of a reference with a tag, <stream>:<tag>.
func Name(ref reference.Reference) string { return Stream(ref) + ":" + ref.Tag }

// New returns an ImageTag, without history, that follows a tag in a registry.
func New(ref reference.Reference) *imagev1.ImageTag {
	return &imagev1.ImageTag{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: Name(ref)},
		Spec:       &imagev1.TagReference{Name: ref.Tag, From: &corev1.ObjectReference{Kind: "DockerImage", Name: ref.String()}, ReferencePolicy: imagev1.TagReferencePolicy{Type: imagev1.SourceTagReferencePolicy}},
		Status:     &imagev1.NamedTagEventList{Tag: ref.Tag},
	}
}

// Reference returns the reference in a registry that an ImageTag follows; ok is false if it follows
// none.
func Reference(tag *imagev1.ImageTag) (ref reference.Reference, ok bool) {
	if tag.Spec == nil || tag.Spec.From == nil || tag.Spec.From.Kind != "DockerImage" {
		return reference.Reference{}, false
	}
	ref, err := reference.Parse(tag.Spec.From.Name)
	return ref, err == nil && ref.Tag != "" && ref.Digest == ""
}

// Now returns the name of the Image to which a tag leads, or "" if the registry no longer has the
// tag. known is false if no registry has been asked yet.
func Now(tag *imagev1.ImageTag) (image string, known bool) {
	if tag == nil || tag.Status == nil || len(tag.Status.Items) == 0 {
		return "", false
	}
	return tag.Status.Items[0].Image, true
}

// Since returns the digests to which a tag has led at or after a time, each once, the present one
// first. complete is false if the history does not go back that far.
func Since(tag *imagev1.ImageTag, at time.Time) (digests []string, complete bool) {
	if tag == nil || tag.Status == nil {
		return nil, true
	}
	for _, item := range tag.Status.Items {
		if item.Image != "" && !slices.Contains(digests, item.Image) {
			digests = append(digests, item.Image)
		}
		if !item.Created.After(at) {
			return digests, true
		}
	}
	return digests, len(tag.Status.Items) < MaxItems
}

// CheckedAt is the annotation of an ImageTag with the time, in RFC 3339, at which the registry last
// confirmed the tag. The server stores it with each change of the tag. The times of later checks,
// which changed nothing, it adds when the tag is read.
const CheckedAt = "tidewaiter.dev/checked"

// maxSkew is how far clocks of servers may differ.
const maxSkew = time.Minute

// IsAhead reports whether a time is so much later than now that a clock must have been wrong, so
// that the time is useless.
func IsAhead(at, now time.Time) bool { return at.After(now.Add(maxSkew)) }

// Checked returns the recorded time at which the registry last confirmed a tag; nil if it never
// did. If the time [IsAhead], it is unknown how long ago that was.
func Checked(tag *imagev1.ImageTag, now time.Time) *metav1.Time {
	if _, known := Now(tag); !known {
		return nil
	}
	at := tag.Status.Items[0].Created
	if confirmed, err := time.Parse(time.RFC3339, tag.Annotations[CheckedAt]); err == nil && isNews(confirmed, at.Time, now) {
		at = metav1.NewTime(confirmed)
	}
	return &at
}

// Age returns how long ago the registry last confirmed a tag. leads is false if the tag leads
// nowhere, or if no registry has been asked yet, and known is false if the time [IsAhead].
func Age(tag *imagev1.ImageTag, now time.Time) (age time.Duration, leads, known bool) {
	at := Checked(tag, now)
	if image, _ := Now(tag); image == "" || at == nil {
		return 0, false, false
	}
	return max(0, now.Sub(at.Time)), true, !IsAhead(at.Time, now)
}

// isNews reports whether a confirmation is later than the recorded one. If the clock was wrong at
// one of the times, or has been set back since, comparing the times is not enough.
func isNews(at, recorded, now time.Time) bool {
	return IsAhead(at, now) != IsAhead(recorded, now) || recorded.Before(at)
}

// Confirm records that the registry confirmed a tag at a time, unless a later confirmation is
// recorded, or the tag has no history yet.
func Confirm(tag *imagev1.ImageTag, at, now time.Time) {
	if had := Checked(tag, now); had == nil || at.IsZero() || !isNews(at.Truncate(time.Second), had.Time, now) {
		return
	}
	tag.Annotations = maps.Clone(tag.Annotations)
	metav1.SetMetaDataAnnotation(&tag.ObjectMeta, CheckedAt, at.UTC().Format(time.RFC3339))
}

// Lead records that a tag leads to a digest of its repository or, with "", nowhere. It reports
// whether that is a change. An event is never older than the one before it: writers have clocks of
// their own, and a writer that waited for another has read its clock earlier.
func Lead(tag *imagev1.ImageTag, ref reference.Reference, digest string, at metav1.Time) (changed bool) {
	if now, known := Now(tag); known && now == digest {
		return false
	}
	if len(tag.Status.Items) > 0 && at.Before(&tag.Status.Items[0].Created) {
		at = tag.Status.Items[0].Created
	}
	event := imagev1.TagEvent{Created: at, DockerImageReference: ref.String(), Image: digest}
	if digest != "" {
		event.DockerImageReference = ref.WithDigest(digest).String()
	}
	if tag.Spec != nil && tag.Spec.Generation != nil {
		event.Generation = *tag.Spec.Generation
	}
	items := append([]imagev1.TagEvent{event}, tag.Status.Items...)
	tag.Status.Items = items[:min(len(items), MaxItems)]
	tag.Status.Conditions = nil
	return true
}

// Merge merges two histories of the same tag, which was stored under two names: the events by time,
// the newest first.
func Merge(a, b []imagev1.TagEvent) []imagev1.TagEvent {
	items := slices.Concat(a, b)
	slices.SortStableFunc(items, func(a, b imagev1.TagEvent) int { return b.Created.Compare(a.Created.Time) })
	var merged []imagev1.TagEvent
	for _, item := range items {
		if n := len(merged); n > 0 && merged[n-1].Image == item.Image {
			merged[n-1] = item // the tag led there already
			continue
		}
		merged = append(merged, item)
	}
	return merged[:min(len(merged), MaxItems)]
}

// Fail records why the registry gave no answer, or why the tag's image could not be imported. An
// empty reason records success. It reports whether that is a change.
func Fail(tag *imagev1.ImageTag, reason, message string, at metav1.Time) (changed bool) {
	i := slices.IndexFunc(tag.Status.Conditions, func(c imagev1.TagEventCondition) bool { return c.Type == imagev1.ImportSuccess })
	switch {
	case reason == "" && i < 0, i >= 0 && tag.Status.Conditions[i].Reason == reason && tag.Status.Conditions[i].Status == corev1.ConditionFalse:
		return false
	case i >= 0:
		tag.Status.Conditions = slices.Delete(tag.Status.Conditions, i, i+1)
	}
	if reason == "" {
		return true
	}
	tag.Status.Conditions = append(tag.Status.Conditions, imagev1.TagEventCondition{
		Type: imagev1.ImportSuccess, Status: corev1.ConditionFalse, LastTransitionTime: at, Reason: reason, Message: message,
	})
	return true
}

// Failure returns why the last request for a tag, or its import, failed; nil if it succeeded.
func Failure(tag *imagev1.ImageTag) *imagev1.TagEventCondition { return Failed(tag.Status) }

// Failed returns why the last import of a stream's tag failed; nil if it succeeded, or if there was
// none.
func Failed(list *imagev1.NamedTagEventList) *imagev1.TagEventCondition {
	if list == nil {
		return nil
	}
	for i := range list.Conditions {
		if c := &list.Conditions[i]; c.Type == imagev1.ImportSuccess && c.Status == corev1.ConditionFalse {
			return c
		}
	}
	return nil
}

// Auto is the annotation of an ImageStream that the server made for a repository. Moved has the
// resourceVersion of the ImageTag that moved last among those that the stream follows, so that
// watchers of the stream get an event.
const (
	Auto  = "tidewaiter.dev/auto"
	Moved = "tidewaiter.dev/moved"
)

// Add records the target of a stream's tag that does not follow a registry, by OpenShift's rules.
// The same reference, image and generation change nothing. The same reference, or the same image,
// changes the newest event. Anything else becomes the newest event, and is not older than the
// previous one. Add reports whether there was a change.
func Add(list *imagev1.NamedTagEventList, next imagev1.TagEvent) (changed bool) {
	if len(list.Items) > 0 {
		newest := &list.Items[0]
		sameReference, sameImage := newest.DockerImageReference == next.DockerImageReference, newest.Image == next.Image
		if sameReference && sameImage && newest.Generation == next.Generation {
			return false
		}
		if sameReference || sameImage {
			newest.DockerImageReference, newest.Image, newest.Generation = next.DockerImageReference, next.Image, next.Generation
			list.Conditions = nil
			return true
		}
	}
	if len(list.Items) > 0 && next.Created.Before(&list.Items[0].Created) {
		// a tag that is followed again keeps the time of its move
		next.Created = list.Items[0].Created
	}
	items := append([]imagev1.TagEvent{next}, list.Items...)
	list.Items, list.Conditions = items[:min(len(items), MaxItems)], nil
	return true
}

// Follow returns the history of a tag that follows another: the tag's own events until it followed
// the other, and then the other's events since. The newest own event is the other's event with
// which the following began, if the other led anywhere then; its time may be later, as [Add] sets
// it.
//
// Events of the other get at least the generation of the own ones, because generations of two
// objects cannot be compared.
func Follow(own, other []imagev1.TagEvent) []imagev1.TagEvent {
	if len(own) == 0 {
		return onto(own, other)
	}
	return onto(own, before(other, func(e imagev1.TagEvent) bool { return e.Image == own[0].Image && !own[0].Created.Before(&e.Created) }))
}

// Pushed returns the history of a tag that both users (own) and pushes move: own, and then the
// later pushes. The newest event of own is also among the pushes, unless the user's move could not
// be written there. In that case, the later pushes are those after the newest push that own has.
func Pushed(own, pushes []imagev1.TagEvent) []imagev1.TagEvent {
	is := func(a imagev1.TagEvent) func(imagev1.TagEvent) bool {
		return func(b imagev1.TagEvent) bool { return a.Image == b.Image && a.Created.Equal(&b.Created) }
	}
	if len(own) > 0 && slices.ContainsFunc(pushes, is(own[0])) {
		return onto(own, before(pushes, is(own[0])))
	}
	return onto(own, before(pushes, func(e imagev1.TagEvent) bool { return slices.ContainsFunc(own, is(e)) }))
}

// before returns the events before the first wanted one; all if none is wanted.
func before(events []imagev1.TagEvent, wanted func(imagev1.TagEvent) bool) []imagev1.TagEvent {
	if i := slices.IndexFunc(events, wanted); i >= 0 {
		return events[:i]
	}
	return events
}

// onto returns own with newer events of another object, which get at least the generation and the
// time of own's newest event.
func onto(own, newer []imagev1.TagEvent) []imagev1.TagEvent {
	items := slices.Concat(newer, own)
	for i := len(newer) - 1; i >= 0 && len(own) > 0; i-- {
		items[i].Generation = max(items[i].Generation, own[0].Generation)
		if items[i].Created.Before(&items[i+1].Created) {
			items[i].Created = items[i+1].Created
		}
	}
	return items[:min(len(items), MaxItems)]
}
