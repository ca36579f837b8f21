// Package tags keeps the histories of tags. Each tag of each repository has one ImageTag
// (image.openshift.io/v1), whose status lists what the tag has led to, the newest first.
//
// A tag has an object of its own, and is not part of an object of its repository: so the cost of a
// push, and the writers it can meet, do not depend on how many other tags the repository has. (An
// ImageStream of 10,000 tags would be larger than a request may be.)
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

// By is the annotation of an ImageTag that says who recorded each item of its history: a JSON array
// of texts in the order of the items. The server writes it. Cause is what a writer says of why it
// writes; the server adds who it is.
const (
	By    = "tidewaiter.dev/by"
	Cause = "tidewaiter.dev/cause"
)

// RenamedFrom begins the cause of who gives a tag another name. Whoever may accept moves may say
// then who recorded its history, and when a registry last confirmed it: no registry was asked.
const RenamedFrom = "renamed from "

// Stream is the name of a repository where a name can have no slash. Two repositories never have
// the same:
//
//   - a slash is written -- and the colon before a port _, so that
//     registry.example.com:5000/team/app is registry.example.com_5000--team--app;
//   - two or more dashes in a row become one more;
//   - an IPv6 address is ipv6_ and its 32 hex digits;
//   - what is longer than 200 bytes is cut, and ends in ___ and the SHA-256 of the repository.
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

// StreamBelow is the name of a repository below a prefix of its path: [Stream] of the rest of the
// path alone.
func StreamBelow(path string) string { return escape(path, path) }

// escape returns s without slashes and with a bounded length: a text that is cut ends in the hash
// of whole.
func escape(s, whole string) string {
	name := strings.ReplaceAll(dashes.ReplaceAllString(s, "$0-"), "/", "--")
	if len(name) <= maxStream {
		return name
	}
	sum := sha256.Sum256([]byte(whole))
	return name[:maxStream-len(cutMark)-2*len(sum)] + cutMark + hex.EncodeToString(sum[:])
}

const (
	maxStream = 200
	cutMark   = "___" // is in no host and in no repository
)

var dashes = regexp.MustCompile(`--+`)

// Name is the name of the ImageTag of a reference with a tag, <stream>:<tag>.
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

// Now returns what a tag leads to: the name of an Image, or "" if the registry no longer has the
// tag. known is false if no registry has been asked yet.
func Now(tag *imagev1.ImageTag) (image string, known bool) {
	if tag == nil || tag.Status == nil || len(tag.Status.Items) == 0 {
		return "", false
	}
	return tag.Status.Items[0].Image, true
}

// Since returns the digests to which a tag has led at or after a time, where it leads now first;
// none twice. whole is false if its history does not go back that far.
func Since(tag *imagev1.ImageTag, at time.Time) (digests []string, whole bool) {
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

// CheckedAt is the annotation of an ImageTag that says when, in RFC 3339, the registry last
// confirmed where the tag leads. The server writes it: with each change of the tag, and what was
// confirmed since without a change it adds when the tag is read.
const CheckedAt = "tidewaiter.dev/checked"

// maxSkew is how far clocks of servers may differ.
const maxSkew = time.Minute

// IsAhead reports whether a time is so much later than now that a clock has been wrong: it says
// nothing about how long ago something was.
func IsAhead(at, now time.Time) bool { return at.After(now.Add(maxSkew)) }

// Checked returns when the registry last confirmed where a tag leads, as far as that is recorded
// now; nil if it never did. If the time [IsAhead], nobody knows how long ago that was.
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

// Age returns how long ago the registry last confirmed where a tag leads. leads is false if it
// leads to nothing, or no registry has been asked yet, and known is false if the time [IsAhead].
func Age(tag *imagev1.ImageTag, now time.Time) (age time.Duration, leads, known bool) {
	at := Checked(tag, now)
	if image, _ := Now(tag); image == "" || at == nil {
		return 0, false, false
	}
	return max(0, now.Sub(at.Time)), true, !IsAhead(at.Time, now)
}

// isNews reports whether a confirmation adds to one that was recorded before it. If the clock was
// wrong at one of the times, or has been set back since, the times do not say which is later.
func isNews(at, recorded, now time.Time) bool {
	return IsAhead(at, now) != IsAhead(recorded, now) || recorded.Before(at)
}

// Confirm records now that the registry confirmed at a time where a tag leads, unless a later
// confirmation is recorded, or there is none yet.
func Confirm(tag *imagev1.ImageTag, at, now time.Time) {
	if had := Checked(tag, now); had == nil || at.IsZero() || !isNews(at.Truncate(time.Second), had.Time, now) {
		return
	}
	tag.Annotations = maps.Clone(tag.Annotations)
	metav1.SetMetaDataAnnotation(&tag.ObjectMeta, CheckedAt, at.UTC().Format(time.RFC3339))
}

// Lead records that a tag leads to a digest of its repository, or, with "", to none. It reports
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

// Merge returns one history of two of the same tag, which was stored under two names: its events by
// their time, the newest first.
func Merge(a, b []imagev1.TagEvent) []imagev1.TagEvent {
	items := slices.Concat(a, b)
	slices.SortStableFunc(items, func(a, b imagev1.TagEvent) int { return b.Created.Compare(a.Created.Time) })
	var merged []imagev1.TagEvent
	for _, item := range items {
		if n := len(merged); n > 0 && merged[n-1].Image == item.Image {
			merged[n-1] = item // it led there already
			continue
		}
		merged = append(merged, item)
	}
	return merged[:min(len(merged), MaxItems)]
}

// Fail records why the registry could not be asked, or why what the tag leads to could not be
// imported. An empty reason records success. It reports whether that is a change.
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

// Failure returns why the last look at a tag, or its import, failed; nil if it succeeded.
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

// Auto is the annotation of an ImageStream that was made because its repository was seen. Moved has
// the resourceVersion of the ImageTag that moved last of those that a stream follows: watchers of
// the stream see it change.
const (
	Auto  = "tidewaiter.dev/auto"
	Moved = "tidewaiter.dev/moved"
)

// Add records what a tag of a stream leads to if the tag asks no registry, by OpenShift's rule: the
// same reference, image and generation change nothing; the same reference, or the same image,
// changes the newest event; anything else becomes the newest event, and is not older than the one
// before. It reports whether there was a change.
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

// Follow returns the history of a tag that follows another: what the tag led to by itself until it
// followed the other, and, newer than that, what the other led to since. The newest own item is the
// event of the other with which the following began, if the other led anywhere then; its time may
// be later, as [Add] sets it.
//
// Events of the other are shown with at least the generation of the own ones: they have that of
// another object.
func Follow(own, other []imagev1.TagEvent) []imagev1.TagEvent {
	if len(own) == 0 {
		return onto(own, other)
	}
	return onto(own, before(other, func(e imagev1.TagEvent) bool { return e.Image == own[0].Image && !own[0].Created.Before(&e.Created) }))
}

// Pushed returns the history of a tag that is moved by its users in own and by pushes in pushes:
// own, and, newer than that, what was pushed since. The first item of own is among the pushes, too,
// unless the mover of the tag could not write it there. Then the pushes since are those after the
// newest that own has.
func Pushed(own, pushes []imagev1.TagEvent) []imagev1.TagEvent {
	is := func(a imagev1.TagEvent) func(imagev1.TagEvent) bool {
		return func(b imagev1.TagEvent) bool { return a.Image == b.Image && a.Created.Equal(&b.Created) }
	}
	if len(own) > 0 && slices.ContainsFunc(pushes, is(own[0])) {
		return onto(own, before(pushes, is(own[0])))
	}
	return onto(own, before(pushes, func(e imagev1.TagEvent) bool { return slices.ContainsFunc(own, is(e)) }))
}

// before returns the events before the first that is wanted; all if none is.
func before(events []imagev1.TagEvent, wanted func(imagev1.TagEvent) bool) []imagev1.TagEvent {
	if i := slices.IndexFunc(events, wanted); i >= 0 {
		return events[:i]
	}
	return events
}

// onto returns own and, newer than that, events of another object, with at least the generation and
// the time of what own begins with.
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
