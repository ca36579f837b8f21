package signatures

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/verdicts"
)

// AskAnyway is Ask for a reference that no policy covers: what is known of the signatures in its
// repository, and of them alone. It never says False, since nobody said who must sign. It says True
// only if an administrator has saved that.
func AskAnyway(image *imagev1.Image, asked reference.Reference) annotation.Verdict {
	found := annotation.Found(image.Annotations)
	v, here := anyway(image, found, holdersOf(found), asked.Name()), found[asked.Name()]
	switch {
	case v.Reason == "":
		v.Message = "an administrator saved this; no policy covers " + asked.String()
	case v.Verified == verdicts.NoPolicy:
		v.Message = fmt.Sprintf("no policy covers %s, and it has no signature there", asked)
	case v.Reason == string(ReasonSearchIncomplete):
		v.Message = fmt.Sprintf("no policy covers %s, and not all signatures there could be read: %s", asked, cmp.Or(here.Unread, here.Unusable))
	default:
		v.Message = fmt.Sprintf("it is signed, and no policy covers %s", asked)
	}
	return v
}

// Everywhere returns the words of the verdicts that an Image holds; if it is in no repository, its
// own.
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

// anyway is AskAnyway for all references of a repository, without the message. There is no reason
// for what an administrator has saved.
func anyway(image *imagev1.Image, found map[string]annotation.Repository, brought holders, repository string) annotation.Verdict {
	signed := slices.ContainsFunc(image.Signatures, func(s imagev1.ImageSignature) bool {
		return !isAttestation(&s) && brought.count(&s, repository)
	})
	_, ours := image.Annotations[AnnotationPolicy]
	here, v := found[repository], annotation.Verdict{Verified: verdicts.NoPolicy, Reason: string(ReasonNoMatchingPolicy)}
	switch {
	case signed && !ours && savedByAdministrator(image):
		v.Reason = ""
		v.Verified, v.Signers = saidOf(image, false)
	case signed || len(here.LeftOut) > 0:
		v.Verified = verdicts.VerifiedUnknown
	case here.Unread != "" || here.Unusable != "":
		v.Verified, v.Reason = verdicts.VerifiedUnknown, string(ReasonSearchIncomplete)
	}
	if slices.ContainsFunc(image.Signatures, func(s imagev1.ImageSignature) bool { return isAttestation(&s) && brought.count(&s, repository) }) {
		if v.Attested = verdicts.VerifiedUnknown; !ours {
			v.Attested, _ = saidOf(image, true)
		}
	}
	return v
}

// Held returns the verdicts that an Image holds: in each repository that it is in, in the order of
// [annotation.In], and then for each tag that is the scope of a policy. Where no policy covers a
// repository, it is that of AskAnyway.
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

// Change is a verdict of an Image that changed in one place.
type Change struct {
	annotation.HeldVerdict
	// Before is the word of the former verdict.
	Before string
}

// Changes compares the verdicts that an Image held before and holds now, in every place that it was
// in and is in: repositories, tags that are scopes, and both as the pods of namespaces see them.
// Where no policy covers it, the verdict is that of AskAnyway.
func Changes(before, after *imagev1.Image) (changed []Change) {
	was, is := heldAnywhere(before), heldAnywhere(after)
	places := maps.Clone(was)
	maps.Copy(places, is)
	for _, place := range slices.Sorted(maps.Keys(places)) {
		b, known := verdictFor(place, was)
		a, ok := verdictFor(place, is)
		if a.Place = place; known && ok && a.Verified != b.Verified {
			changed = append(changed, Change{a, b.Verified})
		}
	}
	return changed
}

// heldAnywhere are the verdicts that an Image holds, by their places, with those for the pods of
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

// verdictFor is the verdict for a place. If there is none for the pods of a namespace, it is that
// for everybody; if there is none for a tag, that of the repository.
func verdictFor(place string, held map[string]annotation.HeldVerdict) (v annotation.HeldVerdict, ok bool) {
	if v, ok = held[place]; ok {
		return v, true
	}
	key, _, _ := strings.Cut(place, "#")
	if v, ok = held[key]; ok {
		return v, true
	}
	ref, err := reference.Parse(key)
	if err != nil {
		return v, false
	}
	v, ok = held[ref.Name()]
	return v, ok
}

// savedByAdministrator reports whether conditions of signatures are neither absent nor the server's
// own.
func savedByAdministrator(image *imagev1.Image) bool {
	return slices.ContainsFunc(image.Signatures, func(s imagev1.ImageSignature) bool {
		return !isAttestation(&s) && len(s.Conditions) > 0 && !isNoPolicy(s.Conditions)
	})
}
