package image

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/printable"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/table"
	"github.com/tidewaiter/tidewaiter/imageapi/verdicts"
)

// Bounds of the cells of the table that is shown without -o wide, in bytes. With the number of pods in 7, an age in 7 and
// kubectl's 3 spaces between columns a line has at most 120.
const (
	maxShortName      = 15
	maxRepositoryCell = 36
	maxTagsCell       = 22
	maxVerdictCell    = 18
)

// shortName is the part of an image's name that people compare: the first 12 digits of a digest.
func shortName(name string) string {
	if digits, ok := strings.CutPrefix(name, "sha256:"); ok && reference.IsDigest(name) {
		return digits[:12]
	}
	if reference.IsDigest(name) {
		return name[:maxShortName]
	}
	return printable.Line(name, maxShortName)
}

// cutLeft cuts the beginning of a text that is too long.
func cutLeft(s string, limit int) string {
	const more = "…"
	if len(s) <= limit {
		return s
	}
	return more + s[len(s)-limit+len(more):]
}

// repositories names the first repository that an image is in, and counts the others.
func repositories(image *imagev1.Image) string {
	all := annotation.In(image.Annotations, image.DockerImageReference, image.Name)
	switch len(all) {
	case 0:
		return orNone(printable.Line(image.DockerImageReference, maxRepositoryCell))
	case 1:
		return cutLeft(all[0].Name(), maxRepositoryCell)
	}
	more := fmt.Sprintf(",+%d", len(all)-1)
	return cutLeft(all[0].Name(), maxRepositoryCell-len(more)) + more
}

// tagsOf names as many tags that lead to an image as fit, in any repository, and counts the others.
func tagsOf(image *imagev1.Image) string {
	var all []string
	for _, ref := range annotation.Known(image.Annotations) {
		if ref.Tag != "" && ref.Digest == "" && !slices.Contains(all, ref.Tag) {
			all = append(all, ref.Tag)
		}
	}
	if len(all) == 0 {
		return table.None
	}
	plus := ""
	if image.Annotations[annotation.MoreReferences] != "" {
		plus = "+" // the image does not show them all
	}
	for n := len(all); n > 0; n-- {
		if text := some(all, n) + plus; len(text) <= maxTagsCell {
			return text
		}
	}
	more := plus
	if len(all) > 1 {
		more = fmt.Sprintf(",+%d%s", len(all)-1, plus)
	}
	return printable.Line(all[0], maxTagsCell-len(more)) + more
}

// verdictOf is the cell of verified. If it is Unknown, the cell says why.
func verdictOf(image *imagev1.Image, verified string) string {
	if verified != verdicts.VerifiedUnknown {
		return verified
	}
	why := unknownBecause(image)
	if short, ok := shortReasons[why]; ok {
		why = short
	}
	return printable.Line(verified+":"+why, maxVerdictCell)
}

// shortReasons are reasons (package signatures) in words that fit a cell.
var shortReasons = map[string]string{
	"NoMatchingPolicy":   "NoPolicy",
	"SignaturesLeftOut":  "LeftOut",
	"SearchIncomplete":   "Unread",
	"SignaturesUnusable": "Unusable",
	"IndexUnreadable":    "Index",
	"UnsupportedFormat":  "Format",
}

// unknownBecause is why nothing is known of an image's signatures: the reason of the first repository where that is so,
// else of the first signature that could not be judged.
func unknownBecause(image *imagev1.Image) string {
	judged := annotation.Judged(image.Annotations)
	for _, ref := range slices.Sorted(maps.Keys(judged)) {
		if v := judged[ref]; v.Verified == verdicts.VerifiedUnknown && v.Reason != "" {
			return v.Reason
		}
	}
	for i := range image.Signatures {
		for _, c := range image.Signatures[i].Conditions {
			if c.Type == verdicts.Trusted && c.Status == "Unknown" && c.Reason != "" {
				return c.Reason
			}
		}
	}
	for _, r := range annotation.Found(image.Annotations) {
		if r.Unread != "" {
			return "SearchIncomplete"
		}
		if r.Unusable != "" {
			return "SignaturesUnusable"
		}
	}
	return "NotJudged"
}

// podsOr is the cell of pods. It has a word for an unknown number, which cannot be taken for none.
func podsOr(pods string) string {
	if pods == table.None || pods == table.Unknown {
		return "Unknown"
	}
	return pods
}
