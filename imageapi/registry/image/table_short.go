package image

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// Bounds of the cells of the table that is shown without -o wide, in bytes. With the number of pods
// in 7, an age in 7 and kubectl's 3 spaces between columns a line has at most 120.
const (
	maxShortName      = 15
	maxRepositoryCell = 36
	maxTagsCell       = 22
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

// repositories names the repository that the row is about, else the first that the image is in, and
// counts the others.
func (r *row) repositories() string {
	if r.asked.Host != "" {
		return cutLeft(r.asked.Name(), maxRepositoryCell)
	}
	if text := firstOf(annotation.In(r.Annotations, r.DockerImageReference, r.Name)); text != "" {
		return text
	}
	return orNone(printable.Line(r.DockerImageReference, maxRepositoryCell))
}

// firstOf names the first of some repositories, and counts the others.
func firstOf(all []reference.Reference) string {
	switch len(all) {
	case 0:
		return ""
	case 1:
		return cutLeft(all[0].Name(), maxRepositoryCell)
	}
	more := fmt.Sprintf(",+%d", len(all)-1)
	return cutLeft(all[0].Name(), maxRepositoryCell-len(more)) + more
}

// verdict is the worst verdict of all that the row has.
func (r *row) verdict() string {
	if len(r.held) == 0 {
		return verdicts.Verdict{Verified: r.verified}.Word()
	}
	all := make([]verdicts.Verdict, len(r.held))
	for i, v := range r.held {
		all[i] = verdicts.Verdict{Verified: v.Verified, Reason: v.Reason, Covered: v.Covered, Until: v.Until}
	}
	return verdicts.Cell(all)
}

// verdicts names each verdict, up to maxVerdicts.
func (r *row) verdicts() string {
	all := make([]string, len(r.held))
	for i, v := range r.held {
		all[i] = v.Verified + "@" + v.Place
	}
	return some(all, maxVerdicts)
}

// tags is the tag that the row is about, else as many tags as fit that lead to the image in the
// repository that the row is about, or in any, and a count of the others.
func (r *row) tags() string {
	if r.asked.Tag != "" {
		return printable.Line(r.asked.Tag, maxTagsCell)
	}
	var all []string
	for _, ref := range annotation.Known(r.Annotations) {
		if ref.Tag != "" && ref.Digest == "" && !slices.Contains(all, ref.Tag) && (r.asked.Host == "" || ref.Bare() == r.asked.Bare()) {
			all = append(all, ref.Tag)
		}
	}
	if len(all) == 0 {
		return table.None
	}
	plus := ""
	if r.Annotations[annotation.MoreReferences] != "" {
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
