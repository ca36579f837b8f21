package signatures

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// AskAnyway is Ask for a reference that no policy covers. The verdict is NoPolicy; the message
// shows whether the image is signed. If the signatures in the repository could not be read, it is
// Unknown. If an administrator has saved a verdict, AskAnyway returns that one.
func AskAnyway(image *imagev1.Image, asked reference.Reference) annotation.Verdict {
	found := annotation.Found(image.Annotations)
	brought := holdersOf(found)
	v, here := anyway(image, found, brought, asked.Name()), found[asked.Name()]
	switch {
	case v.Reason == "":
		v.Message = "an administrator saved this; no policy covers " + asked.String()
	case v.Reason == string(ReasonSearchIncomplete):
		v.Message = fmt.Sprintf("no policy covers %s, and not all signatures there could be read: %s", asked, cmp.Or(here.Unread, here.Unusable))
	case isSigned(image, brought, asked.Name()) || len(here.LeftOut) > 0:
		v.Message = fmt.Sprintf("it is signed, and no policy covers %s", asked)
	default:
		v.Message = fmt.Sprintf("no policy covers %s, and it has no signature there", asked)
	}
	return v
}

// isSigned reports whether an image has a signature in a repository.
func isSigned(image *imagev1.Image, brought holders, repository string) bool {
	return slices.ContainsFunc(image.Signatures, func(s imagev1.ImageSignature) bool {
		return !isAttestation(&s) && brought.count(&s, repository)
	})
}

// Everywhere returns the words of the verdicts that an Image holds. For an Image in no repository,
// it returns the Image's own verdict.
func Everywhere(image *imagev1.Image) (verified []string) {
	for _, v := range Held(image) {
		verified = append(verified, v.Verified)
	}
	if len(verified) == 0 {
		own, _, _ := Summary(image)
		verified = []string{own}
	}
	return verified
}

// anyway is AskAnyway for all references of a repository, without the message. A verdict that an
// administrator has saved has no reason.
func anyway(image *imagev1.Image, found map[string]annotation.Repository, brought holders, repository string) annotation.Verdict {
	signed := isSigned(image, brought, repository)
	_, ours := image.Annotations[AnnotationPolicy]
	here, v := found[repository], annotation.Verdict{Verified: verdicts.NoPolicy, Reason: string(ReasonNoMatchingPolicy)}
	switch {
	case signed && !ours && savedByAdministrator(image):
		v.Reason = ""
		v.Verified, v.Signers = conditionsSummary(image, false)
	case signed || len(here.LeftOut) > 0: // no policy covers it
	case here.Unread != "" || here.Unusable != "":
		v.Verified, v.Reason = verdicts.VerifiedUnknown, string(ReasonSearchIncomplete)
	}
	if slices.ContainsFunc(image.Signatures, func(s imagev1.ImageSignature) bool { return isAttestation(&s) && brought.count(&s, repository) }) {
		if v.Attested = verdicts.VerifiedUnknown; !ours {
			v.Attested, _ = conditionsSummary(image, true)
		}
	}
	return v
}

// Held returns the verdicts that are stored in an Image: for each of its repositories, in the order
// of [annotation.In], and then for each tag that is the scope of a policy. For a repository that no
// policy covers, AskAnyway gives the verdict.
func Held(image *imagev1.Image) (all []annotation.HeldVerdict) {
	judged, found := annotation.Judged(image.Annotations), annotation.Found(image.Annotations)
	notJudged, some := judged[annotation.NotJudged]
	var brought holders
	for _, repository := range annotation.In(image.Annotations, image.DockerImageReference, image.Name) {
		name := repository.String()
		v, covered := judged[name]
		switch {
		case covered:
		case some:
			v, covered = notJudged, true
		default:
			if brought == nil {
				brought = holdersOf(found)
			}
			v = anyway(image, found, brought, name)
		}
		all = append(all, annotation.HeldVerdict{Place: name, Covered: covered, Verdict: v})
	}
	for _, key := range slices.Sorted(maps.Keys(judged)) {
		if ref, err := reference.Parse(key); err == nil && ref.Tag != "" {
			all = append(all, annotation.HeldVerdict{Place: key, Covered: true, Verdict: judged[key]})
		}
	}
	return all
}

// Change is a changed verdict of an Image for one repository or tag.
type Change struct {
	annotation.HeldVerdict
	// Before is the word of the former verdict, which is Former.
	Before string
	Former annotation.Verdict
}

// Changes compares the former and the present verdicts of an Image. It does so for every repository
// that the Image was or is in, every tag that it had and has there, and both for the pods of
// namespaces. If no policy covers a place, AskAnyway gives the verdict. A tag is left out if its
// verdict equals its repository's, before and after.
func Changes(before, after *imagev1.Image) (changed []Change) {
	was, is := heldAnywhere(before), heldAnywhere(after)
	places := maps.Clone(was)
	maps.Copy(places, is)
	addTags(before, after, was, is, places)
	for _, place := range slices.Sorted(maps.Keys(places)) {
		b, known := verdictFor(place, was)
		a, ok := verdictFor(place, is)
		if a.Place = place; known && ok && a.Verified != b.Verified {
			changed = append(changed, Change{a, b.Verified, b.Verdict})
		}
	}
	return changed
}

// addTags adds the verdicts for tags that differ from their repository's. It ignores a tag that is
// new or gone, because its verdict has not changed. It also ignores tags if a former version judged
// the Image, because that version stored no verdicts for tags.
func addTags(before, after *imagev1.Image, was, is, places map[string]annotation.HeldVerdict) {
	differed, differ := annotation.JudgedTags(before.Annotations), annotation.JudgedTags(after.Annotations)
	if len(differed) == 0 && len(differ) == 0 {
		return
	}
	had, has := tagsOf(before), tagsOf(after)
	held := maps.Clone(was)
	maps.Copy(held, is)
	for _, from := range []struct {
		differing map[string]annotation.Verdict
		held      map[string]annotation.HeldVerdict
	}{{differed, was}, {differ, is}} {
		for key, v := range from.differing {
			of, namespace, _ := strings.Cut(key, "#")
			ref, err := reference.Parse(of)
			stamp := before.Annotations[AnnotationPolicy]
			if namespace != "" {
				stamp = before.Annotations[annotation.NamespacePolicy]
			}
			if err != nil || !slices.Contains(had, ref) || !slices.Contains(has, ref) || stamp != "" && !strings.Contains(stamp, "@"+rules) {
				continue
			}
			v := annotation.HeldVerdict{Place: key, Covered: true, Verdict: v}
			places[key], from.held[key] = v, v
			// The pods of a namespace may have had the general verdict before, or may have it now.
			for other := range held {
				if repository, namespace, ok := strings.Cut(other, "#"); ok && repository == ref.Name() {
					places[annotation.InNamespace(ref.String(), namespace)] = v
				}
			}
		}
	}
}

// heldAnywhere returns the verdicts that an Image holds, by place, including those for the pods of
// namespaces.
func heldAnywhere(image *imagev1.Image) map[string]annotation.HeldVerdict {
	all := map[string]annotation.HeldVerdict{}
	for _, v := range Held(image) {
		all[v.Place] = v
	}
	for key, v := range annotation.JudgedInNamespaces(image.Annotations) {
		all[key] = annotation.HeldVerdict{Place: key, Covered: true, Verdict: v}
	}
	return all
}

// verdictFor returns the verdict for a place. If there is none for a namespace, it returns the
// verdict for all pods; if there is none for a tag, the repository's, for the namespace first.
func verdictFor(place string, held map[string]annotation.HeldVerdict) (v annotation.HeldVerdict, ok bool) {
	if v, ok = held[place]; ok {
		return v, true
	}
	key, namespace, _ := strings.Cut(place, "#")
	if v, ok = held[key]; ok {
		return v, true
	}
	ref, err := reference.Parse(key)
	if err != nil {
		return v, false
	}
	if v, ok = held[annotation.InNamespace(ref.Name(), namespace)]; ok {
		return v, ok
	}
	v, ok = held[ref.Name()]
	return v, ok
}

// savedByAdministrator reports whether signatures have conditions that the server did not set.
func savedByAdministrator(image *imagev1.Image) bool {
	return slices.ContainsFunc(image.Signatures, func(s imagev1.ImageSignature) bool {
		return !isAttestation(&s) && len(s.Conditions) > 0 && !isNoPolicy(s.Conditions)
	})
}
