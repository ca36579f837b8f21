package answers

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// reviewTable is a review as kubectl and tidewaiter get show it, with a row for each reference.
var reviewTable = table.Of[*ReferenceReview]{
	Columns: []metav1.TableColumnDefinition{
		{Name: "Image", Type: "string", Description: "The beginning of the digest, or why there is none."},
		{Name: "Repository", Type: "string", Description: "The repository of the reference, shortened from the left; for a digest in several, how many more."},
		{Name: "Tag", Type: "string", Description: "The tag of the reference; for a digest, the tags that lead to it now."},
		{Name: "Verdict", Type: "string", Description: "The verdict for exactly this reference: True, ByIndex, False, Unsigned (a policy demands a signature), NoPolicy (no policy covers it), Excepted and until which day, or Unknown and why."},
		{Name: "Pods", Type: "string", Description: "Number of pods that run the image now; a plus means that there may be more, Unknown that there may be some."},
		{Name: "Outdated", Type: "string", Description: "Number of pods that name the tag but run a different image than it leads to now; a plus means that there may be more, Unknown that there may be some."},
		{Name: "Checked", Type: "string", Description: "Time since the registry last confirmed where the reference leads."},
		{Name: "Reference", Type: "string", Priority: 1, Description: "The whole reference."},
		{Name: "Size", Type: "string", Priority: 1, Description: "Bytes in the registry, each layer counted once."},
		{Name: "Platform", Type: "string", Priority: 1, Description: "The platform; for an index, those of its images."},
		{Name: "Policy", Type: "string", Priority: 1, Description: "The policies that cover the reference."},
		{Name: "Signer", Type: "string", Priority: 1, Description: "The signers of the trusted signatures."},
	},
	Rows: func(r *ReferenceReview) (rows [][]any) {
		for i := range r.Status.References {
			rows = append(rows, cells(&r.Status.References[i]))
		}
		return rows
	},
}

// localTable is a review of a namespace as kubectl shows it, with a row for each reference.
var localTable = table.Of[*LocalReferenceReview]{
	Columns: reviewTable.Columns,
	Rows: func(r *LocalReferenceReview) [][]any {
		return reviewTable.Rows(&ReferenceReview{Status: ReferenceReviewStatus{References: r.Status.References}})
	},
}

// Table is a review as kubectl shows it.
func Table(ctx context.Context, r *ReferenceReview) (*metav1.Table, error) {
	return reviewTable.ConvertToTable(ctx, r, nil)
}

// Bounds of cells, in bytes.
const (
	maxRepositoryCell = 36
	maxTagCell        = 22
)

func cells(a *Answer) []any {
	m := &a.Meaning
	image := "<" + strings.ToLower(string(a.State)) + ">"
	if m.Digest != "" {
		image = shortDigest(m.Digest)
	}
	repository, tag := m.Repository, m.Tag
	if repository == "" && len(m.Repositories) > 0 {
		repository = m.Repositories[0]
	}
	more := ""
	if m.Repository == "" && len(m.Repositories) > 1 {
		more = fmt.Sprintf(",+%d", len(m.Repositories)-1)
	}
	if repository = cutLeft(repository, maxRepositoryCell-len(more)) + more; repository == "" {
		repository = table.None
	}
	if tag == "" {
		tag = tagsOf(m)
	}
	outdated, checked, platform := table.Count(0, false), table.Unknown, m.Platform
	if a.Running != nil {
		outdated = table.Count(int(a.Running.Outdated), (a.Running.Complete || m.Tag == "") && a.Running.OutdatedUnknown == 0)
	}
	if at := a.Checked.LastChecked; at != nil {
		checked = metatable.ConvertToHumanReadableDateType(*at)
	}
	if len(m.Platforms) > 0 {
		var all []string
		for _, p := range m.Platforms {
			all = append(all, p.Platform)
		}
		platform = printable.Line(strings.Join(all, ","), 4*maxRepositoryCell)
	}
	policies, signers := "", ""
	if v := a.Verdict; v != nil {
		policies, signers = strings.Join(v.Policies, ","), strings.Join(v.Signers, ",")
	}
	return []any{
		image, repository, printable.Line(tag, maxTagCell), VerdictCell(a), PodsCell(a), outdated, checked,
		cmp.Or(m.Reference, m.Digest, a.Question.Reference), table.Size(m.Size), cmp.Or(platform, table.None), cmp.Or(policies, table.None), cmp.Or(signers, table.None),
	}
}

// PodsCell is the number of pods that run the image: with a plus while there may be more, and
// Unknown if there may be some.
func PodsCell(a *Answer) string { return a.Running.cell() }

func (r *Running) cell() string {
	if r == nil {
		return table.Count(0, false)
	}
	return table.Count(int(r.Pods), r.Complete)
}

// VerdictCell returns the verdict of an answer for a cell. If the reference names no repository, it
// is the verdict of all repositories of the image.
func VerdictCell(a *Answer) string {
	all := make([]verdicts.Verdict, 0, len(a.Verdicts)+1)
	if a.Verdict != nil {
		all = append(all, a.Verdict.brief())
	}
	for i := range a.Verdicts {
		all = append(all, a.Verdicts[i].brief())
	}
	return cmp.Or(verdicts.Cell(all), table.None)
}

func (v *Verdict) brief() verdicts.Verdict {
	return verdicts.Verdict{Verified: v.Verified, Reason: v.Reason, Covered: len(v.Policies) > 0, Until: v.Until}
}

// tagsOf names as many tags that lead to an image as fit.
func tagsOf(m *Meaning) string {
	var all []string
	for _, ref := range m.Tags {
		all = append(all, ref[strings.LastIndexByte(ref, ':')+1:])
	}
	if len(all) == 0 {
		return table.None
	}
	for n := len(all); n > 0; n-- {
		text := strings.Join(all[:n], ",")
		if n < len(all) {
			text += fmt.Sprintf(",+%d", len(all)-n)
		}
		if len(text) <= maxTagCell {
			return text
		}
	}
	return all[0]
}

// shortDigest is the part of a digest that people compare: the first 12 digits.
func shortDigest(digest string) string {
	if digits, ok := strings.CutPrefix(digest, "sha256:"); ok {
		return digits[:min(len(digits), 12)]
	}
	return digest[:min(len(digest), 15)]
}

// cutLeft cuts the beginning of a text that is too long.
func cutLeft(s string, limit int) string {
	const more = "…"
	if len(s) <= limit {
		return s
	}
	return more + s[len(s)-limit+len(more):]
}
